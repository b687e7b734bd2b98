"""The nearest-neighbour check: exact, and it notices a generator that copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from understudy.data.arrays import from_arrays
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.report import neighbours
from understudy.report.neighbours import check_neighbours

RANDOM = np.random.default_rng(0)


@dataclass
class FakeRelease:
    """Draws the images it was given."""

    images: Any
    domain: Domain

    def sample(self, count: int, labels: Any = None, seed: int | None = None) -> tuple[Any, None]:
        return self.images[:count], None


def noise(count: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_distances_are_those_of_all_pairs(shape, monkeypatch):
    monkeypatch.setattr(neighbours, "_BLOCK", 7)  # several blocks, the last one short
    records, drawn = noise(40, *shape), noise(30, *shape)
    data = from_arrays(records, records=40)
    result = check_neighbours(FakeRelease(drawn, data.domain), data, None)
    differences = drawn[:, None].astype(float) - records[None].astype(float)
    pairs = np.sqrt((differences**2).reshape(30, 40, -1).mean(axis=2)) / 255
    np.testing.assert_allclose(result.distances, pairs.min(axis=1), atol=1e-5)
    order = np.argsort(result.distances)[:10]
    np.testing.assert_array_equal(result.generated, drawn[order])
    np.testing.assert_array_equal(result.real, records[pairs.argmin(axis=1)[order]])
    assert result.held_out is None
    assert result.suspicious is None


def test_a_generator_that_copies_is_noticed_and_an_honest_one_is_not():
    data, test = from_arrays(noise(200, 8, 8), records=200), from_arrays(noise(300, 8, 8), records=300)
    copies = data.images[:100, 0].copy()
    assert check_neighbours(FakeRelease(copies, data.domain), data, test).suspicious == 1.0
    honest = check_neighbours(FakeRelease(noise(300, 8, 8), data.domain), data, test)
    assert honest.suspicious < 0.06  # 300 draws at 1 % exceed this with probability below 1e-6
    assert honest.held_out is not None


def test_images_of_another_size_are_refused():
    data = from_arrays(noise(10, 8, 8), records=10)
    other = from_arrays(noise(10, 9, 9), records=10)
    with pytest.raises(InputError, match="images of 1x9x9, but the generator draws 1x8x8"):
        check_neighbours(FakeRelease(noise(10, 8, 8), data.domain), other, None)
