"""What patch features learn: filters of edges and colours, from images of chance, the same for all data."""

from __future__ import annotations

import pytest
import torch

from understudy.engines.teacher import patches
from understudy.engines.teacher.patches import learn_filters
from understudy.models.patches import Patches


def learnt(shape: tuple[int, int, int], number: int = 16) -> Patches:
    features = Patches(shape, number)
    learn_filters(features)
    return features


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 16, 40)])
def test_every_filter_is_one_of_its_own_and_blind_to_brightness(shape):
    filters = learnt(shape).filters.flatten(1)
    assert filters.isfinite().all()
    assert filters.sum(dim=1).abs().max() < 1e-4
    lengths = filters.norm(dim=1)
    assert lengths.min() > 0.1
    likeness = (filters / lengths[:, None]) @ (filters / lengths[:, None]).T
    assert likeness.fill_diagonal_(0).abs().max() < 0.95


def test_they_hang_on_nothing_but_channels_and_the_side_of_a_patch():
    """Not on the size of the images, nor on any randomness from outside."""
    first = learnt((3, 32, 32))
    torch.manual_seed(5)
    second = learnt((3, 64, 48))
    assert torch.equal(first.filters, second.filters)
    assert torch.equal(first.offsets, second.offsets)


def test_answers_to_what_they_learnt_from_are_of_one_size_and_about_nothing():
    """In deviations: the threshold of the features means something."""
    features, random = learnt((3, 32, 32)), torch.Generator().manual_seed(0)
    seen = patches._patches(4000, 3, 6, random)
    answers = seen @ features.filters.flatten(1).double().T + features.offsets.double()
    assert answers.mean(dim=0).abs().max() < 1e-3
    deviations = answers.std(dim=0)
    assert deviations.min() > 0.5
    assert deviations.max() < 2


def test_some_see_colour_and_some_see_edges():
    filters = learnt((3, 32, 32), 32).filters
    grey = filters.mean(dim=1, keepdim=True)
    coloured = (filters - grey).square().sum(dim=(1, 2, 3)) / filters.square().sum(dim=(1, 2, 3))
    assert coloured.max() > 0.5
    assert coloured.min() < 0.5


def test_no_centre_is_lost_where_there_are_more_than_kinds_of_patches(monkeypatch):
    """As many as patches, so that some have no followers but themselves."""
    monkeypatch.setattr(patches, "_FEWEST_PATCHES", 60)
    monkeypatch.setattr(patches, "_PATCHES_A_FILTER", 1)
    monkeypatch.setattr(patches, "_AT_ONCE", 7)
    filters = learnt((1, 8, 8), 40).filters.flatten(1)
    assert filters.isfinite().all()
    assert filters.norm(dim=1).min() > 0.1


def test_as_many_filters_as_were_asked_for_even_where_that_is_one():
    assert learnt((1, 8, 8), 1).filters.shape == (1, 1, 4, 4)
