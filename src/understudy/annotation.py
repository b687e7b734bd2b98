"""``annotate``: a classifier trained by DP-SGD names the images of a generator that was trained without labels.

The run lives in a folder like that of a training: ``run.json``, ``ledger.jsonl``, ``private/`` and, at the end,
``release/``; and in ``base/`` the release that is annotated.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from understudy.api import (
    NOT_COVERED,
    RunDescription,
    TrainOptions,
    confirm_place,
    declared_moves,
    read_description,
    read_fingerprint,
    refuse_occupied,
    write_description,
)
from understudy.data.dataset import ImageDataset
from understudy.devices import check_memory, choose_device, explained_memory_errors
from understudy.engines.dpsgd.sgd import PrivateSgd, SgdOptions
from understudy.engines.records import Examples
from understudy.errors import AbortedRun, InputError
from understudy.files import file_sha256, make_folder
from understudy.methods.config import build_config
from understudy.models.annotator import AnnotatedGenerator
from understudy.models.generator import AnnotatedGeneratorConfig
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Certificate, Guarantee
from understudy.privacy.claims import bayesian_claim
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import OS_ENTROPY, Randomness
from understudy.release.annotated import ANNOTATED, AnnotatorConfig, annotated_config, check_base, plan_annotation
from understudy.release.folders import CERTIFICATE
from understudy.release.release import Release, build_release, load
from understudy.runs.loop import Resumable
from understudy.runs.run import Run, locked

_BASE = "base"
_REPORTS = 100
_COUNTED = 10_000  # images drawn for the law of labels


def annotate(
    base: Release, data: ImageDataset, budget: Budget, out: Path | str, options: TrainOptions | None = None
) -> Release:
    """Name what a generator without labels draws; ``budget`` is that of generator and annotator together.

    Privacy: the annotator's steps are planned, written to the ledger before use and charged in full. The certificate
    holds the generator's events and the annotator's, and its epsilon is that of their composition.
    """
    options, folder = options or TrainOptions(), Path(out)
    check_base(base, data.domain)
    plan = plan_annotation(build_config(AnnotatorConfig, options.config or {}), data.domain, base.certificate, budget)
    device = choose_device(plan.config.runtime.device)
    check_memory(plan.memory_bytes, device)
    make_folder(folder, "run")
    with locked(folder):
        refuse_occupied(folder)
        ledger = Ledger.create(folder / "ledger.jsonl")
        base.save(folder / _BASE, allow_seeded=True)
        write_description(folder, plan, data, options, base_sha256=file_sha256(folder / _BASE / CERTIFICATE))
        return _train(Run(folder, plan, data, ledger, Randomness(options.seed), device), base, options)


def resume_annotation(data: ImageDataset, out: Path | str, options: TrainOptions | None = None) -> Release:
    """Continue an annotation that was interrupted, with what it was started with.

    Privacy: spending continues from the ledger, and noise is drawn afresh; steps whose result was lost stay spent. A
    copy of a run is refused as in ``workflow.resume``.
    """
    options, folder = options or TrainOptions(), Path(out)
    description = read_description(folder)
    if description.method != ANNOTATED:
        raise InputError(f"run: {folder} is a training by {description.method}; continue it with `understudy train`")
    if (description.domain, read_fingerprint(folder)) != (data.domain, data.fingerprint()):
        raise InputError(f"run: {folder} was started on other data ({description.data}); resume it with the same data")
    base = _load_base(folder, description)
    config = build_config(AnnotatorConfig, description.config)
    plan = plan_annotation(config, description.domain, base.certificate, description.budget)
    with locked(folder):
        confirm_place(folder, description, options.moved)
        ledger = Ledger.open(folder / "ledger.jsonl")
        ledger.note("resumed")
        device = choose_device(plan.config.runtime.device)
        return _train(Run(folder, plan, data, ledger, Randomness(description.seed), device), base, options)


def _load_base(folder: Path, description: RunDescription) -> Release:
    """The release that a run began to annotate; its events would not be those of the weights if it were another."""
    place = folder / _BASE
    base = load(place)  # its weights are those that its certificate names
    if description.base_sha256 not in (None, file_sha256(place / CERTIFICATE)):
        raise InputError(f"run: {place} is not the release that was annotated; put it back, or start a new run")
    return base


def label_images(release: Release, images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The labels that the annotator of a release gives to images (N, C, H, W); costs no privacy."""
    if not isinstance(release.generator, AnnotatedGenerator):
        raise InputError("annotate: this release holds no annotator; make one with `understudy annotate`")
    if images.ndim != 4 or images.shape[1:] != release.domain.shape:
        shape = "x".join(str(side) for side in release.domain.shape)
        raise InputError(
            f"images: shape {images.shape}, but the annotator knows images of {shape}; pass --shape {shape}"
        )
    labels: NDArray[np.int64] = release.generator.annotate(torch.from_numpy(images)).argmax(dim=1).numpy()
    return labels.astype(np.int64)


def _train(run: Run, base: Release, options: TrainOptions) -> Release:
    run.listener, run.stop_requested = options.listener, options.stop_requested
    run.ledger.check_releasable()
    for event in run.plan.events:
        run.ledger.account(event)
    identity = read_description(run.folder).identity
    if identity is not None:
        identity.check_newest(run.ledger)
        identity.remember(run.ledger)
    generator = _generator(run.plan, base).to(run.device)
    try:
        with explained_memory_errors(run.device):
            _train_annotator(run, generator)
    except AbortedRun as error:
        run.ledger.abort(str(error))
        raise
    return _release(run, base, generator.cpu())


def _train_annotator(run: Run, generator: AnnotatedGenerator) -> None:
    """DP-SGD on the classifier; where a crash lost reserved steps there are fewer of them, never more.

    Privacy: all private reads are those of ``PrivateSgd``; what is reported are steps and spending.
    """
    config = run.plan.config
    assert isinstance(config, AnnotatorConfig)
    settings = SgdOptions(config.privacy.batch or 1, config.privacy.clip, config.method.learning_rate)
    stepping = PrivateSgd(run, generator.annotator, settings, run.plan.events[0], _label_losses)
    for step in Resumable(run, generator, {"annotator_optimizer": stepping.optimizer}).steps(run.plan.steps):
        if stepping.remaining:
            stepping.take()
        if step % max(1, run.plan.steps // _REPORTS) == 0 or step == run.plan.steps:
            stepping.check_finite()
            run.report(step, annotator_steps=step)
    run.lost_steps = run.plan.steps - stepping.optimizer.steps


def _label_losses(logits: Tensor, records_private: Examples) -> Tensor:
    """The cross-entropy of each record's label."""
    assert records_private.labels is not None, "checked by the plan"
    return cross_entropy(logits, records_private.labels, reduction="none")


def _generator(plan: Plan, base: Release) -> AnnotatedGenerator:
    config = plan.config
    assert isinstance(config, AnnotatorConfig)
    network = AnnotatedGeneratorConfig(
        shape=plan.domain.shape, classes=plan.domain.classes, width=config.method.width, base=base.generator.config
    )
    generator = AnnotatedGenerator(network)
    generator.base.load_state_dict(base.generator.state_dict())
    generator.base.requires_grad_(False)
    return generator


def _release(run: Run, base: Release, generator: AnnotatedGenerator) -> Release:
    """Certify both parts together and write ``release/``; the claim follows from events, never from the config."""
    run.ledger.check_releasable()
    description, certificate = read_description(run.folder), base.certificate
    if description.identity is not None:
        description.identity.check_newest(run.ledger)
    generator.config = generator.config.model_copy(update={"label_weights": _label_weights(generator)})
    events = (*certificate.events, *run.ledger.events())
    delta = description.budget.delta
    guarantee = Guarantee(
        epsilon=accounting.certified_epsilon(events, delta), delta=delta, delta_parts={"accountant": delta}
    )
    config = run.plan.config
    assert isinstance(config, AnnotatorConfig)
    release = build_release(
        method=ANNOTATED,
        generator=generator,
        domain=description.domain,
        method_config=annotated_config(base, config),
        certificate_fields={
            "guarantees": [guarantee.model_dump(exclude_none=True)],
            "events": [event.model_dump(exclude_none=True) for event in events],
            "accounting": accounting.describe(),
            "assumed_public": list(dict.fromkeys((*description.domain.assumed_public(), *certificate.assumed_public))),
            "randomness": _randomness(description, certificate.randomness),
            "runs_on_this_data": description.runs_on_this_data + certificate.runs_on_this_data,
            "stopped_because": run.reason,
            "plan_raised": run.ledger.plan_was_raised() or certificate.plan_raised,
            "remarks": [*certificate.remarks, *description.remarks, *declared_moves(description)],
            "not_covered": _not_covered(certificate),
        },
    )
    release.save(run.folder / "release", allow_seeded=True)
    run.ledger.note(run.reason)
    if description.identity is not None:
        description.identity.remember(run.ledger)
    return release


def _label_weights(generator: AnnotatedGenerator) -> tuple[float, ...]:
    """How common each class is among what the generator draws, as the annotator sees it: post-processing."""
    drawn = generator.draw(_COUNTED, Randomness().generator())
    counts = generator.annotate(drawn).argmax(dim=1).bincount(minlength=generator.config.classes or 1)
    return tuple(round(float(share), 6) for share in (counts + 1) / (counts + 1).sum())


def _not_covered(of_base: Certificate) -> list[str]:
    """What either guarantee does not cover; data-dependent figures of the generator are not taken over."""
    return [item for item in dict.fromkeys((*NOT_COVERED, *of_base.not_covered)) if item != bayesian_claim.NOT_COVERED]


def _randomness(description: RunDescription, of_base: str) -> str:
    own = Randomness(description.seed).stamp
    return own if of_base == OS_ENTROPY else of_base
