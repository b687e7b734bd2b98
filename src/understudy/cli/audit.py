"""``understudy audit``: attack the real mechanisms or a whole run, and record what the attacks could show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.errors import CheckError
from understudy.progress import show_progress, show_scoring

if TYPE_CHECKING:
    from understudy.privacy.audits import AuditRecord


app = typer.Typer(help="Attack a method and bound epsilon from below; see docs/audit.md.", no_args_is_help=True)

Confidence = Annotated[float, typer.Option("--confidence", help="Of all bounds together.")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="The claim to audit: epsilon.")]
Delta = Annotated[float, typer.Option("--delta", help="The claim to audit: delta.")]
To = Annotated[Path | None, typer.Option("--to", help="Also write the audits to this JSON file, for `record`.")]


@app.command("mechanisms")
def mechanisms(
    methods: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]...", help="All by default.")] = None,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    trials: Annotated[int, typer.Option("--trials", help="With the unit, and as many without it.")] = 100_000,
    confidence: Confidence = 0.9999,
    to: To = None,
    as_json: common.Json = False,
) -> None:
    """Play the worst neighbours against the sanitizers, samplers and routers that methods train with."""
    from understudy.audit.mechanisms import AuditOptions, audit_mechanism
    from understudy.audit.probes import probes_of
    from understudy.privacy.budget import Budget

    probes, budget = probes_of(tuple(methods or ())), Budget(epsilon, delta)
    settings = AuditOptions(trials, confidence, len(probes))
    with show_scoring() as listeners:
        found = [audit_mechanism(probe, budget, replace(settings, listener=listeners.counts)) for probe in probes]
    _conclude(found, to, as_json)


@app.command("run")
def run(
    method: Annotated[str, typer.Argument(help="One of `understudy methods`.")],
    data: common.Data,
    out: Annotated[Path, typer.Option("--out", help="Folder of the audited run; nothing of it is for release.")],
    epsilon: Epsilon = 10.0,
    delta: Delta = 1e-5,
    canaries: Annotated[int, typer.Option("--canaries", help="Made-up units; each takes part by a fair coin.")] = 1000,
    clients: Annotated[
        int | None, typer.Option("--clients", help="Deal the data out to so many clients (federated methods).")
    ] = None,
    declared_public: Annotated[
        bool, typer.Option("--declared-public", help="The data are public, so the audit may be recorded.")
    ] = False,
    audits: Annotated[
        int, typer.Option("--corrected-for", help="Audits that share the confidence; 4 for each run.")
    ] = 4,
    confidence: Confidence = 0.9999,
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    preset: common.Preset = None,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    to: To = None,
    as_json: common.Json = False,
) -> None:
    """Train once with canaries, guess who took part, and bound epsilon from the guesses."""
    from understudy.privacy.budget import Budget

    budget = Budget(epsilon, delta)
    loaded = common.data_options(data, records, classes, shape, declare, skip_broken).load()
    if clients is not None:
        from understudy.data.dataset import with_clients

        loaded = with_clients(loaded, clients)

    from understudy.audit.runs import RunAuditOptions, audit_run

    with show_progress() as listener:
        chosen = RunAuditOptions(
            canaries, confidence, audits, declared_public, common.read_settings(config, settings), preset, listener
        )
        found = audit_run(method, loaded, budget, out, chosen)
    _conclude(found, to, as_json)


@app.command("record")
def record(
    release: common.ReleaseFolder,
    audits: Annotated[list[Path], typer.Argument(metavar="AUDITS...", help="Files that an audit wrote with --to.")],
    as_json: common.Json = False,
) -> None:
    """Add audits on declared-public data to the certificate of a release; one that exceeds its claim fails."""
    from understudy.audit import recording
    from understudy.cli.verify import conclude

    found = [audit for path in audits for audit in recording.read_audits(path)]
    result = recording.record(release, found)
    if as_json:
        common.print_json(result.as_dict())
    else:
        typer.echo(f"{len(found)} audits are in the certificate of {release}")
    conclude(release, result, quiet=as_json)


def _conclude(found: Sequence[AuditRecord], to: Path | None, as_json: bool) -> None:
    """Show what was found; an epsilon above its claim is a failed check."""
    from understudy.audit import recording

    if to is not None:
        recording.write_audits(to, found)
    if as_json:
        common.print_json(recording.as_json(found))
    else:
        for audit in found:
            typer.echo(audit.in_words())
        if not all(audit.declared_public for audit in found):
            typer.echo("not private: do not publish (the data were not declared public)")
    for audit in found:
        if audit.exceeds:
            raise CheckError(
                f"audit: {audit.method}: epsilon is at least {audit.epsilon_lower:.4g}, above the claimed "
                f"{audit.claimed:.4g}; release nothing that it made"
            )
