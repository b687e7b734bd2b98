"""Accounts for data: what all runs on the same data may reveal together, kept in the user's state folder.

An account is opened once, with terms that never change (``privacy.filters``). A run reserves its whole plan in it
before anything is computed from the data, under a lock, so that two runs that begin at the same time cannot both take
what is left. An account is one file, written whole or not at all, for its owner alone: a kill leaves it as it was
before or after a reservation, and damage is an error, never a smaller total.

A reservation belongs to a run by the run's own random name, so a run that is resumed has one and no second. It is given
back only where it is proven that nothing was spent: by the process that made it, while it holds the folder of the run,
if the run's ledger holds no execution.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from understudy.configs import Strict, validated
from understudy.errors import BudgetError, InputError
from understudy.files import LARGEST_JSON, make_private_folder, open_private, read_object, write_text
from understudy.privacy import accounting, filters
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Certificate, Guarantee
from understudy.privacy.events import Event
from understudy.privacy.filters import NAME_PATTERN, Charge, Statement, Terms
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
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
            raise _lost(self.name)
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
    account = Account(name=name, identity=secrets.token_hex(16), opened=_today(), terms=terms)
    with exclusive():
        if _path(name).exists() or _path(name).is_symlink():
            raise InputError(
                f"account: {name} is open already, and its terms cannot change; choose another name, or see "
                f"`understudy data account {name}`"
            )
        _write(account)
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


def _write(account: Account) -> None:
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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _lost(name: str) -> InputError:
    return InputError(
        f"account: {name} does not hold the reservation of this run, which has spent, so the account was replaced or "
        "restored from an older copy and its total is unknown; restore the newest copy"
    )


# Reservations


class Chargeable(Protocol):
    """What an account asks of a method."""

    def claims(self, config: Any, events: Sequence[Event], budget: Budget) -> Sequence[Guarantee]:
        """What the events of a run guarantee, the headline first."""
        ...

    def publishes_data_dependent_claims(self, config: Any) -> bool:
        """Whether a figure that was computed without noise goes into the certificate."""
        ...


@dataclass(frozen=True)
class Booking:
    """What a run will reserve: an account, and what its whole plan costs there; computed before any lock is taken."""

    account: AccountName
    method: str
    events: tuple[Event, ...]
    charge: Charge
    returnable: bool = True  # False: others than this process may have spent (the clients of a federation)

    def checked(self) -> Booking:
        """The same; what would be refused later is refused now, before anything is made."""
        _same(self.account).check(self.charge)
        return self

    def reserve(self, run: str, folder: Path, ledger: Ledger, late: bool = False) -> None:
        """Reserve the whole plan for a run, once: a run that has its reservation keeps it.

        Privacy: called before the first access to the data. A run that has spent and is not known to the account is
        refused: the account has lost reservations, so its total would be too low. ``late``: it was begun without.
        """
        with exclusive():
            account = _same(self.account)
            known = account.entry(run)
            if known is not None:
                if known.events != self.events:
                    raise InputError(
                        f"account: {account.name} holds another plan for this run; start a new run in another folder"
                    )
                return
            if _has_spent(ledger) and not late:
                raise _lost(account.name)
            account.check(self.charge)
            place = str(folder.resolve()).encode("utf-8", "replace").decode("utf-8")
            entry = Entry(
                run=run, method=self.method, folder=place, date=_today(), events=self.events, charge=self.charge
            )
            _write(account.model_copy(update={"entries": (*account.entries, entry)}))

    def give_back(self, run: str, ledger: Ledger) -> bool:
        """Take a reservation back of which nothing was spent; whether it was.

        Privacy: only for the process that holds the folder of the run, whose ledger is what ``ledger`` holds.
        """
        if not self.returnable or _has_spent(ledger):
            return False
        with exclusive():
            account = _same(self.account)
            left = tuple(entry for entry in account.entries if entry.run != run)
            _write(account.model_copy(update={"entries": left}))
        return True


def statement_for(account: AccountName, run: str) -> Statement:
    """What the certificate of a run says of its account."""
    return _same(account).statement(run)


def _same(reference: AccountName) -> Account:
    """The account of that name, if it is still the one that was meant."""
    account = read_account(reference.name)
    if account.identity != reference.identity:
        raise InputError(
            f"account: {reference.name} is another account than the one that this run was begun with; restore that one"
        )
    return account


def _has_spent(ledger: Ledger) -> bool:
    return any(event.executed for event in ledger.events())


# The price of a plan


def book(
    name: str, method: Chargeable, plan: Plan, seed: int | None = None, base: Certificate | None = None
) -> Booking:
    """What a plan costs an account of that name; refused where no account can pay for it.

    ``base`` is the certificate of the release that is annotated. Where its events are on the same account they are paid
    for; else they are charged together with the new ones, because the new release rests on both.

    Privacy: public facts only. A figure that is computed from the data without noise (``bdp-gan``) is paid for by
    nothing, so a run that would publish one is refused; its worst-case events are charged like those of any run.
    """
    account = read_account(name)
    if method.publishes_data_dependent_claims(plan.config):
        raise _publishes()
    if seed is not None:
        raise InputError("account: noise that a seed repeats can be removed; leave --seed out, or --account")
    _check_countable(account, plan.method, plan.events, plan.limits is not None)
    _check_delta(account, plan)
    events, delta = _with_base(account, plan.events, base), plan.budget.delta
    claim = math.nan  # nobody asks for it
    if plan.limits is not None:
        claim = method.claims(plan.config, plan.events, plan.budget)[0].epsilon
    elif account.terms.filter == "sum":
        claim = accounting.certified_epsilon(events, delta)
    charge = filters.charge(account.terms, events, (claim, delta), first=base is None)
    reference = AccountName(name=name, identity=account.identity)
    return Booking(reference, plan.method, events, charge, returnable=plan.limits is None)


def book_again(
    account: AccountName | None, method: Chargeable, plan: Plan, base: Certificate | None = None
) -> Booking | None:
    """The booking of a run that is resumed, in the very account that it was begun with."""
    return None if account is None else replace(book(account.name, method, plan, base=base), account=account)


def check_same_account(begun: AccountName | None, asked: str | None) -> None:
    """Refuse another account than the one that a run was begun with: it would count nothing of it."""
    if asked is not None and (begun is None or begun.name != asked):
        raise InputError(
            f"account: {asked} was asked for, but the run was started with {begun.name if begun else 'none'}; leave it "
            f"out, or add the run to it with `understudy data account {asked} --add RUN`"
        )


def late_booking(
    name: str, method: str, events: Sequence[Event], budget: Budget, base: Certificate | None, publishes: bool
) -> Booking:
    """What a run costs that was begun without its account: its budget where claims are added, else its events."""
    account = read_account(name)
    if publishes:
        raise _publishes()
    _check_countable(account, method, events, any(event.unit == "client" for event in events))
    charged = _with_base(account, events, base)
    charge = filters.charge(account.terms, charged, (budget.epsilon, budget.delta), first=False)
    return Booking(AccountName(name=name, identity=account.identity), method, charged, charge, returnable=False)


def _publishes() -> BudgetError:
    return BudgetError(
        "account: the run publishes a figure that is computed from the data without noise, which no account can pay "
        "for; leave publish out of the config, and it stays in the private folder"
    )


def _check_countable(account: Account, method: str, events: Sequence[Event], limited: bool) -> None:
    """Refuse what has no price here: runs without privacy, and limits of clients where claims are not added."""
    if not events:
        raise BudgetError(f"account: {method} is not private, so no account can pay for it; choose another method")
    if limited and account.terms.filter != "sum":
        raise InputError(
            f"account: delta of {method} pays for the limits of its clients too, which {account.name} with its filter "
            f"{account.terms.filter} cannot count; open another account with --filter sum"
        )


def _check_delta(account: Account, plan: Plan) -> None:
    """Refuse a delta above one over the units: it would allow to publish one of them as it is."""
    domain, terms = plan.domain, account.terms
    units = domain.nominal_clients if terms.unit == "client" else domain.nominal_units
    if terms.delta * (units or 1) > 1:
        raise InputError(
            f"account: delta {terms.delta:g} of {account.name} is more than one over the {units} declared units of "
            f"this run, and promises nothing; open another account with --delta {0.1 / (units or 1):.1g}"
        )


def _with_base(account: Account, events: Sequence[Event], base: Certificate | None) -> tuple[Event, ...]:
    """The events to be charged: with those of an annotated release, unless the account has paid for them."""
    if base is None or _holds(account, base):
        return plain_events(events)
    return (*plain_events(base.events), *plain_events(events))


def _holds(account: Account, base: Certificate) -> bool:
    """Whether the events of a release are charged to this account already."""
    if base.account is None or base.account.identity != account.identity:
        return False
    wanted = plain_events(base.events)
    return any(entry.events == wanted for entry in account.entries)


def plain_events(events: Sequence[Event]) -> tuple[Event, ...]:
    """Events as they are planned, without how far they came."""
    return tuple(event.model_copy(update={"planned": None, "executed": None}) for event in events)
