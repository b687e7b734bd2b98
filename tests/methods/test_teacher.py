"""A teacher beside a generator: one budget for both, one certificate, and a release that can name images."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from understudy.api import release_early, resume
from understudy.engines.teacher.config import PURPOSE, TaughtConfig
from understudy.errors import BudgetError, InputError, InterruptedRun
from understudy.files import file_sha256
from understudy.methods.base import configure
from understudy.methods.registry import get_method, method_names
from understudy.models.annotator import AnnotatedGenerator, Trial, evening_shifts, named_by
from understudy.models.generator import AnnotatedGeneratorConfig, GeneratorConfig
from understudy.privacy.accounting import certified_epsilon
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.privacy.claims.statements import BayesianConfig, kept_claims
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianMechanism
from understudy.privacy.plan import Plan
from understudy.release.model_card import model_card
from understudy.release.release import Release, load
from understudy.release.verify import verify
from understudy.runs.folder import RunFolder
from understudy.runs.run import Progress

from ..helpers.cases import BUDGET, CASES, CLASSES, FEDERATED, case_of, with_teacher
from ..helpers.data import dealt, tiny_data
from ..helpers.runs import interrupt, open_to_others, own_state_folder, tiny_train
from ..release.building import edit_json, make_release

CASE = "dp-merf with a teacher"
ON_PATCHES = {"features": "patches", "filters": 3, "scales": None, "directions": 8}
CENTRAL = sorted(name for name in method_names() if get_method(name).private and not get_method(name).federated)


def plan_of(method: str, config: dict[str, Any], kind: str = "labelled") -> Plan:
    implementation = get_method(method)
    return implementation.plan(configure(implementation, config), tiny_data(kind).domain, BUDGET)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, to be read only."""
    folder = tmp_path_factory.mktemp("finished")
    with own_state_folder(folder):
        tiny_train(CASE, tiny_data(), folder / "run")
    return folder / "run"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of its release, to be changed."""
    return shutil.copytree(finished / "release", tmp_path / "copied")


# One budget


QUICK = {"dp-merf", "dpgan", "gs-wgan", "g-pate"}  # one of each way to plan


def each_central_method() -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CENTRAL]


@pytest.mark.parametrize("method", each_central_method())
def test_every_central_method_plans_its_own_events_and_then_the_teachers(method):
    """Without a share they are what they were."""
    case = CASES[method]
    without = plan_of(method, case.config())
    taught = plan_of(method, with_teacher(case).config())
    assert PURPOSE not in {event.purpose for event in without.events}
    assert taught.events[:-1] == without.events
    teacher = taught.events[-1]
    assert (teacher.purpose, teacher.count, teacher.noise_multiplier) == (PURPOSE, 4, 10.0)
    assert taught.epsilon == certified_epsilon(taught.events, BUDGET.delta) > without.epsilon
    assert taught.steps == without.steps
    assert taught.seconds > without.seconds


def test_every_central_method_can_have_a_teacher():
    for method in CENTRAL:
        assert issubclass(get_method(method).config_type, TaughtConfig), method


@pytest.mark.parametrize("method", ["dp-merf", pytest.param("dpgan", marks=pytest.mark.slow)])
@pytest.mark.parametrize("share", [0.2, pytest.param(0.8, marks=pytest.mark.slow)])
def test_both_together_keep_the_budget_and_nearly_exhaust_it(method, share):
    config = case_of(method).config(privacy={"noise_multiplier": None, "teacher_share": share, "teacher_steps": 4})
    plan = plan_of(method, config)
    assert 0.98 * BUDGET.epsilon < plan.epsilon <= BUDGET.epsilon
    alone = certified_epsilon(plan.events[-1:], BUDGET.delta)
    assert 0.98 * share * BUDGET.epsilon < alone <= share * BUDGET.epsilon
    again = get_method(method).plan(plan.config, tiny_data().domain, BUDGET)
    assert (again.config, again.events) == (plan.config, plan.events)


@pytest.mark.slow
def test_without_a_share_noise_is_calibrated_as_it_always_was():
    """The plain Gaussian of epsilon 10 at delta 1e-5 has multiplier 0.5004."""
    (event,) = plan_of("dp-merf", {"privacy": {"teacher_share": 0.0}}).events
    assert event.noise_multiplier == pytest.approx(0.5004, abs=1e-3)


def test_a_plan_for_both_above_the_budget_is_refused(tmp_path):
    with pytest.raises(BudgetError, match="only 10 is allowed"):
        tiny_train(CASE, tiny_data(), tmp_path / "run", privacy={"teacher_noise_multiplier": 0.05})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_share_that_leaves_nothing_for_the_generator_is_refused():
    config = case_of("dp-merf").config(
        privacy={"noise_multiplier": None, "teacher_share": 0.2, "teacher_noise_multiplier": 0.1}
    )
    with pytest.raises(BudgetError):
        plan_of("dp-merf", config)


@pytest.mark.parametrize(
    ("method", "config", "words"),
    [
        ("dp-merf", {"privacy": {"teacher_share": 0.2, "teacher_batch": 8}}, "a linear teacher sees all records"),
        ("gan", {"privacy": {"teacher_share": 0.2}}, "teacher_share"),
        ("gan", {"teacher": {"directions": 4}}, "no share is given to a teacher"),
        *((name, {"privacy": {"teacher_share": 0.2}}, r"unknown key 'privacy\.teacher_share'") for name in FEDERATED),
        *((name, {"teacher": {"kind": "linear"}}, "unknown key 'teacher'") for name in FEDERATED),
    ],
)
def test_what_has_no_teacher_says_so(method, config, words):
    with pytest.raises(InputError, match=words):
        plan_of(method, config)


@pytest.mark.parametrize("method", CENTRAL)
def test_data_without_labels_have_no_teacher(method):
    with pytest.raises(InputError, match="there is nothing to teach; leave it out"):
        plan_of(method, with_teacher(CASES[method]).config(), "unlabelled")


# The Bayesian figure of bdp-gan


def test_the_bayesian_figure_composes_a_teacher_that_sees_all_records(tmp_path):
    config = with_teacher(CASES["bdp-gan"]).config()
    plan = plan_of("bdp-gan", config)
    settings = BayesianConfig(**config["method"]["bayesian"])
    with_it = BayesianAccountant(settings, plan.events[0], plan.events[1:]).claim()
    without = BayesianAccountant(settings, plan.events[0], plan.events[1:-1]).claim()
    assert with_it.epsilon_mu > without.epsilon_mu


@pytest.mark.slow
def test_a_run_of_bdp_gan_with_a_teacher_keeps_a_composed_claim(tmp_path):
    tiny_train("bdp-gan with a teacher", tiny_data(), tmp_path / "run")
    (claim,) = kept_claims(RunFolder(tmp_path / "run").claims)
    assert claim.epsilon_mu > 0
    assert verify(tmp_path / "run").passed


def test_a_teacher_on_sampled_batches_has_no_place_in_the_bayesian_figure():
    """Refused while planning: later on it would have cost something."""
    config = with_teacher(CASES["bdp-gan"], kind="network").config()
    with pytest.raises(InputError, match=r"choose kind=linear, or pass method\.bayesian\.enabled=false"):
        plan_of("bdp-gan", config)
    config["method"]["bayesian"] = {"enabled": False}
    assert plan_of("bdp-gan", config).events[-1].sampling.kind == "poisson"


# The run and what it releases


def test_the_certificate_states_one_price_of_both_and_verifies(finished):
    certificate = load(finished).certificate
    assert certificate.method == "dp-merf"
    assert certificate.events[-1].purpose == PURPOSE
    assert (certificate.events[-1].planned, certificate.events[-1].executed) == (4, 4)
    assert certificate.headline.epsilon == certified_epsilon(certificate.events, BUDGET.delta)
    result = verify(finished)
    assert result.verdict == "verified", [check for check in result.checks if not check.passed]
    assert len(list((finished / "release").iterdir())) == 5
    assert open_to_others(finished / "private") == []


@pytest.mark.parametrize("gone", [PURPOSE, "mean embedding"])
def test_a_certificate_without_the_events_of_one_of_them_is_noticed(copied, gone):
    def drop(certificate: dict[str, Any]) -> None:
        certificate["events"] = [event for event in certificate["events"] if gone not in event["purpose"]]
        assert len(certificate["events"]) == 1

    edit_json(copied / "certificate.json", drop)
    assert [check.name for check in verify(copied).checks if not check.passed] == ["plan"]


def without_teacher(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a release as if it had never had a teacher."""
    privacy = {key: value for key, value in config["method_config"]["privacy"].items() if "teacher" not in key}
    return {"privacy": privacy, "teacher": {}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config["method_config"].update(without_teacher(config)), "does not plan"),
        (lambda config: config["method_config"]["teacher"].update(width=7), "another than the config plans"),
        (lambda config: config["method_config"]["teacher"].update(ON_PATCHES), "another than the config plans"),
        (lambda config: config["method_config"]["privacy"].update(teacher_steps=None), "teacher_steps open"),
        (lambda config: config["generator"].update(latent=77), "otherwise together"),
        (lambda config: config["generator"].update(label_weights=[17, 11, 32]), "otherwise together"),
    ],
    ids=["no teacher planned", "another teacher", "other features", "steps left open", "latent values", "classes"],
)
def test_a_teacher_that_the_config_does_not_plan_is_not_verified(copied, change, words):
    """Without the teacher's events all else would agree: what is held must be what was paid for."""
    edit_json(copied / "config.json", change)

    def forge(certificate: dict[str, Any]) -> None:
        certificate["config_sha256"] = file_sha256(copied / "config.json")
        if words == "does not plan":
            certificate["events"] = [event for event in certificate["events"] if event["purpose"] != PURPOSE]

    edit_json(copied / "certificate.json", forge)
    result = verify(copied)
    (found,) = [check for check in result.checks if not check.passed]
    assert found.name == "plan"
    assert words in found.detail
    assert result.verdict != "verified"


def test_a_release_from_before_there_were_teachers_plans_what_it_did(tmp_path):
    """Its config names none of this."""
    tiny_train("dp-merf", tiny_data(), tmp_path / "run")
    release = tmp_path / "run" / "release"

    def forget(config: dict[str, Any]) -> None:
        made = config["method_config"]
        made.pop("teacher")
        made["privacy"] = {name: value for name, value in made["privacy"].items() if not name.startswith("teacher")}

    edit_json(release / "config.json", forget)
    digest = file_sha256(release / "config.json")
    edit_json(release / "certificate.json", lambda certificate: certificate.update(config_sha256=digest))
    assert verify(release).verdict == "verified"
    assert not load(release).has_classifier


def test_a_release_with_a_teacher_is_saved_and_loaded_as_it_was(finished, tmp_path):
    release = load(finished)
    saved = load(release.save(tmp_path / "saved"))
    assert (tmp_path / "saved" / "config.json").read_bytes() == (finished / "release" / "config.json").read_bytes()
    images = tiny_data().images[:, 0]
    assert np.array_equal(saved.probabilities(images), release.probabilities(images))
    config = json.loads((tmp_path / "saved" / "config.json").read_text())["generator"]
    assert (config["kind"], config["teacher"]["kind"], config["base"]["classes"]) == ("annotated", "linear", CLASSES)
    assert config["label_weights"] == config["base"]["label_weights"], "the law of labels stays the generator's"


@pytest.mark.parametrize("found", [{"shifts": [0.0, 2e3, 0.0]}, {"drawn_weight": 1e4}], ids=["shifts", "weight"])
def test_what_was_found_of_a_teacher_is_within_reason(copied, found):
    """Numbers of any size would be room for what nobody planned."""
    edit_json(copied / "config.json", lambda config: config["generator"].update(found))
    with pytest.raises(InputError, match="less than or equal to 1000"):
        load(copied)


def test_a_release_holds_the_filters_that_its_classifier_looks_with(tmp_path):
    """So a receiver, and a later version, needs to learn none."""
    tiny_train("dp-merf with a teacher on patches", tiny_data(), tmp_path / "run")
    release = load(tmp_path / "run")
    assert verify(tmp_path / "run").verdict == "verified"
    filters = release.generator.annotator.features.filters
    assert filters.shape == (3, 1, 4, 4)
    assert filters.abs().amax(dim=(1, 2, 3)).min() > 0.1
    saved, images = load(release.save(tmp_path / "saved")), tiny_data().images[:, 0]
    assert np.array_equal(saved.probabilities(images), release.probabilities(images))
    assert np.allclose(saved.probabilities(images[:, :, ::-1]), release.probabilities(images), atol=1e-4), "mirrored"
    told = json.loads((tmp_path / "saved" / "config.json").read_text())["generator"]["teacher"]
    assert (told["features"], told["filters"], told["mirrored"]) == ("patches", 3, True)


# What it names


def naming(run: Path, names: bool, **settings: Any) -> Release:
    """The release as if its teacher knew what the generator draws, or did not: after so few steps it is noise.

    So is the law of its classes, in which one may be missing.
    """
    release = load(run)
    plain = {"names": names, "shifts": None, "drawn_weight": 0.0, "label_weights": (0.5, 0.3, 0.2)}
    release.generator.config = release.generator.config.model_copy(update={**plain, **settings})
    return release


@pytest.fixture
def known(finished: Path) -> Release:
    return naming(finished, True)


def test_samples_are_named_by_the_teacher(known):
    release = known
    images, labels = release.sample(60, seed=1)
    assert np.array_equal(labels, release.label(images))
    assert np.array_equal(release.sample(60, seed=1)[1], labels)


def test_with_agree_only_images_are_kept_on_which_both_agree(finished, known, monkeypatch):
    """A teacher who calls every other image 0 and the others 1; fifty tries for each image all fail once in 1e11."""
    first, drawn = naming(finished, False).sample(1500, seed=1)

    def by_parity(_: AnnotatedGenerator, images: torch.Tensor, watch: object = None) -> torch.Tensor:
        odd = images.long().sum(dim=(1, 2, 3)) % 2
        return torch.nn.functional.one_hot(odd, CLASSES).float().clamp(min=0.1).log()

    monkeypatch.setattr(AnnotatedGenerator, "annotate", by_parity)
    named = known.label(first)
    often = np.isin(drawn, [label for label in range(CLASSES) if (named[drawn == label] == label).mean() >= 0.4])
    assert often.any()
    assert (named != drawn)[often].any(), "or there is nothing to leave out"
    images, labels = known.sample(1500, seed=1, agree=True)
    assert np.array_equal(labels, drawn), "classes follow the generator's own law"
    assert (known.label(images) == labels)[often].all()


def test_classes_that_are_asked_for_are_drawn_even_where_the_teacher_hardly_sees_them(known):
    for asked in ([0], [1, 2]):
        images, labels = known.sample(20, asked)
        assert images.shape == (20, 8, 8)
        assert set(labels.tolist()) <= set(asked)


def test_nothing_is_drawn_and_named_where_nothing_is_asked_for(known):
    release = known
    for agree in (False, True):
        images, labels = release.sample(0, agree=agree)
        assert (images.shape, labels.shape) == ((0, 8, 8), (0,))
    assert release.label(np.zeros((0, 8, 8), dtype=np.uint8)).shape == (0,)


def test_images_that_mean_nothing_to_the_teacher_keep_the_class_they_were_drawn_for(finished):
    release = naming(finished, False)
    assert (release.has_classifier, release.teacher_names) == (True, False)
    assert release.sample(30, [2])[1].tolist() == [2] * 30
    images, labels = release.sample(200, seed=1)
    assert np.array_equal(release.sample(200, seed=1)[1], labels)
    assert np.array_equal(naming(finished, True).sample(200, seed=1)[0], images), "only names differ"
    assert (labels != release.label(images)).any()
    assert "samples keep the class they were drawn for" in model_card(release)
    assert "samples keep the class they were drawn for" not in model_card(naming(finished, True))
    with pytest.raises(InputError, match="agree: the teacher of this release names what the generator draws no better"):
        release.sample(10, agree=True)


@pytest.mark.parametrize(("same", "names"), [(0.3, False), (0.46, False), (0.48, True), (1.0, True)])
def test_a_teacher_names_images_if_it_agrees_with_the_generator_more_than_by_chance(finished, monkeypatch, same, names):
    """By chance it would in a third of the cases; a fifth of the way from there to always is enough."""
    trial = Trial((0.5, 0.0, -0.5), same, 1 / CLASSES)
    monkeypatch.setattr(AnnotatedGenerator, "trial", lambda *_: trial)
    held = load(finished).generator
    named = named_by(held.annotator, held.base, held.config.teacher)
    assert named.naming == names
    told = (trial.shifts, trial.drawn_weight) if names else (None, 0.0)
    assert (named.config.shifts, named.config.drawn_weight) == told


@pytest.mark.parametrize(("wrong", "least", "most"), [(0.0, 1.0, 1.0), (0.5, 0.42, 0.58), (1.0, -0.1, 0.1)])
def test_agreement_is_what_is_more_than_chance(finished, monkeypatch, wrong, least, most):
    """A share of the names is drawn at random; 2,000 images, so bounds at five standard deviations."""
    generator, random = load(finished).generator, torch.Generator().manual_seed(3)
    asked = torch.arange(2000) % CLASSES

    def annotate(images):
        guessed = torch.randint(CLASSES, (2000,), generator=random)
        names = torch.where(torch.rand(2000, generator=random) < wrong, guessed, asked)
        return (10 * torch.nn.functional.one_hot(names, CLASSES).float()).log_softmax(dim=1)

    monkeypatch.setattr(generator, "annotate", annotate)
    assert least <= generator.trial(torch.Generator().manual_seed(0)).agreement <= most


def test_a_teacher_that_is_partial_to_a_class_is_evened_out():
    """One that sees what is there, but says class 0 of nearly everything: shifted, it errs as rarely as before."""
    random, asked = torch.Generator().manual_seed(1), torch.arange(3000) % CLASSES
    seen = 3.0 * torch.nn.functional.one_hot(asked, CLASSES) + torch.randn(3000, CLASSES, generator=random)
    partial_to_one = (seen + torch.tensor([6.0, 0.0, 0.0])).log_softmax(dim=1)
    assert (partial_to_one.argmax(dim=1) == 0).float().mean() > 0.9
    named = (partial_to_one + evening_shifts(partial_to_one)).argmax(dim=1)
    assert torch.bincount(named).tolist() == pytest.approx([1000] * CLASSES, rel=0.03)
    assert (named == asked).sum() >= (seen.argmax(dim=1) == asked).sum() - 15


def test_the_class_an_image_was_drawn_for_counts_as_much_as_generator_and_teacher_agree():
    weights = [Trial((0.0,) * CLASSES, same, 1 / CLASSES).drawn_weight for same in (1 / CLASSES, 0.5, 0.9, 1.0)]
    assert weights == sorted(weights)
    assert weights[2] == pytest.approx(0.5 * math.log(0.95 * 2 / 0.05), abs=1e-4)
    assert math.isfinite(weights[3])


def test_samples_are_named_by_the_shifted_teacher_and_the_class_they_were_drawn_for(finished, known):
    """With a weight that nothing outweighs, names are those that were drawn; shifts do the same for one class."""
    drawn = naming(finished, False).sample(200, seed=1)[1]
    loyal = naming(finished, True, drawn_weight=1000.0)
    assert np.array_equal(loyal.sample(200, seed=1)[1], drawn)
    images, labels = naming(finished, True, shifts=(0.0, 1000.0, 0.0)).sample(200, seed=1)
    assert set(labels.tolist()) == {1}
    assert np.array_equal(loyal.label(images), known.label(images)), "real images are named by the teacher as it is"
    assert np.array_equal(known.sample(200, seed=1)[1], known.label(images)), "as in releases without these settings"


def test_shifts_are_for_every_class_one():
    base = GeneratorConfig(kind="dcgan", shape=(1, 8, 8), classes=3)
    with pytest.raises(ValidationError, match="shifts: found 2, but there are 3 classes; give one for each"):
        AnnotatedGeneratorConfig(shape=(1, 8, 8), classes=3, base=base, shifts=(0.0, 1.0))


def test_a_generator_without_classes_has_only_the_names_of_its_classifier():
    base = GeneratorConfig(kind="dcgan", shape=(1, 8, 8), classes=None)
    with pytest.raises(ValidationError, match="a generator without classes has none but those"):
        AnnotatedGeneratorConfig(shape=(1, 8, 8), classes=3, base=base, names=False)


def test_every_image_gets_a_probability_for_every_class(finished):
    release, images = load(finished), tiny_data().images[:, 0]
    likely = release.probabilities(images)
    assert likely.shape == (40, CLASSES)
    assert np.allclose(likely.sum(axis=1), 1)
    assert np.array_equal(release.label(images), likely.argmax(axis=1))
    alone = np.concatenate([release.probabilities(images[number : number + 1]) for number in range(5)])
    assert np.allclose(alone, likely[:5], atol=1e-6)


def _label(images: Any) -> Callable[[Release], Any]:
    return lambda release: release.label(images)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (_label(np.zeros((2, 8, 8))), r"float64 of shape \(2, 8, 8\).* 8-bit images \(N, 8, 8\)"),
        (_label(np.zeros((2, 9, 8), dtype=np.uint8)), r"shape \(2, 9, 8\)"),
        (_label(np.zeros((8, 8), dtype=np.uint8)), r"shape \(8, 8\)"),
        (_label(np.zeros((2, 1, 8, 8), dtype=np.uint8)), r"shape \(2, 1, 8, 8\)"),
    ],
)
def test_images_of_another_form_are_refused(ask, words, finished):
    with pytest.raises(InputError, match=words):
        ask(load(finished))


def test_a_release_without_a_teacher_says_how_to_get_one():
    with pytest.raises(InputError, match=r"holds no classifier; train with --set privacy\.teacher_share=0\.2"):
        make_release().label(np.zeros((1, 8, 8), dtype=np.uint8))
    with pytest.raises(InputError, match="has no teacher beside a generator with classes"):
        make_release().sample(3, agree=True)


# Stopped and taken up again


class Killed(Exception):
    pass


def teaching(report: Progress) -> bool:
    """Whether a teacher has learnt something, but not all."""
    return 0 < report.values.get("teacher_taught", 0) < 1


def kill_while_teaching(report: Progress) -> None:
    if teaching(report):
        raise Killed


def test_a_run_killed_while_teaching_loses_steps_that_stay_spent(tmp_path, monkeypatch):
    """Killed after the second step is on record and before its result is kept."""
    calls: list[str] = []
    noisy = GaussianMechanism._noisy

    def dying(mechanism: Any, exact: Any, deviation: float) -> Any:
        calls.append(str(mechanism.account.template.purpose))
        if calls.count(PURPOSE) == 2:
            raise Killed
        return noisy(mechanism, exact, deviation)

    with monkeypatch.context() as patch:
        patch.setattr(GaussianMechanism, "_noisy", dying)
        with pytest.raises(Killed):
            tiny_train(CASE, tiny_data(), tmp_path / "run")
    with pytest.raises(InputError):
        release_early(tmp_path / "run")
    release = resume(tiny_data(), tmp_path / "run")
    assert release.certificate.stopped_because.startswith("finished without 1 of its steps")
    (teacher,) = [
        event for event in Ledger.open(tmp_path / "run" / "ledger.jsonl").events() if event.purpose == PURPOSE
    ]
    assert (teacher.planned, teacher.executed) == (4, 4)
    assert release.certificate.headline.epsilon == plan_of("dp-merf", case_of(CASE).config()).epsilon
    assert verify(tmp_path / "run").verdict == "verified"


def test_a_run_interrupted_while_teaching_goes_on_where_it_stood(tmp_path):
    reports: list[Progress] = []
    with pytest.raises(InterruptedRun, match="continue with --resume"):
        tiny_train(
            CASE,
            tiny_data(),
            tmp_path / "run",
            listener=reports.append,
            stop_requested=lambda: any(teaching(report) for report in reports),
        )
    release = resume(tiny_data(), tmp_path / "run")
    assert release.certificate.stopped_because == "finished as planned"
    assert release.certificate.events[-1].executed == 4


def test_a_run_released_early_has_its_teacher_too(tmp_path):
    interrupt(CASE, tiny_data(), tmp_path / "run")
    early = release_early(tmp_path / "run")
    assert early.has_classifier
    assert early.certificate.headline.epsilon == plan_of("dp-merf", case_of(CASE).config()).epsilon
    assert verify(tmp_path / "run").verdict == "verified"
    finished = resume(dealt(CASE, tiny_data()), tmp_path / "run")
    images = tiny_data().images[:, 0]
    assert np.array_equal(finished.probabilities(images), early.probabilities(images)), "it is not trained again"


def test_a_teacher_that_was_taken_away_or_slipped_in_is_refused(tmp_path):
    with pytest.raises(Killed):
        tiny_train(CASE, tiny_data(), tmp_path / "killed", listener=kill_while_teaching)
    interrupt(CASE, tiny_data(), tmp_path / "gone")
    taken = RunFolder(tmp_path / "gone").teacher
    taken.unlink()
    with pytest.raises(BudgetError, match=r"was paid for, but .* is gone"):
        resume(tiny_data(), tmp_path / "gone")
    with pytest.raises(InterruptedRun):
        tiny_train(CASE, tiny_data(), tmp_path / "fresh", stop_requested=lambda: True)
    shutil.copy(RunFolder(tmp_path / "killed").teacher, RunFolder(tmp_path / "fresh").teacher)
    with pytest.raises(InputError, match="its spending is unknown"):
        resume(tiny_data(), tmp_path / "fresh")


@pytest.mark.slow
def test_an_early_release_whose_teacher_is_gone_costs_the_same(tmp_path):
    interrupt(CASE, tiny_data(), tmp_path / "run")
    RunFolder(tmp_path / "run").teacher.unlink()
    early = release_early(tmp_path / "run")
    assert not early.has_classifier, "the generator may go without it; the price stays that of both"
    assert early.certificate.headline.epsilon == plan_of("dp-merf", case_of(CASE).config()).epsilon
