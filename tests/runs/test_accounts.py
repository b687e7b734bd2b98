"""Accounts on disk and the runs that are charged to them: once, in full, and never without a trace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from understudy.api import TrainOptions, annotate, release_early, resume, train
from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.data.domain import SourceOptions
from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.methods.embedding.dp_merf import DpMerf
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.filters import Charge
from understudy.privacy.ledger import Ledger
from understudy.release.release import load
from understudy.release.verify import verify
from understudy.runs.accounts import Account, AccountName, account_names, accounts_folder, open_account
from understudy.runs.accounts import read_account as account_of
from understudy.runs.bookings import Booking
from understudy.runs.recognition import remember, warn_past_accounts

from ..helpers.data import of_people, tiny_data
from ..helpers.runs import interrupt, open_to_others, tiny_train

PLAIN = Event(noise_multiplier=1.0, sensitivity="C", count=1)
TWO_RUNS = Budget(0.6, 1e-5)  # two tiny runs fit, a third does not


@pytest.fixture
def account() -> Account:
    return open_account("tiny", TWO_RUNS, rule="gaussian")


def path_of(name: str) -> Path:
    return accounts_folder() / f"{name}.json"


def booking(account: Account, amount: float) -> Booking:
    reference = AccountName(name=account.name, identity=account.identity)
    return Booking(reference, "dp-merf", (PLAIN,), Charge(amount=amount, delta=1e-7))


def quietly(sentence: str) -> None:
    """For tests about something else."""


def empty_ledger(folder: Path) -> Ledger:
    folder.mkdir(parents=True, exist_ok=True)
    return Ledger.create(folder / "ledger.jsonl")


# Runs


def test_runs_reserve_their_plans_and_the_one_that_does_not_fit_is_refused_and_leaves_nothing(account, tmp_path):
    totals = []
    for name in ("first", "second"):
        release = tiny_train("dp-merf", tiny_data(), tmp_path / name, account="tiny")
        stated = release.certificate.account
        assert (stated.name, stated.identity, stated.terms) == ("tiny", account.identity, account.terms)
        totals.append(stated.total_epsilon)
        assert verify(tmp_path / name).passed
    assert [load(tmp_path / name).certificate.account.runs for name in ("first", "second")] == [1, 2]
    plain = [PLAIN.model_copy(update={"noise_multiplier": 10.0})]
    assert totals == [accounting.certified_epsilon(plain, 1e-5), 0.6], "of several runs the terms are the guarantee"
    assert account_of("tiny").total[0] == accounting.certified_epsilon(plain * 2, 1e-5)
    before = path_of("tiny").read_bytes()
    sentence = (
        r"account: 1 more run would bring tiny to epsilon .* but it allows 0.6 at 1e-05, and 2 runs took .*; nothing"
    )
    with pytest.raises(BudgetError, match=sentence) as refused:
        tiny_train("dp-merf", tiny_data(), tmp_path / "third", account="tiny")
    assert refused.value.exit_code == 3
    assert not (tmp_path / "third").exists()
    assert path_of("tiny").read_bytes() == before


def test_the_whole_plan_is_charged_and_a_resumed_run_is_charged_once(account, tmp_path):
    interrupt("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    (entry,) = account_of("tiny").entries
    assert [event.count for event in entry.events] == [1]
    early = release_early(tmp_path / "run")
    assert early.certificate.account.runs == 1
    finished = resume(tiny_data(), tmp_path / "run")
    assert account_of("tiny").entries == (entry,)
    assert finished.certificate.account == early.certificate.account


def test_a_run_goes_on_with_the_account_it_was_begun_with_and_with_no_other(account, tmp_path):
    open_account("other", TWO_RUNS)
    interrupt("dp-merf", tiny_data(), tmp_path / "without")
    interrupt("dp-merf", tiny_data(), tmp_path / "with", account="tiny")
    for name, begun, asked in (("without", "none", "tiny"), ("with", "tiny", "other")):
        with pytest.raises(InputError, match=f"{asked} was asked for, but the run was started with {begun}"):
            resume(tiny_data(), tmp_path / name, TrainOptions(account=asked, warn=quietly))
    assert (len(account_of("tiny").entries), len(account_of("other").entries)) == (1, 0)
    resume(tiny_data(), tmp_path / "with", TrainOptions(account="tiny", warn=quietly))


def test_a_delta_above_one_over_the_units_promises_nothing(tmp_path):
    open_account("loose", Budget(1, 0.5))
    with pytest.raises(InputError, match=r"delta 0.5 of loose is more than one over the \d+ declared units"):
        tiny_train("dp-merf", tiny_data(), tmp_path / "run", account="loose")
    assert not (tmp_path / "run").exists()


def test_a_link_is_no_account(account, tmp_path):
    """A reservation would be written beside what the link leads to."""
    path_of("tiny").rename(tmp_path / "shared.json")
    path_of("tiny").symlink_to(tmp_path / "shared.json")
    with pytest.raises(InputError, match="is a link"):
        tiny_train("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    path_of("broken").symlink_to(tmp_path / "nowhere.json")
    for action in (lambda: account_of("broken"), lambda: open_account("broken", TWO_RUNS)):
        with pytest.raises(InputError, match=r"is a link|is open already"):
            action()


def test_an_account_that_could_not_be_read_again_is_not_written(account, tmp_path, monkeypatch):
    before = path_of("tiny").read_bytes()
    monkeypatch.setattr("understudy.runs.accounts.LARGEST_JSON", len(before) + 1)
    with pytest.raises(BudgetError, match="tiny has no place for more than its 0 runs; nothing was spent"):
        tiny_train("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    assert path_of("tiny").read_bytes() == before


def test_a_run_that_fails_before_it_spent_gives_its_reservation_back_and_may_be_resumed(account, tmp_path, monkeypatch):
    seen = []

    def fail(self, run):
        seen.append(len(account_of("tiny").entries))
        raise OSError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(DpMerf, "train", fail)
        with pytest.raises(OSError, match="no such luck"):
            tiny_train("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    assert seen == [1], "it must be reserved before the method begins"
    assert account_of("tiny").entries == ()
    resume(tiny_data(), tmp_path / "run")
    assert len(account_of("tiny").entries) == 1


def test_a_run_that_broke_down_after_it_spent_stays_charged(account, tmp_path, monkeypatch):
    def spend_and_fail(self, run):
        run.ledger.account(run.plan.events[0]).spend(1)
        raise AbortedRun("run: too many gradients were not finite")

    monkeypatch.setattr(DpMerf, "train", spend_and_fail)
    with pytest.raises(AbortedRun):
        tiny_train("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    assert len(account_of("tiny").entries) == 1


def test_a_copy_that_is_refused_does_not_give_back_what_the_other_copy_uses(account, tmp_path):
    interrupt("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (copy / "ledger.jsonl").write_bytes(b"")  # as if it had spent nothing
    with pytest.raises(InputError, match="does not hold"):
        resume(tiny_data(), copy, TrainOptions(moved=True))
    assert len(account_of("tiny").entries) == 1


def test_an_account_that_was_restored_from_an_older_copy_is_noticed_by_a_run_that_has_spent(account, tmp_path):
    older = path_of("tiny").read_bytes()
    interrupt("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    path_of("tiny").write_bytes(older)
    for action in (lambda: resume(tiny_data(), tmp_path / "run"), lambda: release_early(tmp_path / "run")):
        with pytest.raises(InputError, match=r"does not hold the reservation of this run, .* restore the newest copy"):
            action()
    path_of("tiny").unlink()
    open_account("tiny", TWO_RUNS, rule="gaussian")
    with pytest.raises(InputError, match=r"tiny is another account than the one that this run was begun with"):
        resume(tiny_data(), tmp_path / "run")


def test_a_run_that_ended_before_its_reservation_makes_it_when_it_is_resumed(account, tmp_path, monkeypatch):
    """There is a description, nothing is spent, and the account does not know the run: as a kill would leave it."""

    def ended(self, run, folder, ledger):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Booking, "reserve", ended)
        with pytest.raises(KeyboardInterrupt):
            tiny_train("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
    assert (tmp_path / "run" / "run.json").exists()
    assert account_of("tiny").entries == ()
    assert resume(tiny_data(), tmp_path / "run").certificate.account.runs == 1


_KILLED = """
import os, signal, sys
from pathlib import Path
from understudy.methods.embedding.dp_merf import DpMerf
from understudy.runs import bookings
from tests.helpers.data import tiny_data
from tests.helpers.runs import tiny_train

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def write_and_die(account):
    write(account)
    die()

write, place = bookings.write_account, sys.argv[1]
if place == "before the reservation is written":
    bookings.write_account = die
elif place == "after the reservation is written":
    bookings.write_account = write_and_die
else:
    DpMerf.train = die if place == "before it spends" else DpMerf.train
report = die if place == "after it has spent" else None
tiny_train("dp-merf", tiny_data(), Path(sys.argv[2]), account="tiny", listener=report)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["before the reservation is written", "after the reservation is written", "before it spends", "after it has spent"],
)
def test_a_run_that_is_killed_anywhere_is_resumed_with_one_reservation(account, tmp_path, place):
    command = [sys.executable, "-c", _KILLED, place, str(tmp_path / "run")]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(account_of("tiny").entries) == (place != "before the reservation is written")
    assert resume(tiny_data(), tmp_path / "run").certificate.account.runs == 1
    assert len(account_of("tiny").entries) == 1
    assert verify(tmp_path / "run").passed


def test_two_runs_for_the_last_room_one_of_them_is_refused_and_its_folder_can_be_used_again(tmp_path, monkeypatch):
    """Both saw room; the second to reserve is refused under the lock, and leaves no run behind."""
    open_account("tiny", Budget(0.4, 1e-5), rule="gaussian")
    checked = Booking.checked

    def and_another_comes(self):
        checked(self)
        monkeypatch.setattr(Booking, "checked", checked)
        tiny_train("dp-merf", tiny_data(), tmp_path / "first", account="tiny")
        return self

    monkeypatch.setattr(Booking, "checked", and_another_comes)
    with pytest.raises(BudgetError, match="1 more run would bring tiny"):
        tiny_train("dp-merf", tiny_data(), tmp_path / "second", account="tiny")
    assert len(account_of("tiny").entries) == 1
    assert not (tmp_path / "second" / "run.json").exists()
    tiny_train("dp-merf", tiny_data(), tmp_path / "second", warn=quietly)


def test_runs_of_another_unit_without_privacy_or_with_a_seed_are_refused(account, tmp_path):
    with pytest.raises(InputError, match=r"about a record, but this run protects a person"):
        tiny_train("dp-merf", of_people([3] * 10), tmp_path / "people", account="tiny")
    with pytest.raises(BudgetError, match="gan is not private, so no account can pay for it"):
        train("gan", tiny_data(), None, tmp_path / "gan", TrainOptions(account="tiny"))
    with pytest.raises(InputError, match="noise that a seed repeats can be removed"):
        tiny_train("dp-merf", tiny_data(), tmp_path / "seeded", account="tiny", seed=1)
    with pytest.raises(InputError, match=r"this run samples its batches; open another account with --filter renyi"):
        tiny_train("dpgan", tiny_data(), tmp_path / "sampled", account="tiny")
    assert list(tmp_path.iterdir()) == []


def test_a_figure_without_noise_is_paid_for_by_no_account(tmp_path):
    open_account("wide", Budget(10, 1e-5))
    with pytest.raises(BudgetError, match=r"computed from the data without noise, .* leave publish out"):
        tiny_train("bdp-gan", tiny_data(), tmp_path / "run", account="wide", method={"bayesian": {"publish": True}})


@pytest.mark.slow
def test_a_federation_is_charged_by_its_claim_where_claims_are_added(tmp_path):
    open_account("clients", Budget(20, 1e-4), unit="client")
    with pytest.raises(InputError, match=r"pays for the limits of its clients too, .*--filter sum"):
        tiny_train("gs-wgan-federated", tiny_data(), tmp_path / "run", account="clients")
    open_account("added", Budget(20, 1e-4), unit="client", rule="sum")
    certificate = tiny_train("gs-wgan-federated", tiny_data(), tmp_path / "run", account="added").certificate
    assert certificate.account.total_epsilon == certificate.headline.epsilon
    assert certificate.account.total_delta == certificate.headline.delta
    assert not any("account" in check.name and not check.passed for check in verify(tmp_path / "run").checks)


@pytest.mark.slow
def test_an_annotator_pays_for_the_generator_too_unless_the_account_has_paid_for_it(tmp_path):
    open_account("both", Budget(10, 1e-5))
    inside = tiny_train("dp-merf", tiny_data("unlabelled"), tmp_path / "inside", account="both")
    outside = tiny_train("dp-merf", tiny_data("unlabelled"), tmp_path / "outside", warn=quietly)
    privacy, method = {"steps": 2, "batch": 8, "noise_multiplier": 10.0}, {"kind": "network", "width": 2}
    config = {"privacy": privacy, "method": method, "runtime": {"device": "cpu"}}
    for name, base, events in (("a", inside, 1), ("b", outside, 2)):
        options = TrainOptions(config=config, account="both", warn=quietly)
        annotated = annotate(base, tiny_data(), Budget(10, 1e-5), tmp_path / name, options)
        assert len(account_of("both").entries[-1].events) == events
        assert account_of("both").entries[-1].charge.alone is None
        assert annotated.certificate.account.runs == len(account_of("both").entries)
        assert verify(tmp_path / name).passed


# The file


def test_an_account_is_for_its_owner_alone_whatever_the_umask(account, tmp_path):
    before = os.umask(0)
    try:
        tiny_train("dp-merf", tiny_data(), tmp_path / "run", account="tiny")
        assert open_to_others(accounts_folder()) == []
        open_account("new", TWO_RUNS)
    finally:
        os.umask(before)
    assert open_to_others(accounts_folder()) == []
    assert account_names() == ["new", "tiny"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"epsilon": 0.6', '"epsilon": 6.0'),
        lambda text: text.replace('"amount": 1.0', '"amount": 0.1'),
        lambda text: json.dumps({**json.loads(text), "entries": []}),
        lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != "checksum"}),
        lambda text: text.replace('"name": "tiny"', '"name": "other"'),
        lambda text: "[]",
        lambda text: "",
    ],
)
def test_a_damaged_account_is_never_a_smaller_one(account, tmp_path, damage):
    booking(account, 0.001).reserve("1" * 32, tmp_path, empty_ledger(tmp_path / "run"))
    text = path_of("tiny").read_text().replace('"amount": 0.001', '"amount": 1.0')
    path_of("tiny").write_text(damage(text))
    for action in (lambda: account_of("tiny"), lambda: tiny_train("dp-merf", tiny_data(), tmp_path, account="tiny")):
        with pytest.raises(
            InputError, match=r"what was spent is unknown and nothing is charged to it; restore the file"
        ):
            action()


def test_an_account_is_opened_once_and_its_terms_never_change(account):
    with pytest.raises(InputError, match=r"tiny is open already, and its terms cannot change"):
        open_account("tiny", Budget(100, 1e-5))
    assert account_of("tiny") == account
    with pytest.raises(InputError, match=r"other is not open here; open it with `understudy data account other"):
        account_of("other")
    for name in ("", "../x", "a/b", ".hidden", "x" * 65, "a\n"):
        with pytest.raises(InputError, match="is no name; pass up to 64 letters"):
            open_account(name, TWO_RUNS)


def test_a_reservation_is_made_once_for_a_run_and_for_one_plan(account, tmp_path):
    ledger = empty_ledger(tmp_path)
    for _ in range(2):
        booking(account, 0.001).reserve("1" * 32, tmp_path, ledger)
    assert len(account_of("tiny").entries) == 1
    other = Booking(booking(account, 0.001).account, "dp-merf", (PLAIN, PLAIN), Charge(amount=0.002))
    with pytest.raises(InputError, match="holds another plan for this run"):
        other.reserve("1" * 32, tmp_path, ledger)


# Several processes, and their end

_RESERVE = """
import sys
from pathlib import Path
from understudy.privacy.events import Event
from understudy.privacy.filters import Charge
from understudy.privacy.ledger import Ledger
from understudy.runs.accounts import AccountName, read_account
from understudy.runs.bookings import Booking
from understudy.runs.recognition import remember, warn_past_accounts
from understudy.errors import BudgetError

number, count, ledger = int(sys.argv[1]), int(sys.argv[2]), Ledger(Path("none"))
account = read_account("shared")
event = Event(noise_multiplier=1.0, sensitivity="C", count=1)
booking = Booking(AccountName(name="shared", identity=account.identity), "x", (event,), Charge(amount=1.0, delta=1e-9))
print("ready", flush=True)
sys.stdin.readline()
for turn in range(count):
    run = f"{number:016x}{turn:016x}"
    try:
        booking.reserve(run, Path("."), ledger)
        print(run, flush=True)
    except BudgetError:
        print("refused", flush=True)
"""


def reserving(number: int, count: int) -> subprocess.Popen[str]:
    """A process that waits for a word and then reserves ``count`` times, saying each when it is on disk."""
    command = [sys.executable, "-c", _RESERVE, str(number), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_reserve_at_the_same_time_never_take_more_than_there_is():
    open_account("shared", Budget(25, 1e-5), rule="sum")
    processes = [reserving(number, 15) for number in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [line for process in processes for line in process.communicate(timeout=60)[0].split()]
    kept = [entry.run for entry in account_of("shared").entries]
    assert sorted(kept) == sorted(line for line in said if line != "refused")
    assert (len(kept), said.count("refused")) == (25, 20)
    assert account_of("shared").total[0] == 25.0


def test_a_process_that_is_killed_at_any_moment_leaves_what_it_said_and_at_most_one_more(tmp_path):
    open_account("shared", Budget(1e6, 0.1), rule="sum")
    kept = 0
    for number, said_before_the_kill in enumerate((1, 4)):
        process = reserving(number, 10_000)
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        said = [process.stdout.readline() for _ in range(said_before_the_kill)]
        process.send_signal(signal.SIGKILL)
        said += process.communicate(timeout=60)[0].splitlines(keepends=True)
        entries = account_of("shared").entries
        assert kept + len(said) <= len(entries) <= kept + len(said) + 1
        kept = len(entries)
    booking(account_of("shared"), 1.0).reserve("f" * 32, tmp_path, empty_ledger(tmp_path / "run"))  # the lock is free


# Data that went past their account


def reversed_rows(data: ImageDataset) -> ImageDataset:
    return data.subset(np.arange(len(data))[::-1].copy())


def test_the_owner_is_warned_where_data_of_an_account_go_past_it_and_nothing_of_that_is_written(account, tmp_path):
    tiny_train("dp-merf", tiny_data(), tmp_path / "first", account="tiny")
    again = tiny_data()
    fewer = again.subset(np.arange(30))
    for name, data in (("same", again), ("order", reversed_rows(again)), ("fewer", fewer)):
        said: list[str] = []
        release = tiny_train("dp-merf", data, tmp_path / name, warn=said.append)
        assert ["went through tiny before" in sentence for sentence in said] == [True]
        assert release.certificate.account is None
        written = [path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()]
        assert not any(b"tiny" in content for content in written)
    for data, options in ((tiny_data(seed=1), {}), (again, {"account": "tiny"})):
        said = []
        tiny_train("dp-merf", data, tmp_path / f"quiet{len(options)}", warn=said.append, **options)
        assert said == []
    with pytest.warns(UserWarning, match="went through tiny before, which does not count this run"):
        tiny_train("dp-merf", again, tmp_path / "python")


def blobs(seed: int) -> NDArray[np.uint8]:
    """Pictures in colour with large bright and dark parts."""
    rough = np.random.default_rng(seed).integers(0, 256, (200, 4, 4, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(each).resize((32, 32))) for each in rough])


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (3, 16)])
def test_data_are_known_again_in_another_size_and_in_grey(account, channels, side):
    options = SourceOptions(size=(side, side), channels=channels, unlabelled=True)
    first, same, other = (
        from_arrays(blobs(seed), None, records=200, options=chosen)
        for seed, chosen in ((0, SourceOptions(unlabelled=True)), (0, options), (1, options))
    )
    remember("tiny", first)
    said: list[str] = []
    warn_past_accounts(other, None, said.append)
    assert said == []
    warn_past_accounts(same, None, said.append)
    assert len(said) == 1


def test_prints_that_cannot_be_read_are_told_and_stop_no_run(account, tmp_path):
    tiny_train("dp-merf", tiny_data(), tmp_path / "first", account="tiny")
    (accounts_folder() / "seen").write_text("{")
    said: list[str] = []
    tiny_train("dp-merf", tiny_data(), tmp_path / "second", warn=said.append)
    assert ["cannot be told" in sentence for sentence in said] == [True]
    tiny_train("dp-merf", tiny_data(), tmp_path / "third", account="tiny", warn=said.append)
