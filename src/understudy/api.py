"""What Python users call: train, resume, release early, annotate, evaluate; behind them the one life of a run.

A run is begun or continued, trained, certified and released, whatever its method. Nothing heavy is imported before it
is needed, so that bad input is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.configs import MethodConfig
from understudy.data.dataset import ImageDataset, check_enrolled
from understudy.data.domain import Domain
from understudy.data.sources import DataOptions
from understudy.distributed import ALONE, Team
from understudy.engines.teacher.config import TaughtConfig, has_teacher
from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.files import file_sha256, make_folder
from understudy.following import lead
from understudy.methods.base import Method, check_budget, configure
from understudy.methods.choice import AUTO, Choice, settled
from understudy.methods.config import build_config, overlay
from understudy.methods.registry import ANNOTATED, get_method, method_names
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Certificate, read_certificate
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan, remarked
from understudy.progress import Audience
from understudy.release.folders import CERTIFICATE, SIGNATURE
from understudy.runs.bookings import book, book_again, check_same_account
from understudy.runs.copies import RunIdentity
from understudy.runs.description import (
    RunDescription,
    check_same_data,
    confirm_place,
    count_run,
    read_description,
    reserved,
    write_description,
)
from understudy.runs.folder import RunFolder, locked
from understudy.runs.loop import Checkpoints, released_weights
from understudy.runs.recognition import remember, warn_past_accounts
from understudy.runs.run import ProgressListener, Run, latest_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.methods.annotation import Annotation
    from understudy.models.generator import Generator
    from understudy.progress import Watched
    from understudy.release.release import Release

_FIXED = "--config, --set, --device and --seed"  # what a run that is continued keeps


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
    team: Team = ALONE  # the processes that share the private steps; this one leads
    witness: Callable[[str, Tensor], None] | None = None  # an audit's: is shown every sanitized value
    before: Callable[[Plan], None] | None = None  # of ``start_run``: hears of the plan before it is begun, may refuse
    account: str | None = None  # what the whole plan is reserved in before anything is computed from the data
    warn: Callable[[str], None] | None = None  # hears what concerns the owner alone; None: a Python warning
    time: float | None = None  # seconds that one is ready to wait; for ``auto``, which leaves out what takes longer
    chosen: Callable[[Choice], None] | None = None  # hears what ``auto`` chose, before anything is spent


# From data to a release


def train(
    method: str, data: ImageDataset, budget: Budget | None, out: Path | str, options: TrainOptions | None = None
) -> Release:
    """Train ``method`` on private ``data`` within ``budget``; the run lives in ``out``, its release in ``out/release``.

    ``auto`` stands for the method that is chosen by public facts (``choose``); run and certificate name that one. One
    without privacy (``gan``) takes no budget: pass None. Its release is stamped and never verifies.

    Privacy: the plan is fixed and written to the ledger before the first private read, and before that reserved in
    ``options.account``; the certificate charges the larger of planned and executed. ``resume`` continues a run.
    """
    options = options or TrainOptions()
    implementation, plan = _planned(method, data.domain, budget, options)
    return _begin(implementation, plan, data, Path(out), options)


def resume(data: ImageDataset, out: Path | str, options: TrainOptions | None = None) -> Release:
    """Continue an interrupted run with the plan, budget and config it was started with.

    Privacy: spending continues from the ledger, and noise is drawn afresh. Executions that were recorded but whose
    result was lost stay spent, so the run makes fewer steps rather than more. A copy of a run is refused unless
    ``options.moved`` says that it is the only one that goes on (``runs.copies``).
    """
    folder = RunFolder(Path(out))
    description = read_description(folder)
    check_same_data(folder, description, data)
    method = get_method(description.method)
    config = build_config(method.config_type, description.config)
    plan = _affordable_plan(method, config, description.domain, description.budget)
    return _continue(method, plan, data, folder, options or TrainOptions())


def release_early(out: Path | str) -> Release:
    """The generator of an unfinished run as it stands, charged for the whole plan of that run."""
    from understudy.models.generator import build_generator, read_generator_config
    from understudy.release.release import certify

    folder = RunFolder(Path(out))
    description = read_description(folder)
    if description.method not in method_names():
        raise InputError(
            f"run: {folder.path} is no training but {description.method!r}; it is released when it is finished, so "
            "continue it with --resume"
        )
    with locked(folder.path):
        ledger = Ledger.open(folder.ledger)
        checkpoint = latest_checkpoint(Checkpoints(folder.private), ledger)
        if checkpoint is None:
            raise InputError(f"run: {folder.path} has no checkpoint yet, so there is no generator; use --resume")
        generator = build_generator(read_generator_config(checkpoint.state["generator"]))
        generator.load_state_dict(released_weights(checkpoint))
        method = get_method(description.method)
        config = build_config(method.config_type, description.config)
        if isinstance(config, TaughtConfig) and has_teacher(config):
            from understudy.engines.teacher.training import kept_teacher, with_teacher

            teacher = kept_teacher(folder.teacher, description.domain, config.teacher)
            generator = with_teacher(teacher, generator, config.teacher)
        reason = f"released early after step {checkpoint.step}"
        return certify(method, folder, description, ledger, generator, reason)


def release_run(
    out: Path,
    to: Path | None = None,
    allow_seeded: bool = False,
    sign: Path | None = None,
    passphrase: str | None = None,
) -> tuple[Release, Path]:
    """The finished release of a run, or an early one of its newest checkpoint; and where it is, or was copied to.

    ``sign`` is the private key that vouches for the copy. A signed copy is not replaced by one without a signature.
    """
    if sign is not None and to is None:
        raise InputError("release: --sign signs what is handed out; name a folder for it with --to")
    if to is not None and sign is None and (to / SIGNATURE).exists():
        raise InputError(f"release: {to} is signed; sign again with --sign, or choose another folder")
    if sign is not None:
        from understudy.release.signing import signing_key

        signing_key(sign, passphrase)  # before anything is released
    release = _current_release(RunFolder(out))
    if to is None:
        return release, RunFolder(out).release
    if (to / CERTIFICATE).is_file():
        other = read_certificate(to / CERTIFICATE)
        if other.generator_sha256 != release.certificate.generator_sha256:
            raise InputError(f"release: {to} holds another release; choose another folder, or remove that one first")
    return release, release.save(to, allow_seeded=allow_seeded, sign=sign, passphrase=passphrase)


def _current_release(folder: RunFolder) -> Release:
    from understudy.release.release import load

    if folder.released:
        finished = load(folder.path)
        if "early" not in (finished.certificate.stopped_because or ""):
            return finished
    return release_early(folder.path)


# Labels for a generator that was trained without


def annotate(
    base: Release, data: ImageDataset, budget: Budget, out: Path | str, options: TrainOptions | None = None
) -> Release:
    """Name what a generator without labels draws; ``budget`` is that of generator and annotator together.

    Privacy: the annotator's steps are planned, written to the ledger before use and charged in full. The certificate
    holds the generator's events and the annotator's, and its epsilon is that of their composition.
    """
    from understudy.methods.annotation import NEW_ANNOTATOR, AnnotatorConfig, check_base

    options, annotation = options or TrainOptions(), _annotation(base)
    check_base(annotation.base, data.domain)
    config = build_config(AnnotatorConfig, overlay(NEW_ANNOTATOR, options.config or {}))
    plan = annotation.plan(config, data.domain, budget)
    return _begin(annotation, plan, data, Path(out), options, base)


def resume_annotation(data: ImageDataset, out: Path | str, options: TrainOptions | None = None) -> Release:
    """Continue an annotation that was interrupted, with what it was started with.

    Privacy: spending continues from the ledger, and noise is drawn afresh; steps whose result was lost stay spent. A
    copy of a run is refused as in ``resume``.
    """
    from understudy.release.release import load

    folder = RunFolder(Path(out))
    description = read_description(folder)
    if description.method != ANNOTATED:
        raise InputError(
            f"run: {folder.path} is a training by {description.method}; continue it with `understudy train`"
        )
    check_same_data(folder, description, data)
    base = load(folder.base)  # its weights are those that its certificate names, and it is the one that was annotated
    if description.base_sha256 not in (None, file_sha256(folder.base / CERTIFICATE)):
        raise InputError(f"run: {folder.base} is not the release that was annotated; put it back, or start a new run")
    annotation = _annotation(base)
    config = build_config(annotation.config_type, description.config)
    plan = annotation.plan(config, description.domain, description.budget)
    return _continue(annotation, plan, data, folder, options or TrainOptions(), base.certificate)


def _annotation(base: Release) -> Annotation:
    from understudy.methods.annotation import Annotation, Base

    return Annotation(Base(base.method, base.generator, base.certificate, base.domain, base.method_config))


# Runs by the names of their data

_UNWATCHED = Audience().watch


def start_run(
    method: str,
    source: DataOptions,
    budget: Budget | None,
    out: Path,
    options: TrainOptions,
    watch: Callable[[], AbstractContextManager[Watched]] = _UNWATCHED,
) -> Release:
    """Check everything that needs no data, then load the data and train; ``watch`` is entered once they are loaded.

    Privacy: as ``train``.
    """
    if method != AUTO:
        configure(get_method(method), options.config or {}, options.preset)
    data = source.open()
    implementation, plan = _planned(method, data.domain, budget, options)
    if options.account is not None:
        book(options.account, implementation, plan, options.seed).checked()  # before anybody is asked anything
    if options.before is not None:
        options.before(plan)
    with watch() as (listener, stop):
        watched = replace(options, listener=listener, stop_requested=stop, source=source.as_dict())
        return _begin(implementation, plan, data, out, watched)


def start_annotation(
    base: Path,
    source: DataOptions,
    budget: Budget,
    out: Path,
    options: TrainOptions,
    watch: Callable[[], AbstractContextManager[Watched]] = _UNWATCHED,
) -> Release:
    """Load a release and labelled data, then annotate; ``watch`` is entered once they are loaded.

    Privacy: as ``annotate``.
    """
    from understudy.release.release import load

    release, data = load(base), source.open()
    with watch() as (listener, stop):
        watched = replace(options, listener=listener, stop_requested=stop, source=source.as_dict())
        return annotate(release, data, budget, out, watched)


def continue_run(
    out: Path,
    source: DataOptions,
    asked: Mapping[str, object],
    options: TrainOptions,
    watch: Callable[[], AbstractContextManager[Watched]] = _UNWATCHED,
    annotation: bool = False,
) -> Release:
    """Continue a run with what it was started with; what is ``asked`` for now must agree with that, or be None.

    Privacy: as ``resume``.
    """
    described = read_description(RunFolder(out))
    fixed: dict[str, object] = {name: getattr(described.budget, name) for name in ("epsilon", "delta")}
    fixed |= {"method": described.method, "account": described.account.name if described.account else "none"}
    for name, value in asked.items():
        if value is not None and value != fixed[name]:
            raise InputError(f"{name}: {value} was asked for, but the run in {out} was started with {fixed[name]}")
    if options.config or options.seed is not None or options.preset is not None:
        kept = _FIXED if annotation else f"--preset, {_FIXED}"
        raise InputError(f"resume: a run keeps its config and seed; leave {kept} out")
    data = source.completed_by(described.source).completed_from(described.domain).open()
    with watch() as (listener, stop):
        watched = replace(options, listener=listener, stop_requested=stop)
        return resume_annotation(data, out, watched) if annotation else resume(data, out, watched)


# The life of a run


def _planned(name: str, domain: Domain, budget: Budget | None, options: TrainOptions) -> tuple[Method, Plan]:
    """A method and its plan; where none is named, of the one that is chosen for what is declared."""
    name, config, preset = settled(name, domain, budget, options)
    method = get_method(name)
    return method, _affordable_plan(method, configure(method, config, preset), domain, check_budget(method, budget))


def _affordable_plan(method: Method, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
    budget = budget.settled(domain.nominal_units)
    plan = remarked(method.plan(config, domain, budget))
    if plan.epsilon > budget.epsilon:
        raise BudgetError(
            f"budget: this plan costs epsilon {plan.epsilon:g} at delta {budget.delta:g}, but only {budget.epsilon:g} "
            "is allowed; raise privacy.noise_multiplier or leave it out to have it calibrated"
        )
    return plan


def _begin(
    method: Method, plan: Plan, data: ImageDataset, out: Path, options: TrainOptions, base: Release | None = None
) -> Release:
    """A new run in a folder of its own, with a ``base`` if it begins with a release."""
    from understudy.devices import check_memory, choose_device
    from understudy.privacy.randomness.streams import Randomness

    method.check_processes(plan.config, options.team.size)
    if plan.limits is not None:
        check_enrolled(data, plan.limits.clients)
    folder, device = RunFolder(out), choose_device(plan.config.runtime.device)
    check_memory(method.memory_of_device(plan, options.team.size), device)
    certificate = None if base is None else base.certificate
    booking = None
    if options.account is not None:
        booking = book(options.account, method, plan, options.seed, certificate).checked()
    warn_past_accounts(data, options.account, options.warn)
    make_folder(out, "run")
    with locked(out):
        folder.refuse_occupied()
        ledger = Ledger.create(folder.ledger)
        if base is not None:
            base.save(folder.base, allow_seeded=True)
        description = RunDescription(
            method=plan.method,
            budget=plan.budget,
            domain=plan.domain,
            config=plan.config.model_dump(mode="json"),
            data=data.name,
            seed=options.seed,
            runs_on_this_data=count_run(data),
            command=options.command,
            remarks=list(plan.remarks),
            source=None if options.source is None else dict(options.source),
            identity=RunIdentity.of(out),
            base_sha256=None if base is None else file_sha256(folder.base / CERTIFICATE),
            account=None if booking is None else booking.account,
        )
        write_description(folder, description, data)
        with reserved(booking, folder, description, ledger, new=True):
            remember(options.account, data)
            return _finish(method, Run(out, plan, data, ledger, Randomness(options.seed), device), options)


def _continue(
    method: Method,
    plan: Plan,
    data: ImageDataset,
    folder: RunFolder,
    options: TrainOptions,
    base: Certificate | None = None,
) -> Release:
    """An interrupted run from where its ledger and its newest checkpoint stand."""
    from understudy.devices import choose_device
    from understudy.privacy.randomness.streams import Randomness

    method.check_processes(plan.config, options.team.size)
    device = choose_device(plan.config.runtime.device)
    with locked(folder.path):
        description = read_description(folder)
        check_same_account(description.account, options.account)
        confirm_place(folder, description, options.moved)
        ledger = Ledger.open(folder.ledger)
        ledger.note("resumed")
        with reserved(book_again(description.account, method, plan, base), folder, description, ledger):
            run = Run(folder.path, plan, data, ledger, Randomness(description.seed), device)
            return _finish(method, run, options)


def _finish(method: Method, run: Run, options: TrainOptions) -> Release:
    """Train from where the run stands to its end, and release."""
    from understudy.devices import explained_memory_errors
    from understudy.release.release import certify

    run.listener, run.stop_requested, run.transport = options.listener, options.stop_requested, options.transport
    run.team = options.team
    run.ledger.check_releasable()
    run.ledger.witness = options.witness
    for event in run.plan.events:
        run.ledger.account(event)
    description = read_description(run.files)
    if description.identity is not None:
        description.identity.check_newest(run.ledger)
        description.identity.remember(run.ledger)
    try:
        with explained_memory_errors(run.device):
            lead(run, description.source, description.seed)
            generator = _trained(method, run)
    except AbortedRun as error:
        run.ledger.abort(str(error))
        raise
    finally:
        run.team.dismiss()
    return certify(method, run.files, description, run.ledger, generator, run.reason)


def _trained(method: Method, run: Run) -> Generator:
    """What the method trains and, where the plan pays for one, the teacher beside it.

    Privacy: as both. The teacher learns first, so that an early release has it too.
    """
    if not has_teacher(run.plan.config):
        return method.train(run)
    from understudy.engines.teacher.training import train_teacher, with_teacher

    config = run.plan.config_as(TaughtConfig)
    teacher = train_teacher(run, config.teacher, run.plan.events[-1])
    return with_teacher(teacher, method.train(run), config.teacher)
