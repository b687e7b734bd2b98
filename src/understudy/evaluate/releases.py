"""The figures of a release: real data are loaded beside it, images are drawn from it, and both are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.data.dataset import ImageDataset
from understudy.data.sources import DataOptions
from understudy.errors import InputError
from understudy.files import write_text
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from understudy.evaluate.evaluation import EvaluationConfig
    from understudy.evaluate.parallel import Listeners

_MOST_SAMPLES = 60_000  # drawn to be scored, unless more are asked for


@dataclass(frozen=True)
class EvaluateOptions:
    """What is drawn from a release to be scored, with what it is compared, and who hears of it."""

    samples: int | None = None  # None: as many as the declared records
    temperature: float = 1.0
    sample_steps: int | None = None  # of a diffusion model; None: its own
    test_data: str | None = None  # held-out real data; None: the test part of the training data
    scoring: Callable[[], AbstractContextManager[Listeners | None]] = nullcontext  # entered once all is loaded


def evaluate_release(
    folder: Path | str,
    source: DataOptions,
    metrics: Sequence[str],
    options: EvaluateOptions | None = None,
    config: EvaluationConfig | None = None,
) -> dict[str, Any]:
    """The figures of a release; kept as ``evaluation.json`` in the folder of a run, if images are drawn as usual.

    Privacy: reads real data without noise; the figures carry the stamp ``not private: do not publish``.
    """
    from understudy.evaluate.evaluation import EvaluationConfig, evaluate, expand_metrics, own_classifier_figure
    from understudy.release.release import load

    options, config, run = options or EvaluateOptions(), config or EvaluationConfig(), RunFolder(Path(folder))
    expand_metrics(metrics)  # a misspelt name is refused before anything is read
    if options.samples is not None and options.samples < 1:
        raise InputError(f"samples: {options.samples} images were asked for; pass 1 or more")
    release = load(run.path)
    if not release.domain.labelled:
        raise InputError(
            f"labels: the release in {folder} has none, but an evaluation needs them; name its images with `annotate`"
        )
    held_out, split = source.held_out(options.test_data)
    train = source.completed_from(release.domain, units=False).load("train")
    test = held_out.completed_from(release.domain, units=False).load(split)
    count = options.samples or min(_MOST_SAMPLES, release.domain.nominal_records)
    with options.scoring() as listeners:
        watch = None if listeners is None else listeners.counting("images drawn", count)
        images, labels = release.sample(count, temperature=options.temperature, steps=options.sample_steps, watch=watch)
        planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        config = replace(config, classes=release.domain.classes)
        heard = config if listeners is None else config.heard_by(listeners)
        result = evaluate(planes, labels, _pair(train), _pair(test), metrics, heard).as_dict()
    changed = {"temperature": (options.temperature, 1.0), "sample_steps": (options.sample_steps, None)}
    differing = {name: given for name, (given, usual) in changed.items() if given != usual}
    result.update(differing)
    if release.has_classifier:  # a receiver may name images of their own with it
        own = own_classifier_figure(release.label(_as_drawn(test.images)), _pair(test)[1], config)
        result["classifier_accuracy"] = own["value"]
        result["figures"].append(own)
    if run.begun and not differing:
        write_text(run.evaluation, json.dumps(result, indent=2) + "\n")
    return result


def _as_drawn(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (N, C, H, W) in the form in which a release draws them."""
    return planes[:, 0] if planes.shape[1] == 1 else planes.transpose(0, 2, 3, 1)


def _pair(data: ImageDataset) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if data.labels is None:
        raise InputError(f"labels: {data.name} has none, but an evaluation needs them; pass labelled real data")
    return data.images, data.labels
