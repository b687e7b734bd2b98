"""Options that several commands share, and how their text becomes values.

Commands have more than six parameters because each of them is an option on the command line; they hand them on in one
piece (``DataOptions``).
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.data import ImageDataset
    from understudy.data.domain import Domain
    from understudy.methods.base import Method
    from understudy.privacy.budget import Budget


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Data = Annotated[str, typer.Option("--data", help="A folder, .npz, IDX file, or a known name such as digits or mnist.")]
Records = Annotated[
    int | None, typer.Option("--records", help="Declared, public number of records (need not be exact).")
]
Classes = Annotated[int | None, typer.Option("--classes", help="Declared number of classes.")]
Shape = Annotated[
    str | None, typer.Option("--shape", help="Bring images to channels x height x width, e.g. 1x28x28 or 28x28.")
]
Declare = Annotated[
    list[str] | None,
    typer.Option(
        "--declare",
        metavar="KEY=VALUE",
        help="More about the data: class_names=cat,dog  value_range=0,1  unlabelled=true  clients=true  "
        "nominal_clients=100. Repeat it for several.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A .json or .toml file of settings for the method.")]
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="A named configuration of the method (`understudy methods` lists them)."),
]
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="GROUP.KEY=VALUE", help="One setting, e.g. method.steps=2000. Repeat it for several."
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")]
Seed = Annotated[int | None, typer.Option("--seed", help="For tests only: marks the run as not for release.")]
RunFolder = Annotated[Path, typer.Option("--out", help="Folder of the run; its release will be in OUT/release.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in OUT as it was started.")]
Moved = Annotated[
    bool, typer.Option("--moved", help="With --resume: OUT is a copy, and no other copy of the run is continued.")
]
AllMoved = Annotated[bool, typer.Option("--moved", help="OUT is a copy, and no other copy of its runs is continued.")]
Temperature = Annotated[
    float, typer.Option("--temperature", help="Below 1: images are more typical and vary less. Costs no privacy.")
]
ReleaseFolder = Annotated[
    Path, typer.Argument(metavar="RELEASE", help="Folder of a release, or of the run that made it.")
]


def refuse_moved_alone(moved: bool, resume: bool) -> None:
    """``--moved`` without ``--resume`` means nothing."""
    if moved and not resume:
        raise InputError("--moved: it says that a run to be continued was moved; pass it together with --resume")


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
        from understudy.data import load, source_options

        values = parse_declarations(self.declared)
        if self.shape is not None:
            channels, height, width = parse_shape(self.shape)
            values |= {"size": (height, width)} | ({"channels": channels} if channels else {})
        options = source_options(**values)
        return load(self.source, split=split, records=self.records, classes=self.classes, options=options)

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
            extra += [f"{key}={value}" for key, value in _client_declarations(domain).items() if key not in known]
        return replace(
            self,
            records=self.records or domain.nominal_records,
            classes=self.classes or domain.classes,
            shape=self.shape or "x".join(str(side) for side in domain.shape),
            declared=(*self.declared, *extra),
        )


def _client_declarations(domain: Domain) -> dict[str, str]:
    return {"clients": "true", "nominal_clients": str(domain.nominal_clients)}


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


def read_settings(path: Path | None, settings: Sequence[str] | None, device: str | None = None) -> dict[str, Any]:
    """The method's config from a file with settings laid over it."""
    from understudy.methods.config import apply_settings, read_config_file

    values: Mapping[str, Any] = {} if path is None else read_config_file(path)
    chosen = [*(settings or ()), *([f"runtime.device={device}"] if device else [])]
    return apply_settings(values, chosen)


def parse_budget(method: Method, epsilon: float | None, delta: float | None) -> Budget:
    """The budget of a run: both figures for a private method, neither for one that is not."""
    from understudy.methods.base import check_budget
    from understudy.privacy.budget import Budget

    if (epsilon is None) != (delta is None):
        missing = "--delta" if delta is None else "--epsilon"
        raise InputError(f"budget: {missing} is missing; pass for example --epsilon 10 --delta 1e-5")
    return check_budget(method, None if epsilon is None or delta is None else Budget(epsilon, delta))


def parse_labels(text: str | None) -> list[int] | None:
    """``3,5`` as labels."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"labels: {text!r} is not a list of whole numbers; pass for example --labels 3,5") from None


def command_line() -> str:
    """What this process was called with."""
    return shlex.join(["understudy", *sys.argv[1:]])


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value))
