"""What a guarantee means in plain words: how much anybody can learn about one unit, whatever they know already.

If (epsilon, delta) holds, no test can tell whether one unit took part with a true-positive rate above ``1 - f(a)``;
here ``a`` is its false-positive rate and ``f(a) = max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))``
(Kairouz, Oh, Viswanath 2015). The events of a certificate give many such pairs, one for each epsilon, and the best of
them counts: the pair of the headline alone says little at a large epsilon. All figures are rounded against us.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from understudy.errors import UnderstudyError
from understudy.privacy import accounting
from understudy.privacy.certificate import Certificate, Guarantee, round_up
from understudy.privacy.events import Event

_LARGEST_EXPONENT = 700.0  # exp overflows above


@dataclass(frozen=True)
class AttackBound:
    """What no membership test can exceed, from (epsilon, delta) pairs that all hold at once."""

    pairs: tuple[tuple[float, float], ...]

    def advantage(self) -> float:
        """The largest true-positive rate minus false-positive rate of any test."""
        return min(1.0, *(_advantage(epsilon, delta) for epsilon, delta in self.pairs))

    def accuracy(self) -> float:
        """The largest accuracy of any test when half of the candidates took part."""
        return (1 + self.advantage()) / 2

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest share of members that any test finds when it accuses this share of non-members."""
        return min(1.0, *(_true_positive_rate(false_positive_rate, *pair) for pair in self.pairs))


def headline_bound(guarantee: Guarantee) -> AttackBound:
    """What follows from a guarantee's epsilon and delta alone."""
    return AttackBound(((guarantee.epsilon, guarantee.delta),))


def attack_bound(certificate: Certificate, epsilons: Sequence[float] = (0.0,)) -> AttackBound:
    """What follows from the events: delta at further epsilons, where the accountants cover the claim."""
    headline = certificate.headline
    pairs = [(headline.epsilon, headline.delta)]
    if (headline.adjacency, headline.viewer) == ("add-remove", "public"):
        reserved = max(0.0, headline.delta - headline.accounted_delta)  # for failures that the events do not show
        for epsilon in epsilons:
            try:
                pairs.append((epsilon, min(1.0, accounting.delta(certificate.events, epsilon) + reserved)))
            except (UnderstudyError, ValueError, ArithmeticError, MemoryError):
                break  # events of a foreign certificate may be beyond the accountant; the headline still holds
    return AttackBound(tuple(pairs))


def odds_factor(epsilon: float) -> float:
    """How many times as likely an outcome can be with a unit as without it, up to an additional delta."""
    return math.exp(epsilon) if epsilon < _LARGEST_EXPONENT else math.inf


def _advantage(epsilon: float, delta: float) -> float:
    weight = math.exp(-min(epsilon, _LARGEST_EXPONENT))
    return (1 - weight + 2 * delta * weight) / (1 + weight)


def _true_positive_rate(false_positive_rate: float, epsilon: float, delta: float) -> float:
    if false_positive_rate <= 0:
        return delta
    weight = math.exp(-min(epsilon, _LARGEST_EXPONENT))
    steep = 1 - delta - odds_factor(epsilon) * false_positive_rate
    return 1 - max(0.0, steep, weight * (1 - delta - false_positive_rate))


def percent(share: float) -> str:
    """A share as text, rounded up: more digits close to one."""
    if share > 0.999995:
        return "practically 100 %"
    return f"{round_up(100 * share, 3 if share > 0.999 else 1)} %"


def claim(guarantee: Guarantee) -> str:
    """The figures in one short line: ``epsilon 9.03 (delta 1e-05)``."""
    return f"epsilon {round_up(guarantee.epsilon)} (delta {guarantee.delta:g})"


SEVERAL_IMAGES = (
    "A person with several images in the data is protected less than this: the promise holds for each image, not for "
    "all images of somebody together."
)


def unit_in_words(guarantee: Guarantee) -> str:
    """What one unit is."""
    if guarantee.unit == "client":
        return "one client with all its images"
    if guarantee.unit == "person":
        return "one person with all their images"
    return "one record, that is one image with its label"


def plural(unit: str) -> str:
    """Several of them."""
    return "people" if unit == "person" else f"{unit}s"


def in_words(guarantee: Guarantee, bound: AttackBound) -> list[str]:
    """The guarantee as sentences for somebody who has not met epsilon before."""
    factor = odds_factor(guarantee.epsilon)
    times = f"{float(round_up(factor, 2)):,.10g}" if factor < 1e6 else "more than a million"
    change = "added or removed" if guarantee.adjacency == "add-remove" else "replaced by any other"
    seen = {
        "public": "whoever sees this release, with any other knowledge and any computing power",
        "server": "the server that ran the training and saw every answer",
        "client": "other clients that took part and share what they saw",
    }[guarantee.viewer]
    return [
        f"The unit that is protected is {unit_in_words(guarantee)}: the promise compares the data with and without it "
        f"({change}).",
        *([] if guarantee.unit != "record" else [SEVERAL_IMAGES]),
        f"It holds against {seen}.",
        f"Whatever is concluded from the release is at most {times} times as likely with the unit as without it, up to "
        f"an additional probability of {guarantee.delta:g}.",
        *_attack_in_words(guarantee, bound),
    ]


def _attack_in_words(guarantee: Guarantee, bound: AttackBound) -> list[str]:
    accuracy, alone = bound.accuracy(), headline_bound(guarantee).accuracy()
    sentences = [
        f"Asked to tell members from non-members in equal numbers, the best possible attack is right in at most "
        f"{percent(accuracy)} of the cases (guessing: 50 %)."
    ]
    if alone - accuracy > 0.001:
        sentences.append(
            "That figure follows from the events in the certificate; epsilon and delta alone would give "
            f"{percent(alone)}."
        )
    if accuracy > 0.9:
        sentences.append(
            "This worst-case bound rules out little by itself; known attacks stay below it, but that is experience and "
            "not proof. A smaller epsilon promises more."
        )
    return sentences


_VIEWERS = {
    "public": "the public, that is whoever sees the release",
    "server": "the server that runs the training and sees every answer",
    "client": "clients that took part and share what they saw",
}


def by_viewer(guarantees: Sequence[Guarantee]) -> list[str]:
    """What is promised against each viewer of a federation, one line each; also where nothing is promised.

    Empty where the unit is a record: such a run has no viewer but the public.
    """
    if all(guarantee.unit != "client" for guarantee in guarantees):
        return []
    lines: list[str] = []
    for viewer, seen in _VIEWERS.items():
        found = [guarantee for guarantee in guarantees if guarantee.viewer == viewer]
        lines += [f"against {seen}: no guarantee"] if not found else map(against, found)
    return lines


def against(guarantee: Guarantee) -> str:
    """One guarantee in one line that begins with its viewer."""
    seen = _VIEWERS[guarantee.viewer] + (f" (a coalition of {guarantee.coalition})" if guarantee.coalition else "")
    return f"against {seen}: {claim(guarantee)}, {guarantee.adjacency} of one {guarantee.unit}"


def event_in_words(event: Event) -> str:
    """One kind of access to private data as a sentence."""
    sampling = {
        "none": "of all units",
        "poisson": f"of a secret sample, each unit with probability {getattr(event.sampling, 'rate', 1):g}",
        "routed": f"of one of {getattr(event.sampling, 'subsets', 1)} subsets, drawn secretly for each query",
        "revealed": f"of one of {getattr(event.sampling, 'subsets', 1)} subsets, the draw being treated as known",
    }[event.sampling.kind]
    purpose = f" ({event.purpose})" if event.purpose else ""
    if event.noise_parts:
        purpose += f", the noise added in {event.noise_parts} equal parts, one by each client"
    times = "once" if event.count == 1 else f"{event.count:,} times"
    return f"{times} a {event.mechanism} mechanism with noise multiplier {event.noise_multiplier:g} {sampling}{purpose}"
