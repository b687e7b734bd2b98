"""Teachers: what they say is what one critic says, asking changes none, and a record reaches one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sequential_critic import critic_of
from understudy.data.dataset import ImageDataset
from understudy.data.partition import Partition
from understudy.distributed import ALONE, Team
from understudy.engines.critics.panel import FakePool, Home
from understudy.engines.critics.subsets import SubsetTable
from understudy.errors import AbortedRun, InputError
from understudy.methods.config import build_config
from understudy.methods.registry import get_method
from understudy.methods.teachers import teaching as teacher_panel
from understudy.methods.teachers.teaching import Lesson, Teachers, help_teach
from understudy.privacy.ledger import Ledger, NoLedger
from understudy.privacy.randomness.streams import Randomness, own_seed
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, CLASSES, case_of
from ...helpers.data import tiny_data
from ...helpers.teams import together

TEACHERS = 4


def panel_on(data: ImageDataset, folder: Path) -> Teachers:
    """Trained teachers of a seeded run in ``folder``; the partition that lies there is used."""
    method = get_method("datalens")
    plan = method.plan(build_config(method.config_type, case_of("datalens").config()), data.domain, BUDGET)
    folder.mkdir(exist_ok=True)
    path = folder / "ledger.jsonl"
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    run = Run(folder, plan, data, ledger, Randomness(7), torch.device("cpu"))
    panel = Teachers.of_run(run, TEACHERS, plan.config.method.teachers)
    panel.warm_start()
    panel.train_all(public_pool())
    return panel


def public_pool(images: int = 6) -> FakePool:
    random = torch.Generator().manual_seed(1)
    return FakePool(torch.rand(images, 1, 8, 8, generator=random), torch.arange(images) % CLASSES)


@pytest.fixture
def panel(tmp_path: Path) -> Teachers:
    return panel_on(tiny_data(), tmp_path / "run")


def answers(panel: Teachers, pool: FakePool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat(list(panel.slopes(pool))), torch.cat(list(panel.margins(pool, 0.0)))


def test_slopes_and_margins_are_those_of_each_critic_by_itself(panel):
    pool = public_pool()
    slopes, margins = answers(panel, pool)
    for teacher in range(TEACHERS):
        network = critic_of(panel.bank, teacher).eval()
        images = pool.images.clone().requires_grad_()
        scores = network(images, pool.labels)
        (expected,) = torch.autograd.grad(-scores.sum(), images)
        torch.testing.assert_close(slopes[teacher], expected.flatten(1), rtol=1e-3, atol=1e-5)
        scores = scores.detach()
        means = torch.stack([scores[pool.labels == label].mean() for label in range(CLASSES)])
        torch.testing.assert_close(margins[teacher], scores - means[pool.labels], rtol=1e-3, atol=1e-5)


def test_the_line_between_fake_and_real_moves_towards_the_records(panel):
    """At 1 it lies at the mean score of the records; dark images are told from them after a little training."""
    pool = public_pool(60)
    pool = FakePool(pool.images * 0.1, pool.labels)
    for _ in range(30):
        panel.train_all(pool)
    low, high = (torch.cat(list(panel.margins(pool, threshold))) for threshold in (0.0, 1.0))
    assert (low > 0).float().mean() == pytest.approx(0.5, abs=0.2)
    gaps = (low - high).mean(dim=1)
    assert (low - high).std(dim=1).max() < 1e-4, "the same distance for every image of a teacher"
    assert (gaps > 0).all()


def test_asking_in_blocks_gives_the_same_answers(panel, monkeypatch):
    pool = public_pool()
    together = answers(panel, pool)
    monkeypatch.setattr(teacher_panel, "_MOST_VALUES", pool.images.numel())
    assert len(list(panel.slopes(pool))) == TEACHERS
    for block, whole in zip(answers(panel, pool), together, strict=True):
        torch.testing.assert_close(block, whole, rtol=1e-4, atol=1e-5)


def test_asking_changes_no_teacher(panel):
    before = {name: tensor.clone() for name, tensor in panel.bank.state().items()}
    answers(panel, public_pool())
    list(panel.margins(public_pool(), 0.5))
    for name, tensor in panel.bank.state().items():
        assert torch.equal(tensor, before[name]), name


def test_a_record_less_changes_what_one_teacher_says(tmp_path):
    data, pool = tiny_data(), public_pool()
    fewer = ImageDataset(data.name, data.domain, data.images[:-1], data.labels[:-1])
    assignment = np.random.default_rng(0).integers(0, TEACHERS, len(data))
    said = []
    for name, records in (("all", data), ("less", fewer)):
        (tmp_path / name / "private").mkdir(parents=True)
        kept = Partition(assignment[: len(records)], TEACHERS)
        kept.save(tmp_path / name / "private" / "partition.npz", records)
        said.append(answers(panel_on(records, tmp_path / name), pool))
    for first, second in zip(*said, strict=True):
        changed = {teacher for teacher in range(TEACHERS) if not torch.equal(first[teacher], second[teacher])}
        assert changed == {int(assignment[-1])}


def test_shards_that_overlap_are_refused_when_they_are_loaded(tmp_path, monkeypatch):
    """Disjointness is asserted at every load: a table in which a record occurs twice does not pass."""
    data = tiny_data()
    panel_on(data, tmp_path / "run")
    check = SubsetTable.check_disjoint

    def overlapping(self: SubsetTable, records: int) -> None:
        self.members[0, 0] = self.members[1, 0]
        check(self, records)

    monkeypatch.setattr(SubsetTable, "check_disjoint", overlapping)
    with pytest.raises(InputError, match="not disjoint"):
        panel_on(data, tmp_path / "run")


def test_a_teacher_without_records_says_nothing(tmp_path):
    data = tiny_data()
    (tmp_path / "run" / "private").mkdir(parents=True)
    assignment = np.random.default_rng(0).integers(1, TEACHERS, len(data))
    Partition(assignment, TEACHERS).save(tmp_path / "run" / "private" / "partition.npz", data)
    slopes, margins = answers(panel_on(data, tmp_path / "run"), public_pool())
    assert slopes[0].eq(0).all()
    assert margins[0].eq(0).all()
    assert slopes[1:].abs().sum(dim=(1, 2)).gt(0).all()


# Several processes

ASSIGNMENT = torch.from_numpy(np.random.default_rng(0).integers(0, TEACHERS, 40))


def run_of(name: str, folder: Path, team: Team = ALONE) -> Run:
    """A seeded run of one of several processes, of which the leader alone has a ledger."""
    method = get_method(name)
    plan = method.plan(build_config(method.config_type, case_of(name).config()), tiny_data().domain, BUDGET)
    folder.mkdir(parents=True)
    ledger = Ledger.create(folder / "ledger.jsonl") if team.leads else NoLedger()
    randomness = Randomness(own_seed(7, team.rank))
    return Run(folder, plan, tiny_data(), ledger, randomness, torch.device("cpu"), team=team)


def teachers_of(run: Run, whole: Teachers) -> Teachers:
    """The teachers of one process, with the weights that they have in ``whole``."""
    home = Home(run.randomness, run.device)
    own = Teachers(run.data, ASSIGNMENT, TEACHERS, run.plan.config.method.teachers, home, run.team)
    own.bank.load_state({key: value[run.team.rank :: run.team.size] for key, value in whole.bank.state().items()})
    return own


def trained(folder: Path) -> Teachers:
    run = run_of("datalens", folder)
    whole = Teachers(run.data, ASSIGNMENT, TEACHERS, run.plan.config.method.teachers, Home(run.randomness, run.device))
    whole.train_all(public_pool())
    return whole


def public_parts(lesson: Any, pool: FakePool) -> tuple[torch.Tensor, ...]:
    """What is drawn in public for a question."""
    return (lesson._draw_directions(len(pool.images)),) if hasattr(lesson, "_draw_directions") else ()


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", ["datalens", "g-pate", "pate-gan"])
def test_the_votes_of_all_processes_are_counted_once_each_without_noise(name, size, tmp_path):
    whole, pool, parts = trained(tmp_path / "whole"), public_pool(), dict[int, torch.Tensor]()

    def lead(team: Team) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
        run = run_of(name, tmp_path / "0", team)
        lesson, teachers = get_method(name).lesson(run), teachers_of(run, whole)
        public = public_parts(lesson, pool)
        parts[0] = lesson.tally(teachers, pool, *public)
        lesson.votes.counts_private(run.device).zero_()
        return teachers.count(lesson, pool, *public), public, lesson.votes.counts_private(run.device)

    def follow(team: Team) -> None:
        run = run_of(name, tmp_path / str(team.rank), team)
        lesson, teachers = get_method(name).lesson(run), teachers_of(run, whole)

        def tally(pool: FakePool, *public: torch.Tensor) -> torch.Tensor:
            own = lesson.tally(teachers, pool, *public)
            parts[team.rank] = own.clone()
            return own

        teachers.help(tally, lambda: (lesson.votes.counts_private(run.device),))
        assert not lesson.votes.counts_private(run.device).any(), "what was handed over is not kept"

    found, public, counted = together(size, lead, follow)
    assert torch.equal(found, sum(parts.values()))
    assert found.dtype == torch.int64
    assert counted.tolist() == [TEACHERS * len(pool.images), 0]
    alone = get_method(name).lesson(run_of(name, tmp_path / "alone"))
    expected = alone.tally(whole, pool, *public)
    assert (found - expected).abs().sum() <= 2, "a vote that lies on the line may be rounded to its other side"
    assert expected.abs().sum() > 10


@pytest.mark.parametrize("size", [2, 4])
def test_what_teachers_of_several_processes_say_is_what_they_say_in_one(size, tmp_path):
    whole, pool = trained(tmp_path / "whole"), public_pool()
    slopes, margins = answers(whole, pool)
    for rank in range(size):
        own = teachers_of(run_of("datalens", tmp_path / str(rank), Team(rank, size)), whole)
        for found, expected in zip(answers(own, pool), (slopes, margins), strict=True):
            difference = (found - expected[rank::size]).flatten(1).norm(dim=1)
            assert (difference <= 1e-6 * expected[rank::size].flatten(1).norm(dim=1).clamp(min=1)).all()


def test_broken_votes_in_another_process_stop_the_run(tmp_path):
    whole = trained(tmp_path / "whole")
    whole.bank.parameters[1] = torch.nan

    def lesson_of(team: Team) -> tuple[Lesson, Teachers]:
        run = run_of("pate-gan", tmp_path / str(team.rank), team)
        return get_method("pate-gan").lesson(run), teachers_of(run, whole)

    def lead(team: Team) -> None:
        lesson, teachers = lesson_of(team)
        teachers.count(lesson, public_pool())
        lesson.votes.check_finite()

    def follow(team: Team) -> None:
        lesson, teachers = lesson_of(team)
        teachers.help(
            lambda pool: lesson.tally(teachers, pool), lambda: (lesson.votes.counts_private(torch.device("cpu")),)
        )

    with pytest.raises(AbortedRun, match="were not finite"):
        together(2, lead, follow)


def test_a_process_that_follows_has_teachers_that_count_and_no_ledger_to_spend_from(tmp_path):
    def lead(team: Team) -> torch.Tensor:
        run = run_of("g-pate", tmp_path / "0", team)
        lesson = get_method("g-pate").lesson(run)
        teachers = Teachers.of_run(run, TEACHERS, run.plan.config.method.teachers)
        teachers.warm_start()
        teachers.train_scheduled(public_pool())
        return teachers.count(lesson, public_pool(), *public_parts(lesson, public_pool()))

    def follow(team: Team) -> None:
        run = run_of("g-pate", tmp_path / str(team.rank), team)
        lesson = get_method("g-pate").lesson(run)
        assert team.hear() is not None
        help_teach(run, lesson, run.plan.config.method, TEACHERS).help()
        with pytest.raises(RuntimeError, match="no ledger to spend from"):
            lesson.votes.release(torch.zeros(1, 3, 3, dtype=torch.int64))

    tally = together(3, lead, follow)
    assert (tally.sum(dim=2) == TEACHERS).all(), "every teacher votes once in every histogram"
