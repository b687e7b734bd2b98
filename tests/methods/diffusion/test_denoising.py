"""The loss of dp-diffusion: EDM's, with rows that follow their own unit and chance of their own alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from understudy.engines.records import Examples
from understudy.methods.diffusion.dp_diffusion import DpDiffusionMethodConfig, WarmUpConfig
from understudy.methods.diffusion.learner import Denoiser
from understudy.methods.registry import get_method

from ...helpers.data import tiny_data
from .runs import denoiser_of, make_denoiser, make_run

FALSE_ALARM = 1e-6


def examples_of(pixels: torch.Tensor, labels: torch.Tensor | None = None) -> Examples:
    count = len(pixels)
    return Examples(pixels, labels, torch.ones(count), torch.ones(count, dtype=torch.bool))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def quantiles(denoiser: Denoiser, units: int, draws: int, mean: float, deviation: float) -> np.ndarray:
    """Where the noise levels lie in the law of ln sigma: (units, draws) in 0..1."""
    levels = denoiser.denoising.noise_levels(units, draws, seeded()).double().log().view(units, draws).numpy()
    return stats.norm(mean, deviation).cdf(levels)


# The noise levels


@pytest.mark.parametrize(("mean", "deviation"), [(-0.8, 1.3), (-1.2, 1.2)])
def test_the_logarithm_of_a_level_is_normal(tmp_path, mean, deviation):
    """Each draw by itself, over many units; Kolmogorov-Smirnov of all draws together, false-alarm rate 1e-6.

    One draw of each unit, so that the values are independent.
    """
    denoiser = make_denoiser(tmp_path, noise_mean=mean, noise_deviation=deviation, paired=False)
    found = quantiles(denoiser, 20_000, 4, mean, deviation)
    pick = np.random.default_rng(0).integers(0, 4, len(found))
    assert stats.kstest(found[np.arange(len(found)), pick], "uniform").pvalue > FALSE_ALARM


@pytest.mark.parametrize("draws", [1, 3, 8])
def test_the_draws_of_a_unit_lie_one_in_each_of_equally_likely_parts(tmp_path, draws):
    """For every unit, and uniform inside its part: so nothing of a unit is stratified beyond its own draws."""
    denoiser = make_denoiser(tmp_path, paired=False)
    found = quantiles(denoiser, 5000, draws, -0.8, 1.3) * draws
    inside = np.clip(found - np.arange(draws), 0, 1)
    assert np.abs(found - np.arange(draws) - inside).max() < 1e-4, "a draw outside its part"
    worst = min(stats.kstest(inside[:, draw], "uniform").pvalue for draw in range(draws))
    assert worst > FALSE_ALARM / draws


def test_the_units_of_a_batch_are_independent(tmp_path):
    """Counts in eight cells of two units' draws, over many batches of two: no cell of the pair is avoided.

    Levels stratified over a batch would put two units into different parts of it. Chi-square of the 8x8 table, for a
    unit and its neighbour; false-alarm rate 1e-6.
    """
    denoiser = make_denoiser(tmp_path, paired=False)
    random, pairs = seeded(), []
    for _ in range(4000):
        pairs.append(denoiser.denoising.noise_levels(2, 1, random).double().log().numpy())
    cells = np.minimum((stats.norm(-0.8, 1.3).cdf(np.array(pairs)) * 8).astype(int), 7)
    table = np.zeros((8, 8))
    np.add.at(table, (cells[:, 0], cells[:, 1]), 1)
    assert stats.chisquare(table.flatten()).pvalue > FALSE_ALARM


def test_a_batch_is_as_uneven_as_chance_makes_it(tmp_path):
    """In a batch of 64 units the first draws fill eight parts of their law as balls fill boxes, not evenly.

    The chi-square statistics of 300 batches add up to a chi-square value; stratified over the batch, it would be near
    zero. False-alarm rate 1e-6, two-sided.
    """
    denoiser = make_denoiser(tmp_path, paired=False)
    random, total = seeded(), 0.0
    for _ in range(300):
        levels = denoiser.denoising.noise_levels(64, 2, random).double().log().view(64, 2)[:, 0].numpy()
        inside = np.clip(2 * stats.norm(-0.8, 1.3).cdf(levels), 0, 1)
        counts = np.bincount(np.minimum((inside * 8).astype(int), 7), minlength=8)
        total += ((counts - 8.0) ** 2 / 8.0).sum()
    law = stats.chi2(300 * 7)
    assert law.ppf(FALSE_ALARM / 2) < total < law.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize(("paired", "draws", "expected"), [(True, 4, 2), (True, 3, 3), (False, 4, 4), (True, 1, 1)])
def test_draws_in_pairs_share_a_level_where_their_number_is_even(tmp_path, paired, draws, expected):
    denoiser = make_denoiser(tmp_path, paired=paired)
    levels = denoiser.denoising.noise_levels(50, draws, seeded()).view(50, draws)
    assert all(len(set(unit.tolist())) == expected for unit in levels)
    if expected == 2:
        assert torch.equal(levels[:, 0::2], levels[:, 1::2])


# The rows of a unit


def noise_of(denoiser: Denoiser, examples: Examples, draws: int, random: torch.Generator) -> torch.Tensor:
    """What was added to the images, in units of the noise level: from the inputs, by EDM's c_in."""
    (seen, times, _), _ = denoiser.denoising.objective(examples, random)
    sigma = (times / 25).exp()[:, None, None, None]
    noisy = seen * (sigma**2 + 0.25).sqrt()
    return (noisy - (2 * examples.images - 1).repeat_interleave(draws, dim=0)) / sigma


def test_pairs_are_opposite_and_everything_else_is_fresh(tmp_path):
    """Normal by Kolmogorov-Smirnov, false-alarm rate 1e-6."""
    denoiser = make_denoiser(tmp_path, draws=4, noise_mean=1.0, noise_deviation=0.1)
    noise = noise_of(denoiser, examples_of(torch.rand(30, 1, 8, 8), torch.zeros(30).long()), 4, seeded())
    assert torch.allclose(noise[0::2], -noise[1::2], atol=1e-4)
    halves = noise[0::2].flatten(1)
    assert stats.kstest(halves.flatten().numpy(), "norm").pvalue > FALSE_ALARM
    products = halves @ halves.T / 64
    assert float((products - torch.diag(products.diagonal())).abs().max()) < 0.9


def test_draws_that_are_not_paired_have_noise_of_their_own(tmp_path):
    denoiser = make_denoiser(tmp_path, draws=4, paired=False, noise_mean=1.0, noise_deviation=0.1)
    noise = noise_of(denoiser, examples_of(torch.rand(5, 1, 8, 8), torch.zeros(5).long()), 4, seeded()).flatten(1)
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.8


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_row_follows_its_own_example_alone(tmp_path, mirrored):
    """With the same chance another image at one place, bright where it was dark, changes the rows of that unit alone.

    The others lie between the two, so each is brighter than the mean of its batch before and darker afterwards.
    """
    denoiser = make_denoiser(tmp_path, draws=4, mirrored=mirrored)
    pixels, labels = 0.45 + 0.1 * torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    pixels[2] -= 0.45
    changed, others = pixels.clone(), labels.clone()
    changed[2], others[2] = 1 - changed[2], 1
    (first, second) = (
        denoiser.denoising.objective(examples_of(*given), seeded(7)) for given in ((pixels, labels), (changed, others))
    )
    rows = torch.arange(20) // 4 == 2
    for part, other in zip(first[0], second[0], strict=True):
        assert torch.equal(part[~rows], other[~rows])
    assert not torch.equal(first[0][0][rows], second[0][0][rows])
    answers = torch.randn(20, 1, 8, 8)
    losses, moved = (loss(answers) for _, loss in (first, second))
    assert torch.equal(losses[~rows], moved[~rows])
    assert (losses[rows] != moved[rows]).all()


def test_more_units_do_not_change_the_law_of_a_unit(tmp_path):
    """Levels of a unit alone and of one among a hundred: two-sample Kolmogorov-Smirnov, false-alarm rate 1e-6."""
    denoiser = make_denoiser(tmp_path, paired=False)
    random = seeded()
    alone = np.array([float(denoiser.denoising.noise_levels(1, 2, random)[0]) for _ in range(3000)])
    among = denoiser.denoising.noise_levels(3000, 2, random).view(3000, 2)[:, 0].numpy()
    assert stats.ks_2samp(alone, among).pvalue > FALSE_ALARM


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.6])
def test_a_class_is_kept_back_as_often_as_stated(tmp_path, rate):
    """Exact binomial test, false-alarm rate 1e-6; rows of one unit by coins of their own."""
    denoiser = make_denoiser(tmp_path, label_dropout=rate, draws=4)
    labels = torch.arange(3000) % 3
    told = denoiser.denoising.objective(examples_of(torch.rand(3000, 1, 8, 8), labels), seeded())[0][2]
    missing = told == denoiser.live.nothing
    assert denoiser.live.nothing == 3
    assert torch.equal(told[~missing], labels.repeat_interleave(4)[~missing])
    assert stats.binomtest(int(missing.sum()), 12_000, rate).pvalue > FALSE_ALARM if rate else not missing.any()
    if rate:
        per_unit = missing.view(-1, 4).sum(dim=1)
        assert len(per_unit.unique()) > 2


def test_data_without_labels_have_one_class(tmp_path):
    denoiser = make_denoiser(tmp_path, tiny_data("unlabelled"), draws=2)
    (seen, _, told), loss = denoiser.denoising.objective(examples_of(torch.rand(6, 1, 8, 8)), seeded())
    assert told.tolist() == [0] * 12
    answers = denoiser.live.network(seen, torch.zeros(12), told)
    assert loss(answers).shape == (12,)


def turned(denoiser: Denoiser, units: int, random: torch.Generator) -> Tensor:
    """Which rows of units that are bright on the left show them mirrored: (units, draws)."""
    pixels = torch.zeros(units, 1, 8, 8)
    pixels[..., :4] = 1.0
    (seen, _, _), _ = denoiser.denoising.objective(examples_of(pixels, torch.zeros(units).long()), random)
    found = seen[..., 4:].mean(dim=(1, 2, 3)) > seen[..., :4].mean(dim=(1, 2, 3))
    assert torch.allclose(torch.where(found[:, None, None, None], seen.flip(-1), seen), seen[~found][:1], atol=0.1)
    return found.view(units, -1)


def test_no_row_is_mirrored_unless_it_is_asked_for(tmp_path):
    denoiser = make_denoiser(tmp_path, draws=2, noise_mean=-6.0, noise_deviation=0.1)
    assert not turned(denoiser, 100, seeded()).any()


def test_a_row_is_mirrored_by_a_fresh_coin_of_its_own(tmp_path):
    """Each batch has as many mirrored units as chance makes it, and so has each place of a batch over all batches.

    Coins that were balanced over a batch, or that followed the place in it, would tie units together. Sums of squares
    of standardised counts as chi-square, two-sided, false-alarm rate 1e-6 each; and the draws of a unit differ.
    """
    denoiser = make_denoiser(tmp_path, mirrored=True, draws=2, noise_mean=-6.0, noise_deviation=0.1)
    random, batches, units = seeded(), 300, 64
    coins = torch.stack([turned(denoiser, units, random) for _ in range(batches)]).double()
    for across, number, tossed in ((1, batches, units), (0, units, batches)):
        counts = coins[..., 0].sum(dim=across)
        total = float(((counts - tossed / 2) ** 2 / (tossed / 4)).sum())
        law = stats.chi2(number)
        assert law.ppf(FALSE_ALARM / 2) < total < law.isf(FALSE_ALARM / 2)
    same = int((coins[..., 0] == coins[..., 1]).sum())
    assert stats.binomtest(same, batches * units, 0.5).pvalue > FALSE_ALARM


# The loss


@pytest.mark.parametrize("draws", [1, 2])
def test_the_loss_is_that_of_edm(tmp_path, draws):
    """lambda(sigma) |D(x + n; sigma) - x|^2 over the draws, with D and lambda written out from the paper, by hand."""
    denoiser = make_denoiser(tmp_path, draws=draws, label_dropout=0.0)
    pixels = torch.linspace(0, 1, 3 * 64).view(3, 1, 8, 8)
    (seen, times, _), loss = denoiser.denoising.objective(examples_of(pixels, torch.zeros(3).long()), seeded(3))
    answers = torch.randn(3 * draws, 1, 8, 8, dtype=torch.float64)
    found = loss(answers)
    for row in range(3 * draws):
        sigma, image = math.exp(float(times[row]) / 25), (2 * pixels[row // draws] - 1).double()
        noisy = seen[row].double() * math.sqrt(sigma**2 + 0.5**2)
        skip, out = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / math.sqrt(sigma**2 + 0.25)
        weight = (sigma**2 + 0.25) / (sigma * 0.5) ** 2
        expected = weight * (skip * noisy + out * answers[row] - image).square().mean() / draws
        assert float(found[row]) == pytest.approx(float(expected), rel=1e-4)


def test_the_loss_of_a_unit_is_the_mean_over_its_draws(tmp_path):
    """So the gradient of a unit, summed over rows, does not grow with their number."""
    pixels, labels = torch.rand(2, 1, 8, 8), torch.zeros(2).long()
    for draws in (1, 2, 8):
        denoiser = make_denoiser(tmp_path / str(draws), draws=draws, noise_deviation=1e-6, noise_mean=2.0)
        (seen, _, _), loss = denoiser.denoising.objective(examples_of(pixels, labels), seeded())
        losses = loss(torch.zeros_like(seen)).view(2, draws).sum(dim=1)
        assert (losses > 0).all()
        assert float(losses.max()) < 5


def test_the_average_begins_as_the_weights_and_moves_behind_them(tmp_path):
    denoiser = make_denoiser(tmp_path, average_decay=0.9)
    pairs = list(zip(denoiser.released.parameters(), denoiser.live.parameters(), strict=True))
    assert all(torch.equal(mean, weight) for mean, weight in pairs)
    before = [mean.clone() for mean, _ in pairs]
    with torch.no_grad():
        for _, weight in pairs:
            weight += 1
    denoiser.average(10)  # early: it reaches back as many steps as there were
    assert all(torch.allclose(mean, old + 0.5, atol=1e-6) for (mean, _), old in zip(pairs, before, strict=True))
    denoiser.average(100_000)
    assert all(torch.allclose(mean, old + 0.55, atol=1e-6) for (mean, _), old in zip(pairs, before, strict=True))


def test_the_guide_is_the_average_until_it_is_left_behind(tmp_path):
    denoiser = make_denoiser(tmp_path, guide_after=0.4, sampler={"steps": 3, "autoguidance": 1.0})
    guide, left, steps = denoiser.released.guide, [], denoiser._run.plan.steps
    assert guide is not None
    for step in range(1, steps + 1):
        with torch.no_grad():
            for weight in denoiser.live.parameters():
                weight += 1
        denoiser.average(step)
        pairs = zip(guide.parameters(), denoiser.released.network.parameters(), strict=True)
        left.append(not all(torch.equal(*pair) for pair in pairs))
    assert left == [step > 0.4 * steps for step in range(1, steps + 1)]
    assert any(left)
    assert not all(left)


def test_a_config_without_mirror_images_and_guide_is_written_as_it_always_was():
    written = DpDiffusionMethodConfig().model_dump()
    assert not {"mirrored", "guide_after"} & set(written)
    assert DpDiffusionMethodConfig(mirrored=True, guide_after=0.3).model_dump()["guide_after"] == 0.3


# The warm-up


def shown_in_warm_up(tmp_path, monkeypatch, released, **warm_up: Any) -> tuple[Tensor, Tensor]:
    """Pixels and classes of all images of a warm-up on a run whose data cannot be read."""
    settings = {"images": 40, "steps": 4, "batch": 10, **warm_up}
    run = make_run(tmp_path, method={"warm_up": settings, "label_dropout": 0.0})
    monkeypatch.setattr(run, "data", None)
    denoiser, seen = denoiser_of(run), []
    genuine = denoiser.denoising.rows

    def watched(pixels: Tensor, labels: Tensor, draws: int, random: torch.Generator) -> Any:
        seen.append((pixels.clone(), labels.clone()))
        return genuine(pixels, labels, draws, random)

    monkeypatch.setattr(denoiser.denoising, "rows", watched)
    denoiser.warm_up(released)
    pixels, labels = zip(*seen, strict=True)
    return torch.cat(pixels), torch.cat(labels)


@pytest.mark.parametrize(("leaves", "among"), [(0.0, 0), (0.3, 3), (0.5, 5)])
def test_of_every_batch_of_the_warm_up_the_part_that_is_asked_for_is_leaves_without_a_class(
    tmp_path, monkeypatch, leaves, among
):
    white = torch.full((20, 1, 8, 8), 255, dtype=torch.uint8), torch.arange(20) % 3
    pixels, labels = shown_in_warm_up(tmp_path, monkeypatch, white, leaves=leaves)
    is_leaf = (pixels < 1).flatten(1).any(dim=1)
    assert is_leaf.view(4, 10).sum(dim=1).tolist() == [among] * 4
    assert torch.equal(is_leaf, labels == 3)


def test_without_a_start_the_warm_up_is_on_leaves_alone(tmp_path, monkeypatch):
    pixels, labels = shown_in_warm_up(tmp_path, monkeypatch, None, leaves=0.5)
    assert labels.tolist() == [3] * 40
    assert len(torch.unique(pixels)) > 20


@pytest.mark.parametrize(("leaves", "reports"), [(0.5, 4), (0.0, 0)])
def test_a_run_that_buys_no_start_warms_up_only_if_it_has_leaves(tmp_path, monkeypatch, leaves, reports):
    warm_up = {"images": 20, "steps": 4, "batch": 8, "leaves": leaves}
    nothing = {"start": "none", "embedding_share": None, "embedding_noise_multiplier": None}
    run = make_run(tmp_path, privacy=nothing, method={"warm_up": warm_up})
    told: list[float] = []
    monkeypatch.setattr(run, "prepare", lambda **values: told.append(values["warmed_up"]))
    get_method("dp-diffusion").train(run)
    assert len(told) == reports


def test_a_config_without_leaves_is_written_as_it_always_was():
    assert "leaves" not in WarmUpConfig().model_dump()
    assert WarmUpConfig(leaves=0.5).model_dump()["leaves"] == 0.5


def test_the_warm_up_learns_from_the_images_it_is_given_and_reads_no_record(tmp_path, monkeypatch):
    """It works on a run whose data cannot be read."""
    settings = {"images": 20, "steps": 30, "batch": 16, "learning_rate": 3e-3}
    run = make_run(tmp_path, method={"warm_up": settings})

    class Unreadable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"the warm-up asked for the data's {name}")

    losses: list[float] = []
    monkeypatch.setattr(run, "data", Unreadable())
    monkeypatch.setattr(run, "prepare", lambda **values: losses.append(values["warm_up_loss"]))
    denoiser = denoiser_of(run)
    images = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    denoiser.warm_up((images, torch.arange(20) % 3))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    assert all(
        torch.equal(mean, weight)
        for mean, weight in zip(denoiser.released.parameters(), denoiser.live.parameters(), strict=True)
    )
