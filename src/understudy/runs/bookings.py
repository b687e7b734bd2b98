"""Bookings: what a run reserves in an account, once and in full, before anything is computed from the data.

A reservation is made under a lock, so that two runs that begin at the same time cannot both take what is left. It
belongs to a run by the run's own random name, so a run that is resumed has one and no second. It is given back only
where it is proven that nothing was spent: by the process that made it, while it holds the folder of the run, if the
run's ledger holds no execution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from understudy.errors import BudgetError, InputError
from understudy.privacy import accounting, filters
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Certificate, Guarantee
from understudy.privacy.events import Event
from understudy.privacy.filters import Charge, Statement
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.runs.accounts import (
    Account,
    AccountName,
    Entry,
    exclusive,
    lost_reservation,
    read_account,
    today,
    write_account,
)


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
                raise lost_reservation(account.name)
            account.check(self.charge)
            place = str(folder.resolve()).encode("utf-8", "replace").decode("utf-8")
            entry = Entry(
                run=run, method=self.method, folder=place, date=today(), events=self.events, charge=self.charge
            )
            write_account(account.model_copy(update={"entries": (*account.entries, entry)}))

    def give_back(self, run: str, ledger: Ledger) -> bool:
        """Take a reservation back of which nothing was spent; whether it was.

        Privacy: only for the process that holds the folder of the run, whose ledger is what ``ledger`` holds.
        """
        if not self.returnable or _has_spent(ledger):
            return False
        with exclusive():
            account = _same(self.account)
            left = tuple(entry for entry in account.entries if entry.run != run)
            write_account(account.model_copy(update={"entries": left}))
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
