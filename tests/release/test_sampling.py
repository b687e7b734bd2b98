"""Images drawn by several processes: the same law, the same images for a seed whatever their number, one sentence."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from understudy.errors import InputError
from understudy.processes import Worker
from understudy.release.release import Release, load
from understudy.release.sampling import DrawOptions, sample_in_processes

from ..helpers.workers import workers_here  # noqa: F401 (a fixture)
from .building import make_release

FALSE_ALARM = 1e-6


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Release]:
    folder = make_release(classes=4).save(tmp_path / "release")
    return folder, load(folder)


@pytest.mark.usefixtures("workers_here")
def test_a_seed_gives_the_same_images_in_any_number_of_processes(saved):
    draws = [sample_in_processes(*saved, DrawOptions(150, seed=3), processes) for processes in (1, 2, 3, 7)]
    for images, labels in draws[1:]:
        assert np.array_equal(images, draws[0][0])
        assert np.array_equal(labels, draws[0][1])
    assert len(np.unique(draws[0][0].reshape(150, -1), axis=0)) == 150, "no block repeats another"
    other, _ = sample_in_processes(*saved, DrawOptions(150, seed=4), 2)
    assert not np.array_equal(other, draws[0][0])


@pytest.mark.usefixtures("workers_here")
def test_without_a_seed_every_draw_is_another(saved):
    first, second = (sample_in_processes(*saved, DrawOptions(70), 2)[0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first[:35], first[35:]), "one block is not the other"


@pytest.mark.usefixtures("workers_here")
def test_the_law_is_that_of_one_process(saved):
    """Mean brightness of images, two samples by Kolmogorov and Smirnov; labels, against their law. With one seed."""
    images, labels = sample_in_processes(*saved, DrawOptions(4000, seed=1), 3)
    alone, _ = saved[1].sample(4000, seed=1)

    def differ(first: np.ndarray, second: np.ndarray) -> bool:
        return bool(stats.ks_2samp(first.mean(axis=(1, 2)), second.mean(axis=(1, 2))).pvalue < FALSE_ALARM)

    assert not differ(images, alone)
    assert differ(images, saved[1].sample(4000, labels=[0, 1], seed=1)[0])
    assert stats.chisquare(np.bincount(labels, minlength=4)).pvalue > FALSE_ALARM


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_images_and_none(saved, count):
    heard: list[int] = []
    images, labels = sample_in_processes(*saved, DrawOptions(count, labels=(2,)), 3, heard.append)
    assert images.shape == (count, 8, 8)
    assert labels.tolist() == [2] * count
    assert heard == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"processes": 0}, "processes: 0; pass a number from 1 to 1024"),
        ({"count": -1}, "count: -1 images were asked for"),
        ({"labels": (9,)}, "labels: found 9"),
        ({"seed": -2}, "seed: -2"),
        ({"temperature": 3.0}, "temperature: 3"),
        ({"steps": 5}, "sample steps: 5"),
        ({"agree": True}, "agree: this release has no teacher"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anybody_is_started(saved, asked, sentence, monkeypatch):
    monkeypatch.setattr("understudy.processes.Worker", None)
    processes = asked.pop("processes", 2)
    with pytest.raises(InputError, match=sentence):
        sample_in_processes(*saved, DrawOptions(**{"count": 10, **asked}), processes)


# Real processes


@pytest.mark.slow
def test_processes_draw_and_end(saved):
    (images, labels), again = (sample_in_processes(*saved, DrawOptions(130, seed=3), size) for size in (2, 1))
    assert images.shape == (130, 8, 8)
    assert np.array_equal(images, again[0])
    assert np.array_equal(labels, again[1])


@pytest.mark.slow
def test_one_that_cannot_read_the_release_says_so_in_its_own_words(saved):
    folder, release = saved
    (folder / "generator.safetensors").write_bytes(b"gone")
    with pytest.raises(InputError, match="are not those that its certificate names; fetch it again"):
        sample_in_processes(folder, release, DrawOptions(100), 2)


@pytest.mark.slow
def test_one_that_is_killed_ends_the_work_with_one_sentence(saved, monkeypatch):
    start = Worker.__init__

    def doomed(self: Worker, module: str, task: bytes, threads: int, number: int) -> None:
        start(self, module, task, threads, number)
        if number == 1:
            os.kill(self._process.pid, signal.SIGKILL)

    monkeypatch.setattr(Worker, "__init__", doomed)
    with pytest.raises(
        InputError, match=r"one of them ended \(signal 9; 9: perhaps out of memory\), so the work is not done"
    ):
        sample_in_processes(*saved, DrawOptions(100), 2)
