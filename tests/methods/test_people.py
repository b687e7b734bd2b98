"""People as the unit of central methods: the same price as for as many records, one notion from the plan to verify."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import understudy
from understudy.api import TrainOptions, annotate
from understudy.audit.canaries import make_canaries, with_canaries
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain, source_options
from understudy.errors import InputError
from understudy.experiments.reproduce import train_command
from understudy.files import file_sha256
from understudy.methods.base import configure
from understudy.methods.config import build_config
from understudy.methods.registry import get_method, method_names
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.privacy.accounting import certified_epsilon
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import NOT_COVERED, parse_certificate, read_certificate
from understudy.privacy.meaning import SEVERAL_IMAGES
from understudy.privacy.plan import Plan, remarked
from understudy.privacy.randomness.streams import OS_ENTROPY, Randomness
from understudy.release.release import Release, build_release
from understudy.release.verify import verify
from understudy.report.report import write_report

from ..cli.calling import Caller
from ..helpers.cases import BUDGET, CASES, CLASSES, FEDERATED, TAUGHT, case_of
from ..helpers.data import dealt, of_people, tiny_data, without_person
from ..helpers.runs import own_state_folder, tiny_train
from ..release.building import edit_json
from .test_replay import SEED, replayed

PEOPLE = 10  # declared
SIZES = (3, 1, 7, 12, 2, 5)  # images of those who are there
SEVERAL = [name for name, case in CASES.items() if get_method(case.name).protects_people and "central" not in name]
METHODS = sorted((name for name in SEVERAL if name == case_of(name).name), key=lambda name: name != "dp-merf")
KINDS = ["dp-merf with a teacher", "dp-merf with a network as its teacher"]


# Others do the same on the same loop: these are tried by `make test-full` alone.
ALIKE = ["datalens", "g-pate", "dp-cgan", "dp-merf with a network as its teacher"]


def unless(slow: Collection[str], cases: Sequence[str]) -> list[Any]:
    """Cases as parameters, some of them marked as slow."""
    return [pytest.param(case, marks=pytest.mark.slow if case in slow else ()) for case in cases]


def planned(case: str, domain: Domain, budget: Budget = BUDGET, **privacy: Any) -> Plan:
    method = get_method(case_of(case).name)
    return method.plan(build_config(method.config_type, case_of(case).config(privacy=privacy)), domain, budget)


def few(case: str) -> dict[str, int]:
    """Two steps with two images of a person, for methods that take steps: so the tests take less time."""
    fields = get_method(case_of(case).name).config_type.model_fields["privacy"].annotation
    return {"images_per_person": 2, "steps": 2} if "images_per_person" in getattr(fields, "model_fields", {}) else {}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of a case on people, to be read only; trained when it is first asked for."""
    known: dict[str, Path] = {}

    def find(case: str) -> Path:
        if case not in known:
            folder = known[case] = tmp_path_factory.mktemp("people")
            with own_state_folder(folder):
                tiny_train(case, of_people(SIZES, nominal=PEOPLE), folder / "run", privacy=few(case))
        return known[case] / "run"

    return find


@pytest.fixture
def copied(finished: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a release, to be changed."""
    return shutil.copytree(finished("dp-merf") / "release", tmp_path / "copied")


# Whom a method protects


def test_every_central_method_protects_people_or_says_why_not():
    central = {name for name in method_names() if get_method(name).private and not get_method(name).federated}
    assert set(METHODS) == central - {"dp-sinkhorn", "bdp-gan"}


@pytest.mark.parametrize("case", unless(ALIKE, [*METHODS, *KINDS]))
def test_a_run_on_people_trains_verifies_and_says_person(case, finished):
    run = finished(case)
    certificate = read_certificate(run / "release" / "certificate.json")
    assert certificate.schema_version == 2
    assert {event.unit for event in certificate.events} == {"person"}
    assert [guarantee.unit for guarantee in certificate.guarantees] == ["person"]
    assert f"nominal_people: {PEOPLE}" in certificate.assumed_public
    result = verify(run)
    assert result.verdict == "verified", [check for check in result.checks if not check.passed]
    assert "one person with all their images" in (run / "release" / "README.md").read_text()


@pytest.mark.parametrize("case", unless([*(set(SEVERAL) - set(METHODS)), *KINDS], [*SEVERAL, *KINDS]))
def test_people_cost_what_as_many_records_cost(case):
    """Rates, subsets and noise are held against their number, and so is what a method decides by itself."""
    of_persons = planned(case, of_people(SIZES, nominal=PEOPLE).domain)
    of_records = planned(case, tiny_data(nominal=PEOPLE).domain)
    assert [event.model_copy(update={"unit": "record"}) for event in of_persons.events] == list(of_records.events)
    assert of_persons.epsilon == of_records.epsilon


@pytest.mark.parametrize("name", unless(METHODS[1:], METHODS))
def test_what_a_method_decides_for_people_follows_their_number_and_not_that_of_images(name):
    method, budget = get_method(name), Budget(10.0, 1e-4)
    noise = {"privacy": {"noise_multiplier": 30.0}}
    plans = [
        method.plan(
            configure(method, noise),
            Domain(shape=(1, 8, 8), classes=3, nominal_records=records, nominal_people=people),
            budget,
        )
        for records, people in ((5_000, 2_000), (80_000, 2_000), (2_000, None))
    ]
    first, second, as_records = ([event.model_copy(update={"unit": "record"}) for event in p.events] for p in plans)
    assert first == second == as_records


@pytest.mark.parametrize("case", ["dp-sinkhorn", "bdp-gan", *FEDERATED])
def test_a_method_that_does_not_protect_people_refuses_them_in_one_sentence(case, tmp_path):
    whom = "clients" if case in FEDERATED else "single records"
    words = rf"person: people were declared, but {case} protects {whom}, not all images of a person; leave person"
    with pytest.raises(InputError, match=words) as caught:
        tiny_train(case, of_people(SIZES), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_central_images_are_of_records_alone(tmp_path):
    with pytest.raises(InputError, match="central-images takes one image of one class of each record, not all of a"):
        tiny_train("dp-diffusion from central images", of_people(SIZES), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# The cap


def test_the_cap_is_public_decided_without_the_data_and_only_where_there_are_people():
    data = of_people((1, 1, 30))
    config = planned("dpgan", data.domain).config
    assert config.privacy.images_per_person == 8  # type: ignore[attr-defined]
    assert planned("dpgan", data.domain, images_per_person=3).config.privacy.images_per_person == 3  # type: ignore[attr-defined]
    assert planned("dpgan", tiny_data().domain).config.privacy.images_per_person is None  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"privacy.images_per_person=3, but no people are declared; leave it out, or"):
        planned("dpgan", tiny_data().domain, images_per_person=3)


def test_the_cap_changes_no_epsilon():
    domain = of_people(SIZES).domain
    assert len({planned("dpgan", domain, images_per_person=cap).epsilon for cap in (1, 4, 50)}) == 1


@pytest.mark.parametrize("case", ["dpgan", "dp-diffusion", "dp-merf-ae"])
def test_the_time_of_a_step_follows_the_images_that_it_looks_at(case):
    domain = of_people(SIZES).domain
    one, many = (planned(case, domain, images_per_person=cap).seconds for cap in (1, 50))
    assert many > one


# Neighbours


@pytest.fixture(scope="module")
def _everything_imported() -> None:
    """What is imported when it is first used would be a call that the second run does not make."""
    for module in pkgutil.walk_packages(understudy.__path__, "understudy."):
        if not re.match("audit|cli|evaluate|experiments|federated.deployment|inspection|report", module.name[11:]):
            with suppress(ModuleNotFoundError):  # what needs a graphics card is not used here
                importlib.import_module(module.name)


FAST = "dp-merf with a teacher"


@pytest.mark.usefixtures("_everything_imported")
@pytest.mark.parametrize(
    ("case", "images"),
    [
        pytest.param(case, images, marks=() if (case, images) == (FAST, 5) else pytest.mark.slow)
        for case in [*SEVERAL, *TAUGHT, "nobody left"]
        for images in (1, 5, 100)
        if case == "nobody left" or get_method(case_of(case).name).protects_people
    ],
)
def test_neighbours_with_the_same_sanitized_values_run_alike(case, images, tmp_path):
    """One person less, the only one of a class; or the only one at all."""
    sizes = (images,) if case == "nobody left" else (3, 1, images, 2)
    data = of_people(sizes, nominal=PEOPLE)
    assert data.labels is not None
    assert data.people is not None
    labels = np.where(data.people == len(sizes) // 2, CLASSES - 1, data.labels % (CLASSES - 1))
    data = ImageDataset(data.name, data.domain, data.images, labels, people=data.people)
    name = "dpgan" if case == "nobody left" else case
    replayed(
        lambda given, out: tiny_train(name, given, out, seed=SEED, privacy=few(name), runtime={"micro_batch": 8}),
        (data, without_person(data, len(sizes) // 2)),
        tmp_path,
    )


@pytest.mark.parametrize("case", unless(METHODS[1:], METHODS))
def test_nobody_at_all_is_trained_on_like_any_other(case, tmp_path):
    release = tiny_train(case, of_people((), nominal=PEOPLE), tmp_path / "run", privacy=few(case))
    assert release.certificate.headline.unit == "person"


# Certificates


def test_a_certificate_of_schema_1_knows_no_people(copied):
    assert verify(copied).verdict == "verified"
    edit_json(copied / "certificate.json", lambda certificate: certificate.update(schema=1))
    result = verify(copied)
    assert result.verdict == "refused"
    assert any("people are units from schema 2 on" in check.detail for check in result.checks if not check.passed)


def test_without_people_a_certificate_stays_one_of_schema_1(tmp_path):
    release = tiny_train("dp-merf", tiny_data(), tmp_path / "run")
    assert release.certificate.schema_version == 1
    written = json.loads((tmp_path / "run" / "release" / "config.json").read_text())
    assert "nominal_people" not in written["domain"]


def _records_in_events(certificate: dict[str, Any]) -> None:
    for part in (*certificate["events"], *certificate["guarantees"]):
        part["unit"] = "record"


def test_people_in_the_config_and_records_in_the_events_are_refused(copied):
    edit_json(copied / "certificate.json", _records_in_events)
    result = verify(copied)
    assert result.verdict == "refused"
    assert "plan" in [check.name for check in result.checks if not check.passed]


@pytest.mark.parametrize("case", ["dp-merf", "dpgan"])
def test_records_in_the_config_and_people_in_the_events_are_refused(case, finished, tmp_path):
    """Also where everything else was made to fit: hash, listed facts, and as many records as there were people."""
    copied = shutil.copytree(finished(case) / "release", tmp_path / "copied")

    def forget(config: dict[str, Any]) -> None:
        config["domain"].pop("nominal_people")
        config["domain"]["nominal_records"] = PEOPLE
        config["method_config"]["privacy"].pop("images_per_person", None)

    edit_json(copied / "config.json", forget)

    def forge(certificate: dict[str, Any]) -> None:
        certificate["config_sha256"] = file_sha256(copied / "config.json")
        kept = [item for item in certificate["assumed_public"] if not item.startswith("nominal")]
        certificate["assumed_public"] = [*kept, f"nominal_records: {PEOPLE}"]

    edit_json(copied / "certificate.json", forge)
    result = verify(copied)
    assert result.verdict == "refused"
    failed = {check.name for check in result.checks if not check.passed}
    assert failed == {"plan", "guarantee 1: units"}, failed
    edit_json(copied / "certificate.json", _records_in_events)
    assert verify(copied).verdict == "verified", "it was the unit alone"


def test_a_guarantee_for_people_does_not_follow_from_events_of_records(copied):
    def mixed(certificate: dict[str, Any]) -> None:
        for event in certificate["events"]:
            event["unit"] = "record"

    edit_json(copied / "certificate.json", mixed)
    assert any("the events protect another unit" in check.detail for check in verify(copied).checks)


def made_release(
    people: int | None = 100, records: int = 1000, delta: float = 1e-5, classes: int | None = 3
) -> Release:
    """A release of a random generator, as dp-merf would state it."""
    domain = Domain(shape=(1, 8, 8), classes=classes, nominal_records=records, nominal_people=people)
    generator = build_generator(GeneratorConfig(shape=domain.shape, classes=classes, width=4, latent=3))
    config = {"privacy": {"noise_multiplier": 10.0}, "method": {"steps": 5, "width": 4, "latent": 3}}
    method = get_method("dp-merf")
    events = method.plan(build_config(method.config_type, config), domain, Budget(10.0, delta)).events
    epsilon = certified_epsilon(events, delta)
    fields = {
        "guarantees": [{"epsilon": epsilon, "delta": delta, "unit": domain.unit}],
        "events": [event.charged(planned=1, executed=1) for event in events],
        "assumed_public": domain.assumed_public(),
        "randomness": OS_ENTROPY,
        "runs_on_this_data": 1,
        "not_covered": NOT_COVERED,
    }
    return build_release("dp-merf", generator, domain, config, fields)


@pytest.mark.parametrize(
    ("people", "records", "delta", "verdict"), [(900, 10**6, 1e-3, "verified"), (1100, 40, 1e-3, "consistent")]
)
def test_delta_is_held_against_the_number_of_people(people, records, delta, verdict, tmp_path):
    found = verify(made_release(people, records, delta).save(tmp_path / "release"))
    assert found.verdict == verdict, [check for check in found.checks if not check.passed]
    (units,) = [check for check in found.checks if check.name == "guarantee 1: units"]
    assert f"delta 0.001 times {people:,} declared people" in units.detail
    if verdict == "verified":
        assert any("people may be exposed outright" in remark for remark in found.remarks)


def test_the_plan_says_beforehand_what_it_costs_to_protect_people():
    domain = Domain(shape=(3, 32, 32), classes=2, nominal_records=23_700, nominal_people=170)
    remarks = remarked(planned("dp-merf", domain)).remarks
    assert remarks[0].startswith("170 people instead of 23,700 images are protected; noise is held against their")
    assert "Below a few thousand people dp-merf with a teacher suits best" in remarks[0]
    remarks = remarked(planned("dp-merf", domain, Budget(10, 0.01))).remarks
    assert any(re.match(r"delta: 0\.01 times 170 people is 1 or more", remark) for remark in remarks)
    assert any("that a person is exposed" in remark for remark in remarks)


# Annotation: only the same unit composes

ANNOTATOR = {"privacy": {"steps": 3, "noise_multiplier": 10.0}, "method": {"teacher": {"directions": 2}}}


@pytest.fixture
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.models.annotator._DRAWS", 60)
    monkeypatch.setattr("understudy.methods.annotation._COUNTED", 600)


@pytest.mark.usefixtures("_few_draws")
def test_an_annotator_of_people_composes_with_a_generator_of_people(tmp_path):
    base = made_release(classes=None)
    data, out = of_people(SIZES, nominal=PEOPLE), tmp_path / "run"
    release = annotate(base, data, Budget(12.0, 1e-5), out, TrainOptions(config=ANNOTATOR))
    assert {event.unit for event in release.certificate.events} == {release.certificate.headline.unit} == {"person"}
    assert len(release.certificate.events) == 2
    assert verify(out).verdict == "verified"


@pytest.mark.parametrize(
    ("people", "data", "words"),
    [
        (None, of_people(SIZES), "protects records and the annotator people.*leave --declare person=... out"),
        (100, tiny_data(), "protects people and the annotator records.*with --declare person=... and nominal_people"),
    ],
)
def test_an_annotator_of_another_unit_is_refused(people, data, words, tmp_path):
    with pytest.raises(InputError, match=words):
        annotate(made_release(people, classes=None), data, Budget(12.0, 1e-5), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Audits, commands and texts


def test_a_canary_is_a_person_of_its_own():
    data = of_people(SIZES, nominal=PEOPLE)
    canaries = make_canaries(data.domain, 20, Randomness(1).bits)
    audited = with_canaries(data, canaries, as_clients=False)
    taken = int(canaries.included.sum())
    assert audited.domain.nominal_people == PEOPLE + 10, "declared, whoever is included"
    assert audited.people is not None
    added = audited.people[len(data) :]
    assert len(set(added.tolist())) == len(added) == taken > 0
    assert not set(added.tolist()) & set(audited.people[: len(data)].tolist())
    assert len(set(audited.people[: len(data)].tolist())) == len(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dp-merf", "dpgan", "dp-merf-ae", "gs-wgan"])
def test_a_run_on_people_can_be_audited(case, tmp_path):
    from understudy.audit.runs import RunAuditOptions, audit_run

    options = RunAuditOptions(canaries=40, declared_public=True, config=case_of(case).config(privacy=few(case)))
    records = audit_run(case_of(case).name, of_people(SIZES), Budget(30.0, 1e-5), tmp_path / "run", options)
    assert records
    assert not any(record.exceeds for record in records)
    assert {event.unit for record in records for event in record.events} == {"person"}


def test_an_audit_knows_what_people_add_to_an_embedding(tmp_path, monkeypatch):
    """Without noise, what is left of the sum when all public people are taken away is nothing."""
    from understudy.audit import attacks
    from understudy.files import read_tensors
    from understudy.privacy.mechanisms import GaussianMechanism
    from understudy.runs.folder import RunFolder

    monkeypatch.setattr(GaussianMechanism, "_noisy", lambda mechanism, exact, deviation: exact.double())
    data = of_people(SIZES)
    release = tiny_train("dp-merf", data, tmp_path / "run")
    canaries = make_canaries(data.domain, 20, Randomness(1).bits)
    audited = attacks.AuditedRun("dp-merf", data, data, canaries, release, tmp_path / "run")
    features = attacks._features(audited)
    assert features is not None
    total = read_tensors(RunFolder(tmp_path / "run").embedding)[0]["total_dp"]
    assert float((total - attacks._known(audited, features, CLASSES)).norm()) < 1e-5 * float(total.norm())


def test_the_plan_command_takes_a_number_of_people(capsys):
    call = Caller(capsys)
    words = ["plan", "dp-merf", "--records", 900, "--epsilon", 10, "--delta", "1e-4"]
    words += ["--set", "privacy.noise_multiplier=10", "--json"]
    plan = call(*words, "--people", 600).json()
    assert "nominal_people: 600" in plan["assumed_public"]
    assert {event["unit"] for event in plan["events"]} == {"person"}
    assert plan["remarks"][0].startswith("600 people instead of 900 images")
    assert plan == call(*words, "--declare", "nominal_people=600").json()
    assert "dp-sinkhorn protects single records" in call.refused("plan", "dp-sinkhorn", *words[2:-1], "--people", 600)
    assert "people" in call.refused(*words, "--people", 0)


def test_the_command_to_do_it_again_declares_people():
    domain = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000, nominal_people=539)
    known = train_command("dp-merf", (10.0, 1e-4), domain, {}, "mnist-writers")
    assert "--declare person=column:writer --declare nominal_people=539" in known
    other = train_command("dp-merf", (10.0, 1e-4), domain, {}, "patients of ward 7")
    (place,) = re.findall(r"--declare (person=\S+) --declare nominal_people=539", other)
    assert source_options(person=place.removeprefix("person=")).person is not None, "it can be read"
    assert "ward" not in other


def test_card_and_report_say_whom_the_promise_is_for_and_whom_it_protects_less(finished, tmp_path):
    of_persons, of_records = finished("dp-merf") / "release", made_release(people=None).save(tmp_path / "release")
    card = (of_persons / "README.md").read_text()
    assert "what it can reveal about one person with all their images is bounded" in card
    assert SEVERAL_IMAGES not in card
    assert (of_records / "README.md").read_text().count(f"- {SEVERAL_IMAGES}") == 1
    page = write_report([of_persons, of_records], tmp_path / "report.html").read_text()
    assert "per person" in page
    assert "per record" in page
    assert "about 10 people" in page
    assert page.count(SEVERAL_IMAGES) == 1


def test_a_certificate_with_people_is_read_as_it_was_written(copied):
    raw = json.loads((copied / "certificate.json").read_text())
    assert json.loads(parse_certificate(raw).to_json()) == raw
    assert dealt("dp-merf", of_people(SIZES)).people is not None
