"""Several processes, one run: one certificate from any number of them, and a clear word from methods that cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from understudy import distributed
from understudy.api import TrainOptions, resume
from understudy.cli.options import taken_up_again
from understudy.data.dataset import ImageDataset
from understudy.data.sources import DataOptions
from understudy.distributed import Team, TeamEnded, assembled
from understudy.engines.dpsgd.sharing import SharedSteps, Sharing
from understudy.engines.learner import SlopeLearner
from understudy.engines.teacher.config import PURPOSE as TEACHING
from understudy.errors import InputError
from understudy.following import follow
from understudy.methods.registry import get_method, method_names
from understudy.privacy.mechanisms import GaussianAnswers, clip_rows
from understudy.release.verify import verify
from understudy.runs.folder import RunFolder

from ..helpers.cases import RECORDS
from ..helpers.data import dealt, tiny_data
from ..helpers.runs import interrupt, recorded, tiny_train
from ..helpers.teams import together

SHARED = (
    "datalens", "dp-cgan", "dp-diffusion", "dp-hp", "dp-merf", "dp-merf-ae", "dpgan", "g-pate", "gs-wgan", "pate-gan",
)  # fmt: skip
QUICK = ("dpgan", "gs-wgan")  # one of each engine; the others are slow


@pytest.fixture
def source(tmp_path) -> DataOptions:
    data = tiny_data()
    np.savez(tmp_path / "data.npz", x=data.images[:, 0], y=data.labels)
    return DataOptions(str(tmp_path / "data.npz"), RECORDS, 3)


def in_team(size: int, source: DataOptions, act: Any) -> Any:
    """What ``act`` returns, called with the data and a team that it leads."""
    if size == 1:
        return act(source.load(), Team())
    return together(size, lambda team: act(source.load(), team), lambda team: follow(team, source), dismiss=False)


# Which methods can


def test_methods_that_can_are_those_that_say_so():
    assert [name for name in method_names() if get_method(name).shared_by_processes] == sorted(SHARED)


@pytest.mark.parametrize("case", sorted(set(method_names()) - {*SHARED, "gan"}))
def test_a_method_that_cannot_says_so_before_anything_is_there(case, tmp_path):
    with pytest.raises(InputError, match=f"processes: {case} trains in one process; leave --processes out"):
        tiny_train(case, dealt(case, tiny_data()), tmp_path / "run", team=Team(0, 2))
    assert not (tmp_path / "run").exists()


def test_the_reference_without_privacy_cannot_either():
    with pytest.raises(InputError, match="processes: gan trains in one process"):
        get_method("gan").check_processes(get_method("gan").config_type(), 2)


@pytest.mark.parametrize(("asked", "sentence"), [(0, "pass a number from 1"), (5000, "pass a number from 1 to 1024")])
def test_a_number_of_processes_that_makes_no_sense_is_refused(asked, sentence):
    with pytest.raises(InputError, match=sentence), assembled(asked, "", {}):
        pass


def test_a_launcher_that_started_another_number_is_believed(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="2 were asked for, but a launcher started 3"), assembled(2, "", {}):
        pass
    with pytest.raises(InputError, match="RANK is set, but MASTER_ADDR is not"), assembled(None, "", {}):
        pass


# Who belongs to it


def test_processes_that_know_the_secret_go_on():
    for size in (2, 3):
        together(size, lambda team: team.prove("secret"), lambda team: team.prove("secret"), dismiss=False)


@pytest.mark.parametrize("stranger", [0, 1, 2])
def test_one_that_does_not_know_the_secret_is_noticed_by_all_others(stranger):
    """Nobody goes on with it, whoever it claims to be; a leader that does not know it convinces no follower."""
    noticed, done = {}, threading.Barrier(3, timeout=60)

    def prove(team):
        try:
            team.prove("guessed" if team.rank == stranger else "secret")
        except InputError as error:
            noticed[team.rank] = str(error)
        done.wait()

    together(3, prove, prove, dismiss=False)
    assert set(noticed) >= {0, 1, 2} - {stranger}
    assert all("does not belong to this run, so nothing was sent to it" in sentence for sentence in noticed.values())


def test_what_proves_the_secret_is_not_the_same_twice_and_not_the_secret():
    sent = []

    def watched(team):
        class Watched(type(team)):
            def total(self, tensor):
                sent.append(bytes(tensor[self.rank].tolist()))
                super().total(tensor)

        Watched(team.rank, team.size, team.meeting).prove("secret")

    for _ in range(2):
        together(2, watched, lambda team: team.prove("secret"), dismiss=False)
    together(2, lambda team: team.prove("secret"), watched, dismiss=False)
    shown = [each for each in sent if any(each)]
    assert len(set(shown)) == len(shown)
    assert not any(b"secret" in each for each in shown)


def test_a_leader_that_plays_an_earlier_proof_again_is_not_believed():
    """Somebody who saw the proofs of one run knows a right answer to old numbers, and none to a fresh one."""
    seen, answered = [], []

    def watched(team):
        class Watched(type(team)):
            def give(self, tensor):
                super().give(tensor)
                seen.append(tensor.clone())

        Watched(team.rank, team.size, team.meeting).prove("secret")

    together(2, lambda team: team.prove("secret"), watched, dismiss=False)
    numbers, proof = seen

    def play_again(team):
        team.total(torch.zeros_like(numbers))
        team.give(numbers)
        team.total(digests := torch.zeros_like(numbers))
        answered.append(digests)
        team.give(proof)

    with pytest.raises(InputError, match="does not belong to this run"):
        together(2, play_again, lambda team: team.prove("secret"), dismiss=False)
    assert not answered, "no digest of numbers that somebody else chose"


@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"])
def test_processes_of_one_machine_stay_on_it_whatever_the_environment_says(name, monkeypatch):
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(variable, "eth0")
    monkeypatch.setenv(name, {"LOCAL_WORLD_SIZE": "1"}.get(name, "eth1"))  # 1: as torchrun says to one process
    with pytest.raises(InputError, match="not all of the 2 came"), assembled(2, "no.such.program", {}):
        pass
    assert [os.environ[variable] for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")] == ["lo", "lo"]


def test_nobody_is_dismissed_in_the_middle_of_a_step():
    """They wait for the leader's part and hear no word: it would wait for them for days."""
    given = []

    class Listening(Team):
        def give(self, tensor):
            given.append(tensor.tolist())

        def total(self, tensor):
            pass

    team = Listening(0, 2)
    steps = SharedSteps(team, None, Sharing(None))
    steps.begin(())
    team.dismiss()
    assert [0, 0] not in given
    steps.end(torch.zeros(2), torch.zeros(1))
    team.dismiss()
    assert given[-1] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dp-merf", "gs-wgan"])
def test_a_leader_that_fails_in_the_middle_of_a_step_ends_with_all_others(case, tmp_path, source):
    """As where its part of a data store cannot be read, or does not fit into memory."""
    script = f"""if True:
        import sys
        from understudy.cli.main import main
        from understudy.engines.critics.panel import Critics
        from understudy.engines.dpsgd.sharing import SharedSum

        def fail(*_):
            sys.exit("understudy: the disk is gone")

        SharedSum._part = Critics.own_answers = fail
        sys.argv = ["understudy", "train", {case!r}, *sys.argv[3:]]  # in place of "train dpgan"
        main()
    """
    few = ("--set", "method.critics.warm_iterations=1") if case == "gs-wgan" else ()
    launcher = (sys.executable, "-c", script)
    running = start(source, tmp_path / "run", *PLAN[:6], *few, "--processes", "3", launcher=launcher)
    error = running.communicate(timeout=120)[1]
    assert running.returncode
    assert "the disk is gone" in error


def test_a_process_that_never_comes_is_not_waited_for():
    sentence = "not all of the 2 came, so nothing was begun"
    with pytest.raises(InputError, match=sentence), assembled(2, "no.such.program", {}):
        pass


def test_a_process_that_dies_while_they_connect_is_not_waited_for_for_days(tmp_path, monkeypatch):
    """Number 1 said that it is there, and then nothing any more."""
    from torch.distributed import FileStore

    monkeypatch.setattr(distributed, "_CONNECTING", timedelta(seconds=1))
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # which are set on the way
        monkeypatch.setenv(name, "lo")
    store = FileStore(str(tmp_path / "meeting"), 2)
    store.set("here-1", "yes")
    sentence = "number 0 of 2 cannot reach the others"
    with pytest.raises(InputError, match=sentence), distributed._joined(store, 0, 2, "", 2):
        pass


@pytest.mark.slow
def test_processes_wait_for_each_other_longer_than_they_took_to_connect(tmp_path):
    """A leader may fit an embedding for hours before it asks for anything."""
    script = """if True:
        import sys, time
        from datetime import timedelta
        import torch
        from torch.distributed import FileStore
        from understudy import distributed

        distributed._CONNECTING = timedelta(seconds=3)
        rank = int(sys.argv[1])
        with distributed._joined(FileStore(sys.argv[2], 2), rank, 2, "", 2) as team:
            time.sleep(0 if rank else 4)
            value = torch.full((2,), 7 - rank)
            team.give(value)
            assert value.tolist() == [7, 7]
    """
    command = [sys.executable, "-c", script]
    running = [subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")]) for rank in (0, 1)]
    assert [process.wait(120) for process in running] == [0, 0]


# One certificate


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SHARED if name not in QUICK)]
)
def test_the_certificate_does_not_know_how_many_processes_there_were(case, tmp_path, source):
    found = []
    for size in (1, 2, 4):
        out = tmp_path / str(size)
        release = in_team(size, source, lambda data, team, out=out: tiny_train(case, data, out, team=team))
        certificate = release.certificate
        found.append((certificate.headline, certificate.events, recorded(out)))
        assert verify(out / "release").passed
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("case", QUICK)
def test_a_run_is_resumed_with_another_number_of_processes(case, tmp_path, source):
    out = tmp_path / "run"
    in_team(2, source, lambda data, team: interrupt(case, data, out, team=team))
    subsets = out / "private" / "partition.npz"
    drawn = subsets.read_bytes() if case == "gs-wgan" else b""
    before = sum(line["count"] for line in recorded(out) if line["kind"] == "reserve")

    def go_on(data: ImageDataset, team: Team) -> Any:
        return resume(data, out, TrainOptions(team=team))

    release = in_team(3, source, go_on)
    after = sum(line["count"] for line in recorded(out) if line["kind"] == "reserve")
    planned = sum(event.count for event in release.certificate.events)
    assert 0 < before < after <= planned
    assert verify(out / "release").passed
    assert drawn == (subsets.read_bytes() if subsets.exists() else b""), "a record stays in its subset"


@pytest.mark.parametrize(("case", "setting"), [("gs-wgan", "subsets"), ("pate-gan", "teachers")])
def test_more_processes_than_critics_are_refused_before_anything_is_there(case, setting, tmp_path):
    with pytest.raises(InputError, match=f"processes: 5, but privacy.{setting} is 4, .* pass --processes 4 at most"):
        tiny_train(case, tiny_data(), tmp_path / "run", team=Team(0, 5))
    assert not (tmp_path / "run").exists()


def test_answers_of_shared_critics_are_sanitized_once_with_the_noise_of_one_process(tmp_path, source, monkeypatch):
    """One call a step, by the leader; what the generator learns from minus what was clipped is noise of the deviation
    that the event says, by its variance, two-sided at 1e-6."""
    noise, answer, learnt = list[torch.Tensor](), GaussianAnswers.answer, list[torch.Tensor]()

    def remember(self: GaussianAnswers, rows_private: torch.Tensor, **options: Any) -> Any:
        given = answer(self, rows_private, **options)
        deviation = 2 * self.clip * given.event.noise_multiplier
        noise.append((given.value_dp - clip_rows(rows_private, self.clip)).flatten().double() / deviation)
        learnt.append(given.value_dp / self.clip)
        return given

    learn = SlopeLearner.learn

    def follow_answers(self: SlopeLearner, drawn: Any, slopes_dp: torch.Tensor) -> None:
        assert torch.equal(slopes_dp, learnt[-1])
        learn(self, drawn, slopes_dp)

    monkeypatch.setattr(GaussianAnswers, "answer", remember)
    monkeypatch.setattr(SlopeLearner, "learn", follow_answers)
    in_team(3, source, lambda data, team: tiny_train("gs-wgan", data, tmp_path / "run", team=team))
    assert len(noise) == 4
    values = torch.cat(noise)

    def rejects(values: torch.Tensor) -> bool:
        law, square = stats.chi2(values.numel()), float(values.square().sum())
        return bool(2 * min(law.cdf(square), law.sf(square)) < 1e-6)

    assert not rejects(values)
    assert rejects(2**0.5 * values)
    assert rejects(values / 2**0.5)


# Real processes


def start(source: DataOptions, out: Path, *more: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = (*(launcher or (sys.executable, "-m", "understudy")), "train", "dpgan", "--data", source.source)
    facts = ("--records", "40", "--classes", "3", "--out", str(out))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(out.parent / "state")}
    return subprocess.Popen([*command, *facts, *more], stderr=subprocess.PIPE, text=True, env=environment)


PLAN = (
    "--epsilon", "10", "--delta", "1e-5", "--device", "cpu", "--set", "privacy.embedding_share=0",
    "--set", "privacy.steps=3000", "--set", "privacy.noise_multiplier=40", "--set", "runtime.checkpoint_seconds=0.2",
)  # fmt: skip


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait_for(condition: Any, seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "nothing happened"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["a process that follows", "the process that leads"])
def test_a_process_that_dies_ends_the_run_with_one_sentence_and_loses_nothing(victim, tmp_path, source):
    out = tmp_path / "run"
    running = start(source, out, *PLAN, "--processes", "2")
    wait_for(lambda: list((out / "private").glob("checkpoint-*")) if out.exists() else False)
    followers = children_of(running.pid)
    os.kill(running.pid if "leads" in victim else followers[0], signal.SIGKILL)
    error = running.communicate(timeout=60)[1]
    if "leads" not in victim:
        assert running.returncode == TeamEnded.exit_code
        last = error.strip().splitlines()[-1]
        assert last.startswith("understudy: processes: one of the 2 processes of this run ended")
        assert "Traceback" not in error
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in followers))
    spent = sum(line["count"] for line in recorded(out) if line["kind"] == "reserve")
    again = start(source, out, "--resume", "--processes", "3")
    told = again.communicate(timeout=300)[1]
    assert again.returncode == 0, told
    after = sum(line["count"] for line in recorded(out) if line["kind"] == "reserve")
    assert 0 < spent <= after <= 3000
    assert verify(out / "release").passed


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["a process that follows", "the process that leads"])
def test_a_process_that_dies_while_a_teacher_learns_loses_none_of_its_steps(victim, tmp_path, source):
    """The run goes on alone: first with what is left of the teacher's steps, then with the embedding and the method."""
    out, planned = tmp_path / "run", 1000
    share = {"share": 0.2, "steps": planned, "noise_multiplier": 200}
    taught = [part for name, value in share.items() for part in ("--set", f"privacy.teacher_{name}={value}")]
    steps = ["--set", "privacy.steps=20", "--set", "privacy.embedding_share=0.05", "--set", "method.embedding.steps=5"]
    running = start(source, out, *PLAN, *taught, *steps, "--processes", "3")
    wait_for(lambda: RunFolder(out).teacher.exists())
    followers = children_of(running.pid)
    os.kill(running.pid if "leads" in victim else followers[-1], signal.SIGKILL)
    error = running.communicate(timeout=60)[1]
    if "leads" not in victim:
        assert running.returncode == TeamEnded.exit_code
        assert error.strip().splitlines()[-1].startswith("understudy: processes: one of the 3 processes of this run")
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in followers))

    def spent() -> int:
        lines = (line for line in recorded(out) if line["kind"] == "reserve")
        return sum(line["count"] for line in lines if line["purpose"] == TEACHING)

    before = spent()
    assert 0 < before < planned, "killed too late to see anything"
    again = start(source, out, "--resume")
    told = again.communicate(timeout=300)[1]
    assert again.returncode == 0, told
    assert before < spent() == planned
    assert verify(out / "release").passed


@pytest.mark.slow
def test_torchrun_starts_the_same_run_and_restarts_it(tmp_path, source):
    """A process that dies is replaced with all others, and the run goes on."""
    out = tmp_path / "run"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    running = start(source, out, *PLAN, launcher=(*torchrun, "--max-restarts", "2", "-m", "understudy"))
    wait_for(lambda: list((out / "private").glob("checkpoint-*")) if out.exists() else False)
    os.kill(children_of(running.pid)[1], signal.SIGKILL)
    error = running.communicate(timeout=300)[1]
    assert running.returncode == 0, error
    assert any(line.get("text") == "resumed" for line in recorded(out))
    assert verify(out / "release").passed


def test_a_launcher_that_starts_again_takes_up_no_run_that_another_command_began(tmp_path, monkeypatch):
    """What was refused at first, since the folder was taken, is not done at the second try."""
    tiny_train("dp-merf", tiny_data(), tmp_path / "run", command="understudy train dp-merf --out run")
    monkeypatch.setattr(sys, "argv", ["understudy", "train", "dp-merf", "--out", "run"])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not taken_up_again(tmp_path / "run", resume=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert taken_up_again(tmp_path / "run", resume=False)
    assert not taken_up_again(tmp_path / "other", resume=False)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--set", "privacy.noise_multiplier=9"])
    assert taken_up_again(tmp_path / "run", resume=True)
    with pytest.raises(InputError, match="holds a run already; continue it with --resume or choose another folder"):
        taken_up_again(tmp_path / "run", resume=False)
