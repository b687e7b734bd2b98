"""What ``run.json`` says of a run: what was asked for, on which data, where the run lives, and how many there were.

The number of runs that have touched a data set is stated in a certificate, because choosing among runs leaks. It is
kept in the user's state folder under the name and the declared domain of the data, which are public: a count kept under
the records themselves would tell whether they changed between two releases. It is a floor, since runs on other machines
or under other names are not known here.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.errors import InputError, InterruptedRun, UnderstudyError
from understudy.files import read_json, write_text
from understudy.privacy.budget import Budget, NoBudget
from understudy.privacy.certificate import Certificate
from understudy.privacy.ledger import Ledger
from understudy.runs.accounts import AccountName
from understudy.runs.bookings import Booking, late_booking
from understudy.runs.copies import MOVED, RunIdentity, state_folder
from understudy.runs.folder import RunFolder, locked

_LEFT_OUT = ("base_sha256", "account")  # where there is none


@dataclass(frozen=True)
class RunDescription:
    """All that is needed to continue a run, given its data."""

    method: str
    budget: Budget
    domain: Domain
    config: dict[str, Any]
    data: str
    seed: int | None
    runs_on_this_data: int
    command: str | None
    remarks: list[str] = field(default_factory=list)
    source: dict[str, Any] | None = None
    identity: RunIdentity | None = None  # None: a run from before there was one
    base_sha256: str | None = None  # of the certificate of the release that is annotated
    account: AccountName | None = None  # what the run is charged to, beside its own budget

    @property
    def declared_moves(self) -> list[str]:
        """What a certificate says of a run that was continued in a copy."""
        return [MOVED] if self.identity is not None and self.identity.moves else []

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``run.json``."""
        values = {
            **vars(self),
            "budget": None if isinstance(self.budget, NoBudget) else asdict(self.budget),
            "domain": self.domain.model_dump(mode="json"),
            "identity": None if self.identity is None else self.identity.model_dump(),
            "account": None if self.account is None else self.account.model_dump(),
        }
        return {key: value for key, value in values.items() if value is not None or key not in _LEFT_OUT}


def read_description(folder: RunFolder) -> RunDescription:
    """The description of a run."""
    if not folder.begun:
        raise InputError(f"run: there is none in {folder.path}; pass the folder that `train` was given as --out")
    raw = read_json(folder.description, "run")
    try:
        budget = NoBudget() if raw["budget"] is None else Budget(**raw["budget"])
        identity = None if raw.get("identity") is None else RunIdentity.model_validate(raw["identity"])
        domain = Domain.model_validate(raw["domain"])
        account = None if raw.get("account") is None else AccountName.model_validate(raw["account"])
        read = {"budget": budget, "domain": domain, "identity": identity, "account": account}
        return RunDescription(**{**raw, **read})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"run: {folder.description} is not the description of a run; the file is damaged") from None


def write_description(folder: RunFolder, description: RunDescription, data: ImageDataset) -> None:
    """Write ``run.json`` and, among the private files, what recognises the data when the run is continued."""
    folder.make_private("run")
    write_text(folder.fingerprint, data.fingerprint(), private=True)  # it would confirm a guess of the records
    write_text(folder.description, json.dumps(description.as_dict(), indent=2) + "\n")


def confirm_place(folder: RunFolder, description: RunDescription, moved: bool) -> RunDescription:
    """Confirm that the run lives here, and write down where it lives from now on."""
    if description.identity is None:
        return description
    identity = description.identity.at(folder.path, moved)
    if identity != description.identity:
        raw = read_json(folder.description, "run")
        write_text(folder.description, json.dumps({**raw, "identity": identity.model_dump()}, indent=2) + "\n")
    return replace(description, identity=identity)


def check_same_data(folder: RunFolder, description: RunDescription, data: ImageDataset) -> None:
    """Refuse to continue a run on other data than it was started on.

    Privacy: the fingerprint is private; that it differs is told to nobody but the owner of the data.
    """
    try:
        fingerprint = folder.fingerprint.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"run: {folder.fingerprint} cannot be read ({error.strerror}); start a new run") from None
    if (description.domain, fingerprint) != (data.domain, data.fingerprint()):
        raise InputError(
            f"run: {folder.path} was started on other data ({description.data}); resume it with the same data"
        )


@contextmanager
def reserved(
    booking: Booking | None, folder: RunFolder, description: RunDescription, ledger: Ledger, new: bool = False
) -> Iterator[None]:
    """Hold the reservation of a run while it goes on; a ``new`` one that fails before it has spent gives it back.

    One that is interrupted keeps it, because it is to be continued; so does one that is killed, and one that was begun
    before, because another copy of it may have spent. Where there is no room a new run leaves no description.
    """
    if booking is None or description.identity is None:
        yield
        return
    try:
        booking.reserve(description.identity.name, folder.path, ledger)
    except UnderstudyError:
        if new:
            folder.description.unlink(missing_ok=True)
        raise
    try:
        yield
    except InterruptedRun:
        raise
    except BaseException:
        if new:
            with suppress(UnderstudyError):  # what went wrong before is what the user must hear
                booking.give_back(description.identity.name, ledger)
        raise


def add_to_account(name: str, folder: RunFolder, base: Certificate | None, publishes: bool) -> None:
    """Charge a run to an account although it was begun without: its whole plan, as its ledger has it.

    ``base`` is the certificate of the release that the run annotates; ``publishes`` says that a figure without noise
    goes into its own. The run and its certificate stay as they are.

    Privacy: nothing is read but what is public of the run. Its plan was not made before anything was seen, so the
    filter alone counts. A federation is charged the budget that its claim was within.
    """
    with locked(folder.path):
        description, ledger = read_description(folder), Ledger.open(folder.ledger)
        if description.identity is None:
            raise InputError(f"account: {folder.path} is a run from before runs had names, so it cannot be told again")
        if description.account is not None and description.account.name != name:
            raise InputError(f"account: {folder.path} is charged to {description.account.name} already")
        if description.seed is not None:
            raise InputError(
                f"account: {folder.path} was run with a seed, so its noise protects nobody; nothing counts it"
            )
        events = ledger.events()
        booking = late_booking(name, description.method, events, description.budget, base, publishes)
        booking.reserve(description.identity.name, folder.path, ledger, late=True)


def count_run(data: ImageDataset) -> int:
    """Record one more run on ``data`` and return how many there have been."""
    path = state_folder() / "runs-by-data.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            counts = _decode_counts(path)
            key = f"{data.name}; {'; '.join(data.domain.assumed_public())}"
            counts[key] = counts.get(key, 0) + 1
            write_text(path, json.dumps(counts))
            return counts[key]
    except OSError as error:
        raise InputError(
            f"history: {path} cannot be written ({error.strerror}); set XDG_STATE_HOME to a folder that can"
        ) from None


def _decode_counts(path: Path) -> dict[str, int]:
    """The counts so far; a damaged file is an error, because a certificate would understate the runs."""
    if not path.exists():
        return {}
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): int(value) for key, value in counts.items()}
    except (ValueError, AttributeError, TypeError):
        raise InputError(
            f"history: {path} is damaged, so the number of runs is unknown; restore it, or remove it to count anew"
        ) from None
