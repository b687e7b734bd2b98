"""Dead leaves: images of chance alone that have the edges, flat places and spectrum of photographs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from understudy.engines.dead_leaves import dead_leaves


def drawn(count: int, shape: tuple[int, int, int] = (3, 32, 32), seed: int = 0) -> Tensor:
    return dead_leaves(count, shape, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 20)])
@pytest.mark.parametrize("count", [0, 3])
def test_they_are_8_bit_images_of_the_shape_that_is_asked_for(shape, count):
    images = drawn(count, shape)
    assert (images.shape, images.dtype) == ((count, *shape), torch.uint8)


def test_many_are_made_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr("understudy.engines.dead_leaves._AT_ONCE", 4)
    images = drawn(10, (1, 8, 8))
    assert len(images) == 10
    assert len({bytes(image.flatten().tolist()) for image in images}) == 10


def test_they_are_made_of_chance_alone():
    assert torch.equal(drawn(5), drawn(5))
    assert not torch.equal(drawn(5), drawn(5, seed=1))


def test_their_power_falls_with_the_frequency_as_that_of_photographs():
    """About as the inverse of its square: between frequencies 2 and 8 by 16, where white noise has 1."""
    planes = drawn(200).double().mean(dim=1)
    power = torch.fft.rfft2(planes).abs().square().mean(dim=0)[0]
    assert 8 < power[2] / power[8] < 40


def test_neighbours_are_mostly_alike_and_sometimes_far_apart():
    """Flat places and edges: differences have heavy tails (excess kurtosis; that of normal noise is 0)."""
    steps = np.diff(drawn(200).double().numpy(), axis=3).ravel()
    assert np.mean(steps**4) / np.mean(steps**2) ** 2 - 3 > 3


def test_channels_go_together_and_images_differ_in_colour():
    images = drawn(200).double()
    red, green, _ = images.flatten(2).transpose(0, 1).flatten(1)
    assert 0.5 < np.corrcoef(red, green)[0, 1] < 0.98
    means = images.mean(dim=(2, 3))
    assert (means[:, 0] - means[:, 1]).std() > 5  # of 255
