"""The Sinkhorn divergence: plans, slopes against automatic differentiation, and cells that records do not share."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import InputError
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.methods.transport.dp_sinkhorn import TransportConfig
from understudy.methods.transport.sinkhorn import SinkhornCells, divergence_slopes, transport_plan
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import clip_rows
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, CLASSES, case_of
from ...helpers.data import tiny_data, with_labels

PIXELS = 64


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def transport(**changes: float) -> TransportConfig:
    return TransportConfig(**{"regularisation": 0.1, "iterations": 500, **changes})


def cells_of(
    folder: Path,
    data,
    settings: TransportConfig,
    *,
    batch: int = 40,
    seed: int | None = None,
    accounted: float | None = None,
) -> SinkhornCells:
    """Cells inside a run; a batch of 40 of the 40 nominal records takes every record."""
    method = get_method("dp-sinkhorn")
    config = configure(method, case_of("dp-sinkhorn").config())
    plan = method.plan(config, data.domain, BUDGET)
    run = Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(seed), torch.device("cpu"))
    sampling = PoissonSampling(rate=accounted or batch / data.domain.nominal_records)
    return SinkhornCells(run, settings, batch, Event(noise_multiplier=1.0, sampling=sampling, count=1))


# Plans


def test_a_plan_has_the_weights_that_were_asked_for():
    costs, weights = points(2, 4, 5), torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0], [0.2] * 5], dtype=torch.float64)
    plan = transport_plan(costs, weights, transport())
    assert torch.allclose(plan.sum(dim=2), torch.full((2, 4), 0.25, dtype=torch.float64))
    assert torch.allclose(plan.sum(dim=1), weights, atol=1e-9)
    assert (plan[0, :, 4] == 0).all()


def test_little_regularisation_finds_the_cheapest_matching():
    costs = points(1, 4, 4, seed=3)
    best = min(permutations(range(4)), key=lambda match: sum(float(costs[0, i, j]) for i, j in enumerate(match)))
    plan = transport_plan(costs, torch.full((1, 4), 0.25, dtype=torch.float64), transport(regularisation=2e-3))
    assert plan[0].argmax(dim=1).tolist() == list(best)
    assert plan[0].max(dim=1).values.numpy() == pytest.approx(np.full(4, 0.25), abs=1e-3)


def test_much_regularisation_matches_everything_with_everything():
    plan = transport_plan(points(1, 3, 5), torch.full((1, 5), 0.2, dtype=torch.float64), transport(regularisation=1e4))
    assert plan.numpy() == pytest.approx(np.full((1, 3, 5), 1 / 15), rel=1e-3)


def test_golden_value_of_a_plan_between_two_and_two():
    """By symmetry it is p on the diagonal and 1/2 - p beside it, with p / (1/2 - p) = exp(cost / regularisation)."""
    costs = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    plan = transport_plan(costs, torch.full((1, 2), 0.5, dtype=torch.float64), transport(regularisation=0.5))
    diagonal = 0.5 / (1 + np.exp(-2.0))
    assert plan[0].numpy() == pytest.approx(np.array([[diagonal, 0.5 - diagonal], [0.5 - diagonal, diagonal]]))


# Slopes


def _cost(first: torch.Tensor, second: torch.Tensor, regularisation: float) -> torch.Tensor:
    """W of two uniform sets: <plan, cost> + r KL(plan | product)."""
    costs = (first[:, None] - second[None]).square().sum(dim=2)[None]
    weights = torch.full((1, len(second)), 1 / len(second), dtype=torch.float64)
    plan = transport_plan(costs, weights, transport(regularisation=regularisation))
    return (plan * costs).sum() + regularisation * (plan * (plan * len(first) * len(second)).log()).sum()


def test_slopes_are_the_gradient_of_the_divergence():
    fakes, reals = points(1, 4, 3).requires_grad_(), points(1, 6, 3, seed=1)
    divergence = _cost(fakes[0], reals[0], 0.3) - _cost(fakes[0], fakes[0], 0.3) / 2
    (expected,) = torch.autograd.grad(divergence, fakes)
    weights = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    found = divergence_slopes(fakes.detach(), reals, weights, transport(regularisation=0.3))
    assert torch.allclose(2 / 4 * found, expected, atol=1e-9)


def test_equal_sets_have_no_slope_where_transport_alone_would_shrink():
    images = points(1, 5, 8)
    weights = torch.full((1, 5), 0.2, dtype=torch.float64)
    assert divergence_slopes(images, images.clone(), weights, transport()).abs().max() < 1e-9


def test_following_the_slopes_leads_to_the_reals():
    fakes, reals, weights = points(1, 6, 2), points(1, 6, 2, seed=5) + 1, torch.full((1, 6), 1 / 6, dtype=torch.float64)
    for _ in range(300):
        fakes = fakes - 0.3 * divergence_slopes(fakes, reals, weights, transport(regularisation=0.01, iterations=50))
    assert torch.cdist(fakes, reals).min(dim=2).values.max() < 0.05


def test_a_block_without_reals_has_slopes_of_zero_and_no_other_is_touched():
    fakes, reals = points(2, 3, 4), points(2, 5, 4, seed=1)
    weights = torch.zeros(2, 5, dtype=torch.float64)
    weights[1] = 0.2
    found = divergence_slopes(fakes, reals, weights, transport())
    alone = divergence_slopes(fakes[1:], reals[1:], weights[1:], transport())
    assert (found[0] == 0).all()
    assert torch.allclose(found[1:], alone)


# Cells


@pytest.mark.parametrize(("label_cost", "cells"), [(None, 1), (None, 3), (0.5, 1), (0.5, 4)])
def test_every_record_of_a_batch_reaches_one_cell_of_its_class(tmp_path, label_cost, cells):
    data = tiny_data()
    found = cells_of(tmp_path, data, TransportConfig(cells=cells, images=6, label_cost=label_cost))
    arranged, weights = found._arranged(torch.arange(len(data)))
    assert len(arranged) == found.blocks == (cells if label_cost else cells * CLASSES)
    pixels = (arranged[:, :, :PIXELS] * 8 * 255).round().to(torch.uint8)
    kept = sorted(row.numpy().tobytes() for row in pixels[weights > 0])
    assert kept == sorted(image.tobytes() for image in data.images)
    sums = weights.sum(dim=1)
    assert sums[sums > 0].numpy() == pytest.approx(1)
    if label_cost is None:
        classes = {image.tobytes(): label for image, label in zip(data.images, data.labels, strict=True)}
        for block, place in (weights > 0).nonzero().tolist():
            assert classes[pixels[block, place].numpy().tobytes()] == block // cells


@given(label=st.integers(0, CLASSES - 1), label_cost=st.sampled_from([None, 0.3]))
@settings(max_examples=10, deadline=None)
def test_a_record_more_changes_one_block_and_rounds_the_others_at_most(tmp_path_factory, label, label_cost):
    """The draws of the others are the same, as in the proof: all records take part, and the new one is the last."""
    options = TransportConfig(cells=2, images=CLASSES, label_cost=label_cost, iterations=5)
    images = points(options.images * (2 if label_cost else 2 * CLASSES), 1, 8, 8)
    answers = []
    for labels in ([0, 1, 2] * 4, [*([0, 1, 2] * 4), label]):
        answers.append(cells_of(tmp_path_factory.mktemp("run"), with_labels(labels), options, seed=1).slopes(images))
    moved = (answers[0] - answers[1]).norm(dim=1) / answers[0].norm(dim=1).clamp(min=1e-9)
    assert ((moved > 1e-3) | (moved < 1e-10)).all()
    changed = moved > 1e-3
    assert changed.sum() == 1
    if label_cost is None:
        assert int(changed.nonzero()) // 2 == label


@pytest.mark.parametrize("label_marks", [0.0, 50.0])
def test_at_the_smallest_settings_padding_rounds_blocks_far_inside_the_margin_of_clipping(label_marks):
    """Images on a coarse grid, many of them alike, so that plans have ties; the margin is 1e-6 of the bound."""
    pixels, smallest = 784, transport(regularisation=1e-3, iterations=300)
    random = torch.Generator().manual_seed(0)
    values = torch.randint(0, 3, (6, 8, pixels), generator=random).double() / 2 / pixels**0.5
    marks = torch.nn.functional.one_hot(torch.arange(8) % 2, 2).double().expand(6, 8, 2) * label_marks**0.5
    values = torch.cat([values, marks], dim=2)
    fakes, reals = values[:, :5], values[:, 4:7]
    blocks = []
    for padding in (0, 1, 5):
        padded = torch.cat([reals, torch.zeros(6, padding, values.shape[2], dtype=torch.float64)], dim=1)
        weights = torch.zeros(6, 3 + padding, dtype=torch.float64)
        weights[:, :3] = 1 / 3
        slopes = divergence_slopes(fakes, padded, weights, smallest)[:, :, :pixels].flatten(1) * pixels**0.5
        blocks.append(clip_rows(slopes, 1e-3))
    for other in blocks[1:]:
        assert (other - blocks[0]).norm() < 1e-8 * 1e-3


def test_an_empty_batch_is_a_batch(tmp_path):
    options = TransportConfig(cells=2, images=3, iterations=3)
    found = cells_of(tmp_path, with_labels([]), options).slopes(points(6 * CLASSES, 1, 8, 8).float())
    assert found.shape == (2 * CLASSES, 3 * PIXELS)
    assert (found == 0).all()


def test_generated_images_have_the_class_of_their_block(tmp_path):
    options = TransportConfig(cells=2, images=4)
    assert cells_of(tmp_path, tiny_data(), options).labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8


def test_a_label_cost_keeps_classes_apart(tmp_path):
    """All images grey: the slopes come from the labels alone, and a high cost leaves each class to itself."""
    found = cells_of(tmp_path, tiny_data(), TransportConfig(cells=1, images=6, label_cost=50.0))
    marked = found._points(torch.zeros(6, 1, 8, 8), found.labels)
    costs = torch.cdist(marked, marked).square()
    same = found.labels[:, None] == found.labels[None]
    assert (costs[same] < 1e-4).all()
    assert costs[~same].numpy() == pytest.approx(50)


def test_a_rate_that_is_not_accounted_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"rate of 0.5, but .*0.1.* is accounted"):
        cells_of(tmp_path, tiny_data(), TransportConfig(cells=1), batch=20, accounted=0.1)
