"""Central images: one Poisson-sampled Gaussian of sensitivity C a query, over a public denominator, drawn once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.api import resume
from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.errors import BudgetError, InputError
from understudy.methods.diffusion.central_images import release_central_images
from understudy.methods.diffusion.dp_diffusion import CENTRAL_IMAGES
from understudy.privacy.events import PoissonSampling
from understudy.privacy.ledger import Account
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.run import Run

from ...helpers.data import tiny_data
from ...helpers.runs import interrupt
from .runs import make_run

CASE = "dp-diffusion from central images"
FALSE_ALARM = 1e-6
ALMOST_NONE, ALMOST_ALL = 1e-9, 1 - 1e-12  # of noise; of the records
BOUND = 0.5 * 4  # C of halved 8x8 images: sixteen pixels of 0.5 each


def grey(level: int, count: int, nominal: int, classes: int = 1) -> ImageDataset:
    """Images of one grey level, dealt out to the classes in turn."""
    images = np.full((max(1, count), 8, 8), level, dtype=np.uint8)
    data = from_arrays(images, np.arange(len(images)) % classes, classes=classes, records=nominal)
    return ImageDataset(data.name, data.domain, data.images[:count], data.labels[:count])


def run_of(folder: Path, data: ImageDataset, *, seed: int | None = None, **settings: Any) -> Run:
    privacy = {"central_images": {"queries": 2, "noise_multiplier": ALMOST_NONE, **settings}}
    return make_run(folder, data, case=CASE, seed=seed, privacy=privacy)


def released(run: Run) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Images, labels, and the noisy sums (queries, classes, values) that they were made from."""
    sums: list[torch.Tensor] = []
    run.ledger.witness = lambda _, value_dp: sums.append(value_dp.clone())
    images, labels = release_central_images(run)
    return images, labels, sums[0]


# The sums


@pytest.mark.parametrize("level", [255, 200])
def test_a_record_adds_at_most_the_bound_to_one_class_of_a_query(tmp_path, level):
    _, _, sums = released(run_of(tmp_path, grey(level, 1, 40, classes=3), rate=ALMOST_ALL))
    assert sums.shape == (2, 3, 16)
    for query in sums:
        assert float(query[0].norm()) == pytest.approx(BOUND, rel=1e-5)
        assert float(query[0].norm()) <= BOUND
        assert float(query[1:].abs().max()) < 1e-6


def test_one_more_record_moves_all_classes_together_by_at_most_the_bound(tmp_path):
    data = tiny_data()
    fewer = ImageDataset(data.name, data.domain, data.images[:-1], data.labels[:-1])
    sums = [
        released(run_of(tmp_path / str(number), each, rate=ALMOST_ALL))[2] for number, each in enumerate((data, fewer))
    ]
    moved = (sums[0] - sums[1]).flatten(1).norm(dim=1)
    assert (moved > 0.5 * BOUND).all()
    assert (moved <= BOUND).all()


def test_dark_images_are_added_as_they_are(tmp_path):
    _, _, sums = released(run_of(tmp_path, grey(51, 5, 40), rate=ALMOST_ALL))
    assert sums.flatten().tolist() == pytest.approx([5 * 0.2] * 32, rel=1e-6)


# The denominator


@pytest.mark.parametrize(("records", "nominal"), [(400, 200), (200, 200), (100, 200), (0, 200)])
def test_the_denominator_is_public(tmp_path, records, nominal):
    """Twice as many records are twice as bright: more of them change the numerator alone."""
    images, _, sums = released(run_of(tmp_path, grey(51, records, nominal), rate=0.5))
    expected = sums.mean(dim=2) / (0.5 * nominal)
    for image, brightness in zip(images, expected.flatten(), strict=True):
        assert torch.unique(image).tolist() == [round(255 * float(brightness))]


def test_classes_share_the_denominator_evenly(tmp_path):
    images, labels, sums = released(run_of(tmp_path, grey(51, 90, 90, classes=3), rate=ALMOST_ALL))
    assert labels.tolist() == [0, 1, 2] * 2
    assert torch.unique(images).tolist() == [51]
    assert sums[0, 0].tolist() == pytest.approx([30 * 0.2] * 16)


# Sampling, noise and price


def test_each_query_draws_its_own_records_at_the_rate_that_is_accounted(tmp_path):
    """How many records there are in each of 400 queries; binomial law by chi-square, false-alarm rate 1e-6."""
    run = run_of(tmp_path, grey(51, 60, 60), rate=0.3, queries=400)
    drawn = (released(run)[2].mean(dim=(1, 2)) / 0.2).round().int().numpy()
    law, edges = stats.binom(60, 0.3), [13, 15, 16, 17, 18, 19, 20, 21, 23]
    expected = np.diff(np.concatenate([[0], law.cdf(np.array(edges) - 1), [1]])) * 400
    counts = np.bincount(np.digitize(drawn, edges), minlength=len(expected))
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM
    assert run.plan.events[1].sampling == PoissonSampling(rate=0.3)
    assert run.ledger.events()[0].sampling == PoissonSampling(rate=0.3)


def test_the_draws_of_two_queries_are_independent(tmp_path):
    """Which of 60 records of different brightness are in both: sums of two queries are hardly ever the same."""
    levels = np.arange(60, dtype=np.uint8)[:, None, None] * np.ones((1, 8, 8), dtype=np.uint8)
    data = from_arrays(levels, np.zeros(60, dtype=int), classes=1, records=60)
    _, _, sums = released(run_of(tmp_path, data, rate=0.5, queries=20))
    assert len({round(float(query), 3) for query in sums.mean(dim=(1, 2))}) > 10


def test_the_noise_is_that_of_the_event_in_every_class_of_every_query(tmp_path):
    """Deviation C times the multiplier, without any record; chi-square, false-alarm rate 1e-6."""
    run = run_of(tmp_path, grey(51, 0, 40, classes=3), noise_multiplier=2.0, queries=40)
    _, _, sums = released(run)
    law = stats.chi2(sums.numel(), scale=(2.0 * BOUND) ** 2)
    assert law.ppf(FALSE_ALARM / 2) < float(sums.square().sum()) < law.isf(FALSE_ALARM / 2)
    assert len(torch.unique(sums)) == sums.numel()


def test_every_query_is_one_execution_of_sensitivity_c(tmp_path):
    run = run_of(tmp_path, tiny_data(), queries=7)
    release_central_images(run)
    (event,) = run.ledger.events()
    assert (event.purpose, event.sensitivity) == (CENTRAL_IMAGES, "C")
    assert (event.planned, event.executed) == (7, 7)
    assert event.noise_multiplier == run.plan.events[1].noise_multiplier == ALMOST_NONE


@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
def test_images_have_the_shape_of_the_data(tmp_path, kind):
    data = tiny_data(kind)
    images, labels, _ = released(run_of(tmp_path, data, noise_multiplier=1.0))
    assert images.dtype == torch.uint8
    assert images.shape == (2 * (data.domain.classes or 1), *data.domain.shape)
    assert (labels is None) == (kind == "unlabelled")


def test_odd_sides_are_halved_as_a_function_of_one_image(tmp_path):
    data = from_arrays(np.full((10, 9, 11), 51, dtype=np.uint8), np.zeros(10, dtype=int), classes=1, records=10)
    images, _, sums = released(run_of(tmp_path, data, rate=ALMOST_ALL))
    assert sums.shape[2] == 5 * 6
    assert sums.flatten().tolist() == pytest.approx([10 * 0.2] * 60, rel=1e-6)
    assert torch.unique(images).tolist() == [51]


# Once


def again(folder: Path, data: ImageDataset) -> torch.Tensor:
    """What a new process gets from the same folder."""
    return release_central_images(run_of(folder, data, noise_multiplier=1.0))[0]


def test_they_are_drawn_and_charged_once_however_often_a_run_begins(tmp_path):
    data = tiny_data()
    first = again(tmp_path, data)
    assert torch.equal(first, again(tmp_path, data))
    assert run_of(tmp_path, data, noise_multiplier=1.0).ledger.events()[0].executed == 2


class Killed(BaseException):
    """As if the process had been killed."""


def kill(*arguments: object, **named: object) -> None:
    raise Killed


def test_killed_before_the_record_the_sums_are_drawn_again_and_never_used(tmp_path, monkeypatch):
    data = tiny_data()
    with monkeypatch.context() as patch:
        patch.setattr(Account, "spend", kill)
        with pytest.raises(Killed):
            again(tmp_path, data)
    run = run_of(tmp_path, data, noise_multiplier=1.0)
    pending = run.files.central_images.with_suffix(".pending")
    thrown_away = pending.read_bytes()
    assert not any(event.executed for event in run.ledger.events())
    again(tmp_path, data)
    assert run.files.central_images.read_bytes() != thrown_away
    assert run_of(tmp_path, data, noise_multiplier=1.0).ledger.events()[0].executed == 2


def test_killed_after_the_record_the_same_sums_are_found_again(tmp_path, monkeypatch):
    data, rename = tiny_data(), Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda self, to: kill() if self.suffix == ".pending" else rename(self, to))
        with pytest.raises(Killed):
            again(tmp_path, data)
    run = run_of(tmp_path, data, noise_multiplier=1.0)
    assert run.ledger.events()[0].executed == 2
    kept = run.files.central_images.with_suffix(".pending").read_bytes()
    monkeypatch.setattr(GaussianSum, "accumulate", lambda *given: pytest.fail("the records were looked at again"))
    again(tmp_path, data)
    assert run.files.central_images.read_bytes() == kept


def test_sums_that_were_paid_for_and_are_gone_are_not_drawn_again(tmp_path):
    data = tiny_data()
    again(tmp_path, data)
    run_of(tmp_path, data).files.central_images.unlink()
    with pytest.raises(BudgetError, match="was paid for"):
        again(tmp_path, data)


def test_sums_without_a_record_of_their_price_are_refused(tmp_path):
    data = tiny_data()
    again(tmp_path / "first", data)
    found = run_of(tmp_path / "first", data).files.central_images
    other = run_of(tmp_path / "second", data).files.central_images
    other.write_bytes(found.read_bytes())
    with pytest.raises(InputError, match="does not hold the execution"):
        again(tmp_path / "second", data)


def test_a_resumed_run_keeps_them_and_they_do_not_leave_the_private_folder(tmp_path):
    data, folder = tiny_data(), tmp_path / "run"
    interrupt(CASE, data, folder, privacy={"steps": 8})
    kept = (folder / "private" / "central-images.safetensors").read_bytes()
    release = resume(data, folder)
    assert (folder / "private" / "central-images.safetensors").read_bytes() == kept
    events = {event.purpose: event for event in release.certificate.events}
    assert events[CENTRAL_IMAGES].executed == events[CENTRAL_IMAGES].planned == 2
    assert not list((folder / "release").rglob("*central*"))
