"""Data as they are named in text: where they are, what their owner declares, and how a run writes that down."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.data.options import source_options
from understudy.data.sources import load
from understudy.errors import InputError


@dataclass(frozen=True)
class DataOptions:
    """Where the data are and what their owner declares about them."""

    source: str
    records: int | None = None
    classes: int | None = None
    shape: str | None = None
    declared: Sequence[str] = field(default_factory=tuple)

    def load(self, split: str = "train") -> ImageDataset:
        """The data set, with its declared domain."""
        values = parse_declarations(self.declared)
        if self.shape is not None:
            channels, height, width = parse_shape(self.shape)
            values |= {"size": (height, width)} | ({"channels": channels} if channels else {})
        options = source_options(**values)
        return load(self.source, split=split, records=self.records, classes=self.classes, options=options)

    def held_out(self, test_data: str | None) -> tuple[DataOptions, str]:
        """The data that figures are measured on, and which part of them; by default the test part of these."""
        return (self, "test") if test_data is None else (replace(self, source=test_data), "train")

    def as_dict(self) -> dict[str, Any]:
        """The declarations as plain data, for whoever resumes the run."""
        return {
            "records": self.records,
            "classes": self.classes,
            "shape": self.shape,
            "declared": list(self.declared),
        }

    def completed_by(self, earlier: Mapping[str, Any] | None) -> DataOptions:
        """The same data with everything that is left open declared as it was when the run was started."""
        if earlier is None:
            return self
        known = parse_declarations(self.declared)
        extra = [text for text in earlier["declared"] if text.partition("=")[0].strip() not in known]
        return replace(
            self,
            records=self.records or earlier["records"],
            classes=self.classes or earlier["classes"],
            shape=self.shape or earlier["shape"],
            declared=(*self.declared, *extra),
        )

    def completed_from(self, domain: Domain) -> DataOptions:
        """The same data with everything that is left open declared as in an earlier run."""
        known = parse_declarations(self.declared)
        extra = []
        if domain.class_names is not None and "class_names" not in known:
            extra.append(f"class_names={json.dumps(list(domain.class_names))}")
        if domain.classes is None and "unlabelled" not in known:
            extra.append("unlabelled=true")
        if domain.nominal_clients is not None:
            clients = {"clients": "true", "nominal_clients": str(domain.nominal_clients)}
            extra += [f"{key}={value}" for key, value in clients.items() if key not in known]
        return replace(
            self,
            records=self.records or domain.nominal_records,
            classes=self.classes or domain.classes,
            shape=self.shape or "x".join(str(side) for side in domain.shape),
            declared=(*self.declared, *extra),
        )


def parse_shape(text: str) -> tuple[int | None, int, int]:
    """``1x28x28`` or ``28x28`` as (channels or None, height, width)."""
    match = re.fullmatch(r"(?:(\d{1,6})x)?(\d{1,6})x(\d{1,6})", text.strip().lower())
    if match is None:
        raise InputError(f"shape: {text!r} is not of the form channels x height x width; pass for example 1x28x28")
    channels, height, width = match.groups()
    return (int(channels) if channels else None), int(height), int(width)


def parse_declarations(declared: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs; a value is JSON, true or false, or a list separated by commas."""
    values: dict[str, Any] = {}
    for text in declared:
        key, separator, raw = text.partition("=")
        if not separator or not key.strip():
            raise InputError(f"--declare: {text!r} is not of the form key=value; for example value_range=0,1")
        values[key.strip()] = _parse_value(raw.strip(), is_list=key.strip() in ("class_names", "value_range", "size"))
    return values


def _parse_value(raw: str, is_list: bool) -> Any:
    try:
        value = json.loads(raw.lower() if raw.lower() in ("true", "false", "none", "null") else raw)
    except (ValueError, RecursionError):
        value = raw
    if is_list and not isinstance(value, list):
        return [part.strip() for part in raw.strip("()[]").split(",")]
    return value
