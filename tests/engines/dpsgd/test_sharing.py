"""Private steps shared by several processes: every unit is one process's, sums add up, and noise is added once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from understudy.data.dataset import ImageDataset
from understudy.distributed import ALONE, Team
from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.engines.dpsgd.sharing import Sharing
from understudy.engines.records import Examples
from understudy.errors import AbortedRun, InputError
from understudy.following import confirm_own_entropy, confirm_same_data
from understudy.privacy.ledger import NoLedger
from understudy.privacy.mechanisms import GaussianSum
from understudy.privacy.randomness.streams import Randomness, own_seed

from ...helpers.cases import RECORDS
from ...helpers.data import of_people, tiny_data
from ...helpers.runs import recorded
from ...helpers.teams import together
from .steps import ALMOST_NONE, CLIP, CPU, NOISE, STILL, Public, Watched, everybody, make_event, make_network, make_step

FALSE_ALARM = 1e-6
sizes = pytest.mark.parametrize("size", [1, 2, 4])


def shared(size: int, folder: Path, act: Any, data: ImageDataset | None = None, **settings: Any) -> Any:
    """What ``act`` returns of the leader's step, while others follow; all begin with the same seed and no one's chance.

    The others have another network at first: the leader sends its own.
    """
    network = make_network("unlabelled" if data is not None and data.labels is None else "labelled")

    def step(team: Team) -> Watched:
        own = (
            copy.deepcopy(network)
            if team.leads
            else make_network("labelled" if network.config.classes else "unlabelled")
        )
        public = settings.get("companions", Public(fresh=False))
        return make_step(
            folder / str(team.rank), data, network=own, team=team, randomness=Randomness(own_seed(7, team.rank)),
            **{**settings, "companions": copy.deepcopy(public)},
        )  # fmt: skip

    def follow(team: Team) -> None:
        if team.hear() is not None:
            step(team).step.help()

    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)  # the same first weights for every size
    network.load_state_dict({name: torch.randn_like(value) / 4 for name, value in network.state_dict().items()})
    if size == 1:
        return act(step(ALONE))
    return together(size, lambda team: act(step(team)), follow)


# Who draws whose coins


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("units", [0, 1, 5, 12, 13])
def test_every_unit_is_owned_by_exactly_one_process(size, units):
    drawn = []
    for rank in range(size):
        batches = PoissonBatches(units, 1.0, Randomness(rank).coins(CPU), Team(rank, size))
        table = batches.draw(2)
        assert (
            batches.steps_at_once == PoissonBatches(units, 1.0, Randomness(0).coins(CPU), Team(0, size)).steps_at_once
        )
        for row, count in zip(table.indices, table.sizes, strict=True):
            drawn += row[:count].tolist()
            assert set(row[count:].tolist()) <= {units}, "places left over are nobody's"
    assert sorted(drawn) == sorted([*range(units), *range(units)]), "once in each of two steps"


@sizes
def test_a_unit_takes_part_with_the_accounted_rate_whoever_owns_it(size):
    """The number of all that were drawn is binomial, two-sided."""
    units, rate, steps = 30, 0.3, 2000
    total = sum(
        sum(PoissonBatches(units, rate, Randomness(own_seed(1, rank)).coins(CPU), Team(rank, size)).draw(steps).sizes)
        for rank in range(size)
    )

    def rejects(found: int) -> bool:
        return bool(stats.binomtest(found, units * steps, rate).pvalue < FALSE_ALARM)

    assert not rejects(total)
    assert rejects(round(1.05 * total))
    assert size == 1 or rejects(total // size)


def test_processes_draw_coins_of_their_own():
    taken = [
        PoissonBatches(1000, 0.5, Randomness(own_seed(1, rank)).coins(CPU), Team(rank, 2)).draw(1) for rank in (0, 1)
    ]
    first, second = (set((table.indices[0, : table.sizes[0]] // 2).tolist()) for table in taken)
    both = len(first & second)
    assert not stats.binomtest(both, 500, 0.25).pvalue < FALSE_ALARM
    assert stats.binomtest(len(first), 500, 0.25).pvalue < FALSE_ALARM, "which equal coins would give"


# The sum


def sums(watched: Watched, steps: int = 2) -> list[Tensor]:
    for _ in range(steps):
        watched.take()
    return watched.sums


@pytest.mark.parametrize("kind", ["labelled", "unlabelled"])
@pytest.mark.parametrize("count", [0, 1, 6])  # companions; fewer than processes too
def test_the_sum_of_the_same_batch_is_that_of_one_process(tmp_path, kind, count):
    public = Public(count, fresh=False, labelled=kind == "labelled") if count else None
    settings = {**everybody(RECORDS, noise_multiplier=ALMOST_NONE), "companions": public}
    alone = shared(1, tmp_path / "1", sums, tiny_data(kind), **settings)
    for size in (2, 4):
        found = shared(size, tmp_path / str(size), sums, tiny_data(kind), **settings)
        for one, several in zip(alone, found, strict=True):
            assert float((several - one).norm()) < 1e-6 * float(one.norm())
        assert float((found[1] - found[0]).norm()) > 1e-3 * float(found[0].norm()), "a step moves the weights of all"


def test_people_are_shared_as_records_are(tmp_path):
    data = of_people((1, 2, 4, 3, 2), nominal=10)
    settings = {**everybody(10, noise_multiplier=ALMOST_NONE), "images_per_person": 4, **STILL}
    alone, found = (shared(size, tmp_path / str(size), sums, data, **settings) for size in (1, 2))
    assert float((found[0] - alone[0]).norm()) < 1e-6 * float(alone[0].norm())


def test_more_processes_than_units_and_no_unit_at_all(tmp_path):
    few = tiny_data(records=2)
    settings = {**everybody(RECORDS, noise_multiplier=ALMOST_NONE), **STILL}
    for data in (few, few.subset(np.zeros(0, dtype=np.int64))):
        alone, found = (shared(size, tmp_path / f"{size}-{len(data)}", sums, data, **settings) for size in (1, 4))
        assert float((found[0] - alone[0]).norm()) < 1e-6 * float(alone[0].norm())


def test_public_values_that_change_reach_everybody(tmp_path):
    """Companions that are made with a public tensor: after a change of it, those of all processes change."""

    class Tinted(Public):
        def __init__(self) -> None:
            super().__init__(fresh=False)
            self.tint = torch.zeros(1)

        def render(self, *drawn: Tensor) -> Examples:
            return super().render(*(part * (1 - self.tint) for part in drawn))

    def run(size: int) -> list[Tensor]:
        tints = [Tinted() for _ in range(size)]

        def act(watched: Watched) -> list[Tensor]:
            watched.take()
            tints[0].tint.fill_(0.7)
            watched.take()
            return watched.sums

        def step(team: Team) -> Watched:
            own = tints[team.rank]
            torch.manual_seed(3)
            return make_step(
                tmp_path / f"{size}-{team.rank}", tiny_data(records=1), team=team, companions=own,
                sharing=Sharing(public=[own.tint]), **everybody(RECORDS, noise_multiplier=ALMOST_NONE), **STILL,
            )  # fmt: skip

        def follow(team: Team) -> None:
            team.hear()
            step(team).step.help()

        return act(step(ALONE)) if size == 1 else together(size, lambda team: act(step(team)), follow)

    torch.manual_seed(3)
    alone, found = run(1), run(2)
    assert float((alone[1] - alone[0]).norm()) > 1e-2 * float(alone[0].norm())
    for one, several in zip(alone, found, strict=True):
        assert float((several - one).norm()) < 1e-6 * float(one.norm())


# The noise


def noise_rejects(values: Tensor) -> bool:
    """Whether values are not standard normal: their variance (two-sided), or their shape (Kolmogorov and Smirnov)."""
    below = stats.chi2(values.numel()).cdf(float(values.square().sum()))
    variance = 2 * min(below, 1 - below)
    return min(variance, stats.kstest(values.flatten().numpy(), "norm").pvalue) < FALSE_ALARM / 2


@sizes
def test_noise_is_added_once_and_is_that_of_one_process(tmp_path, size):
    def act(watched: Watched) -> tuple[Tensor, list[Tensor]]:
        return torch.stack([watched.take() * (RECORDS + watched.companions.count) for _ in range(4)]), watched.sums

    exact = shared(1, tmp_path / "exact", sums, **everybody(RECORDS, noise_multiplier=ALMOST_NONE), **STILL)[0]
    applied, seen = shared(size, tmp_path / "noisy", act, **everybody(RECORDS), **STILL)
    values = (applied.double() - exact) / (CLIP * NOISE)
    assert not noise_rejects(values)
    for wrong in (1.05, 0.95, size**0.5 if size > 1 else 0.0, 1 / size if size > 1 else 0.0):
        assert noise_rejects(wrong * values), wrong
    assert torch.allclose(torch.stack(seen).float(), applied, atol=1e-5), "what is used is what was sanitized"


@sizes
def test_one_ledger_holds_every_step_once_and_only_the_leader_has_it(tmp_path, size):
    event = make_event(count=3)

    def act(watched: Watched) -> int:
        watched.step.take(3)
        return watched.step.remaining

    assert shared(size, tmp_path / "run", act, event=event) == 0
    reserved = [line["count"] for line in recorded(tmp_path / "run" / "0") if line["kind"] == "reserve"]
    assert sum(reserved) == 3
    for rank in range(1, size):
        assert (tmp_path / "run" / str(rank) / "ledger.jsonl").read_bytes() == b""


def test_a_process_that_follows_cannot_spend_and_so_cannot_release():
    mechanism = GaussianSum(NoLedger(), Randomness(), clip=1.0, event=make_event())
    with pytest.raises(RuntimeError, match="no ledger to spend from"):
        mechanism.release(torch.zeros(3))
    with pytest.raises(RuntimeError, match="no ledger to spend from"):
        NoLedger().note("resumed")


# What is counted


def test_what_is_counted_is_counted_in_all_processes(tmp_path):
    def act(watched: Watched) -> tuple[int, dict[str, float]]:
        watched.step.take(2)
        seen = int(watched.step._mechanism.counts_private(CPU)[0])
        return seen, watched.step.diagnostics()

    (alone, one), (found, several) = (
        shared(size, tmp_path / str(size), act, **everybody(RECORDS), **STILL) for size in (1, 4)
    )
    assert found == alone == 2 * (RECORDS + Public().count)
    assert several == pytest.approx(one, rel=1e-6)


def test_broken_gradients_in_another_process_stop_the_run(tmp_path):
    def broken(examples: Examples, random: torch.Generator) -> Any:
        inputs = (examples.images / (examples.images.mean(dim=(1, 2, 3), keepdim=True) > 0), examples.labels)
        return inputs, lambda logits: logits

    images = tiny_data().images.copy()
    images[1::2] = 0  # all of the second process
    data = ImageDataset("broken", tiny_data().domain, images, tiny_data().labels)

    def act(watched: Watched) -> None:
        watched.step.take()
        watched.step.check_finite()

    with pytest.raises(AbortedRun, match="were not finite"):
        shared(2, tmp_path / "run", act, data, objective=broken, **everybody(RECORDS), **STILL)


# Before the first step


def test_two_processes_that_draw_the_same_numbers_are_refused():
    def confirm(seed_of: Any) -> Any:
        def act(team: Team) -> None:
            confirm_own_entropy(team, Randomness(seed_of(team.rank)))

        return together(3, act, act_and_leave(act))

    def act_and_leave(act: Any) -> Any:
        def follow(team: Team) -> None:
            act(team)
            team.hear()

        return follow

    confirm(lambda rank: own_seed(5, rank))
    confirm(lambda rank: None)
    with pytest.raises(InputError, match="two of them draw the same random numbers"):
        confirm(lambda rank: 5)
    with pytest.raises(InputError, match="two of them draw the same random numbers"):
        confirm(lambda rank: min(rank, 1))


def test_processes_with_other_data_are_refused():
    def act(team: Team) -> None:
        confirm_same_data(team, tiny_data(seed=0 if team.leads else 1))

    def follow(team: Team) -> None:
        act(team)
        team.hear()

    with pytest.raises(InputError, match="number 1 holds other data than number 0"):
        together(2, act, follow)


def test_steps_that_nobody_made_ready_to_be_shared_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be shared by several"):
        shared(2, tmp_path / "run", sums, sharing=None)
