"""``understudy train``: from data to a release, with live progress; Ctrl-C leaves a run that can be resumed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli import options as common
from understudy.files import make_folder
from understudy.forecast import Consent, announce, brought_in_words, introduce, seconds_of, usual_delta_in_words
from understudy.progress import watch_run
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    from understudy.data.sources import DataOptions
    from understudy.methods.choice import Choice
    from understudy.privacy.budget import Budget
    from understudy.privacy.plan import Plan
    from understudy.release.release import Release


NAME = "train"
_NO_SERVER = (
    "all clients were in this one process, so there was no server: what would hold against one, and against other"
    " clients, is in the certificate"
)


def command(
    data: common.Data,
    out: common.Out,
    method: common.MethodName = "auto",
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Privacy budget: epsilon.")] = None,
    delta: common.Delta = None,
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    preset: common.Preset = None,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    device: common.Device = None,
    seed: common.Seed = None,
    account: common.Account = None,
    time: common.Time = None,
    resume: common.Resume = False,
    moved: common.Moved = False,
    processes: common.Processes = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Begin without a question, however long it takes on a CPU.")
    ] = False,
    as_json: common.Json = False,
) -> None:
    """Train a private generator within a budget and write its release.

    Without a method it chooses one for what you declare, says which and why, and never looks at the data for that.
    It first says how long that takes here, and asks before it begins what takes more than an hour on a CPU.
    Without a budget only a method that is not private can be trained; its release is stamped and never verifies.
    """
    from understudy.api import TrainOptions, continue_run, start_run
    from understudy.distributed import assembled
    from understudy.following import PROGRAM, follow
    from understudy.methods.choice import AUTO

    source = common.data_options(data, records, classes, shape, declare, skip_broken)
    settled = common.read_settings(config, settings, device)
    common.refuse_moved_alone(moved, resume)
    patience = None if time is None else seconds_of(time)
    if not resume:
        source, budget = _checked(method, source, (epsilon, delta), settled, preset)
    if common.taken_up_again(out, resume):
        resume, settled, seed, preset = True, {}, None, None
    with assembled(processes, PROGRAM, {"source": asdict(source)}) as team:
        if not team.leads:
            follow(team, source)
            return
        if resume:
            options = TrainOptions(config=settled, seed=seed, preset=preset, moved=moved, team=team)
            named = None if method == AUTO else method
            asked = {"method": named, "epsilon": epsilon, "delta": delta, "account": account}
            release = continue_run(out, source, asked, options, watch_run)
        else:
            foreseen = partial(_before, out, yes, delta is None)
            options = TrainOptions(settled, seed, command=common.command_line(), preset=preset, before=foreseen)
            options = replace(options, account=account, warn=common.warn, team=team)
            options = replace(options, time=patience, chosen=_tell_choice)
            release = start_run(method, source, budget, out, options, watch_run)
    _tell(release, out, as_json)


def _checked(
    method: str,
    source: DataOptions,
    figures: tuple[float | None, float | None],
    config: Mapping[str, Any],
    preset: str | None,
) -> tuple[DataOptions, Budget]:
    """Budget and data, as far as they can be checked before any image is read; pictures get a shape where auto asks."""
    from understudy.data.check import refuse_undeclared
    from understudy.methods.base import configure
    from understudy.methods.choice import AUTO, refuse_settings, stated, usual_shape
    from understudy.methods.registry import get_method

    if method != AUTO:
        budget = common.parse_budget(get_method(method), *figures)
        configure(get_method(method), config, preset)
        refuse_undeclared(source)
        return source, budget
    refuse_settings(config, preset)
    budget = stated(common.open_budget(*figures))
    refuse_undeclared(source)
    shaped = usual_shape(source)
    if shaped.shape is not None and shaped != source:
        typer.echo(brought_in_words(shaped.shape), err=True)
    return shaped, budget


def _tell_choice(choice: Choice) -> None:
    typer.echo(introduce(choice), err=True)


def _before(out: Path, yes: bool, without_delta: bool, plan: Plan) -> None:
    """What is said before anything is spent; a folder that cannot be used is refused before any question."""
    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if nearest == out and out.is_dir():
        RunFolder(out).refuse_occupied()
    elif not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        make_folder(out, "run")  # which says why it cannot
    if without_delta and plan.private:
        typer.echo(usual_delta_in_words(plan), err=True)
    announce(plan, Consent(agreed=yes), lambda sentence: typer.echo(sentence, err=True))


def _tell(release: Release, out: Path, as_json: bool) -> None:
    from understudy.privacy.meaning import by_viewer, claim
    from understudy.privacy.randomness.streams import OS_ENTROPY
    from understudy.release.model_card import OWN_LABELS

    stamp = release.certificate.not_private
    if as_json:
        names = {"run": str(out), "release": str(RunFolder(out).release), "method": release.method}
        headline = None if stamp else release.certificate.headline
        figures = {name: headline and getattr(headline, name) for name in ("epsilon", "delta")}
        marks: dict[str, Any] = {"not_private": stamp} if stamp else {}
        marks |= {"teacher_names": release.teacher_names} if release.has_classifier else {}
        marks |= common.account_figures(release.certificate)
        common.print_json({**names, **figures} | marks | _other_figures(release, out))
        return
    for line in by_viewer(release.certificate.guarantees)[:1]:
        typer.echo(f"{line}; {_NO_SERVER}")
    typer.echo(f"{stamp or claim(release.certificate.headline)}: the release is in {RunFolder(out).release}")
    common.tell_account(release.certificate)
    _tell_other_figures(release, out)
    if release.has_classifier and not release.teacher_names:
        typer.echo(OWN_LABELS)
    if release.certificate.randomness != OS_ENTROPY:
        typer.echo(f"{release.certificate.randomness}: who knows the seed can remove the noise, so `verify` refuses it")
    run = shlex.quote(str(out))
    typer.echo(
        f"next: understudy verify {run}, understudy report {run} --to report.html, understudy sample {run} -n 1000 "
        "--to x.npz"
    )


def _other_figures(release: Release, out: Path) -> dict[str, Any]:
    """For ``--json``: the data-dependent claims that are published, and where those of the run are kept."""
    published = [claim.model_dump() for claim in release.certificate.data_dependent or ()]
    kept = RunFolder(out).claims
    private = {"data_dependent_private": str(kept)} if kept.is_file() else {}
    return ({"data_dependent": published} if published else {}) | private


def _tell_other_figures(release: Release, out: Path) -> None:
    """Published claims in words; of those that are kept in the private folder only where they are."""
    from understudy.privacy.claims.statements import STAMP, claim_in_words

    for claim in release.certificate.data_dependent or ():
        typer.echo("beside it: " + " ".join(claim_in_words(claim)))
    kept = RunFolder(out).claims
    if kept.is_file():
        shown = f"understudy report {shlex.quote(str(out))}"
        typer.echo(f"a figure that depends on the data is in {kept} ({STAMP}); {shown}")
