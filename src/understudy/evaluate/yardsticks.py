"""Yardsticks: what a score is worth, beside what chance gives and beside what real images give in its place.

A score alone says little: 62 % is poor for two classes and good for a hundred. So each stands between two others, and
the share of the way from the one to the other that it goes is said in words: (score - chance) / (real - chance). The
same formula serves distances, for which chance is the larger figure.

Privacy: the figures on real images follow from real data without noise and carry the stamp of the evaluation.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from understudy.evaluate.checks import Images, Labels

GUESSING, NOISE, NO_CLASS = "guessing", "noise", "images that show no class"
_DEVIATIONS = 3.0  # of an accuracy by chance, on as many test images
_SEED = 0


@dataclass(frozen=True)
class Yardstick:
    """What stands beside a score; ``real`` and ``recovered`` are None where no reference was measured."""

    chance: float
    chance_means: str  # what would give the figure called chance
    real: float | None
    real_means: str
    recovered: float | None  # the share of the way from chance to real images
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def chance_accuracy(labels: Labels) -> float:
    """What a classifier reaches that names the commonest class of the test images, whatever it sees."""
    return float(np.bincount(labels).max() / len(labels))


def accuracy_yardstick(
    accuracy: float, chance: float, real: float | None, tested_on: int | None, of_whom: str = "the same classifier"
) -> Yardstick:
    """Of an accuracy on ``tested_on`` images: what cannot be told from guessing is called so."""
    doubt = 0.0 if not tested_on else _DEVIATIONS * math.sqrt(chance * (1 - chance) / tested_on)
    return _yardstick(accuracy, (chance, GUESSING), (real, f"{of_whom} trained on real images"), doubt)


def score_yardstick(value: float, chance: float, chance_means: str, real: float | None, real_means: str) -> Yardstick:
    """Of any other score."""
    return _yardstick(value, (chance, chance_means), (real, real_means), 0.0)


def noise_images(like: Images, number: int) -> Images:
    """Images of pure noise, the same at every call: each pixel is drawn for itself, evenly from all values."""
    return np.random.default_rng(_SEED).integers(0, 256, (number, *like.shape[1:]), dtype=np.uint8)


def _yardstick(value: float, chance: tuple[float, str], real: tuple[float | None, str], doubt: float) -> Yardstick:
    low, high = chance[0], real[0]
    if high is None:
        better = value - low > doubt
        words = f"better than {chance[1]}" if better else _no_better(chance[1], value > low)
        return Yardstick(*chance, None, real[1], None, words)
    if abs(high - low) <= max(doubt, 1e-9):
        words = f"says nothing: real images cannot be told from {chance[1]} either"
        return Yardstick(*chance, high, real[1], None, words)
    recovered = (value - low) / (high - low)
    if recovered <= 0 or abs(value - low) <= doubt:
        words = _no_better(chance[1], recovered > 0)
    elif recovered >= 1:
        words = "as good as real images"
    else:
        words = f"recovers {100 * recovered:.0f} % of what real images give"
    return Yardstick(*chance, high, real[1], recovered, words)


def _no_better(chance: str, above: bool) -> str:
    return f"cannot be told from {chance}" if above else f"no better than {chance}"
