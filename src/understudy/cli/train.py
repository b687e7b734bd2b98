"""``understudy train``: from data to a release, with live progress; Ctrl-C leaves a run that can be resumed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli.options import (
    Classes,
    ConfigFile,
    Data,
    Declare,
    Device,
    Json,
    Moved,
    Preset,
    Records,
    Resume,
    RunFolder,
    Seed,
    SetValues,
    Shape,
    command_line,
    data_options,
    parse_budget,
    print_json,
    read_settings,
    refuse_moved_alone,
)
from understudy.errors import InputError
from understudy.progress import show_progress, stop_on_signals

if TYPE_CHECKING:
    from understudy.data.declarations import DataOptions
    from understudy.release.release import Release


NAME = "train"


@dataclass(frozen=True)
class Request:
    """What was asked for, beside the data."""

    method: str
    out: Path
    epsilon: float | None
    delta: float | None
    config: dict[str, Any]
    seed: int | None
    preset: str | None = None
    command: str | None = None  # None: that of this process


def command(
    method: Annotated[str, typer.Argument(help="One of `understudy methods`.")],
    data: Data,
    out: RunFolder,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Privacy budget: epsilon.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Privacy budget: delta.")] = None,
    records: Records = None,
    classes: Classes = None,
    shape: Shape = None,
    declare: Declare = None,
    preset: Preset = None,
    config: ConfigFile = None,
    settings: SetValues = None,
    device: Device = None,
    seed: Seed = None,
    resume: Resume = False,
    moved: Moved = False,
    as_json: Json = False,
) -> None:
    """Train a private generator within a budget and write its release.

    Without a budget only a method that is not private can be trained; its release is stamped and never verifies.
    """
    source = data_options(data, records, classes, shape, declare)
    request = Request(method, out, epsilon, delta, read_settings(config, settings, device), seed, preset)
    refuse_moved_alone(moved, resume)
    release = continue_run(request, source, moved) if resume else start_run(request, source)
    stamp = release.certificate.not_private
    if as_json:
        names = {"run": str(out), "release": str(out / "release"), "method": release.method}
        headline = None if stamp else release.certificate.headline
        figures = {name: headline and getattr(headline, name) for name in ("epsilon", "delta")}
        marks = {"not_private": stamp} if stamp else {}
        print_json({**names, **figures} | marks | _other_figures(release, out))
        return
    from understudy.privacy.meaning import by_viewer, claim
    from understudy.privacy.randomness.streams import OS_ENTROPY

    for line in by_viewer(release.certificate.guarantees):
        typer.echo(line)
    typer.echo(f"{stamp or claim(release.certificate.headline)}: the release is in {out / 'release'}")
    _tell_other_figures(release, out)
    if release.certificate.randomness != OS_ENTROPY:
        typer.echo(f"{release.certificate.randomness}: who knows the seed can remove the noise, so `verify` refuses it")
    typer.echo(
        f"next: understudy verify {shlex.quote(str(out))}, understudy sample {shlex.quote(str(out))} -n 1000 --to x.npz"
    )


def _other_figures(release: Release, out: Path) -> dict[str, Any]:
    """For ``--json``: the data-dependent claims that are published, and where those of the run are kept."""
    from understudy.privacy.claims.kept import claims_path

    published = [claim.model_dump() for claim in release.certificate.data_dependent or ()]
    kept = claims_path(out / "private")
    private = {"data_dependent_private": str(kept)} if kept.is_file() else {}
    return ({"data_dependent": published} if published else {}) | private


def _tell_other_figures(release: Release, out: Path) -> None:
    """Published claims in words; of those that are kept in the private folder only where they are."""
    from understudy.privacy.claims.bayesian_claim import claim_in_words
    from understudy.privacy.claims.kept import STAMP, claims_path

    for claim in release.certificate.data_dependent or ():
        typer.echo("beside it: " + " ".join(claim_in_words(claim)))
    kept = claims_path(out / "private")
    if kept.is_file():
        shown = f"understudy report {shlex.quote(str(out))}"
        typer.echo(f"a figure that depends on the data is in {kept} ({STAMP}); {shown}")


def start_run(request: Request, source: DataOptions) -> Release:
    """Check everything that needs no data, then load the data and train."""
    from understudy.methods.base import configure
    from understudy.methods.registry import get_method

    method = get_method(request.method)
    budget = parse_budget(method, request.epsilon, request.delta)
    configure(method, request.config, request.preset)
    data = source.load()

    from understudy.api import TrainOptions, train

    command = request.command or command_line()
    with stop_on_signals() as stop, show_progress() as listener:
        options = TrainOptions(request.config, request.seed, listener, stop, command, source.as_dict(), request.preset)
        return train(request.method, data, budget, request.out, options)


def continue_run(request: Request, source: DataOptions, moved: bool = False) -> Release:
    """Continue a run with what it was started with; anything asked for now must agree with that."""
    from understudy.api import TrainOptions, read_description, resume

    described = read_description(request.out)
    fixed = {"method": described.method, "epsilon": described.budget.epsilon, "delta": described.budget.delta}
    for name, value in fixed.items():
        asked = getattr(request, name)
        if asked is not None and asked != value:
            raise InputError(f"{name}: {asked} was asked for, but the run in {request.out} was started with {value}")
    if request.config or request.seed is not None or request.preset is not None:
        raise InputError(
            "resume: a run keeps its config and seed; leave --preset, --config, --set, --device and --seed out"
        )
    data = source.completed_by(described.source).completed_from(described.domain).load()
    with stop_on_signals() as stop, show_progress() as listener:
        return resume(data, request.out, TrainOptions(listener=listener, stop_requested=stop, moved=moved))
