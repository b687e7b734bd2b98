"""Annotation: one budget for generator and annotator, a ledger that is written first, and a release that verifies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.api import TrainOptions, annotate, release_early, resume_annotation
from understudy.data.arrays import from_arrays
from understudy.data.sources import DataOptions
from understudy.distributed import Team
from understudy.engines.teacher.config import PURPOSE as TEACHER
from understudy.errors import BudgetError, InputError, InterruptedRun
from understudy.files import file_sha256
from understudy.following import follow
from understudy.inspection.samples import draw_samples
from understudy.methods.annotation import NEW_ANNOTATOR, Annotation, AnnotatorConfig, Base
from understudy.methods.annotation import PURPOSE as NETWORK
from understudy.methods.config import build_config, overlay
from understudy.models.generator import AnnotatedGeneratorConfig
from understudy.privacy.accounting import certified_epsilon
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianMechanism
from understudy.privacy.plan import RECORDS_ONLY
from understudy.release.checks import replay, uncharged
from understudy.release.contents import make_config
from understudy.release.release import NOT_COVERED, Release, load
from understudy.release.verify import verify
from understudy.runs.copies import MOVED
from understudy.runs.run import Progress

from ..helpers.cases import CLASSES, RECORDS
from ..helpers.data import tiny_data
from ..helpers.runs import open_to_others, own_state_folder, read_lines
from ..helpers.teams import together
from ..release.building import EPSILON, edit_config, edit_json, make_release

BUDGET = Budget(12.0, 1e-5)  # make_release costs 4.38 of it
ONLY_OF_THE_BASE = "nominal_records: 1000"
PRIVACY = {"network": {"batch": 8, "steps": 6}, "teacher": {"steps": 6}}
METHOD = {"network": {"kind": "network", "width": 2}, "teacher": {"teacher": {"directions": 2}}}  # what new runs take
PURPOSES = {"network": NETWORK, "teacher": TEACHER}


def config_of(kind: str, **privacy: Any) -> dict[str, Any]:
    return {"privacy": {**PRIVACY[kind], "noise_multiplier": 1.5, **privacy}, "method": METHOD[kind]}


CONFIG = config_of("teacher")


def base(**fields: Any) -> Release:
    return make_release(classes=None, **fields)


def run(out: Path, generator: Release | None = None, kind: str = "teacher", **options: Any) -> Release:
    return annotate(generator or base(), tiny_data(), BUDGET, out, TrainOptions(config=config_of(kind), **options))


@pytest.fixture(scope="module", autouse=True)
def _few_draws() -> Iterator[None]:
    """As many images as a tiny generator is worth: a class that never comes up is looked for at length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("understudy.models.annotator._DRAWS", 60)
        patch.setattr("understudy.methods.annotation._COUNTED", 600)
        yield


@pytest.fixture(scope="module", params=[pytest.param("network", marks=pytest.mark.slow), "teacher"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def finished(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with calibrated noise, to be read only."""
    folder = tmp_path_factory.mktemp("finished")
    with own_state_folder(folder):
        options = TrainOptions(config=config_of(kind, noise_multiplier=None))
        annotate(base(), tiny_data(), BUDGET, folder / "run", options)
    return folder / "run"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of its release, to be changed."""
    return shutil.copytree(finished / "release", tmp_path / "copied")


def test_labels_that_an_annotator_counted_say_nothing_about_balance(finished: Path):
    release = load(finished)
    assert release.generator.config.label_weights is not None
    assert draw_samples(release, 40, "annotated").shares is None


def test_the_certificate_holds_the_events_of_both_and_their_composed_price(finished: Path, kind: str):
    release = load(finished)
    events = release.certificate.events
    assert events[:-1] == base().certificate.events
    sampling = {"network": "poisson", "teacher": "none"}[kind]
    assert (events[-1].purpose, events[-1].count, events[-1].sampling.kind) == (PURPOSES[kind], 6, sampling)
    claimed = release.certificate.headline.epsilon
    assert EPSILON < claimed <= BUDGET.epsilon
    assert claimed == certified_epsilon(events, BUDGET.delta)
    assert claimed > 0.99 * BUDGET.epsilon, "the noise is calibrated to what the generator leaves"


def test_an_annotated_release_verifies_and_draws_the_classes_asked_for(finished: Path, tmp_path: Path):
    result = verify(finished)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert any(check.name == "plan" and "the config plans" in check.detail for check in result.checks)
    loaded = load(finished)
    images, labels = loaded.sample(50, [1], seed=1)
    assert images.shape == (50, 8, 8)
    assert labels is not None
    assert set(labels.tolist()) == {1}
    again, _ = loaded.sample(50, [1], seed=1)
    assert np.array_equal(images, again)
    assert loaded.domain.classes == CLASSES
    saved = loaded.save(tmp_path / "copy")
    assert (saved / "config.json").read_bytes() == (finished / "release" / "config.json").read_bytes()


def test_images_of_a_class_are_those_that_the_annotator_names_so(finished: Path):
    release = load(finished)
    weights = np.array(release.generator.config.label_weights)
    label = int(weights.argmax())
    images, _ = release.sample(40, [label])
    assert (release.label(images) == label).all()


@pytest.mark.parametrize("part", ["generator", "annotator"])
def test_leaving_out_the_events_of_one_part_is_noticed(copied: Path, part: str, kind: str):
    def drop(certificate: dict[str, Any]) -> None:
        certificate["events"] = [
            event
            for event in certificate["events"]
            if (event.get("purpose") == PURPOSES[kind]) == (part == "generator")
        ]

    edit_json(copied / "certificate.json", drop)
    failed = [check.name for check in verify(copied).checks if not check.passed]
    assert failed == ["plan"]


@pytest.mark.parametrize(("method", "words"), [("gan", "is not private"), ("some-other", "is not known here")])
def test_a_generator_that_no_plan_accounts_for_has_no_guarantee(copied: Path, method: str, words: str, kind: str):
    """The generator's events are dropped, and claim and hash are made to fit what is left."""
    forge(copied, method, PURPOSES[kind])
    (found,) = [check for check in verify(copied).checks if not check.passed]
    assert found.name == "plan"
    assert words in found.detail


def forge(folder: Path, method: str, purpose: str) -> None:
    edit_json(folder / "config.json", lambda config: config["method_config"]["generator"].update(method=method))
    digest = file_sha256(folder / "config.json")

    def drop(certificate: dict[str, Any]) -> None:
        certificate["events"] = [event for event in certificate["events"] if event.get("purpose") == purpose]
        certificate["config_sha256"] = digest

    edit_json(folder / "certificate.json", drop)


def test_nothing_rides_along_in_the_config_of_an_annotated_release(copied: Path):
    edit_config(copied, lambda config: config["method_config"].update(secret="row 17"))
    result = verify(copied)
    assert any("it says 'secret'" in check.detail for check in result.checks if not check.passed)
    assert result.verdict == "refused"


@pytest.mark.parametrize("part", ["generator", "annotator"])
def test_an_annotated_release_does_not_say_where_it_was_computed(copied: Path, part: str):
    def tell(config: dict[str, Any]) -> None:
        told = config["method_config"][part]
        told.get("config", told)["runtime"] = {"device": "cuda:17"}

    edit_config(copied, tell)
    result = verify(copied)
    assert any("says how the run was computed" in check.detail for check in result.checks if not check.passed)
    assert result.verdict == "refused"


@pytest.mark.parametrize("changed", [{"width": 5}, {"shifts": (1.0, 2.0, 3.0)}, {"drawn_weight": 1.0}, {"latent": 9}])
def test_a_network_on_pixels_is_the_one_that_the_config_plans(changed: dict[str, Any]):
    domain = tiny_data().domain
    made = base()
    config = {
        "generator": _how(made),
        "annotator": {"privacy": {"noise_multiplier": 1.0}, "method": {"kind": "network", "width": 4}},
    }
    both = AnnotatedGeneratorConfig(shape=domain.shape, classes=domain.classes, width=4, base=made.generator.config)

    def replayed(generator: AnnotatedGeneratorConfig) -> None:
        held = make_config(method="annotated", generator=generator, domain=domain, method_config=config)
        replay(held, made.certificate.model_copy(update={"method": "annotated"}))

    replayed(both)
    with pytest.raises(InputError, match="described otherwise together than the config plans"):
        replayed(both.model_copy(update=changed))


def _how(made: Release) -> dict[str, Any]:
    domain = made.domain.model_dump(mode="json")
    return {"method": made.method, "domain": domain, "config": made.method_config}


def test_steps_that_the_config_leaves_open_are_not_one(copied: Path, kind: str):
    """A network without batch and steps means the usual ones; a teacher's must be stated, since noise decides them."""

    def leave_open(config: dict[str, Any]) -> None:
        config["method_config"]["annotator"]["privacy"].update(batch=None, steps=None)

    def charge_one(certificate: dict[str, Any]) -> None:
        (event,) = [event for event in certificate["events"] if event.get("purpose") == PURPOSES[kind]]
        event.update(count=1, planned=1, executed=1)
        if kind == "network":
            event["sampling"] = {"kind": "poisson", "rate": 1 / tiny_data().domain.nominal_records}
        certificate["config_sha256"] = file_sha256(copied / "config.json")

    edit_json(copied / "config.json", leave_open)
    edit_json(copied / "certificate.json", charge_one)
    assert [check.name for check in verify(copied).checks if not check.passed] == ["plan"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            lambda made: made["config"]["privacy"].update(noise_multiplier=None),
            "the noise of the generator is not stated",
            id="noise left open",
        ),
        pytest.param(
            lambda made: made["domain"].update(classes=CLASSES),
            "the generator has labels of its own, so there was nothing to annotate",
            id="labels of its own",
        ),
    ],
)
def test_a_generator_that_the_config_says_too_little_or_too_much_of_has_no_plan(copied: Path, change: Any, words: str):
    edit_json(copied / "config.json", lambda config: change(config["method_config"]["generator"]))
    digest = file_sha256(copied / "config.json")
    edit_json(copied / "certificate.json", lambda certificate: certificate.update(config_sha256=digest))
    assert any(words in check.detail for check in verify(copied).checks if not check.passed)


def test_an_annotated_release_without_the_hash_of_its_config_fails(copied: Path):
    edit_json(copied / "certificate.json", lambda certificate: certificate.pop("config_sha256"))
    result = verify(copied)
    assert [check.name for check in result.checks if not check.passed] == ["config hash", "plan"]
    assert result.verdict == "refused"


def test_what_the_generator_assumed_public_must_be_listed_too(copied: Path):
    edit_json(copied / "certificate.json", lambda certificate: certificate["assumed_public"].remove(ONLY_OF_THE_BASE))
    (found,) = [check for check in verify(copied).checks if not check.passed]
    assert found.name == "facts"
    assert ONLY_OF_THE_BASE in found.detail


def test_one_event_does_not_pay_for_two():
    event = Event(noise_multiplier=1.0, sensitivity="C", count=5, purpose="one")
    other = event.model_copy(update={"purpose": "another", "count": 3})
    assert uncharged([event, other], [event]) == [other]
    assert uncharged([other, event], [event, other]) == []


def test_every_step_is_on_record_before_it_is_used(finished: Path):
    ledger = Ledger.open(finished / "ledger.jsonl")
    (event,) = ledger.events()
    assert (event.planned, event.executed) == (6, 6)
    kinds = [line["kind"] for line in read_lines(finished / "ledger.jsonl")]
    assert kinds[0] == "plan"


def test_its_run_tells_no_time_and_keeps_what_is_private_for_its_owner(finished: Path, kind: str):
    """Steps and spending are all that it shows, so its progress is the same whatever the records are."""
    lines = read_lines(finished / "progress.jsonl")
    assert [line["annotator_steps"] for line in lines] == ([1, 2, 3, 4, 5, 6] if kind == "network" else [6])
    assert {key for line in lines for key in line} == {"step", "annotator_steps", "epsilon_spent"}
    assert open_to_others(finished / "private") == []


def test_an_interrupted_annotation_is_resumed_and_never_overspends(tmp_path: Path, kind: str):
    reports: list[Progress] = []

    def learning() -> bool:
        return any(report.step or report.values.get("teacher_taught") for report in reports)

    with pytest.raises(InterruptedRun, match="continue with --resume"):
        run(tmp_path / "run", kind=kind, listener=reports.append, stop_requested=learning)
    with pytest.raises(InputError, match="released when it is finished"):
        release_early(tmp_path / "run")
    release = resume_annotation(tiny_data(), tmp_path / "run")
    assert release.certificate.events[-1].executed == 6
    assert release.certificate.stopped_because == "finished as planned"
    with pytest.raises(InputError, match="holds a run already"):
        run(tmp_path / "run")


def test_a_killed_annotation_spends_what_was_reserved(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    """A crash after a reservation and before its checkpoint: the steps are not taken again beyond the plan."""

    class Killed(Exception):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(GaussianMechanism, "_noisy", kill)
        with pytest.raises(Killed):
            run(tmp_path / "run", kind=kind)
    spent = Ledger.open(tmp_path / "run" / "ledger.jsonl").events()[0].executed
    assert spent
    release = resume_annotation(tiny_data(), tmp_path / "run")
    assert release.certificate.events[-1].count == 6
    assert release.certificate.stopped_because.startswith(f"finished without {spent} of its steps")
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").events()[0].executed == 6


def test_other_data_are_refused_on_resume(tmp_path: Path):
    with pytest.raises(InterruptedRun):
        run(tmp_path / "run", stop_requested=lambda: True)
    with pytest.raises(InputError, match="started on other data"):
        resume_annotation(tiny_data(seed=1), tmp_path / "run")


def test_another_base_is_refused_on_resume(tmp_path: Path):
    """Its events would be certified for weights that are not its own."""
    with pytest.raises(InterruptedRun):
        run(tmp_path / "run", stop_requested=lambda: True)
    base(remarks=["another"]).save(tmp_path / "run" / "base")
    with pytest.raises(InputError, match="is not the release that was annotated"):
        resume_annotation(tiny_data(), tmp_path / "run")


def test_the_runs_and_the_reservations_of_both_parts_are_kept(tmp_path: Path):
    certificate = run(tmp_path / "run", base(runs_on_this_data=7, not_covered=["what the base says"])).certificate
    assert certificate.runs_on_this_data == 8
    assert {"what the base says", *NOT_COVERED} == set(certificate.not_covered)


def test_data_with_clients_are_said_to_be_protected_record_by_record():
    config, release, domain = build_config(AnnotatorConfig, CONFIG), base(), tiny_data().domain
    annotation = Annotation(Base("dp-merf", release.generator, release.certificate, release.domain, {}))
    assert RECORDS_ONLY not in annotation.plan(config, domain, BUDGET).remarks
    with_clients = domain.model_copy(update={"nominal_clients": 4})
    assert annotation.plan(config, with_clients, BUDGET).remarks.count(RECORDS_ONLY) == 1


def test_a_budget_that_the_generator_alone_uses_up_is_refused(tmp_path: Path):
    with pytest.raises(BudgetError, match="the generator alone costs epsilon"):
        annotate(base(), tiny_data(), Budget(4.0, 1e-5), tmp_path / "run", TrainOptions(config=CONFIG))
    assert not (tmp_path / "run").exists()
    for kind in METHOD:
        loud = config_of(kind, noise_multiplier=0.3)
        with pytest.raises(BudgetError, match="together cost"):
            annotate(base(), tiny_data(), BUDGET, tmp_path / "run", TrainOptions(config=loud))


def test_a_teacher_that_sees_all_records_has_no_batch(tmp_path: Path):
    config = config_of("teacher", batch=8)
    with pytest.raises(InputError, match="a linear teacher sees all records"):
        annotate(base(), tiny_data(), BUDGET, tmp_path / "run", TrainOptions(config=config))


def test_a_config_from_before_there_were_teachers_means_the_network():
    """New runs take a teacher; a stored config that names no kind is older than that."""
    config = build_config(AnnotatorConfig, {"privacy": {"batch": 8, "steps": 6, "noise_multiplier": 1.5}})
    release = base()
    annotation = Annotation(Base("dp-merf", release.generator, release.certificate, release.domain, {}))
    (event,) = annotation.plan(config, tiny_data().domain, BUDGET).events
    assert (config.method.kind, event.purpose) == ("network", NETWORK)


def test_what_cannot_be_annotated_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="draws 4 classes by itself"):
        run(tmp_path / "run", make_release())
    with pytest.raises(InputError, match="learns from labelled records"):
        annotate(base(), tiny_data("unlabelled"), BUDGET, tmp_path / "run", TrainOptions(config=CONFIG))
    with pytest.raises(InputError, match="pass --shape 3x8x8"):
        run(tmp_path / "run", make_release(channels=3, classes=None))
    with pytest.raises(InputError, match="not private"):
        run(tmp_path / "run", base(guarantees=[], events=[], not_private="not private: do not publish"))
    with pytest.raises(InputError, match="holds no classifier"):
        base().label(np.zeros((1, 8, 8), dtype=np.uint8))
    assert not (tmp_path / "run").exists()


def test_a_seed_voids_the_guarantee(tmp_path: Path):
    release = run(tmp_path / "run", seed=1)
    assert release.certificate.randomness.startswith("seeded")
    seeded = run(tmp_path / "other", base(randomness="seeded: not for release"))
    assert seeded.certificate.randomness.startswith("seeded"), "the generator's seed voids it too"


LEARNING = {
    "network": {
        "privacy": {"batch": 100, "steps": 60, "noise_multiplier": 2.0},
        "method": {"kind": "network", "width": 4, "learning_rate": 0.01},
    },
    "teacher": {"privacy": {"steps": 60, "noise_multiplier": 8.0}, "method": {"teacher": {"directions": 4}}},
}


def test_the_annotator_learns_when_there_is_something_to_learn(tmp_path: Path, kind: str):
    """Dark images with lying stripes are class 0, light ones with standing stripes class 1."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 400)
    stripes = np.broadcast_to(50 * (np.arange(8) % 2), (400, 8, 8))
    stripes = np.where(labels[:, None, None] == 1, stripes, stripes.transpose(0, 2, 1))
    images = (random.integers(0, 50, (400, 8, 8)) + stripes + 150 * labels[:, None, None]).astype(np.uint8)
    data = from_arrays(images, labels, classes=2, records=400)
    release = annotate(base(), data, BUDGET, tmp_path / "run", TrainOptions(config=LEARNING[kind], seed=1))
    assert (release.label(images) == labels).mean() > 0.95


def test_no_release_without_labels_changes_its_config(tmp_path: Path):
    """The config of other generators has no trace of annotators, so older releases can still be saved again."""
    folder = base().save(tmp_path / "plain")
    assert "base" not in json.loads((folder / "config.json").read_text())["generator"]
    assert replace(load(folder)).save(tmp_path / "again")
    assert RECORDS > 8


def test_a_copy_of_an_annotation_is_refused_like_that_of_any_run(tmp_path: Path):
    with pytest.raises(InterruptedRun):
        run(tmp_path / "run", stop_requested=lambda: True)
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(InputError, match=r"is a copy, or was restored, .* say so with --moved"):
        resume_annotation(tiny_data(), copy)
    release = resume_annotation(tiny_data(), copy, TrainOptions(moved=True))
    assert MOVED in release.certificate.remarks
    with pytest.raises(InputError, match="another copy of the run was continued"):
        resume_annotation(tiny_data(), tmp_path / "run")


# Several processes


def test_several_processes_share_an_annotators_steps_at_the_same_price(kind: str, tmp_path: Path):
    """They need the labelled data, and neither the release that is annotated nor a ledger."""
    data = tiny_data()
    np.savez(tmp_path / "data.npz", x=data.images[:, 0], y=data.labels)
    source = DataOptions(str(tmp_path / "data.npz"), RECORDS, CLASSES)

    def lead(team: Team) -> Release:
        options = TrainOptions(config=config_of(kind), team=team)
        return annotate(base(), source.load(), BUDGET, tmp_path / "run", options)

    shared = together(2, lead, lambda team: follow(team, source), dismiss=False).certificate
    release = base()
    annotation = Annotation(Base("dp-merf", release.generator, release.certificate, release.domain, {}))
    config = build_config(AnnotatorConfig, overlay(NEW_ANNOTATOR, config_of(kind)))
    plan = annotation.plan(config, data.domain, BUDGET)
    assert shared.events == (*release.certificate.events, plan.events[0].charged(planned=6, executed=6))
    assert shared.headline.epsilon == plan.epsilon
