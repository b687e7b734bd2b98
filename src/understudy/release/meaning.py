"""What a guarantee means in plain words: how much anybody can learn about one unit, whatever they know already.

For an (epsilon, delta) guarantee no test can tell whether one unit took part with a true-positive rate above
``1 - f(false-positive rate)``, where ``f(a) = max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))``
(Kairouz, Oh, Viswanath 2015). All figures here are read from that curve and rounded against us.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from understudy.privacy.certificate import Guarantee
from understudy.privacy.events import Event

_LARGEST_EXPONENT = 700.0  # exp overflows above


def odds_factor(epsilon: float) -> float:
    """By how much the odds of "this unit took part" can change, except with probability delta."""
    return math.exp(epsilon) if epsilon < _LARGEST_EXPONENT else math.inf


def membership_advantage(epsilon: float, delta: float) -> float:
    """The largest true-positive rate minus false-positive rate of any membership test."""
    weight = math.exp(-min(epsilon, _LARGEST_EXPONENT))
    return min(1.0, (1 - weight + 2 * delta * weight) / (1 + weight))


def membership_accuracy(epsilon: float, delta: float) -> float:
    """The largest accuracy of any membership test when half of the candidates took part."""
    return (1 + membership_advantage(epsilon, delta)) / 2


def true_positive_rate(false_positive_rate: float, epsilon: float, delta: float) -> float:
    """The largest share of members that any test finds when it accuses this share of non-members."""
    weight = math.exp(-min(epsilon, _LARGEST_EXPONENT))
    missed = max(
        0.0, 1 - delta - odds_factor(epsilon) * false_positive_rate, weight * (1 - delta - false_positive_rate)
    )
    return min(1.0, 1 - missed) if false_positive_rate > 0 else delta


def round_up(value: float, digits: int = 4) -> str:
    """A figure as text, rounded up, so that a claim never looks smaller than it is."""
    if not math.isfinite(value):
        return "infinite"
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
    text = f"{rounded:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float) -> str:
    """A share as text, rounded up: more digits close to one."""
    if share > 0.999995:
        return "practically 100 %"
    return f"{round_up(100 * share, 3 if share > 0.999 else 1)} %"


def claim(guarantee: Guarantee) -> str:
    """The figures in one short line: ``epsilon 9.03 (delta 1e-05)``."""
    return f"epsilon {round_up(guarantee.epsilon)} (delta {guarantee.delta:g})"


def unit_in_words(guarantee: Guarantee) -> str:
    """What one unit is."""
    if guarantee.unit == "client":
        return "one client with all its images"
    return "one record, that is one image with its label"


def in_words(guarantee: Guarantee) -> list[str]:
    """The guarantee as sentences for somebody who has not met epsilon before."""
    epsilon, delta = guarantee.epsilon, guarantee.delta
    factor = odds_factor(epsilon)
    times = f"{float(round_up(factor, 2)):,.10g}" if factor < 1e6 else "more than a million"
    change = "added or removed" if guarantee.adjacency == "add-remove" else "replaced by any other"
    seen = {
        "public": "whoever sees this release, with any other knowledge and any computing power",
        "server": "the server that ran the training and saw every answer",
        "client": "other clients that took part and share what they saw",
    }[guarantee.viewer]
    sentences = [
        f"The unit that is protected is {unit_in_words(guarantee)}: the promise compares the data with and without it "
        f"({change}).",
        f"It holds against {seen}.",
        f"Seeing the release changes anybody's odds that a given unit took part by a factor of at most {times}, except "
        f"with probability {delta:g}.",
        f"Asked to tell members from non-members in equal numbers, the best possible attack is right in at most "
        f"{percent(membership_accuracy(epsilon, delta))} of the cases (guessing: 50 %).",
    ]
    if membership_accuracy(epsilon, delta) > 0.99:
        sentences.append(
            "At this epsilon the worst-case bound alone rules out little; known attacks stay far below it, but that is "
            "experience and not proof. A smaller epsilon promises more."
        )
    return sentences


def event_in_words(event: Event) -> str:
    """One kind of access to private data as a sentence."""
    sampling = {
        "none": "of all units",
        "poisson": f"of a secret sample, each unit with probability {getattr(event.sampling, 'rate', 1):g}",
        "routed": f"of one of {getattr(event.sampling, 'subsets', 1)} subsets, drawn secretly for each query",
        "revealed": f"of one of {getattr(event.sampling, 'subsets', 1)} subsets, the draw being treated as known",
    }[event.sampling.kind]
    purpose = f" ({event.purpose})" if event.purpose else ""
    times = "time" if event.count == 1 else "times"
    return (
        f"{event.count:,} {times} a {event.mechanism} mechanism with noise multiplier {event.noise_multiplier:g} "
        f"{sampling}{purpose}"
    )
