"""What every registered method must do; a new one is tested once ``tests/helpers/cases.py`` has an entry for it.

It plans from public facts, trains on any data, spends what it planned and no more, releases the allowed files and
nothing private, can be interrupted and resumed, and never lets the number of records or the classes that occur show.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from understudy.api import release_early, resume
from understudy.configs import RuntimeConfig
from understudy.data.domain import Domain
from understudy.engines.teacher.config import TaughtConfig
from understudy.errors import BudgetError, InputError
from understudy.methods.config import build_config
from understudy.methods.registry import get_method, method_names
from understudy.privacy import accounting, viewers
from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import SEEDED, NoiseStream
from understudy.release.checks import replay
from understudy.release.contents import read_config
from understudy.release.release import load
from understudy.release.verify import verify
from understudy.runs.loop import RELEASED

from ..helpers.cases import BUDGET, CASES, CLASSES, EVERY_CASE, RECORDS, TAUGHT, case_of
from ..helpers.data import dealt, tiny_data, with_labels
from ..helpers.runs import interrupt, open_to_others, own_state_folder, read_lines, tiny_train

ALLOWED_FILES = {"generator.safetensors", "config.json", "certificate.json", "README.md", "samples.png"}
ALWAYS_REPORTED = {"step"}
TEACHER = "head."  # weights under this name are those of a network as they would be released
FILTERS = "features."
RUNTIME_VALUES: dict[str, list[Any]] = {
    "device": ["auto", "cpu", "cuda"],
    "precision": ["fp32", "tf32", "bf16"],
    "micro_batch": [1, 7, 100_000],
    "checkpoint_seconds": [0.001, 3600.0],
}

SLOW_CASES = {"dp-diffusion from central images", *TAUGHT}  # beside the tests of their own
TRIED = {case: pytest.mark.slow if case in SLOW_CASES else () for case in (*EVERY_CASE, *TAUGHT)}
every_case = pytest.mark.parametrize("case", [pytest.param(case, marks=marks) for case, marks in TRIED.items()])
every_kind = pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, marks=marks) for case, marks in TRIED.items() for kind in case_of(case).kinds],
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder of a finished run of a method on a kind of data; trained once, so tests must not change it."""
    folders: dict[tuple[str, str], Path] = {}

    def find(case: str, kind: str = "labelled") -> Path:
        if (case, kind) not in folders:
            home = tmp_path_factory.mktemp("finished")
            with own_state_folder(home):
                tiny_train(case, tiny_data(kind), home / "run")
            folders[case, kind] = home / "run"
        return folders[case, kind]

    return find


def plan_of(case: str, domain: Domain, config: dict[str, Any]) -> Plan:
    implementation = get_method(case_of(case).name)
    return implementation.plan(build_config(implementation.config_type, config), domain, BUDGET)


def tiny_plan(case: str, kind: str = "labelled") -> Plan:
    return plan_of(case, dealt(case, tiny_data(kind)).domain, case_of(case).config())


def accounted_delta(plan: Plan) -> float:
    """What is left of delta for the accountants: the limits of a federation's clients cost a part of it."""
    return BUDGET.delta - (viewers.limits_delta(plan.limits, BUDGET.epsilon) if plan.limits else 0.0)


def accesses(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What was done to the data, in an order of its own: accounts are opened when they are first needed."""
    fields = {"mechanism", "noise_multiplier", "sensitivity", "sampling", "count"}
    return sorted((event.model_dump(include=fields) for event in events), key=str)


# The entry of a method


@every_case
def test_a_registered_method_has_an_entry_in_the_cases(case):
    case_of(case)


def test_no_case_is_left_over_from_a_method_that_is_gone():
    assert {case.name for case in CASES.values()} <= set(method_names())


@every_case
def test_its_name_is_the_registered_one_and_it_says_what_it_is(case):
    implementation = get_method(case_of(case).name)
    assert implementation.name == case_of(case).name
    assert implementation.summary
    assert implementation.paper


# Planning


@every_case
def test_its_config_has_the_known_groups_and_refuses_unknown_keys_and_changes(case):
    kind = get_method(case_of(case).name).config_type
    config = build_config(kind, case_of(case).config())
    groups = {"privacy", "method", "runtime"} | ({"teacher"} if issubclass(kind, TaughtConfig) else set())
    assert set(kind.model_fields) == groups
    for group in sorted(groups):
        with pytest.raises(InputError, match=rf"unknown key '{group}\.no_such_key'; known here: "):
            build_config(kind, {group: {"no_such_key": 1}})
        with pytest.raises(ValueError, match="frozen"):
            setattr(config, group, None)
        name = next(iter(type(getattr(config, group)).model_fields))
        with pytest.raises(ValueError, match="frozen"):
            setattr(getattr(config, group), name, None)


@every_case
def test_noise_is_calibrated_to_the_budget_unless_it_is_given(case):
    config = case_of(case).config()
    given = plan_of(case, dealt(case, tiny_data()).domain, config)
    assert given.config.privacy.noise_multiplier == config["privacy"].pop("noise_multiplier")
    calibrated = plan_of(case, dealt(case, tiny_data()).domain, config)
    assert 0.98 * BUDGET.epsilon < calibrated.epsilon <= BUDGET.epsilon
    assert calibrated.config.privacy.noise_multiplier > 0
    assert calibrated.config.privacy.noise_multiplier in {event.noise_multiplier for event in calibrated.events}
    assert calibrated.epsilon == accounting.certified_epsilon(calibrated.events, accounted_delta(calibrated))


@every_case
def test_a_plan_above_the_budget_is_refused_before_anything_is_made(case, tmp_path):
    with pytest.raises(BudgetError, match="only 10 is allowed"):
        tiny_train(case, tiny_data(), tmp_path / "run", privacy={"noise_multiplier": 0.05})
    assert not (tmp_path / "run").exists()


@every_case
def test_runtime_settings_change_neither_events_nor_epsilon(case):
    """Every value of every setting in the runtime group; the groups are apart so that this holds."""
    runtime = get_method(case_of(case).name).config_type.model_fields["runtime"].annotation
    values = RUNTIME_VALUES | case_of(case).runtime
    untried = set(runtime.model_fields) - set(values)
    assert issubclass(runtime, RuntimeConfig)
    assert not untried, f"runtime settings without values to try in the method's case: {sorted(untried)}"
    domain = dealt(case, tiny_data()).domain
    expected = plan_of(case, domain, case_of(case).config())
    for name in runtime.model_fields:
        for value in values[name]:
            plan = plan_of(case, domain, case_of(case).config(runtime={name: value}))
            assert (plan.events, plan.epsilon, plan.steps) == (expected.events, expected.epsilon, expected.steps), name


_PLAN = """
    import json, sys
    from understudy.data.domain import Domain
    from understudy.methods.config import build_config
    from understudy.methods.registry import get_method
    from understudy.privacy.budget import Budget

    method, config = sys.argv[1], json.loads(sys.argv[2])
    domain = Domain(shape=(1, 8, 8), classes=3, nominal_records=40, nominal_clients=4)
    implementation = get_method(method)
    plan = implementation.plan(build_config(implementation.config_type, config), domain, Budget(10, 1e-5))
    heavy = {"torch", "flwr", "matplotlib", "safetensors", "PIL"}
    print(json.dumps([sorted(heavy & set(sys.modules)), plan.as_dict()]))
"""


@every_case
def test_planning_imports_no_torch_and_leaves_nothing_behind(case, tmp_path):
    home = {name: str(tmp_path / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    name, config = case_of(case).name, json.dumps(case_of(case).config())
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PLAN), name, config],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | home,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    imported, plan = json.loads(result.stdout)
    assert imported == []
    assert list(tmp_path.iterdir()) == []
    assert plan["method"] == case_of(case).name
    assert plan["events"]


# Training and spending


@every_kind
def test_it_spends_what_it_planned_within_the_budget(case, kind, finished):
    folder, plan = finished(case, kind), tiny_plan(case, kind)
    events = Ledger.open(folder / "ledger.jsonl").events()
    assert accesses(events) == accesses(plan.events)
    for event in events:
        assert event.planned == event.count
        assert event.executed == event.planned, "an undisturbed run executes its plan, neither more nor less"
    assert plan.epsilon <= BUDGET.epsilon
    assert accounting.certified_epsilon(events, BUDGET.delta) <= BUDGET.epsilon


@every_kind
def test_its_certificate_states_the_events_of_the_ledger_and_what_they_cost(case, kind, finished):
    folder = finished(case, kind)
    certificate = load(folder).certificate
    events = Ledger.open(folder / "ledger.jsonl").events()
    assert certificate.method == case_of(case).name
    assert certificate.events == events
    assert certificate.headline.epsilon >= accounting.epsilon(events, BUDGET.delta)
    assert certificate.headline.epsilon <= BUDGET.epsilon
    assert (certificate.headline.delta, certificate.headline.adjacency) == (BUDGET.delta, "add-remove")
    assert f"nominal_records: {RECORDS}" in certificate.assumed_public
    assert (certificate.stopped_because, certificate.plan_raised) == ("finished as planned", False)


@every_kind
def test_its_release_verifies_and_holds_the_allowed_files_only(case, kind, finished):
    folder = finished(case, kind)
    assert {entry.name for entry in (folder / "release").iterdir()} == ALLOWED_FILES
    verification = verify(folder)
    assert verification.passed, [check for check in verification.checks if not check.passed]


@every_kind
def test_verify_knows_the_generator_that_its_config_plans(case, kind, finished):
    """Another one is refused, also where the events are those that were planned."""
    release = load(finished(case, kind))
    config = read_config(finished(case, kind) / "release" / "config.json")
    alone = getattr(config.generator, "base", config.generator)
    other = alone.model_copy(update={"latent": alone.latent + 1})
    if alone is not config.generator:
        other = config.generator.model_copy(update={"base": other})
    replay(config, release.certificate)
    with pytest.raises(InputError, match="the generator has other networks"):
        replay(config.model_copy(update={"generator": other}), release.certificate)


@every_case
def test_a_seeded_run_is_stamped_and_does_not_verify(case, tmp_path):
    release = tiny_train(case, tiny_data(), tmp_path / "run", seed=1)
    assert release.certificate.randomness == SEEDED
    assert [check.name for check in verify(tmp_path / "run").checks if not check.passed] == ["randomness"]
    with pytest.raises(InputError, match="train again without a seed"):
        release.save(tmp_path / "published")


@every_case
@pytest.mark.parametrize("nominal", [20, 2000])
def test_the_declared_number_of_records_is_never_compared_with_the_true_one(case, nominal, tmp_path):
    tiny_train(case, tiny_data(nominal=nominal), tmp_path / "run")
    assert verify(tmp_path / "run").passed


@every_case
@pytest.mark.parametrize(
    "labels",
    [pytest.param([], id="no record"), pytest.param([1], id="one record"), pytest.param([0, 2] * 20, id="no class 1")],
)
def test_data_that_neighbour_ordinary_data_are_trained_on_like_any_other(case, labels, tmp_path):
    """Removing records one by one leads to these; an error anywhere on the way would tell neighbours apart."""
    release = tiny_train(case, with_labels(labels), tmp_path / "run")
    images, drawn = release.sample(30, labels=[1])
    assert images.shape == (30, 8, 8)
    assert (drawn == 1).all()
    assert verify(tmp_path / "run").passed


# Samples


@every_kind
def test_it_samples_without_being_told_the_labels(case, kind, finished):
    images, labels = load(finished(case, kind)).sample(50)
    assert images.shape == ((50, 8, 8, 3) if kind == "rgb" else (50, 8, 8))
    assert images.dtype == np.uint8
    if kind == "unlabelled":
        assert labels is None
    else:
        assert labels.shape == (50,)
        assert labels.dtype == np.int64
        assert set(labels) <= set(range(CLASSES))


@every_case
@pytest.mark.parametrize("asked", [[0], [2], [0, 2]])
def test_it_samples_the_labels_that_are_asked_for(case, asked, finished):
    images, labels = load(finished(case)).sample(60, labels=asked)
    assert images.shape == (60, 8, 8)
    assert set(labels) == set(asked)  # 60 draws miss one of two labels with probability 2e-18


@every_case
def test_a_label_is_more_than_a_name(case, finished):
    """The same latent values with another label give other images."""
    release = load(finished(case))
    zeros, ones = (release.sample(20, labels=[label], seed=1)[0] for label in (0, 1))
    assert not np.array_equal(zeros, ones)


@every_case
def test_samples_are_drawn_afresh_unless_a_seed_is_given(case, finished):
    release = load(finished(case))
    assert np.array_equal(release.sample(20, labels=[0], seed=7)[0], release.sample(20, labels=[0], seed=7)[0])
    assert not np.array_equal(release.sample(20, labels=[0])[0], release.sample(20, labels=[0])[0])


# What stays private


def _private_tensors(folder: Path) -> list[tuple[str, bytes]]:
    """Name and bytes of every tensor in the private folder that is long enough to be told from chance, except those
    that are the generator itself, or the network that is its teacher, and filters, which learnt from chance alone."""
    found = []
    for path in (folder / "private").rglob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                array = file.get_tensor(name)
                if not name.startswith((RELEASED, TEACHER, FILTERS)) and len(np.unique(array)) >= 8:
                    found.append((f"{path.name}: {name}", array.tobytes()))
    return found


@every_kind
def test_nothing_of_the_private_folder_or_the_data_is_in_the_release(case, kind, finished):
    folder = finished(case, kind)
    released = b"".join(path.read_bytes() for path in sorted((folder / "release").iterdir()))
    assert list((folder / "private").glob("checkpoint-*.safetensors")), "a run leaves a checkpoint"
    for name, content in _private_tensors(folder):
        assert content not in released, name
    data = tiny_data(kind)
    for image in data.images:
        assert image.tobytes() not in released
    for secret in (data.fingerprint(), data.fingerprint()[:16]):
        assert secret.encode() not in released


@every_case
def test_the_private_folder_is_for_its_owner_alone(case, finished):
    """What a method writes there is written with ``private=True``, or by a function for private files."""
    assert open_to_others(finished(case) / "private") == []


@every_case
def test_the_sample_grid_of_a_release_is_made_of_generated_images(case, finished):
    """No 8x8 window of the picture is a record: the picture is drawn from the generator."""
    with Image.open(finished(case) / "release" / "samples.png") as picture:
        windows = np.lib.stride_tricks.sliding_window_view(np.asarray(picture.convert("L")), (8, 8))
    shown = {window.tobytes() for row in windows for window in row}
    assert not shown & {image.tobytes() for image in tiny_data().images}


@every_kind
def test_progress_shows_values_that_were_declared_public_and_no_others(case, kind, finished):
    lines = read_lines(finished(case, kind) / "progress.jsonl")
    assert lines
    allowed = ALWAYS_REPORTED | case_of(case).public_values
    for line in lines:
        assert set(line) <= allowed, "judge whether it is public, then add it to public_values of the method's case"
        assert all(np.isfinite(value) for value in line.values())
        assert 0 <= line.get("epsilon_spent", 0) <= BUDGET.epsilon
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps))
    assert steps[-1] <= tiny_plan(case, kind).steps


@every_case
def test_the_true_number_of_records_is_in_no_public_file(case, tmp_path):
    """With numbers that cannot be taken for others: 37 of 40 records, in classes of 5, 13 and 19."""
    data = with_labels([0] * 5 + [1] * 13 + [2] * 19)
    tiny_train(case, data, tmp_path / "run")
    for path in (tmp_path / "run" / "release" / "certificate.json", tmp_path / "run" / "release" / "config.json"):
        assert not _numbers(json.loads(path.read_text())) & {37, 5 / 37, 13 / 37, 19 / 37}
    for line in read_lines(tmp_path / "run" / "progress.jsonl") + read_lines(tmp_path / "run" / "ledger.jsonl"):
        assert not _numbers(line) & {37}


def _numbers(value: Any) -> set[float]:
    if isinstance(value, dict):
        return set().union(*map(_numbers, value.values()))
    if isinstance(value, list):
        return set().union(*map(_numbers, value))
    return {value} if isinstance(value, (int, float)) else set()


# Interruption


@pytest.fixture
def noise_rows(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every noise vector that a mechanism draws, row by row."""
    drawn: list[bytes] = []
    draw = NoiseStream.draw

    def remember(self: NoiseStream, shape: Any) -> Any:
        noise = draw(self, shape)
        drawn.extend(row.numpy().tobytes() for row in noise.reshape(-1, noise.shape[-1]))
        return noise

    monkeypatch.setattr(NoiseStream, "draw", remember)
    return drawn


@every_case
def test_an_interrupted_run_resumes_to_the_end_at_the_planned_price_with_fresh_noise(case, noise_rows, tmp_path):
    data, folder, plan = dealt(case, tiny_data()), tmp_path / "run", tiny_plan(case)
    interrupt(case, data, folder)
    assert not (folder / "release").exists()
    spent = Ledger.open(folder / "ledger.jsonl").events()
    assert all(event.executed <= event.planned for event in spent)

    resume(data, folder)
    events = Ledger.open(folder / "ledger.jsonl").events()
    assert accesses(events) == accesses(plan.events)
    assert all(event.executed <= event.planned for event in events)
    assert all(late.executed >= early.executed for early, late in zip(spent, events, strict=True))
    assert not load(folder).certificate.plan_raised
    assert verify(folder).passed
    assert len(noise_rows) == len(set(noise_rows)) > 0

    steps = [line["step"] for line in read_lines(folder / "progress.jsonl")]
    assert steps == sorted(set(steps)), "no step is done twice after an orderly interruption"
    notes = [line["text"] for line in read_lines(folder / "ledger.jsonl") if line["kind"] == "note"]
    assert notes[0].startswith("interrupted after step")
    assert notes[1:] == ["resumed", "finished as planned"]


@every_case
def test_a_run_released_early_is_charged_for_its_whole_plan_and_may_still_be_finished(case, tmp_path):
    data, folder, plan = dealt(case, tiny_data()), tmp_path / "run", tiny_plan(case)
    interrupt(case, data, folder)
    early = release_early(folder)
    assert accesses(early.certificate.events) == accesses(plan.events)
    assert early.certificate.headline.epsilon == plan.epsilon
    assert early.certificate.stopped_because.startswith("released early after step ")
    assert verify(folder).passed
    assert early.sample(5)[0].shape == (5, 8, 8)

    finished = resume(data, folder)
    assert finished.certificate.stopped_because == "finished as planned"
    assert finished.certificate.generator_sha256 != early.certificate.generator_sha256
    assert finished.certificate.headline.epsilon == plan.epsilon
    assert verify(folder).passed


@every_case
def test_a_finished_run_that_is_resumed_gives_the_same_generator_at_the_same_price(case, tmp_path):
    data, folder = dealt(case, tiny_data()), tmp_path / "run"
    first = tiny_train(case, data, folder)
    again = resume(data, folder)
    assert again.certificate.generator_sha256 == first.certificate.generator_sha256
    assert again.certificate.events == first.certificate.events
    assert verify(folder).passed
