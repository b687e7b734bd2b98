"""Sums over all units, shared by several processes: embeddings, central images and the gradients of a teacher.

Every unit is one process's, whatever it is asked for; sums add up to that of one process; noise is added once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from understudy.configs import MethodConfig
from understudy.data.dataset import ImageDataset
from understudy.distributed import ALONE, Team
from understudy.engines.dpsgd.sharing import SharedSum, Sharing
from understudy.engines.embedding.means import Embedding, assist_embedding, assist_means, release_means
from understudy.engines.records import own_records
from understudy.engines.teacher import training
from understudy.engines.teacher.config import PURPOSE, PrivateTeacherConfig
from understudy.engines.teacher.training import FeatureRecords, assist_teacher, train_teacher
from understudy.errors import AbortedRun, InputError
from understudy.methods.config import build_config
from understudy.methods.diffusion.central_images import assist_central_images, release_central_images
from understudy.methods.embedding.dp_hp import HermiteConfig
from understudy.methods.embedding.hermite import HermiteFeatures
from understudy.models.scattering import Scattering
from understudy.privacy.events import CLASS_MEANS, Event, PoissonSampling
from understudy.privacy.ledger import Ledger, NoLedger
from understudy.privacy.mechanisms import GaussianSum
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness, own_seed
from understudy.runs.run import Run

from ..helpers.cases import BUDGET
from ..helpers.data import of_people, tiny_data
from ..helpers.runs import recorded
from ..helpers.teams import together

CPU, ALMOST_NONE, FALSE_ALARM = torch.device("cpu"), 1e-9, 1e-6
PEOPLE = (1, 2, 4, 3, 2, 1, 5)
SAME = 1e-6  # how far, relative to its norm, a sum may be from that of one process
LINEAR = PrivateTeacherConfig(scales=2, directions=2, learning_rate=0.25)
NETWORK = LINEAR.model_copy(update={"kind": "network", "width": 3})
ON_PATCHES = PrivateTeacherConfig(features="patches", filters=3, learning_rate=0.25)
several = pytest.mark.parametrize("size", [2, 4])


def make_event(purpose: str, data: ImageDataset, noise: float = ALMOST_NONE, **fields: Any) -> Event:
    fields = {"count": 1, "unit": data.domain.unit, **fields}
    return Event(noise_multiplier=noise, sensitivity="C", purpose=purpose, **fields)


def make_run(folder: Path, data: ImageDataset, events: tuple[Event, ...], team: Team) -> Run:
    """The part of one process in a run; only that of the leader has a ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    config = build_config(MethodConfig, {"runtime": {"device": "cpu", "micro_batch": 5}})
    plan = Plan("test", config, data.domain, BUDGET, events, 1.0, 1, 0, 0.0, 0.0)
    ledger = Ledger.create(folder / "ledger.jsonl") if team.leads else NoLedger()
    return Run(folder, plan, data, ledger, Randomness(own_seed(5, team.rank)), CPU, team=team)


def released(
    size: int,
    folder: Path,
    data: ImageDataset,
    events: tuple[Event, ...],
    lead: Callable[[Run], Any],
    assist: Callable[[Run, dict[str, Any]], Any],
) -> list[Tensor]:
    """Every sanitized value of a team, one after the other; with almost no noise that is the sum itself."""
    values: list[Tensor] = []

    def leading(team: Team) -> None:
        run = make_run(folder / str(size), data, events, team)
        run.ledger.witness = lambda _, value_dp: values.append(value_dp.clone())
        lead(run)

    def following(team: Team) -> None:
        told, run = team.hear(), make_run(folder / f"{size}-{team.rank}", data, events, team)
        while told is not None:
            told = assist(run, told).help()

    if size == 1:
        leading(ALONE)
    else:
        together(size, leading, following)
    return values


def embedding_of(count: int = 16) -> Embedding:
    return Embedding(torch.randn(64, count, generator=torch.Generator().manual_seed(1)) / 8, 0.02)


def embedded(size: int, folder: Path, data: ImageDataset, noise: float = ALMOST_NONE, count: int = 16) -> list[Tensor]:
    event, embedding = make_event(CLASS_MEANS, data, noise, count=1), embedding_of(count)
    lead = lambda run: release_means(run, embedding, event, embedding.sharing)  # noqa: E731
    return released(size, folder, data, (event,), lead, assist_embedding)


def taught(
    size: int, folder: Path, data: ImageDataset, config: PrivateTeacherConfig = LINEAR, **fields: Any
) -> list[Tensor]:
    event = make_event(PURPOSE, data, **{"count": 3, **fields})
    return released(size, folder, data, (event,), lambda run: train_teacher(run, config, event), assist_teacher)


def agree(found: list[Tensor], alone: list[Tensor]) -> None:
    assert len(found) == len(alone) > 0
    for several_sum, one in zip(found, alone, strict=True):
        assert float((several_sum - one).norm()) < SAME * float(one.norm())


def data_of(kind: str) -> ImageDataset:
    return of_people(PEOPLE, nominal=10) if kind == "people" else tiny_data(kind)


# Whose units


@pytest.mark.parametrize("kind", ["labelled", "people"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 50])
def test_every_record_is_one_processs_and_nobodys_records_are_divided(kind, size):
    data = data_of(kind)
    unit = data.domain.unit
    owned = [np.asarray(own_records(data, unit, Team(rank, size)), dtype=np.int64) for rank in range(size)]
    assert sorted(np.concatenate(owned).tolist()) == list(range(len(data)))
    units = [set(data.unit_of_record(unit)[records].tolist()) for records in owned]
    assert sum(map(len, units)) == len(set.union(*units)), "no unit is owned by two"


@pytest.mark.parametrize("kind", ["labelled", "people"])
def test_features_of_a_unit_are_those_of_its_own_records_wherever_they_are(kind, tmp_path):
    data, scattering = data_of(kind), Scattering((1, 8, 8), scales=2, directions=2)
    event = make_event(PURPOSE, data)

    def records(team: Team) -> FeatureRecords:
        return FeatureRecords(make_run(tmp_path / f"{team.rank}-{team.size}", data, (event,), team), scattering)

    alone, parts = records(ALONE), [records(Team(rank, 3)) for rank in range(3)]
    units = len(set(data.unit_of_record(data.domain.unit).tolist()))
    assert {part.filler for part in parts} == {alone.filler} == {units}
    assert sum(len(part.features) - 1 for part in parts) == len(data), "no more are computed than there are"
    for unit in range(units):
        asked = torch.tensor([unit, units])
        whole, *shared = (each.gather(asked, torch.Generator().manual_seed(0)) for each in (alone, *parts))
        own = shared[unit % 3]
        assert own.present.tolist() == whole.present.tolist() == [True, False]
        assert sorted(own.images[0].flatten().tolist()) == pytest.approx(sorted(whole.images[0].flatten().tolist()))
        assert not any(each.images[0].any() for each in shared if each is not own), (
            "another process holds nothing of it"
        )


# The sum


@several
@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "people"])
def test_mean_embeddings_add_up(kind, size, tmp_path):
    agree(embedded(size, tmp_path, data_of(kind)), embedded(1, tmp_path, data_of(kind)))


def test_hermite_features_add_up_with_the_leaders_groups(tmp_path):
    data, settings = tiny_data(), HermiteConfig(order=2, groups=4, group_order=2)
    event = make_event(CLASS_MEANS, data, count=1)

    def features(random: int) -> HermiteFeatures:
        groups = torch.randint(64, (4, 2), generator=torch.Generator().manual_seed(random))
        return HermiteFeatures(groups, 64, settings)

    def assist(run: Run, told: dict[str, Any]) -> Any:
        own = features(2 + run.team.rank)  # which the leader's replace
        return assist_means(run, own, own.sharing)

    lead = lambda run: release_means(run, features(1), event, features(1).sharing)  # noqa: E731
    agree(*(released(size, tmp_path, data, (event,), lead, assist) for size in (3, 1)))


@several
@pytest.mark.parametrize("kind", ["labelled", "people"])
@pytest.mark.parametrize("config", [LINEAR, NETWORK, ON_PATCHES], ids=["linear", "network", "on patches"])
def test_gradients_of_a_teacher_add_up_at_the_weights_of_each_step(config, kind, size, tmp_path):
    """A network draws every unit here; its first sum is compared, since Adam makes much of the last digits of it."""
    data = data_of(kind)
    fields = {} if config.kind == "linear" else {"sampling": PoissonSampling(rate=1.0)}
    sums = []
    for number in (size, 1):
        torch.manual_seed(3)  # the same first weights
        sums.append(taught(number, tmp_path, data, config, **fields))
    found, alone = sums
    agree(*((found[:1], alone[:1]) if config.kind == "network" else sums))
    assert float((alone[1] - alone[0]).norm()) > 1e-3 * float(alone[0].norm()), "a step moves the weights of all"


@several
def test_central_images_add_up(size, tmp_path):
    data = tiny_data()
    event = make_event("class-wise central images", data, count=2, sampling=PoissonSampling(rate=1.0))
    events = (make_event("denoising steps", data), event)
    found, alone = (
        released(number, tmp_path, data, events, release_central_images, lambda run, _: assist_central_images(run))
        for number in (size, 1)
    )
    agree(found, alone)


def test_more_processes_than_units_and_no_unit_at_all(tmp_path):
    for name, count in (("two", 2), ("none", 0)):
        data = tiny_data().subset(np.arange(count))
        for act in (embedded, taught):
            sums = [act(size, tmp_path / name / act.__name__, data) for size in (4, 1)]
            assert len(sums[0]) == len(sums[1])
            assert float((sums[0][0] - sums[1][0]).norm()) <= SAME * float(sums[1][0].norm()) + 1e-6


def test_work_that_another_came_between_is_begun_again(tmp_path):
    """The leader may have begun with one work, do another first, and go back: whose part is of which is never mixed."""
    event, asked = make_event("sums", tiny_data(), count=9), list[str]()

    def sum_of(team: Team, work: str) -> SharedSum:
        mechanism = GaussianSum(NoLedger(), Randomness(), clip=1.0, event=event)
        value = {"first": 1.0, "second": 10.0}[work] * (1 + team.rank)
        return SharedSum(team, mechanism, lambda: torch.full((3,), value, dtype=torch.float64), Sharing(work=work))

    def lead(team: Team) -> list[float]:
        first, second = sum_of(team, "first"), sum_of(team, "second")
        return [float(work.take()[0]) for work in (second, first, first, second, first)]

    def follow(team: Team) -> None:
        told = team.hear()
        while told is not None:
            asked.append(told["work"])
            told = sum_of(team, told["work"]).help()

    assert together(2, lead, follow) == [30.0, 3.0, 3.0, 30.0, 3.0]
    assert asked == ["first", "second", "first", "second", "first"]


# The noise, the ledger, and what is broken


def rejects(values: Tensor) -> bool:
    """Whether values are not standard normal: their variance (two-sided), or their shape (Kolmogorov and Smirnov)."""
    below = stats.chi2(values.numel()).cdf(float(values.square().sum()))
    variance = 2 * min(below, 1 - below)
    return min(variance, stats.kstest(values.flatten().numpy(), "norm").pvalue) < FALSE_ALARM / 2


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["embedding", "teacher"])
def test_noise_is_added_once_and_is_that_of_one_process(kind, size, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_CACHED", 2**11)  # products of few rows, for the time they take
    data, noise = tiny_data(), 2.0
    if kind == "embedding":
        exact = embedded(1, tmp_path / "exact", data, count=2500)
        found = embedded(size, tmp_path / "noisy", data, noise, count=2500)
    else:
        still = LINEAR.model_copy(update={"learning_rate": 1e-12})
        exact = 150 * taught(1, tmp_path / "exact", data, still, count=1)
        found = taught(size, tmp_path / "noisy", data, still, noise=noise, count=150)
    values = (torch.stack(found) - torch.stack(exact)) / noise
    assert values.numel() > 15_000
    assert not rejects(values)
    for wrong in (1.05, 0.95, size**0.5 if size > 1 else 0.0, 1 / size if size > 1 else 0.0):
        assert rejects(wrong * values), wrong


@several
def test_one_ledger_holds_every_sum_once(size, tmp_path):
    taught(size, tmp_path / "taught", tiny_data())
    embedded(size, tmp_path / "embedded", tiny_data())
    for name, count in (("taught", 3), ("embedded", 1)):
        lines = recorded(tmp_path / name / str(size))
        assert sum(line["count"] for line in lines if line["kind"] == "reserve") == count
        assert not list((tmp_path / name).glob(f"{size}-*/ledger.jsonl")), "nobody else has one"


def test_broken_features_in_another_process_stop_the_run(tmp_path):
    class Broken(Embedding):
        def __call__(self, images: Tensor) -> Tensor:
            return super().__call__(images) / 0

    data, embedding = tiny_data(), embedding_of()
    event = make_event(CLASS_MEANS, data, count=1)

    def assist(run: Run, told: dict[str, Any]) -> Any:
        broken = Broken(torch.zeros(told["frequencies"]), 0.02)
        return assist_means(run, broken, broken.sharing)

    lead = lambda run: release_means(run, embedding, event, embedding.sharing)  # noqa: E731
    with pytest.raises(AbortedRun, match="were not finite"):
        released(2, tmp_path, data, (event,), lead, assist)
    assert not any(line["kind"] == "reserve" for line in recorded(tmp_path / "2")), (
        "nothing was used, so nothing is spent"
    )


def test_features_that_nobody_made_ready_to_be_shared_are_refused(tmp_path):
    data = tiny_data()
    event = make_event(CLASS_MEANS, data, count=1)
    with pytest.raises(InputError, match="cannot be shared by several"):
        released(2, tmp_path, data, (event,), lambda run: release_means(run, embedding_of(), event), assist_embedding)
