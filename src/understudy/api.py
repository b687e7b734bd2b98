"""The whole way from data to release: plan, run, certify. The public ``train`` lives here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from understudy.configs import MethodConfig
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.devices import check_memory, choose_device, explained_memory_errors
from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.files import make_folder, read_json, write_text
from understudy.methods.base import Method, check_budget, configure
from understudy.methods.config import build_config
from understudy.methods.registry import get_method, method_names
from understudy.models.generator import Generator, GeneratorConfig, build_generator
from understudy.privacy import accounting
from understudy.privacy.budget import Budget, NoBudget
from understudy.privacy.certificate import NOT_PRIVATE, Guarantee
from understudy.privacy.claims import bayesian_claim
from understudy.privacy.claims.kept import keep_claims
from understudy.privacy.ledger import Ledger
from understudy.privacy.meaning import by_viewer
from understudy.privacy.plan import Plan, remarked
from understudy.privacy.randomness.streams import Randomness
from understudy.release.release import Release, build_release
from understudy.runs.checkpoints import Checkpoints
from understudy.runs.copies import MOVED, RunIdentity
from understudy.runs.loop import released_weights
from understudy.runs.run import LOCK, ProgressListener, Run, latest_checkpoint, locked
from understudy.runs.run_count import count_run

FINGERPRINT = "private/data.sha256"
NOT_COVERED = (
    "side channels (timing, memory, power)",
    "floating-point attacks on the noise: rows are clipped a hair inside the bound and noise is drawn and added in "
    "double precision from a generator keyed by the operating system, a heuristic mitigation",
    "the choice of hyper-parameters by looking at results on private data: see runs_on_this_data",
    "evaluation figures computed with private data",
    "that a run was aborted because too many of its private gradients were not finite",
)

_BEGINNINGS = (LOCK, "ledger.jsonl", "private", "base")  # what there may be before the description


@dataclass(frozen=True)
class TrainOptions:
    """How to run, beside what to run; none of it changes the guarantee except the seed, which voids it."""

    config: Mapping[str, Any] | None = None
    seed: int | None = None
    listener: ProgressListener | None = None
    stop_requested: Callable[[], bool] = lambda: False
    command: str | None = None
    source: Mapping[str, Any] | None = None  # how the data were loaded, kept in ``run.json`` for whoever resumes
    preset: str | None = None  # a named config of the method; what ``config`` says is laid over it
    moved: bool = False  # resume a run in another folder than it was started in: no other copy of it is continued
    transport: object | None = None  # how to reach the clients of a federation; None: simulated from the data
    witness: Callable[[str, Tensor], None] | None = None  # an audit's: is shown every sanitized value


def train(
    method: str, data: ImageDataset, budget: Budget | None, out: Path | str, options: TrainOptions | None = None
) -> Release:
    """Train ``method`` on private ``data`` within ``budget``; the run lives in ``out``, its release in ``out/release``.

    A method without privacy (``gan``) takes no budget: pass None. Its release is stamped and never verifies.

    Privacy: the plan is fixed and written to the ledger before the first private read; the certificate charges the
    larger of planned and executed. An interrupted run continues with ``resume``.
    """
    options, folder = options or TrainOptions(), Path(out)
    implementation = get_method(method)
    config = configure(implementation, options.config or {}, options.preset)
    plan = _affordable_plan(implementation, config, data.domain, check_budget(implementation, budget))
    device = choose_device(plan.config.runtime.device)
    check_memory(plan.memory_bytes, device)
    make_folder(folder, "run")
    with locked(folder):
        refuse_occupied(folder)
        ledger = Ledger.create(folder / "ledger.jsonl")
        write_description(folder, plan, data, options)
        run = Run(folder, plan, data, ledger, Randomness(options.seed), device)
        return _train(implementation, run, options)


def refuse_occupied(folder: Path) -> None:
    """Refuse a folder for a new run that holds a run, or anything that no run begins with.

    A run that was killed before it had a description spent nothing, and is begun anew in the same folder.
    """
    if (folder / "run.json").exists():
        raise InputError(f"run: {folder} holds a run already; continue it with --resume or choose another folder")
    if any(entry.name not in _BEGINNINGS and entry.suffix != ".partial" for entry in folder.iterdir()):
        raise InputError(f"run: {folder} holds other files already; choose another folder")


def resume(data: ImageDataset, out: Path | str, options: TrainOptions | None = None) -> Release:
    """Continue an interrupted run with the plan, budget and config it was started with.

    Privacy: spending continues from the ledger, and noise is drawn afresh. Executions that were recorded but whose
    result was lost stay spent, so the run makes fewer steps rather than more. A copy of a run is refused unless
    ``options.moved`` says that it is the only one that goes on (``training.identity``).
    """
    options, folder = options or TrainOptions(), Path(out)
    description = read_description(folder)
    if (description.domain, read_fingerprint(folder)) != (data.domain, data.fingerprint()):
        raise InputError(f"run: {folder} was started on other data ({description.data}); resume it with the same data")
    implementation = get_method(description.method)
    config = build_config(implementation.config_type, description.config)
    plan = _affordable_plan(implementation, config, description.domain, description.budget)
    device = choose_device(plan.config.runtime.device)
    with locked(folder):
        confirm_place(folder, description, options.moved)
        ledger = Ledger.open(folder / "ledger.jsonl")
        ledger.note("resumed")
        run = Run(folder, plan, data, ledger, Randomness(description.seed), device)
        return _train(implementation, run, options)


def release_early(out: Path | str) -> Release:
    """The generator of an unfinished run as it stands, charged for the whole plan of that run."""
    folder = Path(out)
    description = read_description(folder)
    if description.method not in method_names():
        raise InputError(
            f"run: {folder} is no training but {description.method!r}; it is released when it is finished, so continue "
            "it with --resume"
        )
    with locked(folder):
        ledger = Ledger.open(folder / "ledger.jsonl")
        checkpoint = latest_checkpoint(Checkpoints(folder / "private"), ledger)
        if checkpoint is None:
            raise InputError(f"run: {folder} has no checkpoint yet, so there is no generator; use --resume")
        generator = build_generator(GeneratorConfig.model_validate(checkpoint.state["generator"]))
        generator.load_state_dict(released_weights(checkpoint))
        return _release(folder, description, ledger, generator, f"released early after step {checkpoint.step}")


@dataclass(frozen=True)
class RunDescription:
    """What ``run.json`` says: all that is needed to continue a run, given its data."""

    method: str
    budget: Budget
    domain: Domain
    config: dict[str, Any]
    data: str
    seed: int | None
    runs_on_this_data: int
    command: str | None
    remarks: list[str] = field(default_factory=list)
    source: dict[str, Any] | None = None
    identity: RunIdentity | None = None  # None: a run from before there was one
    base_sha256: str | None = None  # of the certificate of the release that is annotated


def read_description(folder: Path) -> RunDescription:
    """The description of a run folder."""
    if not (folder / "run.json").exists():
        raise InputError(f"run: there is none in {folder}; pass the folder that `train` was given as --out")
    raw = read_json(folder / "run.json", "run")
    try:
        budget = NoBudget() if raw["budget"] is None else Budget(**raw["budget"])
        identity = None if raw.get("identity") is None else RunIdentity.model_validate(raw["identity"])
        domain = Domain.model_validate(raw["domain"])
        return RunDescription(**{**raw, "budget": budget, "domain": domain, "identity": identity})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"run: {folder / 'run.json'} is not the description of a run; the file is damaged") from None


def write_description(
    folder: Path, plan: Plan, data: ImageDataset, options: TrainOptions, base_sha256: str | None = None
) -> None:
    """Write ``run.json`` and, among the private files, what recognises the data when the run is continued."""
    description = {
        "method": plan.method,
        "budget": {"epsilon": plan.budget.epsilon, "delta": plan.budget.delta} if plan.private else None,
        "domain": plan.domain.model_dump(mode="json"),
        "config": plan.config.model_dump(mode="json"),
        "data": data.name,
        "seed": options.seed,
        "runs_on_this_data": count_run(data),
        "command": options.command,
        "remarks": list(plan.remarks),
        "source": None if options.source is None else dict(options.source),
        "identity": RunIdentity.of(folder).model_dump(),
        **({} if base_sha256 is None else {"base_sha256": base_sha256}),
    }
    make_folder(folder / "private", "run")
    write_text(folder / FINGERPRINT, data.fingerprint())  # private: it would confirm a guess of the records
    write_text(folder / "run.json", json.dumps(description, indent=2) + "\n")


def confirm_place(folder: Path, description: RunDescription, moved: bool) -> None:
    """Confirm that the run lives here, and write down where it lives from now on."""
    if description.identity is None:
        return
    identity = description.identity.at(folder, moved)
    if identity != description.identity:
        raw = read_json(folder / "run.json", "run")
        write_text(folder / "run.json", json.dumps({**raw, "identity": identity.model_dump()}, indent=2) + "\n")


def read_fingerprint(folder: Path) -> str:
    """The fingerprint of the data that a run was started on. Privacy: private."""
    try:
        return (folder / FINGERPRINT).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"run: {folder / FINGERPRINT} cannot be read ({error.strerror}); start a new run") from None


def _affordable_plan(method: Method, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
    plan = remarked(method.plan(config, domain, budget))
    if plan.epsilon > budget.epsilon:
        raise BudgetError(
            f"budget: this plan costs epsilon {plan.epsilon:g} at delta {budget.delta:g}, but only {budget.epsilon:g} "
            "is allowed; raise privacy.noise_multiplier or leave it out to have it calibrated"
        )
    return plan


def _train(method: Method, run: Run, options: TrainOptions) -> Release:
    run.listener, run.stop_requested, run.transport = options.listener, options.stop_requested, options.transport
    run.ledger.check_releasable()
    run.ledger.witness = options.witness
    for event in run.plan.events:
        run.ledger.account(event)
    description = read_description(run.folder)
    if description.identity is not None:
        description.identity.check_newest(run.ledger)
        description.identity.remember(run.ledger)
    try:
        with explained_memory_errors(run.device):
            generator = method.train(run)
    except AbortedRun as error:
        run.ledger.abort(str(error))
        raise
    return _release(run.folder, description, run.ledger, generator, run.reason)


def _release(folder: Path, description: RunDescription, ledger: Ledger, generator: Generator, reason: str) -> Release:
    """Certify what the ledger holds and write ``release/``; the claim follows from events, never from the config."""
    ledger.check_releasable()
    if description.identity is not None:
        description.identity.check_newest(ledger)
    claims = _claims(folder, description, ledger)
    promised = [Guarantee.model_validate(claim) for claim in claims["guarantees"]]
    release = build_release(
        method=description.method,
        generator=generator,
        domain=description.domain,
        method_config={key: value for key, value in description.config.items() if key != "runtime"},
        certificate_fields={
            **claims,
            "assumed_public": description.domain.assumed_public(),
            "randomness": Randomness(description.seed).stamp,
            "runs_on_this_data": description.runs_on_this_data,
            "stopped_because": reason,
            "plan_raised": ledger.plan_was_raised(),
            "remarks": [*description.remarks, *declared_moves(description), *by_viewer(promised)],
            "not_covered": _not_covered(get_method(description.method), bool(claims.get("data_dependent"))),
        },
    )
    release.save(folder / "release", allow_seeded=True, without_guarantee=True)
    ledger.note(reason)
    if description.identity is not None:
        description.identity.remember(ledger)
    return release


def _not_covered(method: Method, publishes_claims: bool) -> tuple[str, ...]:
    disclosed = (bayesian_claim.NOT_COVERED,) if publishes_claims else ()
    return (*NOT_COVERED, *method.not_covered, *disclosed)


def declared_moves(description: RunDescription) -> list[str]:
    """What a certificate says of a run that was continued in a copy."""
    return [MOVED] if description.identity is not None and description.identity.moves else []


def _claims(folder: Path, description: RunDescription, ledger: Ledger) -> dict[str, Any]:
    """What is promised and why: the events of the ledger and what they cost; for a method without privacy a stamp.

    Privacy: claims that depend on the data go to the private folder, and further only if the config asks for it.
    """
    method = get_method(description.method)
    if not method.private:
        return {"guarantees": [], "events": [], "not_private": NOT_PRIVATE}
    events = ledger.events()
    config = build_config(method.config_type, description.config)
    claims = method.claims(config, events, description.budget)
    others = method.data_dependent_claims(config, events, description.budget, folder / "private")
    keep_claims(folder / "private", others, claims)
    publish = method.publishes_data_dependent_claims(config)
    published = [claim for claim in others if publish and isinstance(claim, bayesian_claim.BayesianClaim)]
    return {
        "guarantees": [claim.model_dump(exclude_none=True) for claim in claims],
        "events": [event.model_dump(exclude_none=True) for event in events],
        "data_dependent": [bayesian_claim.as_published(claim).model_dump() for claim in published] or None,
        "accounting": accounting.describe(),
    }
