"""Normalisation with scale, shift and SiLU: its definition, one example at a time, and the kernels against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from understudy.models.normalisation import EPSILON, normalised

from ..helpers.kernels import DEVICE, kernels, needs_card

CASES = [(3, 32, 9, 8, True, True), (2, 24, 5, 4, False, True), (2, 16, 4, 8, True, False), (2, 8, 3, 8, False, False)]


def by_hand(features: Tensor, groups: int, film: Tensor | None, activate: bool) -> Tensor:
    count, channels = features.shape[:2]
    grouped = features.reshape(count, groups, -1)
    mean = grouped.mean(dim=2, keepdim=True)
    variance = (grouped - mean).square().mean(dim=2, keepdim=True)
    values = ((grouped - mean) / (variance + EPSILON).sqrt()).view_as(features)
    if film is not None:
        values = values * (1 + film[:, :channels, None, None]) + film[:, channels:, None, None]
    return values * values.sigmoid() if activate else values


def drawn(count: int, channels: int, side: int, scaled: bool) -> tuple[Tensor, Tensor | None]:
    features = 2 * torch.randn(count, channels, side, side + 1, dtype=torch.float64) + 1
    return features, torch.randn(count, 2 * channels, dtype=torch.float64) if scaled else None


@pytest.mark.parametrize(("count", "channels", "side", "groups", "scaled", "activate"), CASES)
def test_it_is_a_group_norm_a_scale_a_shift_and_silu(count, channels, side, groups, scaled, activate):
    features, film = drawn(count, channels, side, scaled)
    found = normalised(features, groups, film, activate=activate)
    assert torch.allclose(found, by_hand(features, groups, film, activate), atol=1e-9)
    plain = functional.group_norm(features, groups, eps=EPSILON)
    assert torch.allclose(normalised(features, groups, activate=False), plain)


def test_an_example_is_normalised_by_its_own_values_alone():
    features, film = drawn(4, 16, 5, True)
    changed = features.clone()
    changed[1] = 100 * changed[1] + 3
    found, other = (normalised(each, 8, film) for each in (features, changed))
    assert torch.equal(found[[0, 2, 3]], other[[0, 2, 3]])


@pytest.mark.parametrize(("count", "channels", "side", "groups", "scaled", "activate"), CASES)
def test_the_kernels_give_the_values_and_gradients_of_autograd(
    count, channels, side, groups, scaled, activate, monkeypatch
):
    kernel = kernels("models.normalisation_kernel", monkeypatch)
    features, film = drawn(count, channels, side, scaled)
    given = [part.requires_grad_() for part in (features, film) if part is not None]
    expected = by_hand(features, groups, film, activate)
    slopes = torch.randn_like(expected)
    backwards = torch.autograd.grad((expected * slopes).sum(), given)
    laid, below = (
        part.detach().float().to(DEVICE).contiguous(memory_format=torch.channels_last) for part in (features, slopes)
    )
    scales = None if film is None else film.detach().float().to(DEVICE)
    values, statistics = kernel.normalise(laid, scales, groups, EPSILON, activate)
    back = kernel.slopes_back(below, laid, scales, statistics, groups, activate)
    for found, wanted in zip((values, *back), (expected, *backwards), strict=False):
        assert torch.allclose(found.double().cpu(), wanted, atol=2e-4 * float(wanted.detach().abs().max()))
    assert (back[1] is None) == (film is None)


def test_the_kernels_keep_a_broken_example_to_itself(monkeypatch):
    kernel = kernels("models.normalisation_kernel", monkeypatch)
    features, film = (part.float().to(DEVICE) for part in drawn(3, 16, 5, True) if part is not None)
    laid = features.contiguous(memory_format=torch.channels_last)
    before, _ = kernel.normalise(laid, film, 8, EPSILON, True)
    laid[1, 3, 2, 2] = float("nan")
    after, _ = kernel.normalise(laid, film, 8, EPSILON, True)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.isfinite(after[1]).all()


@needs_card
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "channels", "side", "groups", "scaled", "activate"), CASES)
def test_on_a_card_it_is_the_same_operation(count, channels, side, groups, scaled, activate, kind):
    features, film = drawn(count, channels, side, scaled)
    given = [part.to(DEVICE, kind).requires_grad_() for part in (features, film) if part is not None]
    found = normalised(given[0], groups, given[1] if scaled else None, activate=activate)
    exact = [part.detach().double().cpu().requires_grad_() for part in given]
    wanted = by_hand(exact[0], groups, exact[1] if scaled else None, activate)
    tolerance = 1e-4 if kind is torch.float32 else 5e-2
    assert torch.allclose(found.double().cpu(), wanted, atol=tolerance * float(wanted.detach().abs().max()))
    slopes = torch.randn_like(wanted)
    backwards = torch.autograd.grad((found * slopes.to(DEVICE, kind)).sum(), given)
    expected = torch.autograd.grad((wanted * slopes).sum(), exact)
    for own, other in zip(backwards, expected, strict=True):
        assert torch.allclose(own.double().cpu(), other, atol=tolerance * float(other.abs().max()))
