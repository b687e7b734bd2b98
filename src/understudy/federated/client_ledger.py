"""What a client is ready to spend, what it has spent, and that its record of it is whole (no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from understudy.errors import BudgetError, InputError
from understudy.federated.contract import Contract
from understudy.files import read_tensors
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger

MARK = "ledger"  # in a critic's file: where the ledger stood when it was saved


@dataclass(frozen=True)
class Membership:
    """Who a client is in its federation, and what it is ready to spend there (against the server: replace-one)."""

    client: int
    budget: Budget

    def __post_init__(self) -> None:
        if self.client < 0:
            raise InputError(f"client: {self.client} is no number of an enrolled client; number them from 0")


def check_affordable(contract: Contract, budget: Budget) -> None:
    """Refuse to take part with a budget that does not pay for all answers that the contract foresees.

    Privacy: a client that ran out on its way would drop out depending on how often it was asked, and delta pays only
    for the limit in the contract. So it is decided here, before any routing.
    """
    cost = accounting.certified_epsilon(contract.client_events(), budget.delta)
    if cost > budget.epsilon:
        raise BudgetError(
            f"budget: the {contract.limits.answers} answers of this contract cost a client epsilon {cost:g} at delta "
            f"{budget.delta:g}, more than {budget.epsilon:g}; raise the client's budget or do not take part"
        )


def critic_path(folder: Path) -> Path:
    """Where a client keeps its critic, with the mark of the ledger it rests on."""
    return folder / "private" / "critic.safetensors"


def open_ledger(folder: Path) -> Ledger:
    """The ledger of a client; a new one only where the client has not taken part yet.

    Privacy: a client that has a critic or answers but no ledger, or one that does not hold what it held when its critic
    was saved, has lost the record of its spending, so it must not go on to count from there.
    """
    path = folder / "ledger.jsonl"
    if path.exists():
        ledger = Ledger.open(path)
        if critic_path(folder).exists() and not ledger.has_passed(read_tensors(critic_path(folder))[1].get(MARK, "")):
            raise lost_ledger(folder)
        return ledger
    if critic_path(folder).exists() or any((folder / "private").glob("answers/*.bin")):
        raise lost_ledger(folder)
    return Ledger.create(path)


def lost_ledger(folder: Path) -> InputError:
    """The one sentence about a ledger that is gone or has lost records."""
    return InputError(
        f"ledger: {folder / 'ledger.jsonl'} does not hold what it held when this client last answered, so its spending "
        "is unknown and nothing is answered; bring the file back from a copy, or take part in a new federation only"
    )


def spending(ledger: Ledger, contract: Contract, membership: Membership) -> dict[str, float | int | str]:
    """What a ledger says was spent against the server, by replace-one, and what may still be."""
    delta, purpose = membership.budget.delta, contract.answer_event().purpose
    known = ledger.events()
    spent = [event.charged(planned=0, executed=event.executed) for event in known if event.executed]
    return {
        "client": membership.client,
        "answers": sum(event.executed or 0 for event in known if event.purpose == purpose),
        "most_answers": contract.limits.answers,
        "epsilon": accounting.certified_epsilon(spent, delta) if spent else 0.0,
        "most_epsilon": membership.budget.epsilon,
        "delta": delta,
        "unit": "client",
        "adjacency": "replace-one",
        "viewer": "server",
    }
