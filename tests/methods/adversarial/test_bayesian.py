"""Sampled pairs: their difference is one unit's clipped gradient, units follow the right law, and nobody notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.methods.adversarial import bayesian
from understudy.methods.adversarial.bayesian import PairLengths
from understudy.models.dpgan import DpganDiscriminatorConfig
from understudy.models.selu import SeluCritic
from understudy.privacy.randomness.streams import Randomness

from ...engines.dpsgd.steps import ALMOST_NONE, CLIP, STILL, Watched, everybody, make_event, make_step
from ...helpers.cases import CLASSES, RECORDS
from ...helpers.data import tiny_data, with_labels

FALSE_ALARM = 1e-6


def make_critic(kind: str = "labelled") -> SeluCritic:
    torch.manual_seed(0)
    classes, shape = None if kind == "unlabelled" else CLASSES, (3 if kind == "rgb" else 1, 8, 8)
    return SeluCritic(DpganDiscriminatorConfig(shape=shape, classes=classes, width=4))


class Listened:
    """A step, what a listener hears of it, and which units it asked about."""

    def __init__(self, folder: Path, *, pairs: int = 8, clip: float = CLIP, **changes: Any) -> None:
        changes = {"data": tiny_data(), "network": make_critic(), **changes}
        self.watched: Watched = make_step(folder, clip=clip, **changes)
        self.step, self.units, self.heard = self.watched.step, [], []
        norms = self.step.norms_private
        self.step.norms_private = lambda indices: self.units.append(indices.clone()) or norms(indices)
        random = self.watched.run.randomness.generator()
        self.lengths = PairLengths(self.step, pairs, clip, lambda block: self.heard.append(block.copy()), random)


@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
@pytest.mark.parametrize("clip", [0.5, 1000.0])
def test_a_length_is_how_far_the_unit_moves_the_sum_of_any_batch(kind, clip, tmp_path):
    """The sum of a batch with the unit, minus the sum of the same batch without it, through the step itself."""
    data = tiny_data(kind)
    found = Listened(tmp_path / "run", data=data, network=make_critic(kind), clip=clip)
    found.lengths.measure()
    found.lengths.flush()

    def total(members: list[int], name: str) -> torch.Tensor:
        watched = make_step(
            tmp_path / name, data.subset(np.array(members, dtype=np.int64)), network=make_critic(kind), clip=clip,
            companions=None, **everybody(RECORDS, noise_multiplier=ALMOST_NONE / clip), **STILL,
        )  # fmt: skip
        watched.step.take()
        return watched.sums[0]

    for batch in ([], [3, 5, 7]):
        without = total(batch, f"without {len(batch)}")
        for place, (unit, length) in enumerate(zip(found.units[0].tolist(), found.heard[0][0], strict=True)):
            members = [*(each for each in batch if each != unit), unit]
            before = without if len(members) > len(batch) else total(members[:-1], f"less {len(batch)} {place}")
            moved = float((total(members, f"with {len(batch)} {place}") - before).norm())
            assert moved <= length * clip * (1 + 1e-5)
            assert moved == pytest.approx(length * clip, rel=1e-3)
            assert 0 < length <= 1


def test_units_are_drawn_uniformly_and_afresh_for_every_step(tmp_path):
    """A chi-square test over records, at a false-alarm rate of 1e-6; drawing from half of them is rejected."""
    found = Listened(tmp_path / "run", pairs=64)
    for _ in range(40):
        found.lengths.measure()
    counts = torch.cat(found.units).bincount(minlength=RECORDS).numpy()
    assert len(counts) == RECORDS
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.chisquare(np.where(np.arange(RECORDS) < RECORDS // 2, 2 * counts, 0)).pvalue < FALSE_ALARM
    assert len({tuple(draw.tolist()) for draw in found.units}) == 40


def test_lengths_belong_to_the_weights_that_the_step_is_taken_from(tmp_path):
    found = Listened(tmp_path / "run", clip=1000.0, learning_rate=0.1)
    before = {name: value.clone() for name, value in found.watched.network.state_dict().items()}
    found.step.take()
    found.lengths.flush()
    taken, units = found.heard[0][0] * 1000.0, found.units[0]
    assert found.step.norms_private(units).numpy() != pytest.approx(taken), "the step has moved the weights"
    found.watched.network.load_state_dict(before)
    assert found.step.norms_private(units).numpy() == pytest.approx(taken)


def test_listening_changes_neither_the_steps_nor_what_they_cost(tmp_path):
    """With the same batches, companions and noise, the weights after some steps are the same with and without."""
    weights, spent = [], []
    for listens in (True, False):
        randomness = Randomness(7)
        if listens:
            found = Listened(tmp_path / "with", randomness=randomness)
            watched = found.watched
        else:
            watched = make_step(tmp_path / "without", network=make_critic(), randomness=randomness)
            randomness.generator()  # the listener's own, which is nobody else's business
        watched.step.take(5)
        weights.append(torch.cat([value.flatten() for value in watched.network.state_dict().values()]))
        spent.append(watched.step.remaining)
    assert torch.equal(*weights)
    assert spent == [45, 45]


def test_without_records_every_unit_counts_as_the_clip_bound(tmp_path):
    found = Listened(tmp_path / "run", data=with_labels([]))
    found.step.take(2)
    found.lengths.flush()
    assert (found.heard[0] == 1).all()


def test_a_gradient_that_is_not_finite_counts_as_the_clip_bound(tmp_path):
    found = Listened(tmp_path / "run", clip=1e6)
    with torch.no_grad():
        next(found.watched.network.parameters()).fill_(float("nan"))
    found.lengths.measure()
    found.lengths.flush()
    assert (found.heard[0] == 1).all()


def test_lengths_are_handed_on_in_blocks_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(bayesian, "_BLOCK", 4)
    found = Listened(tmp_path / "run", event=make_event(count=50))
    found.step.take(10)
    assert [len(block) for block in found.heard] == [4, 4]
    found.lengths.flush()
    found.lengths.flush()
    assert [block.shape for block in found.heard] == [(4, 8), (4, 8), (2, 8)]
    assert all((block > 0).all() and (block <= 1).all() for block in found.heard)
