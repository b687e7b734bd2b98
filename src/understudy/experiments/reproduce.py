"""How to make such a generator or curve again: commands built from public facts only, without any private path."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from understudy.data.catalog import is_known, known_set
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.experiments.points import Entrant, ExperimentOptions, PlannedPoint
from understudy.methods.config import build_config
from understudy.methods.registry import get_method

PLACEHOLDER = "YOUR-DATA"
PERSON = "YOUR-PERSON"  # where the data say whom a record is of, which is nobody's business


def train_command(
    method: str, budget: tuple[float, float] | None, domain: Domain, config: Mapping[str, Any], data: str | None
) -> str:
    """The ``understudy train`` that plans the same accesses; data that are not known by name become a placeholder.

    The settings are the decided ones, as far as they differ from the method's defaults; ``runtime`` changes nothing.
    """
    named = data if data is not None and is_known(data) else None
    parts = [f"understudy train {shlex.quote(method)} --data {named or PLACEHOLDER}"]
    parts += _declarations(domain, named)
    parts += [f"--epsilon {budget[0]:g} --delta {budget[1]:g}"] if budget else []
    parts += [f"--set {shlex.quote(f'{key}={_text(value)}')}" for key, value in changed_settings(method, config)]
    parts.append("--out runs/again")
    return " \\\n  ".join(parts)


def curve_command(entrant: Entrant, options: ExperimentOptions, points: Sequence[PlannedPoint]) -> str:
    """The ``understudy curve`` that repeats a sweep; where the data and the results lie is not part of it."""
    source, tested = options.source, options.test_data
    named = source.source if is_known(source.source) else PLACEHOLDER
    words: list[tuple[str, Any]] = [("--records", source.records), ("--classes", source.classes)]
    words += [("--shape", source.shape), *(("--declare", text) for text in source.declared)]
    words += [("--epsilon", options.epsilon), ("--delta", options.delta)]
    for key in points[0].values:
        values = dict.fromkeys(json.dumps(point.values[key]).strip('"') for point in points)
        words.append(("--over", f"{key}={','.join(values)}"))
    words.append(("--preset", entrant.preset))
    words += [("--set", f"{key}={_text(value)}") for key, value in changed_settings(entrant.method, entrant.config)]
    words.append(("--test-data", tested if tested is None or is_known(tested) else f"{PLACEHOLDER}-TEST"))
    words += [("--metrics", ",".join(options.metrics)), ("--samples", options.samples)]
    repeats = max(point.repeat for point in points)
    words.append(("--repeats", repeats if repeats > 1 else None))
    lines = [shlex.join(["understudy", "curve", entrant.method, "--data", named])]
    lines += [shlex.join([name, str(value)]) for name, value in words if value is not None]
    lines += ["--fast"] if options.fast else []
    return " \\\n  ".join([*lines, "--out runs/curve"])


def changed_settings(method: str, config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Settings by their dotted names that differ from the defaults; all of them where the method is not known here."""
    try:
        defaults = dict(_leaves(build_config(get_method(method).config_type, {}).model_dump(mode="json")))
    except InputError:
        defaults = {}
    return [
        (key, value)
        for key, value in _leaves(config)
        if not key.startswith("runtime.") and (key not in defaults or defaults[key] != value)
    ]


def _leaves(values: Mapping[str, Any], parents: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{parents}{key}.")
        else:
            yield f"{parents}{key}", value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _declarations(domain: Domain, named: str | None) -> list[str]:
    """What was declared about the data, without what is built in for data known by name."""
    parts = []
    if named is None or known_set(named).records.get("train") != domain.nominal_records:
        parts.append(f"--records {domain.nominal_records}")
    if named is None:
        parts.append(f"--classes {domain.classes}" if domain.labelled else "--declare unlabelled=true")
        if domain.class_names is not None:
            parts.append(f"--declare {shlex.quote('class_names=' + json.dumps(list(domain.class_names)))}")
        low, high = domain.value_range
        if (low, high) != (0.0, 255.0):
            parts.append(f"--declare value_range={low:g},{high:g}")
        if domain.nominal_clients is not None:
            parts.append(f"--declare clients=true --declare nominal_clients={domain.nominal_clients}")
        if domain.skip_broken is not None:
            parts.append(f"--skip-broken {domain.skip_broken}")
    if domain.nominal_people is not None:
        column = PERSON if named is None else known_set(named).column
        parts.append(f"--declare person=column:{column} --declare nominal_people={domain.nominal_people}")
    if named is None or known_set(named).shape != domain.shape:
        parts.append(f"--shape {'x'.join(str(side) for side in domain.shape)}")
    return parts
