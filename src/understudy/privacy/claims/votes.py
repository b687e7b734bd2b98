"""What votes cost where teachers agree: a bound that depends on the data, kept beside the guarantee and never in it.

N. Papernot, S. Song, I. Mironov, A. Raghunathan, K. Talwar, U. Erlingsson, "Scalable Private Learning with PATE", ICLR
2018. Where a bin wins so clearly that noise hardly ever lets another win, its name tells little about any one teacher:
Theorem 6 there bounds the Renyi divergence from these data to any neighbour by q, the chance of another winner.

Privacy: all of this is computed from exact votes, so it is private. Nothing of it reaches the run or its price, and the
claim (``statements.VoteClaim``), which has a kind and names of its own, stands in no certificate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray
from scipy.special import erfc

from understudy.errors import InputError
from understudy.files import read_json, write_text
from understudy.privacy.accounting.renyi import ORDERS
from understudy.privacy.claims.statements import VoteClaim
from understudy.privacy.events import Event

Array = NDArray[np.float64]

_ORDERS = np.array(ORDERS)
_LEAST = 1e-300  # for the chance of another winner; a larger one is an upper bound too
_AT_ONCE = 2000  # winners


def chance_of_another_winner(counts: NDArray[np.int64], deviation: float) -> Array:
    """At most how likely noise of this deviation lets another bin win histograms (..., bins): the sum over all others.

    The difference of two noisy counts has deviation sqrt(2) times that of one.
    """
    gaps = counts.max(axis=-1, keepdims=True) - np.sort(counts, axis=-1)[..., :-1]
    return np.asarray(np.minimum(1.0, erfc(gaps / (2 * deviation)).sum(axis=-1) / 2))


def renyi_of_winner(chance: Array, deviation: float) -> Array:
    """The divergence (..., orders) that showing a winner costs, given the chance that another had won.

    One teacher moves one vote from a bin to another, so noisy counts cost order / deviation^2 whatever the votes are,
    and their winner no more. Theorem 6 takes that cost at two orders, mu_2 = deviation * sqrt(ln 1/q) and mu_2 + 1;
    where its conditions hold and it says less, it counts.
    """
    q = np.maximum(chance, _LEAST)[..., None]
    always = _ORDERS / deviation / deviation  # the square of a deviation far beyond use is no number any more
    with np.errstate(all="ignore"):
        log_q, log_rest = np.log(q), np.log1p(-q)
        second = deviation * np.sqrt(-log_q)
        first = second + 1
        cost_first, cost_second = first / deviation / deviation, second / deviation / deviation
        likely = log_rest - np.log1p(-np.exp((log_q + cost_second) * (second - 1) / second))
        rare = cost_first - log_q / (first - 1)
        moment = np.logaddexp(log_rest + (_ORDERS - 1) * likely, log_q + (_ORDERS - 1) * rare)
        allowed = (second - 1) * cost_second - second * (np.log(first / (first - 1)) + np.log(second / (second - 1)))
        holds = (second > 1) & (first >= _ORDERS) & (log_q <= allowed) & (log_q + cost_second < 0)
    bound = np.where(holds & np.isfinite(moment), moment / (_ORDERS - 1), math.inf)
    return np.minimum(always, np.maximum(bound, 0.0))


class VoteRecord:
    """The cost of all winners that a run has shown; it outlives the run's process in its private folder.

    What a crash took before it was written is charged at its worst case, and so are planned queries that were never
    asked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cost, self.queries, self.answers = np.zeros(len(_ORDERS)), 0, 0
        if self._path.is_file():
            self._restore()

    def add(self, counts_private: NDArray[np.int64], shown: NDArray[np.bool_], deviation: float) -> None:
        """Histograms (queries, coordinates, bins) and which of their winners (queries, coordinates) are shown.

        Privacy: the votes are exact and what is kept of them is private; the mechanism has charged for the winners.
        """
        chance = chance_of_another_winner(counts_private[shown], deviation)
        for start in range(0, len(chance), _AT_ONCE):
            self.cost += renyi_of_winner(chance[start : start + _AT_ONCE], deviation).sum(axis=0)
        self.queries += len(counts_private)
        self.answers += int(shown.sum())

    def save(self) -> None:
        """Write the record."""
        content = {"cost": self.cost.tolist(), "queries": self.queries, "answers": self.answers}
        write_text(self._path, json.dumps(content) + "\n", private=True)

    def claim(self, answers: Event, others: Sequence[Event], delta: float) -> VoteClaim:
        """What the events cost, with this record in place of what it holds of ``answers``.

        Privacy: as in a certificate the whole plan counts. Whoever ends a run early may do so for what it showed.
        """
        total = self.cost + max(0, answers.count - self.queries) * _gaussian(answers)
        total += sum(event.count * _gaussian(event) for event in others)
        epsilon, order = rdp.compute_epsilon(ORDERS, total, delta)
        return VoteClaim(
            epsilon_votes=math.ceil(epsilon * 1e4) / 1e4,
            delta=delta,
            order=order,
            queries=answers.count,
            recorded_queries=self.queries,
            answers=self.answers,
        )

    def _restore(self) -> None:
        try:
            content = read_json(self._path, "votes")
            cost = np.array(content["cost"], dtype=float)
            self.queries, self.answers = int(content["queries"]), int(content["answers"])
            intact = cost.shape == self.cost.shape and bool((cost >= 0).all()) and min(self.queries, self.answers) >= 0
        except (KeyError, TypeError, ValueError):
            intact = False
        if not intact:
            raise InputError(f"votes: {self._path} is damaged; delete it, and what it held counts at its worst case")
        self.cost = cost


def _gaussian(event: Event) -> Array:
    """The divergence of one execution."""
    return np.asarray(_ORDERS / 2 / event.noise_multiplier / event.noise_multiplier)
