"""The basis of answers: orthonormal, exact, public, and no row touches another; several queries about one image."""

from __future__ import annotations

import pytest
import torch
from scipy import fft

from understudy.distributed import ALONE, Team
from understudy.engines.critics.frequencies import AnswerBasis, BasisSchedule, cosines
from understudy.engines.critics.panel import Critics

from ...helpers.data import tiny_data
from .test_sharing import SUBSETS, critics_of, shared, some_pool

SHAPES = [(1, 8, 8), (3, 28, 28), (1, 8, 12), (1, 33, 9)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, shape)) for shape in SHAPES])


def rows(shape, count=5):
    return torch.randn(count, torch.Size(shape).numel(), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("size", [1, 8, 9, 28, 64])
def test_cosines_are_orthonormal(size):
    whole = cosines(size, size)
    assert torch.allclose(whole @ whole.T, torch.eye(size, dtype=torch.float64), atol=1e-12)
    assert torch.equal(cosines(size, max(1, size // 2)), whole[: max(1, size // 2)]), "the lowest come first"


@shapes
@pytest.mark.parametrize("side", [1, 5, 8])
def test_the_values_are_the_first_of_a_cosine_transform(shape, side):
    """Against scipy's DCT-II of each channel for itself."""
    channels, height, width = shape
    images = rows(shape).double()
    transformed = fft.dctn(images.view(-1, *shape).numpy(), type=2, axes=(2, 3), norm="ortho")
    basis = AnswerBasis(shape, side)
    kept = transformed[:, :, : min(side, height), : min(side, width)].reshape(len(images), -1)
    assert torch.allclose(basis.project(images), torch.from_numpy(kept), atol=1e-12)
    assert basis.values == kept.shape[1] == channels * min(side, height) * min(side, width)


@shapes
def test_with_all_frequencies_the_way_there_and_back_changes_nothing(shape):
    images = rows(shape).double()
    basis = AnswerBasis(shape, max(shape[1:]))
    assert basis.values == images.shape[1]
    assert torch.allclose(basis.back(basis.project(images)), images, atol=1e-12)
    assert torch.allclose(basis.project(images).norm(dim=1), images.norm(dim=1), rtol=1e-12)


@shapes
def test_without_a_side_answers_stay_as_they_are(shape):
    images, basis = rows(shape), AnswerBasis(shape, None)
    assert basis.project(images) is images
    assert basis.back(images) is images
    assert basis.values == images.shape[1]


@shapes
@pytest.mark.parametrize("side", [1, 4, 7])
def test_the_way_back_is_the_transpose_and_no_row_grows(shape, side):
    basis, images = AnswerBasis(shape, side), rows(shape).double()
    values = torch.randn(len(images), basis.values, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    there, back = basis.project(images), basis.back(values)
    assert torch.allclose((there * values).sum(dim=1), (images * back).sum(dim=1), atol=1e-12)
    assert torch.allclose(basis.project(back), values, atol=1e-12)
    assert (there.norm(dim=1) <= images.norm(dim=1) * (1 + 1e-12)).all()
    assert basis.back(values.float()).dtype == torch.float32


def test_what_is_coarse_stays_and_what_is_fine_goes():
    places = torch.arange(28.0)
    smooth = torch.exp(-((places - 11) ** 2) / 60)
    image = (smooth[:, None] * smooth[None, :]).reshape(1, -1)
    checks = ((places[:, None] + places[None, :]) % 2 * 2 - 1).reshape(1, -1)
    basis = AnswerBasis((1, 28, 28), 8)
    assert float(basis.project(image).norm() / image.norm()) > 0.999
    assert float(basis.project(checks).norm() / checks.norm()) < 0.05


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 100, 783])
def test_a_broken_row_stays_broken_and_breaks_no_other(broken, place):
    """A mechanism must see it, count it and set it to zero."""
    images, basis = rows((1, 28, 28)), AnswerBasis((1, 28, 28), 8)
    whole = basis.project(images)
    images[2, place] = broken
    found = basis.project(images)
    others = [0, 1, 3, 4]
    assert not torch.isfinite(found[2]).any()
    assert torch.equal(found[others], whole[others])


def test_a_basis_stays_the_same_whatever_went_through_it():
    """What comes back is a function of sanitized values and of settings; nothing of private rows is left in it."""
    used, fresh = AnswerBasis((1, 28, 28), 8), AnswerBasis((1, 28, 28), 8)
    for private in (rows((1, 28, 28)), 1e30 * rows((1, 28, 28)), torch.full((3, 784), float("nan"))):
        used.project(private)
    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(4))
    assert torch.equal(used.back(values), fresh.back(values))
    assert torch.equal(used.project(rows((1, 28, 28))), fresh.project(rows((1, 28, 28))))


def test_huge_gradients_do_not_overflow():
    huge = torch.full((1, 784), torch.finfo(torch.float32).max)
    assert torch.isfinite(AnswerBasis((1, 28, 28), 28).project(huge)).all()


@pytest.mark.parametrize(
    ("sides", "steps", "expected"),
    [
        ((4,), 3, [4, 4, 4]),
        ((2, 4), 5, [2, 2, 2, 4, 4]),
        ((2, 4, 8), 6, [2, 2, 4, 4, 8, 8]),
        ((2, 2, 8), 6, [2, 2, 2, 2, 8, 8]),
        ((2, 4, 8), 2, [2, 4]),
        ((), 2, [None, None]),
    ],
)
def test_stages_share_the_steps_evenly_and_in_order(sides, steps, expected):
    schedule = BasisSchedule((1, 8, 8), sides, steps)
    assert [schedule.at(step).side for step in range(1, steps + 1)] == expected


# Several queries about one image


@pytest.mark.parametrize("kind", ["labelled", "unlabelled"])
def test_several_queries_about_an_image_are_answered_as_if_each_had_its_own_by_any_number_of_processes(kind):
    data, pool = tiny_data(kind), some_pool(4, labelled=kind == "labelled")
    routing = (torch.arange(12) * 5) % SUBSETS
    whole = critics_of(ALONE, data)
    whole.train_all(pool)
    state = {name: value.clone() for name, value in whole.bank.state().items()}

    def prepare(critics: Critics, team: Team) -> None:
        critics.bank.load_state({name: value[team.rank :: team.size] for name, value in state.items()})

    alone = whole.answer(pool, routing)
    assert len(alone) == 12
    for query in range(12):
        one = type(pool)(pool.images[[query // 3]], None if pool.labels is None else pool.labels[[query // 3]])
        assert torch.allclose(whole.answer(one, routing[[query]])[0], alone[query], atol=1e-6)
    several = shared(2, lambda critics: critics.answer(pool, routing), prepare, data)
    assert torch.allclose(several, alone, atol=1e-6)
