"""Teachers: what they say is what one critic says, asking changes none, and a record reaches one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sequential_critic import critic_of
from understudy.data.dataset import ImageDataset
from understudy.data.partition import Partition
from understudy.engines.critics.panel import FakePool
from understudy.engines.critics.subsets import SubsetTable
from understudy.errors import InputError
from understudy.methods.config import build_config
from understudy.methods.registry import get_method
from understudy.methods.teachers import teaching as teacher_panel
from understudy.methods.teachers.teaching import Teachers
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, CLASSES, case_of
from ...helpers.data import tiny_data

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
