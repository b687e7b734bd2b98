"""Critics shared by several processes: one owner for each, with the records of its subset and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from understudy.data.dataset import ImageDataset
from understudy.data.partition import Partition
from understudy.data.sources import load
from understudy.data.store import new_store
from understudy.distributed import ALONE, Team
from understudy.engines.config import CriticsConfig
from understudy.engines.critics.panel import Critics, FakePool, Home
from understudy.engines.critics.sharing import Shard
from understudy.errors import InputError
from understudy.privacy.randomness.streams import Randomness, own_seed

from ...helpers.data import tiny_data
from ...helpers.teams import ThreadTeam, together

SUBSETS, CPU = 7, torch.device("cpu")
SETTINGS = CriticsConfig(width=8, batch=4, per_step=3, warm_iterations=1)
sizes = pytest.mark.parametrize("size", [1, 2, 4])


def dealt_out(data: ImageDataset, without: int | None = None) -> Tensor:
    """The subset of each record; subset 2 is empty."""
    drawn = torch.randint(SUBSETS, (len(data) + (without is not None),), generator=torch.Generator().manual_seed(3))
    drawn[drawn == 2] = 5
    return drawn if without is None else torch.cat([drawn[:without], drawn[without + 1 :]])


def stored(data: ImageDataset, path: Path) -> ImageDataset:
    with new_store(path, data.name) as writer:
        writer.finish(data)
    return load(path)


def some_pool(images: int = 12, labelled: bool = True) -> FakePool:
    random = torch.Generator().manual_seed(1)
    return FakePool(torch.rand(images, 1, 8, 8, generator=random), torch.arange(images) % 3 if labelled else None)


def critics_of(team: Team, data: ImageDataset | None = None, assignment: Tensor | None = None) -> Critics:
    data = tiny_data() if data is None else data
    home = Home(Randomness(own_seed(7, team.rank)), CPU)
    return Critics(data, dealt_out(data) if assignment is None else assignment, SUBSETS, SETTINGS, home, team)


def shared(size: int, act: Any, prepare: Any = lambda critics, team: None, data: ImageDataset | None = None) -> Any:
    """What ``act`` returns of the leader's critics, while others follow with theirs; all of them are prepared alike."""

    def critics(team: Team) -> Critics:
        made = critics_of(team, data)
        prepare(made, team)
        return made

    def follow(team: Team) -> None:
        own = critics(team)
        own.help(own.own_answers)

    return act(critics(ALONE)) if size == 1 else together(size, lambda team: act(critics(team)), follow)


# Whose critic is whose


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("subsets", [1, 5, 12, 13])
def test_every_critic_is_owned_by_exactly_one_process_and_found_there(size, subsets):
    shards = [Shard(subsets, Team(rank, size)) for rank in range(size)]
    assert sorted(critic for shard in shards for critic in shard.critics) == list(range(subsets))
    turns = [slice(0, subsets), slice(0, 0), slice(subsets // 2, subsets), slice(0, 1), list(range(0, subsets, 2))]
    for turn in turns:
        named = list(range(subsets)[turn]) if isinstance(turn, slice) else turn
        held = []
        for shard in shards:
            rows = shard.rows(turn)
            held += list(shard.critics[rows]) if isinstance(rows, slice) else [shard.critics[row] for row in rows]
        assert sorted(held) == named


@sizes
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_process_holds_the_records_of_its_own_subsets_and_no_others(size, place, tmp_path):
    data = tiny_data()
    assignment = dealt_out(data)
    if place == "disk":
        data = stored(data, tmp_path / "store")
    for rank in range(size):
        critics = critics_of(Team(rank, size), data, assignment)
        held = 0
        for row, critic in enumerate(range(rank, SUBSETS, size)):
            expected = np.flatnonzero(assignment.numpy() == critic)
            images, labels = critics.records_private(row)
            assert np.array_equal(images.numpy(), tiny_data().images[expected])
            assert np.array_equal(labels.numpy(), tiny_data().labels[expected])
            held += len(expected)
        assert len(critics._records_private.images) == held


def test_a_process_whose_subsets_are_all_empty_answers_with_nothing(tmp_path):
    for data in (tiny_data(), stored(tiny_data(), tmp_path / "store")):
        critics = critics_of(Team(1, 2), data, torch.zeros(len(data), dtype=torch.int64))
        critics._train_rows(slice(0, 3), some_pool())
        assert not critics.own_answers(some_pool(), torch.ones(12, dtype=torch.int64)).any()


# Training


@sizes
def test_named_critics_are_trained_once_each_by_their_owner(size):
    steps: dict[int, float] = {}

    def follow(team: Team) -> None:
        own = critics_of(team)
        before = own.bank.steps.clone()
        own.help(own.own_answers)
        steps.update(zip(own._shard.critics, (own.bank.steps - before).tolist(), strict=True))

    def act(team: Team) -> None:
        own = critics_of(team)
        before = own.bank.steps.clone()
        for _ in range(4):  # 0 to 2, 3 to 5, 6, 0 to 2
            own.train_scheduled(some_pool())
        own.train([6, 1], some_pool())
        steps.update(zip(own._shard.critics, (own.bank.steps - before).tolist(), strict=True))

    if size == 1:
        act(ALONE)
    else:
        together(size, act, follow)
    assert [steps[critic] for critic in range(SUBSETS)] == [2, 3, 0, 1, 1, 1, 2], "an empty subset teaches nothing"


@pytest.mark.parametrize("size", [2, 3])
def test_one_record_less_changes_one_critic_and_no_bit_of_the_others(size):
    """Whichever process has it: warm start, training and answers of all processes, with and without record 11."""
    data, gone = tiny_data(), 11
    fewer = data.subset(np.delete(np.arange(len(data)), gone))
    assignment = dealt_out(data)
    states: list[dict[int, bytes]] = []
    for records, subset in ((data, assignment), (fewer, dealt_out(fewer, without=gone))):
        found: dict[int, bytes] = {}

        def keep(critics: Critics, found: dict[int, bytes] = found) -> None:
            for row, critic in enumerate(critics._shard.critics):
                found[critic] = b"".join(value[row].numpy().tobytes() for value in critics.bank.state().values())

        def act(team: Team, records: Any = records, subset: Any = subset, keep: Any = keep) -> None:
            critics = critics_of(team, records, subset)
            critics.warm_start()
            critics.train_all(some_pool())
            critics.answer(some_pool(), torch.arange(12) % SUBSETS)
            keep(critics)

        def follow(team: Team, records: Any = records, subset: Any = subset, keep: Any = keep) -> None:
            critics = critics_of(team, records, subset)
            critics.help(critics.own_answers)
            keep(critics)

        together(size, act, follow)
        states.append(found)
    assert len(states[0]) == SUBSETS
    changed = {critic for critic in range(SUBSETS) if states[0][critic] != states[1][critic]}
    assert changed == {int(assignment[gone])}


# Answers

UNIFORM = (torch.arange(12) * 5) % SUBSETS
ROUTINGS = {"to all": UNIFORM, "to one of the last": torch.full((12,), 5), "to one of the first": torch.full((12,), 0)}


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
@pytest.mark.parametrize("kind", ["labelled", "unlabelled"])
def test_answers_of_the_same_weights_are_those_of_one_process(routing, kind):
    data, pool = tiny_data(kind), some_pool(labelled=kind == "labelled")
    whole = critics_of(ALONE, data)
    whole.train_all(pool)
    state = {name: value.clone() for name, value in whole.bank.state().items()}

    def prepare(critics: Critics, team: Team) -> None:
        critics.bank.load_state({name: value[team.rank :: team.size] for name, value in state.items()})

    alone = whole.answer(pool, routing)
    assert torch.equal(alone.norm(dim=1) > 0, routing != 2), "all but those of the empty subset"
    for size in (2, 4):
        several = shared(size, lambda critics: critics.answer(pool, routing), prepare, data)
        assert ((several - alone).norm(dim=1) <= 1e-6 * alone.norm(dim=1)).all()
        twice = shared(size, lambda critics: [critics.answer(pool, routing) for _ in range(2)], prepare, data)
        assert torch.equal(*twice), "asking changes no critic, and a pool that is not sent again is still there"


def test_what_others_can_see_does_not_tell_who_is_asked():
    """Messages and the passes of every process have the same sizes for every routing that is at all likely."""
    queries, random = 64, torch.Generator().manual_seed(5)
    seen = []
    for _ in range(3):
        routing = torch.randint(SUBSETS, (queries,), generator=random)
        messages: dict[int, list[Any]] = {0: [], 1: []}

        def watched(team: Team, messages: dict[int, list[Any]] = messages) -> Critics:
            assert isinstance(team, ThreadTeam)

            class Watched(ThreadTeam):
                def give(self, tensor: Tensor) -> None:
                    messages[self.rank].append(("given", tuple(tensor.shape), tensor.dtype))
                    super().give(tensor)

                def total(self, tensor: Tensor) -> None:
                    messages[self.rank].append(("summed", tuple(tensor.shape), tensor.dtype))
                    super().total(tensor)

            critics = critics_of(Watched(team.rank, team.size, team.meeting))
            query = critics.bank.query

            def noted(images: Tensor, labels: Tensor | None, rows: Tensor) -> Tensor:
                messages[team.rank].append(("pass", tuple(images.shape), len(rows)))
                return query(images, labels, rows)

            critics.bank.query = noted  # type: ignore[method-assign]
            return critics

        def follow(team: Team, watched: Any = watched) -> None:
            critics = watched(team)
            critics.help(critics.own_answers)

        def ask(team: Team, watched: Any = watched, routing: Tensor = routing) -> None:
            watched(team).answer(some_pool(queries), routing)

        together(2, ask, follow)
        seen.append(messages)
    assert seen[0] == seen[1] == seen[2]
    assert [sum(each[0] == "pass" for each in seen[0][rank]) for rank in (0, 1)] == [1, 1]


def test_a_pass_is_public_in_size_and_rarely_too_small():
    shard = Shard(1000, Team(0, 4))
    assert shard.at_once(512) == 182  # 128, five deviations of 9.8, and five
    assert shard.at_once(512) == Shard(1000, Team(3, 4)).at_once(512)
    assert Shard(1000, Team(0, 1)).at_once(512) == 512
    assert Shard(3, Team(1, 2)).at_once(8) <= 8
    for queries in (8, 64, 512, 4096):
        for size in (2, 4, 16, 256):
            assert stats.binom.sf(Shard(1024, Team(0, size)).at_once(queries), queries, 1 / size) < 1e-6


# Which subsets there are


@sizes
def test_everybody_uses_the_subsets_that_the_leader_keeps(size, tmp_path):
    """They are drawn once, whatever the number of processes, and no unit lies in two of them."""
    from ...methods.critics.test_gs_wgan import make_run

    held: dict[int, list[bytes]] = {}
    data = make_run(tmp_path / "lead").data
    Partition(dealt_out(data).numpy() % 4, 4).save(tmp_path / "lead" / "private" / "partition.npz", data)

    def act(team: Team) -> None:
        run = make_run(tmp_path / f"run-{team.rank}")
        if team.leads:
            run.folder = tmp_path / "lead"
            run.__post_init__()
        run.team = team
        if not team.leads:
            team.hear()
        critics = Critics.of_run(run, 4, SETTINGS)
        for row, critic in enumerate(critics._shard.critics):
            held[critic] = [image.numpy().tobytes() for image in critics.records_private(row)[0]]

    if size == 1:
        act(ALONE)
    else:
        together(size, act, act, dismiss=False)
    expected = dealt_out(data).numpy() % 4
    assert held == {k: [image.tobytes() for image in data.images[expected == k]] for k in range(4)}
    assert not (tmp_path / "run-1" / "private" / "partition.npz").exists()


def test_more_processes_than_critics_are_refused():
    SETTINGS.check_processes(4, 4, "privacy.subsets")
    with pytest.raises(InputError, match=r"processes: 5, but privacy.subsets is 4, .* pass --processes 4 at most"):
        SETTINGS.check_processes(5, 4, "privacy.subsets")
