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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.data.sources import DataOptions
    from understudy.experiments.curves import Curve
    from understudy.methods.base import Method
    from understudy.privacy.budget import Budget
    from understudy.privacy.certificate import Certificate


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="A folder of images, a .csv, .parquet, .tar or .npz file, a saved Hugging Face data set, IDX files, or a "
        "known name such as digits or mnist.",
    ),
]
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
        "nominal_clients=100  person=column:NAME (or name:REGEX, folder:LEVEL)  nominal_people=200  label=column:NAME  "
        "image=column:NAME  window=40,400. Repeat it for several.",
    ),
]
SkipBroken = Annotated[
    int | None,
    typer.Option(
        "--skip-broken",
        metavar="N",
        help="Leave out up to N broken files and fail beyond; N becomes public, so choose it before you count.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A .json or .toml file of settings for the method.")]
Preset = Annotated[
    str | None, typer.Option("--preset", help="A named configuration of the method (`understudy methods` lists them).")
]
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="GROUP.KEY=VALUE", help="One setting, e.g. method.steps=2000. Repeat it for several."
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")]
Seed = Annotated[int | None, typer.Option("--seed", help="For tests only: marks the run as not for release.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the run; its release will be in OUT/release.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in OUT as it was started.")]
Moved = Annotated[
    bool, typer.Option("--moved", help="With --resume: OUT is a copy, and no other copy of the run is continued.")
]
AllMoved = Annotated[bool, typer.Option("--moved", help="OUT is a copy, and no other copy of its runs is continued.")]
MethodName = Annotated[
    str,
    typer.Argument(
        help="One of `understudy methods`; auto, or none: chosen for what you declare, by what was measured."
    ),
]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Privacy budget: delta. A tenth of one over the units, at most 1e-5, unless given."),
]
Time = Annotated[
    str | None,
    typer.Option("--time", metavar="20m", help="How long you are ready to wait; auto leaves out what takes longer."),
]
Account = Annotated[
    str | None,
    typer.Option(
        "--account",
        metavar="NAME",
        help="Reserve the whole plan in this account of the data first (`understudy data account`). Its name and total "
        "become public with the certificate.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes", help="So many processes on this machine share the private steps (docs/many-machines.md)."
    ),
]
Temperature = Annotated[
    float, typer.Option("--temperature", help="Below 1: images are more typical and vary less. Costs no privacy.")
]
SampleSteps = Annotated[
    int | None,
    typer.Option("--sample-steps", help="Of a diffusion model: fewer are faster, more are finer. Costs no privacy."),
]
Agree = Annotated[
    bool, typer.Option("--agree", help="Only images on which generator and teacher agree. Costs no privacy.")
]
ReleaseFolder = Annotated[
    Path, typer.Argument(metavar="RELEASE", help="Folder of a release, or of the run that made it.")
]

PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="The first line of this file is the passphrase of the key.")
]
TrustedKeys = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="PUB", help="The public key that must have signed it, or a folder of keys that you trust."
    ),
]


def passphrase(path: Path | None) -> str | None:
    """The passphrase in a file: its first line."""
    if path is None:
        return None
    try:
        with path.open(encoding="utf-8") as file:
            line = file.readline(10_000).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"--passphrase-file: {path} cannot be read ({reason}); pass a text file") from None
    if not line:
        raise InputError(f"--passphrase-file: the first line of {path} is empty; write the passphrase there")
    return line


def refuse_moved_alone(moved: bool, resume: bool) -> None:
    """``--moved`` without ``--resume`` means nothing."""
    if moved and not resume:
        raise InputError("--moved: it says that a run to be continued was moved; pass it together with --resume")


def taken_up_again(out: Path, resume: bool) -> bool:
    """Whether a launcher started this process again, after one of them had died, and there is a run to go on with.

    A run that this command did not begin is not gone on with unless ``resume`` asks for it: what was refused at first
    is refused however often it is tried.
    """
    from understudy.distributed import on_several_machines, restarted
    from understudy.runs.description import read_description
    from understudy.runs.folder import RunFolder

    if not restarted():
        return False
    if RunFolder(out).begun:
        if not resume and read_description(RunFolder(out)).command != command_line():
            RunFolder(out).refuse_occupied()
        return True
    if on_several_machines():
        raise InputError(
            f"processes: started again, but {out} holds no run here, so what was spent may be on record on another "
            "machine; put --out on a volume that all of them see, or start anew"
        )
    return False


def data_options(
    source: str,
    records: int | None,
    classes: int | None,
    shape: str | None,
    declare: Sequence[str] | None,
    skip_broken: int | None = None,
) -> DataOptions:
    """The data that were named, with what was declared about them."""
    from understudy.data.sources import DataOptions

    return DataOptions(source, records, classes, shape, declarations(declare, skip_broken))


def declarations(declare: Sequence[str] | None, skip_broken: int | None) -> tuple[str, ...]:
    """What ``--declare`` and the option that has a name of its own say together."""
    given = tuple(declare or ())
    if skip_broken is None:
        return given
    twice = next((text for text in given if text.partition("=")[0].strip() == "skip_broken"), None)
    if twice is not None:
        raise InputError(f"skip_broken: --skip-broken {skip_broken} and --declare {twice} were given; pass one of them")
    return (*given, f"skip_broken={skip_broken}")


def read_settings(path: Path | None, settings: Sequence[str] | None, device: str | None = None) -> dict[str, Any]:
    """The method's config from a file with settings laid over it."""
    from understudy.methods.config import apply_settings, read_config_file

    values: Mapping[str, Any] = {} if path is None else read_config_file(path)
    chosen = [*(settings or ()), *([f"runtime.device={device}"] if device else [])]
    return apply_settings(values, chosen)


def parse_budget(method: Method, epsilon: float | None, delta: float | None) -> Budget:
    """The budget of a run: for a private method epsilon and perhaps delta, neither for one that is not."""
    from understudy.methods.base import check_budget

    return check_budget(method, open_budget(epsilon, delta))


def open_budget(epsilon: float | None, delta: float | None) -> Budget | None:
    """The budget as it was stated; delta may be left to the declared units."""
    from understudy.privacy.budget import OpenBudget, stated_budget

    return OpenBudget(epsilon) if epsilon is not None and delta is None else stated_budget(epsilon, delta)


def parse_labels(text: str | None, class_names: Sequence[str] | None = None) -> list[int] | None:
    """``3,5`` or ``cat,dog`` as labels; a whole number is always a label and never a name."""
    if text is None:
        return None
    parts = [text] if text in (class_names or ()) else [part.strip() for part in text.split(",")]
    return [_label(part, class_names) for part in parts]


def _label(part: str, class_names: Sequence[str] | None) -> int:
    if re.fullmatch(r"-?[0-9]{1,9}", part):
        return int(part)
    if class_names is None:
        raise InputError(
            f"labels: {part!r} is no label, and this release does not publish the names of its classes; pass whole "
            "numbers, for example --labels 3,5"
        )
    if part not in class_names:
        raise InputError(f"labels: {part!r} is no class; choose among {', '.join(class_names)}, or whole numbers")
    return list(class_names).index(part)


def split_names(text: str) -> tuple[str, ...]:
    """``a,b`` as names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def describe_points(head: list[str], rows: list[list[str]], found: Curve) -> str:
    """The points of an experiment as a small table, then the price of all of them and the stamp."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    lines += [total.in_words() for total in found.totals]
    return "\n".join([*lines, f"({found.stamp or 'the real data were declared public'})"])


def warn(sentence: str) -> None:
    """Something that concerns the owner of the data alone."""
    typer.echo(f"warning: {sentence}", err=True)


def tell_account(certificate: Certificate) -> None:
    """What the account of a run has come to."""
    if certificate.account is not None:
        typer.echo(certificate.account.in_words())


def account_figures(certificate: Certificate) -> dict[str, Any]:
    """The same for ``--json``."""
    account = certificate.account
    return {} if account is None else {"account": account.model_dump(exclude_none=True)}


def command_line() -> str:
    """What this process was called with."""
    return shlex.join(["understudy", *sys.argv[1:]])


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value))
