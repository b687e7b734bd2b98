"""Calibrated accuracy: what a classifier learnt from samples, as a share of what it learns from the real data.

As in seed 000: the accuracy after training on samples divided by the accuracy after training on the real training set,
for each classifier, and the mean of these ratios over all of them. A ratio above 1 is possible.

Privacy: the reference accuracies follow from real data without noise. They are kept only where the caller names a
folder, under a hash of both real sets, of the classifier and of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from understudy.evaluate.classifiers import ClassifierSetup, classifier_entry
from understudy.evaluate.downstream import DownstreamResult, LabelledImages
from understudy.evaluate.parallel import Crew, DownstreamProgress, downstream_accuracies
from understudy.evaluate.private_cache import content_hash, keep_json, kept_json
from understudy.evaluate.yardsticks import accuracy_yardstick


@dataclass(frozen=True)
class DownstreamSummary:
    """The averages over classifiers."""

    average: float
    calibrated: float | None  # None where no reference accuracy was measured
    classifiers: int

    def figures(
        self, chance: float | None = None, reference: Mapping[str, float] | None = None
    ) -> list[dict[str, Any]]:
        """As figures of an evaluation, beside yardsticks where ``chance`` and the reference accuracies are known."""
        plain = {"classifiers": self.classifiers}
        found: list[dict[str, Any]] = [
            {"name": "average_accuracy", "value": self.average, "accuracy": self.average, **plain}
        ]
        if self.calibrated is not None:
            found.append({"name": "calibrated_accuracy", "value": self.calibrated, **plain})
        if chance is not None and reference:
            real = list(reference.values())
            guessed = (chance, float(np.mean([ratio(chance, each) for each in real])))
            given = (float(np.mean(real)), 1.0)
            for figure, low, high in zip(found, guessed, given, strict=False):
                beside = accuracy_yardstick(figure["value"], low, high, None, "the same classifiers")
                figure["yardstick"] = beside.as_dict()
        return found


def reference_accuracies(
    names: Sequence[str],
    real: tuple[LabelledImages, LabelledImages],
    setup: ClassifierSetup,
    crew: Crew,
    cache: Path | None,
) -> dict[str, float]:
    """Accuracy of each classifier trained on the real training set; each is kept in ``cache`` once it is there."""
    paths = {} if cache is None else {name: cache / f"reference-{key}.json" for name, key in _keys(names, real, setup)}
    found = {name: float(kept["accuracy"]) for name, path in paths.items() if (kept := kept_json(path)) is not None}

    def keep_and_tell(progress: DownstreamProgress) -> None:
        result = progress.result
        if result.classifier in paths:
            keep_json(paths[result.classifier], {"classifier": result.classifier, "accuracy": result.accuracy})
        if crew.listener is not None:
            crew.listener(progress)

    missing = [name for name in names if name not in found]
    if missing:
        results = downstream_accuracies(missing, *real, setup, replace(crew, listener=keep_and_tell), "real data")
        found |= {name: result.accuracy for name, result in results.items()}
    return {name: found[name] for name in names}


def summarise(results: Mapping[str, DownstreamResult], reference: Mapping[str, float] | None) -> DownstreamSummary:
    """The average accuracy, and the average of the calibrated ones where there is a reference."""
    average = float(np.mean([result.accuracy for result in results.values()]))
    ratios = [ratio(result.accuracy, reference[name]) for name, result in results.items()] if reference else []
    return DownstreamSummary(average, float(np.mean(ratios)) if ratios else None, len(results))


def ratio(accuracy: float, reference: float) -> float:
    """The calibrated accuracy; a reference of zero, which learnt nothing, is beaten by anything."""
    return accuracy / reference if reference > 0 else float(accuracy > 0)


def _keys(
    names: Sequence[str], real: tuple[LabelledImages, LabelledImages], setup: ClassifierSetup
) -> Iterator[tuple[str, str]]:
    """Whatever changes a reference accuracy changes its key; how many threads were used changes nothing."""
    train, test = real
    data = content_hash("reference-1", train.images, train.labels, test.images, test.labels)
    for name in names:
        entry = classifier_entry(name)
        facts = (data, name, entry.build(setup).settings, entry.most_images(setup.fast), setup.classes, setup.seed)
        yield name, content_hash("|".join(str(fact) for fact in facts))
