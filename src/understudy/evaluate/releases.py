"""The figures of a release: real data are loaded beside it, images are drawn from it, and both are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.data.sources import DataOptions
from understudy.errors import InputError
from understudy.files import write_text
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
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
    processes: int | None = None  # that draw the images; None: this one


def evaluate_release(
    folder: Path | str,
    source: DataOptions,
    metrics: Sequence[str] | None = None,
    options: EvaluateOptions | None = None,
    config: EvaluationConfig | None = None,
) -> dict[str, Any]:
    """The figures of a release; kept as ``evaluation.json`` in the folder of a run, if images are drawn as usual.

    ``metrics`` are those of ``evaluate``; None: ``cnn``, and ``resnet`` beside it where images are in colour.

    Privacy: reads real data without noise; the figures carry the stamp ``not private: do not publish``.
    """
    from understudy.evaluate.evaluation import (
        EvaluationConfig,
        evaluate,
        expand_metrics,
        own_classifier_figure,
        with_colour,
    )
    from understudy.release.release import load
    from understudy.release.sampling import DrawOptions, sample_in_processes

    options, config, run = options or EvaluateOptions(), config or EvaluationConfig(), RunFolder(Path(folder))
    if metrics is not None:
        expand_metrics(metrics)  # a misspelt name is refused before anything is read
    if options.samples is not None and options.samples < 1:
        raise InputError(f"samples: {options.samples} images were asked for; pass 1 or more")
    release = load(run.path)
    if not release.domain.labelled:
        raise InputError(
            f"labels: the release in {folder} has none, but an evaluation needs them; name its images with `annotate`"
        )
    metrics = with_colour(("cnn",), release.domain.shape[0]) if metrics is None else metrics
    held_out, split = source.held_out(options.test_data)
    train = source.completed_from(release.domain, units=False).load("train")
    test = held_out.completed_from(release.domain, units=False).load(split)
    count = options.samples or min(_MOST_SAMPLES, release.domain.nominal_records)
    with options.scoring() as listeners:
        watch = None if listeners is None else listeners.counting("images drawn", count)
        if options.processes is None:
            drawn = release.sample(count, temperature=options.temperature, steps=options.sample_steps, watch=watch)
        else:
            asked = DrawOptions(count, temperature=options.temperature, steps=options.sample_steps)
            drawn = sample_in_processes(run.path, release, asked, options.processes, watch)
        config = replace(config, classes=release.domain.classes)
        heard = config if listeners is None else config.heard_by(listeners)
        result = evaluate(*drawn, train, test, metrics, heard).as_dict()
    changed = {"temperature": (options.temperature, 1.0), "sample_steps": (options.sample_steps, None)}
    differing = {name: given for name, (given, usual) in changed.items() if given != usual}
    result.update(differing)
    if release.has_classifier:  # a receiver may name images of their own with it
        assert test.labels is not None, "an evaluation of the same data has asked for them"
        own = own_classifier_figure(release.label(test.pictures), test.labels, config)
        result["classifier_accuracy"] = own["value"]
        result["figures"].append(own)
    if run.begun and not differing:
        write_text(run.evaluation, json.dumps(result, indent=2) + "\n")
    return result
