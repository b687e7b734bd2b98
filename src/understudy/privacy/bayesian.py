"""The Bayesian accountant: what the steps of one run cost units drawn from the distribution of the data.

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
from typing import Any

import numpy as np

from understudy.errors import BudgetError, InputError
from understudy.files import write_text
from understudy.privacy.accounting.bayesian_moments import Array, MomentTable, mean_bounds
from understudy.privacy.bayesian_claim import BayesianClaim, Percentile, markov_share
from understudy.privacy.bayesian_settings import BayesianSettings
from understudy.privacy.events import Event, NoSampling, PoissonSampling


class BayesianAccountant:
    """Adds up what the steps of one planned event cost, at every order; the other events count at their worst case.

    ``planned`` is the event of the steps: its count is T, Hoelder's exponent, fixed in advance. More than T steps are
    refused. A planned step that was never recorded (lost in a crash, or not done) is charged at its worst case.
    """

    def __init__(self, settings: BayesianSettings, planned: Event, others: Sequence[Event] = ()) -> None:
        self._settings, self._steps = settings, planned.count
        rate = _rate(planned)
        self._table = MomentTable(settings.orders, rate, planned.noise_multiplier, settings.directions)
        directions = 1 if settings.directions == "tight" else 2
        self._step_failure = settings.failure / (planned.count * len(settings.orders) * directions)
        self._fixed = sum(
            (unsampled_moments(event, settings.orders) for event in others), np.zeros(len(settings.orders))
        )
        self.recorded = 0
        self._costs = np.zeros(len(settings.orders))
        self._heavy = np.zeros(len(settings.orders), dtype=np.int64)

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
        bounds, trusted = mean_bounds(logs, self._step_failure)
        worst = self._table.worst[:, None]
        costs = np.minimum(bounds / self._steps, worst)
        if self._settings.heavy_tails == "charge":
            costs = np.where(trusted, costs, worst)
        self._costs += costs.sum(axis=1)
        self._heavy += np.logical_not(trusted).sum(axis=1)
        self.recorded += steps

    @property
    def costs(self) -> Array:
        """Equation 9's sum for each order: recorded steps, steps without a record at their worst case, other events."""
        missing = self._steps - self.recorded
        return np.asarray(self._costs + missing * self._table.worst + self._fixed)

    def claim(self) -> BayesianClaim:
        """Equation 9 solved for epsilon_mu at the best order, and its percentile form.

        The choice of the order is paid for: ``failure`` covers the bounds of all orders.
        """
        settings = self._settings
        orders = np.array(settings.orders, dtype=np.float64)
        left = settings.delta_mu - settings.failure
        figures = (self.costs + math.log(1 / left)) / orders
        best = int(np.argmin(figures))
        heavy = int(self._heavy[best])
        return BayesianClaim(
            epsilon_mu=math.ceil(float(figures[best]) * 1e4 + 0.1) / 1e4,
            delta_mu=settings.delta_mu,
            failure=settings.failure,
            confidence=1 - settings.failure,
            percentile=Percentile(
                delta=settings.percentile_delta, share=markov_share(settings.delta_mu, settings.percentile_delta)
            ),
            order=settings.orders[best],
            pairs=settings.pairs,
            steps=self._steps,
            estimated_steps=self.recorded,
            charged_in_full=heavy if settings.heavy_tails == "charge" else 0,
            heavy_tailed=heavy / self.recorded if self.recorded else 0.0,
            directions=settings.directions,
        )

    def save(self, path: Path) -> None:
        """Keep what was recorded. Privacy: in the private folder of a run, never in a release."""
        state = {
            "recorded": self.recorded,
            "orders": list(self._settings.orders),
            "costs": self._costs.tolist(),
            "heavy": self._heavy.tolist(),
        }
        write_text(path, json.dumps(state) + "\n")

    def restore(self, path: Path) -> None:
        """Go on from what was kept, if anything was; a file that does not fit is refused."""
        if not path.exists():
            return
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            costs, heavy = np.array(state["costs"], dtype=np.float64), np.array(state["heavy"], dtype=np.int64)
            fits = state["orders"] == list(self._settings.orders) and costs.shape == heavy.shape == self._costs.shape
            recorded = int(state["recorded"])
        except (OSError, ValueError, KeyError, TypeError):
            fits = False
        if not (fits and 0 <= recorded <= self._steps and np.isfinite(costs).all()):
            raise InputError(f"bayesian: {path} is not the record of this run; it is damaged, so start a new run")
        self.recorded, self._costs, self._heavy = recorded, costs, heavy


def worst_case_epsilon(settings: BayesianSettings, planned: Event, others: Sequence[Event] = ()) -> float:
    """What epsilon_mu cannot exceed: every unit as long as the clip bound, in every step."""
    return BayesianAccountant(settings, planned, others).claim().epsilon_mu


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
