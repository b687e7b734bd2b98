"""The Bayesian accountant: what the steps of one run cost a random member of the data.

Equations 5 to 9 and 12 of A. Triastcyn, B. Faltings, "Generating Higher-Fidelity Synthetic Datasets with Privacy
Guarantees" (Algorithms 2022). Everything but the sampled gradients is fixed before the first step. The accountant only
listens: nothing it computes may steer, stop or price a run. What it means, and what it does not: docs/bayesian.md.

Privacy: its input and its output are private. A claim that is published discloses something about the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from understudy.errors import BudgetError, InputError
from understudy.files import write_text
from understudy.privacy.claims.bayesian_moments import Array, MomentTable, Pool, mean_bounds, price_of_delta
from understudy.privacy.claims.statements import (
    FEWEST_EFFECTIVE,
    BayesianClaim,
    BayesianConfig,
    Percentile,
    markov_share,
)
from understudy.privacy.events import Event, NoSampling, PoissonSampling


class BayesianAccountant:
    """Adds up what the steps of one planned event cost, at every order; the other events count at their worst case.

    ``planned`` is the event of the steps: its count is T, Hoelder's exponent, fixed in advance. More than T steps are
    refused. A planned step that was never recorded (lost in a crash, or not done) is charged at its worst case.
    """

    def __init__(self, settings: BayesianConfig, planned: Event, others: Sequence[Event] = ()) -> None:
        self._settings, self._steps = settings, planned.count
        rate = _rate(planned)
        self._table = MomentTable(settings.orders, rate, planned.noise_multiplier, settings.formulas)
        directions = 1 if settings.formulas == "tight" else 2
        self._step_failure = settings.failure / (planned.count * len(settings.orders) * directions)
        self._fixed = sum(
            (unsampled_moments(event, settings.orders) for event in others), np.zeros(len(settings.orders))
        )
        self._worst = self._table.worst
        self.recorded = 0
        self._student = np.zeros(len(settings.orders))
        self._pool = Pool(planned.count * self._worst)

    def add(self, lengths: Array) -> None:
        """Record steps from the lengths (steps, pairs) of sampled units: clipped gradient norms over the clip bound.

        Each row holds m units drawn independently of the batch; the batch's sum with such a unit and without it differs
        by exactly its clipped gradient. NaN counts as the clip bound.

        Privacy: the lengths are private, and so is everything that follows from them.
        """
        steps, pairs = lengths.shape
        if pairs != self._settings.pairs:
            raise InputError(f"pairs: {pairs} in a step, but {self._settings.pairs} were fixed in advance")
        if self.recorded + steps > self._steps:
            raise BudgetError(
                f"bayesian: {self.recorded + steps} steps, but Hoelder's exponent was fixed at {self._steps}; plan "
                "more steps in a new run"
            )
        logs = self._steps * self._table.moments(np.asarray(lengths, dtype=np.float64))
        bounds = mean_bounds(logs, self._step_failure) / self._steps
        self._student += np.minimum(bounds, self._worst[:, None]).sum(axis=1)
        self._pool.add(logs)
        self.recorded += steps

    def costs(self, estimate: Literal["student", "charged", "bounded", "worst"] = "charged") -> Array:
        """Equation 9's sum for each order; steps without a record at their worst case, and the other events with them.

        ``student`` is equation 8 in every step. ``charged`` is never below Student's bound of all samples of the run
        together, and the worst case where too few of them carry the mean. ``bounded`` holds for any law of lengths.
        """
        worst, share = self._steps * self._worst, self.recorded / self._steps
        found = self.recorded * self._worst
        if self.recorded and estimate == "student":
            found = self._student
        if self.recorded and estimate == "charged":
            pooled = share * self._pool.student(self._settings.failure / len(worst))
            found = np.where(self._carried, np.maximum(self._student, pooled), found)
        if self.recorded and estimate == "bounded":
            found = share * self._pool.bounded(self._settings.failure / len(worst))
        return np.asarray(np.minimum(found, share * worst) + (1 - share) * worst + self._fixed)

    @property
    def _carried(self) -> NDArray[np.bool_]:
        return self._pool.effective >= FEWEST_EFFECTIVE

    def claim(self) -> BayesianClaim:
        """Equation 9 solved for epsilon_mu at the best order, and its percentile form.

        The choice of the order is paid for: ``failure`` covers the bounds of all orders.
        """
        settings, charge = self._settings, self._settings.heavy_tails == "charge"
        figures = self._figures("charged" if charge else "student")
        best = int(np.argmin(figures))
        carried, estimated = bool(self._carried[best]), self.recorded if not charge or self._carried[best] else 0
        return BayesianClaim(
            epsilon_mu=_rounded_up(figures[best]),
            epsilon_mu_distribution_free=_rounded_up(self._figures("bounded").min()),
            delta_mu=settings.delta_mu,
            failure=settings.failure,
            confidence=1 - settings.failure,
            percentile=Percentile(
                delta=settings.percentile_delta, share=markov_share(settings.delta_mu, settings.percentile_delta)
            ),
            order=settings.orders[best],
            pairs=settings.pairs,
            steps=self._steps,
            estimated_steps=estimated,
            effective_samples=float(self._pool.effective[best]),
            trusted=not estimated or (carried and figures[best] >= self._figures("charged")[best]),
            formulas=settings.formulas,
        )

    def _figures(self, estimate: Literal["student", "charged", "bounded"]) -> Array:
        settings, orders = self._settings, np.array(self._settings.orders, dtype=np.float64)
        price = price_of_delta(orders, settings.delta_mu - settings.failure, settings.formulas)
        return np.asarray((self.costs(estimate) + price) / orders)

    def save(self, path: Path) -> None:
        """Keep what was recorded. Privacy: in the private folder of a run, never in a release."""
        state = {"recorded": self.recorded, "orders": list(self._settings.orders), "student": self._student.tolist()}
        write_text(path, json.dumps({**state, "pool": self._pool.state()}) + "\n", private=True)

    def restore(self, path: Path) -> None:
        """Go on from what was kept, if anything was; a file that does not fit is refused."""
        if not path.exists():
            return
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            recorded, student = int(state["recorded"]), np.array(state["student"], dtype=np.float64)
            fits = state["orders"] == list(self._settings.orders) and np.isfinite(student).all()
            self._pool.load(state["pool"])
        except (OSError, ValueError, KeyError, TypeError):
            fits = False
        if not (fits and 0 <= recorded <= self._steps and student.shape == self._student.shape):
            raise InputError(f"bayesian: {path} is not the record of this run; it is damaged, so start a new run")
        self.recorded, self._student = recorded, student


def _rounded_up(figure: float) -> float:
    return math.ceil(float(figure) * 1e4 + 0.1) / 1e4


def _rate(event: Event) -> float:
    if isinstance(event.sampling, PoissonSampling) and event.sensitivity == "C":
        return event.sampling.rate
    raise InputError(
        f"bayesian: {event.sampling.kind!r} sampling with sensitivity {event.sensitivity} is not accounted; only "
        "Poisson-sampled sums of clipped units are"
    )


def unsampled_moments(event: Event, orders: Sequence[int]) -> Array:
    """order * (order + 1) / (2 sigma^2) for each unsampled Gaussian: the same for every unit, nothing to estimate."""
    if not isinstance(event.sampling, NoSampling):
        raise InputError("bayesian: one kind of sampled steps can be accounted; the other events must be unsampled")
    order = np.array(orders, dtype=np.float64)
    return np.asarray(event.count * order * (order + 1) / 2 / event.noise_multiplier / event.noise_multiplier)
