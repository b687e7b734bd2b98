"""Accounts for data: what all runs on the same data may reveal together, kept in the user's state folder.

An account is opened once, with terms that never change (``privacy.filters``). Runs reserve their plans in it
(``runs.bookings``). An account is one file, written whole or not at all, for its owner alone: a kill leaves it as it
was before or after a reservation, and damage is an error, never a smaller total.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from understudy.configs import Strict, validated
from understudy.errors import BudgetError, InputError
from understudy.files import LARGEST_JSON, make_private_folder, open_private, read_object, write_text
from understudy.privacy import filters
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.filters import NAME_PATTERN, Charge, Statement, Terms
from understudy.runs.copies import state_folder
from understudy.runs.folder import LOCK

_PATIENCE_SECONDS = 60.0  # a lock is held for as long as a small file takes to write
_SUFFIX = ".json"
Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Entry(Strict):
    """The reservation of one run: its whole plan, and what that costs by the filter of the account."""

    run: Identity
    method: str
    folder: str  # where the run was begun, for its owner; nothing depends on it
    date: str
    events: tuple[Event, ...]
    charge: Charge


class Account(Strict):
    """An account as it is kept: its terms, and the reservations of all runs that were charged to it."""

    schema_version: Annotated[int, Field(strict=True, ge=1, le=1, alias="schema")] = 1
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    identity: Identity  # drawn at random: another account of the same name is another account
    opened: str
    terms: Terms
    entries: tuple[Entry, ...] = ()

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What the runs take of it."""
        return tuple(entry.charge for entry in self.entries)

    @property
    def total(self) -> tuple[float, float]:
        """The epsilon and delta of all reservations together."""
        return filters.total(self.terms, self.charges)

    @property
    def room(self) -> float:
        """About the epsilon of one more run that fits."""
        return filters.room(self.terms, self.charges)

    def entry(self, run: str) -> Entry | None:
        """The reservation of a run, if it has one."""
        return next((entry for entry in self.entries if entry.run == run), None)

    def check(self, *charges: Charge) -> None:
        """BudgetError where these charges, on top of all others, would exceed the terms."""
        if filters.allows(self.terms, (*self.charges, *charges)):
            return
        epsilon, delta = filters.total(self.terms, (*self.charges, *charges))
        raise BudgetError(
            f"account: {counted(len(charges), 'more')} would bring {self.name} to epsilon {epsilon:g} at delta "
            f"{delta:g}, but it allows {self.terms.epsilon:g} at {self.terms.delta:g}, and "
            f"{counted(len(self.entries))} took {self.total[0]:g}; nothing was spent, so lower --epsilon (about "
            f"{self.room:g} fits once more), or do without"
        )

    def statement(self, run: str) -> Statement:
        """What the certificate of a run says; refused where the account does not know the run."""
        if self.entry(run) is None:
            raise lost_reservation(self.name)
        epsilon, delta = filters.stated(self.terms, self.charges)
        return Statement(
            name=self.name,
            identity=self.identity,
            terms=self.terms,
            runs=len(self.entries),
            total_epsilon=epsilon,
            total_delta=delta,
        )

    def as_dict(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        epsilon, delta = self.total
        figures = {"total_epsilon": epsilon, "total_delta": delta, "room_epsilon": self.room}
        shown = [entry.model_dump(include={"run", "method", "folder", "date"}) for entry in self.entries]
        terms = self.terms.model_dump(exclude_none=True)
        return {"name": self.name, "opened": self.opened, **terms, **figures, "runs": shown}


def counted(runs: int, more: str = "") -> str:
    """A number of runs in words."""
    return " ".join(word for word in (str(runs), more, "run" if runs == 1 else "runs") if word)


class AccountName(Strict):
    """The account that a run is charged to, as ``run.json`` keeps it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    identity: Identity


# Accounts on disk


def accounts_folder() -> Path:
    """Where this user's accounts are."""
    return state_folder() / "accounts"


def open_account(
    name: str,
    budget: Budget,
    unit: str = "record",
    adjacency: str = "add-remove",
    rule: str = "renyi",
    order: float | None = None,
) -> Account:
    """A new account for what all runs on the same data may reveal together; one of that name is never changed.

    ``rule`` is the filter by which runs add up: ``renyi`` for any method, ``gaussian`` for methods without sampled
    batches, ``sum`` for claims, also those of federations. Certificates state the name, so it becomes public.
    """
    _check_name(name)
    terms = filters.terms_of(budget, unit, adjacency, rule, order)
    account = Account(name=name, identity=secrets.token_hex(16), opened=today(), terms=terms)
    with exclusive():
        if _path(name).exists() or _path(name).is_symlink():
            raise InputError(
                f"account: {name} is open already, and its terms cannot change; choose another name, or see "
                f"`understudy data account {name}`"
            )
        write_account(account)
    return account


def read_account(name: str) -> Account:
    """The account as it stands; an error where there is none, or where its file is damaged."""
    _check_name(name)
    path = _path(name)
    if not path.exists() and not path.is_symlink():
        raise InputError(
            f"account: {name} is not open here; open it with `understudy data account {name} --epsilon 10 --delta 1e-5 "
            "--unit record`, or see `understudy data accounts`"
        )
    if path.is_symlink():
        raise InputError(
            f"account: {path} is a link, and a reservation would be written beside what it leads to; move the file "
            "itself here"
        )
    damaged = "it is damaged, so what was spent is unknown and nothing is charged to it; restore the file"
    try:
        raw = read_object(path, "account")
        checksum = raw.pop("checksum", None)
        account = validated(Account, raw, f"account: {path}", damaged, exact=True)
    except InputError as error:
        raise InputError(f"{error}" if damaged in str(error) else f"{error}; {damaged}") from None
    if checksum != _checksum(account) or account.name != name:
        raise InputError(f"account: {path}: its checksum is another; {damaged}")
    return account


def account_names() -> list[str]:
    """The accounts that are open here."""
    folder = accounts_folder()
    names = [path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}")] if folder.is_dir() else []
    return sorted(name for name in names if re.match(NAME_PATTERN, name))


def _check_name(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(
            f"account: {name!r} is no name; pass up to 64 letters, digits, dots, dashes and underscores (certificates "
            "state it, so it becomes public)"
        )


def _path(name: str) -> Path:
    return accounts_folder() / f"{name}{_SUFFIX}"


def write_account(account: Account) -> None:
    """Keep an account as it is now; for whoever holds all of them."""
    content = {**account.model_dump(mode="json", by_alias=True, exclude_none=True), "checksum": _checksum(account)}
    text = json.dumps(content, indent=1) + "\n"
    if len(text.encode()) > LARGEST_JSON:
        raise BudgetError(
            f"account: {account.name} has no place for more than its {counted(len(account.entries) - 1)}; nothing was "
            "spent, so open another account for what its room leaves"
        )
    write_text(_path(account.name), text, private=True)


def _checksum(account: Account) -> str:
    content = account.model_dump(mode="json", by_alias=True, exclude_none=True)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold all accounts for one process; others wait for it."""
    folder = accounts_folder()
    try:
        make_private_folder(folder, "account")
        file = open_private(folder / LOCK, "a")
    except (OSError, InputError) as error:
        raise InputError(f"account: {error}; set XDG_STATE_HOME to a folder that can be written") from None
    with file:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _taken(file.fileno()):
            if time.monotonic() > deadline:
                raise InputError(f"account: another process holds {folder / LOCK}; end it, or wait and try again")
            time.sleep(0.02)
        yield


def _taken(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def today() -> str:
    """The date of an entry."""
    return datetime.now(UTC).date().isoformat()


def lost_reservation(name: str) -> InputError:
    """What is said where an account does not know a run that has spent."""
    return InputError(
        f"account: {name} does not hold the reservation of this run, which has spent, so the account was replaced or "
        "restored from an older copy and its total is unknown; restore the newest copy"
    )
