"""Patch features: their number, their values by hand, and that no image sees another.

Features of an image are bit for bit the same whatever else is in its batch and wherever it stands there, on a processor
and with one thread; that is what these tests run on.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from understudy.models.patches import FAINT, Patches


def random_images(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


def with_filters(shape: tuple[int, int, int], number: int = 5, mirrored: bool = False, seed: int = 1) -> Patches:
    """Features whose filters are numbers of chance, each with a sum of zero."""
    patches, random = Patches(shape, number, mirrored), torch.Generator().manual_seed(seed)
    filters = torch.randn(patches.filters.shape, generator=random)
    patches.filters.copy_(filters - filters.mean(dim=(1, 2, 3), keepdim=True))
    patches.offsets.copy_(0.2 * torch.randn(number, generator=random))
    return patches


@pytest.mark.parametrize(
    ("shape", "grid", "side"),
    [
        ((1, 8, 8), (2, 2), 4),
        ((1, 28, 28), (4, 4), 6),
        ((3, 32, 32), (4, 4), 6),
        ((3, 64, 64), (8, 8), 6),
        ((1, 9, 13), (2, 2), 4),
        ((3, 17, 40), (2, 5), 6),
        ((1, 8, 64), (2, 8), 4),
    ],
)
def test_there_are_so_many_features(shape, grid, side):
    """Two for each filter and cell, of about eight pixels."""
    patches = with_filters(shape)
    features = patches(random_images(2, shape))
    assert (patches.maps, patches.grid, patches.filters.shape[-1]) == (10, grid, side)
    assert features.shape == (2, 10, *grid)
    assert patches.count == 10 * grid[0] * grid[1]
    assert features.isfinite().all()
    assert list(patches.parameters()) == []
    assert set(patches.state_dict()) == {"filters", "offsets"}


def test_no_image_has_no_features():
    assert Patches((1, 8, 8), 3)(torch.empty(0, 1, 8, 8)).shape == (0, 6, 2, 2)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 18)])
def test_they_are_the_mean_answers_to_patches_of_one_contrast(shape):
    """Patch by patch, in double precision, and for one place after the other."""
    patches, image = with_filters(shape, number=3), random_images(1, shape)[0]
    side, (rows, columns) = patches.filters.shape[-1], patches.grid
    down, across = shape[1] - side + 1, shape[2] - side + 1
    answers = torch.empty(3, down, across, dtype=torch.float64)
    for y in range(down):
        for x in range(across):
            patch = image[:, y : y + side, x : x + side].double()
            patch = (patch - patch.mean()) / (patch.var(correction=0) + FAINT**2).sqrt()
            answers[:, y, x] = (patches.filters.double() * patch).sum(dim=(1, 2, 3)) + patches.offsets.double()
    maps = torch.cat([(answers - 0.75).clamp(min=0), (-answers - 0.75).clamp(min=0)])

    def cell(number: int, cells: int, places: int) -> slice:
        return slice(number * places // cells, -(-(number + 1) * places // cells))

    means = torch.stack(
        [
            torch.stack(
                [maps[:, cell(y, rows, down), cell(x, columns, across)].mean(dim=(1, 2)) for x in range(columns)]
            )
            for y in range(rows)
        ]
    ).permute(2, 0, 1)
    expected = (means - means.mean()) / (means.var(correction=0) + 1e-5).sqrt()
    found = patches(image[None])[0].double()
    assert torch.allclose(found, expected, atol=1e-4)
    assert not torch.allclose(found.roll(1, dims=0), expected, atol=0.1), "the comparison can fail"


def test_brightness_and_contrast_of_a_picture_hardly_count():
    patches, images = with_filters((3, 32, 32)), random_images(4, (3, 32, 32))
    features = patches(images)
    assert (patches(0.5 * images + 0.3) - features).abs().max() < 0.1
    assert (patches(images.flip(2)) - features).abs().max() > 0.5


def test_mirrored_features_know_no_left_and_right():
    """Those of an image and of its mirror image are the same; of one that stands on its head they are not."""
    images = random_images(4, (3, 24, 24))
    plain, mirrored = with_filters((3, 24, 24)), with_filters((3, 24, 24), mirrored=True)
    assert torch.allclose(mirrored(images.flip(3)), mirrored(images), atol=1e-5)
    assert (plain(images.flip(3)) - plain(images)).abs().max() > 0.5
    assert (mirrored(images.flip(2)) - mirrored(images)).abs().max() > 0.5


@pytest.mark.parametrize("grey", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("number", [5, 1])
def test_a_blank_image_has_no_nan(grey, number):
    features = with_filters((1, 16, 16), number)(torch.full((2, 1, 16, 16), grey))
    assert features.isfinite().all()


def test_without_filters_there_is_nothing_to_see():
    assert (Patches((1, 16, 16), 4)(random_images(2, (1, 16, 16))) == 0).all()


# Each image for itself


@pytest.mark.parametrize("mirrored", [False, True], ids=["plain", "mirrored"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 9, 13)])
def test_an_images_features_do_not_hang_on_what_is_beside_it(shape, mirrored, monkeypatch):
    """Bit for bit: alone, at another place, without its neighbour, beside images of any contrast, in other chunks."""
    images, patches = random_images(11, shape), with_filters(shape, mirrored=mirrored)
    features = patches(images)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    assert torch.equal(patches(images[order]), features[order])
    assert torch.equal(patches(images[1:]), features[1:])
    assert torch.equal(patches(images[7:8]), features[7:8])
    loud = images.clone()
    loud[:7], loud[8:] = 1e3 * loud[:7], 0.0
    assert torch.equal(patches(loud)[7], features[7])
    monkeypatch.setattr("understudy.models.patches._AT_ONCE", 3 * patches.maps * shape[1] * shape[2])
    assert torch.equal(patches(images), features)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13)])
def test_how_an_image_lies_in_memory_does_not_count(shape):
    """Bit for bit: channels last, or with the steps that a single image, or a single channel, may have."""
    images, patches = random_images(6, shape), with_filters(shape)
    features = patches(images)
    assert torch.equal(patches(images.contiguous(memory_format=torch.channels_last)), features)
    for number in range(6):
        one = images[number : number + 1].clone()
        if shape[0] == 1:
            one = one.as_strided(one.shape, (shape[1] * shape[2], 1, shape[2], 1))
        assert torch.equal(patches(one), features[number : number + 1])


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_nor_does_what_is_beside_it_where_filters_are_as_many_as_usual(shape):
    images, patches = random_images(30, shape), with_filters(shape, 256)
    assert torch.equal(patches(images[1:]), patches(images)[1:])


def test_one_that_is_not_finite_breaks_itself_alone():
    images, patches = random_images(5, (1, 8, 8)), with_filters((1, 8, 8))
    expected = patches(images)
    images[2, 0, 3, 3] = torch.nan
    images[3, 0, 0, 0] = torch.inf
    found = patches(images)
    assert torch.equal(found[[0, 1, 4]], expected[[0, 1, 4]])
    assert not found[[2, 3]].isfinite().flatten(1).all(dim=1).any()
