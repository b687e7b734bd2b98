"""The ledger: an append-only file of what a run has spent, written before any private output is used.

Each line is one JSON record with its number and a checksum chained over all earlier lines. A record counts only once it
is on disk (``fsync``); a line torn by a crash was therefore never acted upon and is cut off when the ledger is opened
again. Any other damage is an error: a ledger is never repaired into a smaller one.

A run states its plan first (how many executions of which mechanism at most) and then reserves executions in blocks.
What is reserved counts as executed, so a killed run is charged for at least what it did.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.files import sync_folder
from understudy.privacy.events import Event

if TYPE_CHECKING:
    from torch import Tensor


_START = "understudy-ledger-1"


class Ledger:
    """An append-only record of events in one file; open it through ``Ledger.create`` or ``Ledger.open``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checksum = _START
        self._marks = {_START}
        self._length = 0
        self._accounts: dict[str, Account] = {}
        self.aborted = False
        self.witness: Callable[[str, Tensor], None] | None = None  # is shown every sanitized value, with its purpose

    @classmethod
    def create(cls, path: Path) -> Ledger:
        """A new, empty ledger; a file that holds anything is never overwritten.

        An empty file is what a run leaves behind that was killed before it recorded, and so before it spent, anything.
        """
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            if os.fstat(descriptor).st_size:
                raise InputError(f"ledger: {path} exists already; resume that run or choose another output folder")
        finally:
            os.close(descriptor)
        sync_folder(path.parent)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """An existing ledger with all it recorded; a torn last line is cut off, other damage is refused."""
        ledger = cls(path)
        for record in ledger._read_records():
            try:
                ledger._apply(record)
            except (ValueError, KeyError, TypeError, AttributeError):  # its checksum is right, and it makes no sense
                raise _damaged(path, ledger._length) from None
        return ledger

    def show(self, purpose: str, value_dp: Tensor) -> None:
        """Show a sanitized value, or what was made of some, to the witness of an audit; nobody else hears of it."""
        if self.witness is not None:
            self.witness(purpose, value_dp)

    def account(self, event: Event) -> Account:
        """The account of a planned event: at most ``event.count`` executions for ``event.purpose``.

        On a resumed run the account continues where it stood. A larger plan is recorded and stays visible as a raised
        plan; a smaller one does not lower the charge; another mechanism under the same purpose is refused.
        """
        planned, purpose = event.count, event.purpose
        if purpose is None:
            raise InputError("ledger: an event without a purpose cannot be planned; say what it is for")
        one = {"count": getattr(event.sampling, "rows", 1), "planned": None, "executed": None}
        template = event.model_copy(update=one)
        known = self._accounts.get(purpose)
        if known is not None and known.template != template:
            raise InputError(
                f"ledger: {purpose!r} was recorded with another mechanism; start a new run for the new one"
            )
        if known is None or planned > known.planned:
            self._append({"kind": "plan", "purpose": purpose, "planned": planned, "event": template.model_dump()})
        return self._accounts[purpose]

    def note(self, text: str) -> None:
        """Record something that happened (a resume, an interruption); notes carry no spending and no private value.

        Each has a random mark of its own, so that the ledgers of two copies of a run differ as soon as one is resumed.
        """
        self._append({"kind": "note", "text": text, "nonce": secrets.token_hex(8)})

    def abort(self, reason: str) -> None:
        """Record that the run broke down: from now on nothing of it may be released."""
        self._append({"kind": "abort", "text": reason})

    def check_releasable(self) -> None:
        """Refuse to go on with a run that was aborted."""
        if self.aborted:
            raise AbortedRun("run: it was aborted, so nothing of it is released; start a new one in another folder")

    def events(self) -> tuple[Event, ...]:
        """What is charged: for each account the larger of planned and executed."""
        return tuple(account.charged() for account in self._accounts.values())

    @property
    def mark(self) -> str:
        """Where the ledger stands: a checksum over all it holds, to be kept with whatever rests on it."""
        return self._checksum

    def has_passed(self, mark: str) -> bool:
        """Whether the ledger once stood at ``mark``; if not, it has lost records since."""
        return mark in self._marks

    def plan_was_raised(self) -> bool:
        """Whether any account's plan was enlarged after it was first recorded."""
        return any(account.raised for account in self._accounts.values())

    def _append(self, record: dict[str, Any]) -> None:
        body = {"number": self._length, **record}
        checksum = _chain(self._checksum, body)
        line = json.dumps({**body, "checksum": checksum}, separators=(",", ":")).encode() + b"\n"
        self._write(line)
        self._apply({**body, "checksum": checksum})

    def _write(self, line: bytes) -> None:
        """Append one line durably, or leave the file as it was and raise: nothing is used without its record."""
        try:
            with self.path.open("r+b", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                try:
                    if file.write(line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(before)
                    raise
        except OSError as error:
            raise InputError(
                f"ledger: {self.path} could not be written ({error.strerror}); nothing was used that is not on record, "
                "so free the disk and resume"
            ) from None

    def _apply(self, record: dict[str, Any]) -> None:
        self._checksum = record["checksum"]
        self._marks.add(self._checksum)
        self._length += 1
        if record["kind"] == "plan":
            account = self._accounts.get(record["purpose"])
            if account is None:
                template = Event.model_validate(record["event"])
                self._accounts[record["purpose"]] = Account(self, template, record["planned"])
            else:
                account.raise_plan(record["planned"])
        elif record["kind"] == "abort":
            self.aborted = True
        elif record["kind"] == "reserve":
            account = self._accounts[record["purpose"]]
            account.reserved += record["count"]
            if "key" in record:
                account.keys.add(record["key"])

    def _read_records(self) -> Iterator[dict[str, Any]]:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"ledger: {self.path} cannot be read ({error.strerror}); is this a run folder?") from None
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(complete))
                os.fsync(file.fileno())
        checksum = _START
        for number, line in enumerate(complete.splitlines()):
            record = _parse_line(line, number, checksum, self.path)
            checksum = record["checksum"]
            yield record


class NoLedger(Ledger):
    """What a process has that helps another: plans are known, and nothing can be spent.

    Privacy: a mechanism spends before it adds noise or hands anything out, so with this ledger it never does either.
    """

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def _write(self, line: bytes) -> None:
        if json.loads(line)["kind"] != "plan":
            raise RuntimeError("a process that helps another has no ledger to spend from")


class Account:
    """Executions of one mechanism: planned at most, reserved on disk, and used by this process."""

    def __init__(self, ledger: Ledger, template: Event, planned: int) -> None:
        self._ledger = ledger
        self.template = template
        self.planned = planned
        self.reserved = 0
        self.keys: set[str] = set()  # what was spent under a key, so that nothing is spent, or answered, twice
        self.raised = False
        self._available = 0  # reserved by this process and not yet used; lost with the process, never given back

    @property
    def remaining(self) -> int:
        """Executions this process may still make: the unreserved part of the plan and its own unused reservation."""
        return self.planned - self.reserved + self._available

    def spend(self, count: int, block: int = 1) -> Event:
        """Take ``count`` executions before their output exists; reserves a block on disk when needed.

        Privacy: called by the mechanism itself, before it returns anything. Raises BudgetError past the plan.
        """
        if count > self.remaining:
            raise BudgetError(
                f"budget: {count} more executions of {self.template.purpose!r} were asked for, but only "
                f"{self.remaining} of the {self.planned} planned are left; nothing was spent on them"
            )
        if count > self._available:
            self.reserve(min(max(count, block) - self._available, self.planned - self.reserved))
        self._available -= count
        return self.template.charged(planned=count, executed=count)

    def spend_for(self, key: str, count: int) -> Event | None:
        """Take ``count`` executions (none is allowed) for what ``key`` names; None where that was done before.

        Privacy: executions and key are one record, so a message that comes again is recognised after any crash.
        """
        if key in self.keys:
            return None
        if count > self.planned - self.reserved:
            raise BudgetError(
                f"budget: {count} more executions of {self.template.purpose!r} were asked for, but only "
                f"{self.planned - self.reserved} of the {self.planned} planned are left; nothing was spent on them"
            )
        self._ledger._append({"kind": "reserve", "purpose": self.template.purpose, "count": count, "key": key})
        return self.template.charged(planned=count, executed=count) if count else self.template

    def reserve(self, count: int) -> None:
        """Write ``count`` executions to the ledger; they count as executed from now on."""
        self._ledger._append({"kind": "reserve", "purpose": self.template.purpose, "count": count})
        self._available += count

    def raise_plan(self, planned: int) -> None:
        """A larger plan than the one first stated; the certificate says so."""
        self.planned = planned
        self.raised = True

    def charged(self) -> Event:
        """The event with its counts: the larger of planned and executed is charged."""
        return self.template.charged(planned=self.planned, executed=self.reserved)


def _parse_line(line: bytes, number: int, checksum: str, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
        body = {key: value for key, value in record.items() if key != "checksum"}
        intact = record["number"] == number and record["checksum"] == _chain(checksum, body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise _damaged(path, number + 1)
    return dict(record)


def _damaged(path: Path, line: int) -> InputError:
    return InputError(f"ledger: {path} is damaged at line {line}; its spending is unknown, so the run cannot go on")


def _chain(previous: str, body: dict[str, Any]) -> str:
    text = previous + json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
