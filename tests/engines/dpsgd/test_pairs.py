"""Sampled pairs: their difference is one unit's clipped gradient, units follow the right law, and nobody notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.engines.dpsgd import pairs as pair_lengths
from understudy.engines.dpsgd.batches import BatchTable
from understudy.engines.dpsgd.step import DiscriminatorStep
from understudy.models.dpgan import DpganDiscriminatorConfig
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.models.selu import SeluCritic

from ...helpers.cases import CLASSES, RECORDS
from ...helpers.data import tiny_data, with_labels
from .test_step import CLIP, make_event, make_step

FALSE_ALARM = 1e-6


def networks(kind: str = "labelled"):
    torch.manual_seed(0)
    classes, shape = None if kind == "unlabelled" else CLASSES, (3 if kind == "rgb" else 1, 8, 8)
    critic = SeluCritic(DpganDiscriminatorConfig(shape=shape, classes=classes, width=4))
    config = GeneratorConfig(kind="selu", shape=shape, classes=classes, latent=3, width=4, output="tanh")
    return critic, build_generator(config)


def listening(step: DiscriminatorStep, run: Any, pairs: int = 8) -> tuple[pair_lengths.PairLengths, list[np.ndarray]]:
    heard: list[np.ndarray] = []
    return step.listen(run, lambda block: heard.append(block.copy()), pairs), heard


class Listened:
    """A step with its run, as ``make_step`` builds it, and what a listener hears of it."""

    def __init__(self, folder, monkeypatch, *, pairs=8, **changes):
        runs: list[Any] = []
        build = DiscriminatorStep.__init__

        def remember(self, run, *arguments):
            runs.append(run)
            build(self, run, *arguments)

        monkeypatch.setattr(DiscriminatorStep, "__init__", remember)
        self.step = make_step(folder, loss="wasserstein", **changes)
        self.lengths, self.heard = listening(self.step, runs[-1], pairs)


@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
@pytest.mark.parametrize("clip", [0.5, 1000.0])
def test_a_length_is_how_far_the_unit_moves_the_sum_of_any_batch(kind, clip, tmp_path, monkeypatch):
    """The sum of a batch with the unit, minus the sum of the same batch without it, through the step itself."""
    found = Listened(tmp_path / "run", monkeypatch, data=tiny_data(kind), nets=networks(kind), clip=clip)
    step, units = found.step, found.lengths._indices
    found.lengths.measure()
    found.lengths.flush()
    for batch in ([], [3, 5, 7]):
        for unit, length in zip(units.tolist(), found.heard[0][0], strict=True):
            totals = []
            for members in (batch, [*batch, unit]):
                step._total.zero_()
                step._add(torch.tensor(members, dtype=torch.long), None)
                totals.append(step._total.double().clone())
            moved = float((totals[1] - totals[0]).norm())
            assert moved <= length * clip * (1 + 1e-5)
            assert moved == pytest.approx(length * clip, rel=1e-3)
            assert 0 < length <= 1


def test_units_are_drawn_uniformly_and_afresh_for_every_step(tmp_path, monkeypatch):
    """A chi-square test over records, at a false-alarm rate of 1e-6; drawing from half of them is rejected."""
    found = Listened(tmp_path / "run", monkeypatch, nets=networks(), pairs=64)
    seen = []
    for _ in range(40):
        found.lengths.measure()
        seen.append(found.lengths._indices.clone())
    counts = torch.cat(seen).bincount(minlength=RECORDS).numpy()
    assert len(counts) == RECORDS
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.chisquare(np.where(np.arange(RECORDS) < RECORDS // 2, 2 * counts, 0)).pvalue < FALSE_ALARM
    assert len({tuple(draw.tolist()) for draw in seen}) == len(seen)


def test_lengths_belong_to_the_weights_that_the_step_is_taken_from(tmp_path, monkeypatch):
    found = Listened(tmp_path / "run", monkeypatch, nets=networks(), clip=1000.0)
    before = found.step._flat.values.clone()
    found.step.take()
    taken = found.lengths._latest.clone()
    found.step._flat.values.copy_(before)
    found.lengths._compute()
    assert found.lengths._latest == pytest.approx(taken)
    found.step._flat.values.mul_(2)
    found.lengths._compute()
    assert found.lengths._latest != pytest.approx(taken)


def test_listening_changes_neither_the_steps_nor_what_they_cost(tmp_path, monkeypatch):
    """With the same batches, fakes and noise, the weights after some steps are the same with and without a listener."""
    weights, spent = [], []
    for name in ("with", "without"):
        found = Listened(tmp_path / name, monkeypatch, nets=networks())
        step = found.step
        if name == "without":
            step._pairs = None
        step._random.manual_seed(1)
        monkeypatch.setattr(step._batches, "draw", same_batches)
        monkeypatch.setattr(step._mechanism, "_noisy", lambda exact, deviation: exact.double() + deviation)
        step.take(5)
        weights.append(step._flat.values.clone())
        spent.append(step.remaining)
    assert torch.equal(*weights)
    assert spent == [45, 45]


def same_batches(steps: int, multiple: int = 1) -> BatchTable:
    return BatchTable(torch.arange(4 * steps).reshape(steps, 4) % RECORDS, (4,) * steps, RECORDS)


def test_without_records_every_unit_counts_as_the_clip_bound(tmp_path, monkeypatch):
    found = Listened(tmp_path / "run", monkeypatch, data=with_labels([]), nets=networks())
    found.step.take(2)
    found.lengths.flush()
    assert (found.heard[0] == 1).all()


def test_a_gradient_that_is_not_finite_counts_as_the_clip_bound(tmp_path, monkeypatch):
    found = Listened(tmp_path / "run", monkeypatch, nets=networks(), clip=1e6)
    found.step._flat.values[0] = float("nan")
    found.lengths.measure()
    assert (found.lengths._latest == 1).all()


def test_lengths_are_handed_on_in_blocks_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_lengths, "_BLOCK", 4)
    found = Listened(tmp_path / "run", monkeypatch, nets=networks(), event=make_event(count=50))
    found.step.take(10)
    assert [len(block) for block in found.heard] == [4, 4]
    found.lengths.flush()
    found.lengths.flush()
    assert [block.shape for block in found.heard] == [(4, 8), (4, 8), (2, 8)]
    assert all((block > 0).all() and (block <= 1).all() for block in found.heard)


def test_a_bound_on_the_weights_is_kept_after_every_step(tmp_path, monkeypatch):
    found = Listened(tmp_path / "run", monkeypatch, nets=networks(), weight_bound=0.01)
    found.step.take(3)
    assert float(found.step._flat.values.abs().max()) == pytest.approx(0.01)
    assert CLIP == 0.5
