"""Classifiers in processes of their own: the same figures, progress as they come, and no process outlives the call."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from understudy.errors import InputError
from understudy.evaluate import parallel
from understudy.evaluate.classifiers import CLASSIFIERS, ClassifierSetup
from understudy.evaluate.cnn import CnnConfig
from understudy.evaluate.downstream import LabelledImages, downstream_accuracy
from understudy.evaluate.parallel import Crew, DownstreamProgress, decode, downstream_accuracies, encode, setup_from

Digits = tuple[LabelledImages, LabelledImages]
SETUP = ClassifierSetup(10, seed=3, cnn=CnnConfig(epochs=2, device="cpu"))


def test_processes_give_the_same_figures_and_say_how_they_came_about(digits: Digits) -> None:
    names = ("gaussian_nb", "decision_tree")
    heard: list[DownstreamProgress] = []
    results = downstream_accuracies(names, *digits, SETUP, Crew(2, heard.append), "real data")
    assert tuple(results) == names
    for name in names:
        alone = downstream_accuracy(name, *digits, SETUP)
        assert results[name].accuracy == alone.accuracy
        assert results[name].settings == alone.settings
        assert results[name].memory_mb > 20  # type: ignore[operator]
    assert [progress.finished for progress in heard] == [1, 2]
    assert {progress.total for progress in heard} == {2}
    assert {progress.trained_on for progress in heard} == {"real data"}
    assert {progress.result.classifier for progress in heard} == set(names)


def test_small_sets_need_no_process(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_start", None)
    results = downstream_accuracies(("gaussian_nb",), *digits, SETUP, Crew())
    assert results["gaussian_nb"].memory_mb is None
    large = replace(digits[0], images=np.zeros((5_000_000 // 64, 1, 8, 8), dtype=np.uint8))
    monkeypatch.setattr(parallel, "cores", lambda: 4)
    assert Crew().size(tuple(CLASSIFIERS), large) == 4
    assert Crew().size(("cnn",), large) == 1
    assert Crew(2).size(tuple(CLASSIFIERS), digits[0]) == 2
    with pytest.raises(InputError, match="workers: 0"):
        Crew(0)


@pytest.mark.parametrize("workers", [None, 1])
def test_each_epoch_of_a_network_is_heard_of(digits: Digits, workers: int | None) -> None:
    heard = list[tuple[str, int, int]]()
    setup = replace(SETUP, cnn=CnnConfig(epochs=3, minimum_steps=1, device="cpu"))
    crew = Crew(workers, counts=lambda *count: heard.append(count))
    downstream_accuracies(("cnn", "gaussian_nb"), *digits, setup, crew)
    assert heard == [("epochs of cnn trained on samples", done, 3) for done in (1, 2, 3)]


def test_data_and_setup_survive_the_pipe(digits: Digits) -> None:
    train, test = decode(io.BytesIO(encode(*digits)))
    for before, after in zip(digits, (train, test), strict=True):
        np.testing.assert_array_equal(before.images, after.images)
        np.testing.assert_array_equal(before.labels, after.labels)
    assert setup_from(asdict(SETUP)) == SETUP
    assert setup_from(asdict(ClassifierSetup(3))) == ClassifierSetup(3)


def test_a_bad_set_is_the_same_sentence_as_without_processes(digits: Digits) -> None:
    train, test = digits
    missing = replace(train, labels=np.where(train.labels == 4, 5, train.labels))
    with pytest.raises(InputError, match=r"^training labels: no image of class 4 among 1347"):
        downstream_accuracies(("gaussian_nb",), missing, test, SETUP, Crew(1))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "classifier lda: its process was ended by signal 9"),
        ("raise RuntimeError('broken')", r"classifier lda: failed \(RuntimeError: broken\); leave it out"),
        ("import sys; sys.exit(7)", r"classifier lda: failed \(exit code 7\)"),
    ],
)
def test_a_process_that_dies_is_named(code: str, message: str, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_start", lambda threads: start(code))
    with pytest.raises(InputError, match=message):
        downstream_accuracies(("lda",), *digits, SETUP, Crew(1))


def test_a_failure_ends_the_others_at_once(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest is started first, so the second process is the one that fails; the third is never started."""
    started: list[subprocess.Popen[bytes]] = []

    def start_stub(threads: int) -> subprocess.Popen[bytes]:
        started.append(start("import time; time.sleep(600)" if not started else "import sys; sys.exit(7)"))
        return started[-1]

    monkeypatch.setattr(parallel, "_start", start_stub)
    with pytest.raises(InputError, match=r"failed .exit code 7"):
        downstream_accuracies(("cnn", "adaboost"), *digits, SETUP, Crew(2))
    assert [process.poll() for process in started] == [-9, 7]


@pytest.mark.slow
def test_an_interrupt_ends_all_of_them(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real_start = parallel._start

    def start_stub(threads: int) -> subprocess.Popen[bytes]:
        started.append(real_start(threads) if started else start("import time; time.sleep(600)"))
        return started[-1]

    def interrupt(progress: DownstreamProgress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "_start", start_stub)
    with pytest.raises(KeyboardInterrupt):
        downstream_accuracies(("cnn", "gaussian_nb", "bernoulli_nb"), *digits, SETUP, Crew(2, interrupt))
    assert all(process.poll() is not None for process in started)
    assert started[0].poll() == -9


def start(code: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
