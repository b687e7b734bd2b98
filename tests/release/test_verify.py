"""What ``verify`` confirms, and everything that it must catch."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from understudy.cli.main import main
from understudy.errors import InputError
from understudy.models.generator import DiffusionGeneratorConfig, build_generator
from understudy.privacy.plan import RECORDS_ONLY
from understudy.privacy.randomness.streams import OS_ENTROPY, SEEDED
from understudy.release.contents import sha256, weights_to_bytes
from understudy.release.verify import Verification, verify

from ..cli.calling import Caller
from ..helpers.certificates import AS_DESIGNED
from .building import DELTA, EPSILON, GAUSSIAN, edit_config, edit_json, make_release, put_json

# The example of the design document for the domain of ``make_release``.
EXAMPLE = AS_DESIGNED | {"assumed_public": ["nominal_records: 1000", "classes: 4", "shape: 1x8x8", "range: 0..255"]}


def failed(result: Verification) -> set[str]:
    return {check.name for check in result.checks if not check.passed}


def certificate_of(folder: Path) -> Path:
    return folder / "certificate.json"


def put_example(folder: Path, **changes: Any) -> None:
    digest = hashlib.sha256((folder / "generator.safetensors").read_bytes()).hexdigest()
    put_json(certificate_of(folder), EXAMPLE | {"generator_sha256": digest} | changes)
    generator = {"width": 4, "latent": 3, "output": "sigmoid"}
    settings = {"privacy": {"noise_multiplier": 0.85, "embedding_share": 0.0}, "method": {"generator": generator}}
    edit_json(folder / "config.json", lambda config: config.update(method="gs-wgan", method_config=settings))


def test_a_sound_release_is_confirmed_by_both_accountants(folder: Path):
    result = verify(folder)
    assert result.passed, failed(result)
    assert result.claimed == EPSILON
    assert result.delta == DELTA
    assert result.epsilon == pytest.approx(4.377178, abs=1e-4)
    names = {check.name for check in result.checks}
    assert {"guarantee 1: pld", "guarantee 1: fourier", "guarantee 1: renyi", "files", "randomness"} <= names


def test_it_says_what_it_proves_and_what_not(folder: Path):
    plain = json.loads(json.dumps(verify(folder).as_dict()))
    assert plain["passed"] is True
    assert any("accountants" in item for item in plain["proves"])
    assert any("side channels" in item for item in plain["does_not_prove"])
    assert any("happened" in item for item in plain["does_not_prove"])


def test_what_was_not_compared_is_not_said_to_be_proven(folder: Path):
    planned = "the events, the generator and a classifier beside it are those that the released config plans"
    named = "the config is the one that"
    assert planned in verify(folder).proves
    edit_json(certificate_of(folder), lambda certificate: certificate.pop("config_sha256"))
    result = verify(folder)
    assert not [item for item in result.proves if item == planned or named in item]
    assert len([item for item in result.does_not_prove if planned in item or named in item]) == 2
    assert result.as_dict()["proves"] == list(result.proves)
    assert all(set(check) == {"name", "passed", "detail"} for check in result.as_dict()["checks"])


def test_a_refusal_proves_nothing(folder: Path):
    edit_json(certificate_of(folder), _guarantee(epsilon=1.0))
    assert verify(folder).verdict == "refused"
    assert verify(folder).proves == ()


# What is missing or tied to nothing keeps a release from being verified, though nothing contradicts it


def renamed(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(method="another"))
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    edit_json(certificate_of(folder), lambda certificate: certificate.update(method="another", config_sha256=digest))


def unbound(folder: Path) -> None:
    edit_json(certificate_of(folder), lambda certificate: certificate.pop("config_sha256"))
    edit_json(certificate_of(folder), _event(noise_multiplier=1000.0))
    edit_json(certificate_of(folder), _guarantee(epsilon=0.01))


def open_noise(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config["method_config"].pop("privacy"))
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    edit_json(certificate_of(folder), lambda certificate: certificate.update(config_sha256=digest))


def _edit(change: Any) -> Any:
    return lambda folder: edit_json(certificate_of(folder), change)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        pytest.param(unbound, {"config hash", "plan"}, id="config unbound and the noise raised"),
        pytest.param(renamed, {"plan"}, id="renamed to a method that is not known"),
        pytest.param(open_noise, {"plan"}, id="a config that plans any noise"),
        pytest.param(
            lambda folder: edit_json(certificate_of(folder), _guarantee(delta=0.5)),
            {"guarantee 1: units"},
            id="delta one half",
        ),
        pytest.param(
            lambda folder: edit_json(certificate_of(folder), _guarantee(delta=1.01e-3)),
            {"guarantee 1: units"},
            id="delta above one over the records",
        ),
        pytest.param(_edit(lambda found: found.update(not_covered=[])), {"not covered"}, id="covers everything"),
        pytest.param(_edit(lambda found: found.pop("not_covered")), {"not covered"}, id="says not what it covers"),
        pytest.param(_edit(lambda found: found["not_covered"].pop(0)), {"not covered"}, id="covers side channels"),
    ],
)
def test_what_verified_needs_and_is_missing_makes_a_release_consistent_at_best(
    folder: Path, change: Any, missing: set[str]
):
    change(folder)
    result = verify(folder)
    assert result.verdict == result.as_dict()["verdict"] == "consistent"
    assert not result.passed
    assert not result.as_dict()["passed"]
    assert failed(result) == set(result.as_dict()["missing"]) == missing
    assert result.epsilon is not None


@pytest.mark.parametrize("missing", [lambda folder: None, unbound, open_noise], ids=["nothing", "tied", "noise"])
def test_a_contradiction_refuses_a_release_whatever_else_is_missing(folder: Path, missing: Any):
    """Pixels that are cut off are drawn from the same weights as those that are squashed; nobody planned them."""
    edit_config(folder, lambda config: config["generator"].update(output="clamp"))
    missing(folder)
    result = verify(folder)
    assert result.verdict == "refused"
    assert any("the generator has other networks" in check.detail for check in result.checks)


def test_a_generator_of_another_kind_than_the_config_plans_is_refused(folder: Path):
    """Two U-Nets in the place of a small generator hold more than what was paid for."""
    sampler = {"autoguidance": 1.0}
    shape = {"shape": (1, 8, 8), "classes": 4, "latent": 3, "width": 4}
    other = DiffusionGeneratorConfig.model_validate({**shape, "widths": [8, 8], "blocks": 1, "sampler": sampler})
    weights = weights_to_bytes(build_generator(other))
    (folder / "generator.safetensors").write_bytes(weights)
    edit_json(certificate_of(folder), lambda found: found.update(generator_sha256=sha256(weights)))
    edit_config(folder, lambda config: config.update(generator=other.model_dump(mode="json")))
    assert failed(verify(folder)) == {"plan"}


def test_a_budget_that_no_noise_meets_contradicts_nothing_where_the_config_leaves_the_noise_open(folder: Path):
    open_noise(folder)
    edit_json(certificate_of(folder), _guarantee(epsilon=1e-6))
    result = verify(folder)
    assert {"guarantee 1: pld", "guarantee 1: fourier"} <= failed(result), "the claim itself does not hold"
    assert result.as_dict()["missing"] == ["plan"]


@pytest.mark.parametrize("name", ["config.json", "certificate.json"])
@pytest.mark.parametrize(
    "written",
    [
        lambda text: text + "\t\n" * 1000,
        lambda text: text.replace(": ", ":\t", 1),
        lambda text: text.replace("method", "meth\\u006fd", 1),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: json.dumps(json.loads(text)),
    ],
    ids=["blanks at the end", "a tab between words", "spelt otherwise", "other ends of lines", "in one line"],
)
def test_a_file_that_is_not_laid_out_as_releases_are_is_refused(folder: Path, name: str, written: Any):
    """Readers pass over blanks, so they could tell of a person what nobody sees."""
    path = folder / name
    path.write_bytes(written(path.read_text()).encode())
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    if name == "config.json":
        edit_json(certificate_of(folder), lambda certificate: certificate.update(config_sha256=digest))
    result = verify(folder)
    assert (failed(result), result.verdict) == ({"files"}, "refused")
    assert any(f"'{name}' is not laid out as a release writes it" in check.detail for check in result.checks)


def test_a_config_has_no_room_for_lists_of_numbers_that_nothing_uses(folder: Path):
    put_example(folder, config_sha256="")
    scales = {"embedding": {"length_scales": [0.1] * 101}}
    edit_config(folder, lambda config: config["method_config"]["method"].update(scales))
    assert any("at most 100 items" in check.detail for check in verify(folder).checks)


def test_where_a_run_was_computed_is_nothing_that_a_release_says(folder: Path):
    edit_config(folder, lambda config: config["method_config"].update(runtime={"device": "cuda:17"}))
    result = verify(folder)
    assert result.verdict == "refused"
    assert any("says how the run was computed" in check.detail for check in result.checks)


def test_a_delta_up_to_one_over_the_records_is_verified_with_a_plain_remark_above_a_tenth(folder: Path):
    assert verify(folder).remarks == ()  # 1,000 records at delta 1e-5: 0.01
    for delta, remarked in ((1e-4, False), (1.01e-4, True), (1e-3, True)):
        edit_json(certificate_of(folder), _guarantee(delta=delta))
        result = verify(folder)
        assert result.verdict == "verified"
        assert bool(result.remarks) is remarked
    assert result.remarks[0].startswith(
        "delta 0.001 times 1,000 declared records is 1: within this guarantee (against public)"
    )
    assert result.as_dict()["remarks"] == list(result.remarks)


def test_a_seed_that_the_certificate_denies_is_a_statement_of_the_trainer(tmp_path: Path):
    """Nobody can see from a release how its noise was drawn, so nothing says that it was found out."""
    place = make_release(randomness=SEEDED).save(tmp_path / "seeded", allow_seeded=True)
    edit_json(certificate_of(place), lambda certificate: certificate.update(randomness=OS_ENTROPY))
    result = verify(place)
    assert any(line.startswith("randomness: ") for line in result.as_dict()["stated_by_the_trainer"])
    assert not any("operating system" in check.detail for check in result.checks)
    assert {"runs on this data: 1"} < set(result.stated)
    assert any("took place" in line for line in result.stated)


def test_the_example_of_the_design_is_consistent(folder: Path):
    """It names no config, so nothing ties its events to anything."""
    put_example(folder)
    result = verify(folder)
    assert result.verdict == "consistent"
    assert failed(result) == {"config hash", "plan", "not covered"}
    assert result.epsilon == pytest.approx(9.03, abs=0.001)


@pytest.mark.parametrize("epsilon", [9.02, 9.0285, 5.0])
def test_the_example_with_a_lower_claim_is_refused(folder: Path, epsilon: float):
    put_example(folder, guarantees=[EXAMPLE["guarantees"][0] | {"epsilon": epsilon}])
    result = verify(folder)
    assert {"guarantee 1: pld", "guarantee 1: fourier"} <= failed(result)


def test_an_event_with_nothing_optional_is_accepted(folder: Path):
    def strip(certificate: dict[str, Any]) -> None:
        for key in ("not_covered", "config_sha256"):
            certificate.pop(key, None)
        certificate["events"] = [{"mechanism": "gaussian", "noise_multiplier": 1.0, "count": 1}]

    edit_json(certificate_of(folder), strip)
    assert verify(folder).verdict == "consistent"
    assert failed(verify(folder)) == {"config hash", "plan", "not covered"}


def _guarantee(**fields: Any) -> Any:
    return lambda certificate: certificate["guarantees"][0].update(fields)


def _event(**fields: Any) -> Any:
    return lambda certificate: certificate["events"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        pytest.param(_guarantee(epsilon=4.3), "guarantee 1: pld", id="epsilon lowered"),
        pytest.param(_guarantee(epsilon=4.3), "guarantee 1: fourier", id="epsilon lowered, second accountant"),
        pytest.param(_guarantee(epsilon=4.3771), "guarantee 1: pld", id="epsilon lowered in the last digit"),
        pytest.param(_guarantee(delta=1e-6), "guarantee 1: pld", id="delta lowered"),
        pytest.param(_guarantee(epsilon="NaN"), "certificate", id="epsilon not a number"),
        pytest.param(_guarantee(kind="none"), "certificate", id="another kind of guarantee"),
        pytest.param(_guarantee(adjacency="replace-one"), "guarantee 1: kind", id="a stronger adjacency"),
        pytest.param(_guarantee(viewer="server"), "guarantee 1: kind", id="a stronger viewer"),
        pytest.param(_guarantee(delta_parts={"cap": 2e-5}), "guarantee 1: delta", id="parts exceed delta"),
        pytest.param(
            _guarantee(delta_parts={"accountant": 5e-6, "cap": 1e-6}), "guarantee 1: delta", id="parts do not add up"
        ),
        pytest.param(
            _guarantee(delta_parts={"accountant": 4e-6, "cap": 6e-6}), "guarantee 1: pld", id="less is left of delta"
        ),
        pytest.param(_event(planned=2), "certificate", id="charged below the plan"),
        pytest.param(_event(executed=2), "certificate", id="charged below what was executed"),
        pytest.param(_event(count=0), "certificate", id="nothing charged"),
        pytest.param(_event(count=2), "guarantee 1: pld", id="more executions than claimed"),
        pytest.param(_event(noise_multiplier=0.9), "guarantee 1: pld", id="less noise"),
        pytest.param(_event(noise_multiplier=0), "certificate", id="no noise"),
        pytest.param(_event(mechanism="laplace"), "certificate", id="unknown mechanism"),
        pytest.param(_event(sampling={"kind": "shuffled"}), "certificate", id="unknown sampling"),
        pytest.param(_event(sampling={"kind": "poisson", "rate": 2}), "certificate", id="impossible rate"),
        pytest.param(_event(discount=0.5), "certificate", id="unknown field of an event"),
        pytest.param(lambda certificate: certificate.update(note="trust me"), "certificate", id="unknown field"),
        pytest.param(lambda certificate: certificate.update(schema=4), "certificate", id="unknown schema"),
        pytest.param(lambda certificate: certificate.update(events=[]), "certificate", id="no events"),
        pytest.param(lambda certificate: certificate.update(guarantees=[]), "certificate", id="no guarantee"),
        pytest.param(lambda certificate: certificate.pop("generator_sha256"), "certificate", id="no hash"),
        pytest.param(lambda certificate: certificate.update(randomness=SEEDED), "randomness", id="seeded"),
        pytest.param(lambda certificate: certificate.update(randomness="dice"), "randomness", id="other randomness"),
        pytest.param(lambda certificate: certificate.update(method="gs-wgan"), "facts", id="another method"),
        pytest.param(
            lambda certificate: certificate.update(assumed_public=["nominal_records: 9"]), "facts", id="hidden facts"
        ),
        pytest.param(
            lambda certificate: certificate["assumed_public"].insert(0, "nominal_records: 9000000"),
            "facts",
            id="two numbers of records",
        ),
        pytest.param(
            lambda certificate: certificate["events"].append(GAUSSIAN | {"noise_multiplier": 1e6}),
            "plan",
            id="an event that nobody planned",
        ),
        pytest.param(
            lambda certificate: (_guarantee(epsilon=10.0)(certificate), _event(count=2, planned=2)(certificate)),
            "plan",
            id="more steps than planned, and no word of a raised plan",
        ),
        pytest.param(
            lambda certificate: certificate["guarantees"].extend([{"epsilon": EPSILON, "delta": DELTA}] * 30),
            "guarantees",
            id="far too many guarantees",
        ),
        pytest.param(
            lambda certificate: certificate["guarantees"].append({"epsilon": 1.0, "delta": DELTA}),
            "guarantee 2: pld",
            id="a false second guarantee",
        ),
        pytest.param(
            lambda certificate: certificate.update(
                events=[GAUSSIAN | {"noise_multiplier": 10 + n} for n in range(2000)]
            ),
            "events",
            id="far too many events",
        ),
    ],
)
def test_a_changed_certificate_is_caught(folder: Path, change: Any, check: str):
    edit_json(certificate_of(folder), change)
    result = verify(folder)
    assert check in failed(result), result.checks
    assert not result.passed


def test_a_seeded_release_is_caught(tmp_path: Path):
    place = make_release(randomness=SEEDED).save(tmp_path / "seeded", allow_seeded=True)
    assert failed(verify(place)) == {"randomness"}


@pytest.mark.parametrize(("name", "check"), [("generator.safetensors", "weights hash"), ("config.json", "config hash")])
def test_changed_files_are_caught(folder: Path, name: str, check: str):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert check in failed(verify(folder))


def test_foreign_weights_with_a_matching_hash_are_caught(folder: Path):
    (folder / "generator.safetensors").write_bytes(b"\x80\x04pickle")
    digest = hashlib.sha256(b"\x80\x04pickle").hexdigest()
    edit_json(certificate_of(folder), lambda certificate: certificate.update(generator_sha256=digest))
    assert failed(verify(folder)) == {"generator"}


@pytest.mark.parametrize("name", ["critic.safetensors", ".hidden", "ledger.jsonl"])
def test_an_extra_file_is_caught(folder: Path, name: str):
    (folder / name).write_text("private")
    assert failed(verify(folder)) == {"files"}


def test_an_extra_folder_is_caught(folder: Path):
    (folder / "private").mkdir()
    assert failed(verify(folder)) == {"files"}


@pytest.mark.parametrize(
    "name", ["generator.safetensors", "config.json", "certificate.json", "README.md", "samples.png"]
)
def test_a_missing_file_is_caught(folder: Path, name: str):
    (folder / name).unlink()
    assert "files" in failed(verify(folder))


@pytest.mark.parametrize("name", ["generator.safetensors", "samples.png"])
def test_a_link_is_caught(folder: Path, tmp_path: Path, name: str):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert "files" in failed(verify(folder))


def test_a_pipe_or_device_is_never_opened(folder: Path):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert "files" in failed(verify(folder))
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    assert "files" in failed(verify(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"schema": NaN}'])
def test_a_hostile_certificate_is_a_failed_check(folder: Path, content: bytes):
    certificate_of(folder).write_bytes(content)
    result = verify(folder)
    assert "certificate" in failed(result)
    assert result.epsilon is None


def _clients(**event: Any) -> Any:
    """A claim against the server of a federation, with an event to which every client adds noise."""

    def change(certificate: dict[str, Any]) -> None:
        _event(unit="client", **event)(certificate)
        _guarantee(unit="client", viewer="server", adjacency="replace-one")(certificate)

    return change


_LIMITS = {"clients": 10, "rounds": 10**25, "queries": 12, "slots": 3, "answers": 6}
_ROUTED = {"sensitivity": "2C", "sampling": {"kind": "routed", "subsets": 10}}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_guarantee(epsilon=1e25), id="an epsilon of 26 digits"),
        pytest.param(
            lambda certificate: (
                _clients(**_ROUTED)(certificate),
                _guarantee(viewer="public", adjacency="add-remove", limits=_LIMITS)(certificate),
            ),
            id="rounds beyond any integer of a machine",
        ),
        pytest.param(
            lambda certificate: (
                _clients(**_ROUTED)(certificate),
                _guarantee(viewer="public", adjacency="add-remove", limits=_LIMITS | {"rounds": 2**62})(certificate),
            ),
            id="rounds that only just fit",
        ),
        pytest.param(_clients(noise_multiplier=5e-324, noise_parts=10), id="a noise whose parts vanish"),
        pytest.param(_clients(noise_parts=10**400), id="more parts than a float can count"),
        pytest.param(_clients(noise_parts=2**62), id="parts that only just fit"),
    ],
)
def test_whatever_the_numbers_are_there_is_one_verdict_with_and_without_json(folder: Path, change: Any, capsys: Any):
    edit_json(certificate_of(folder), change)
    result = verify(folder)
    call = Caller(capsys)
    plain, as_json = call("verify", folder), call("verify", folder, "--json")
    assert plain.code == as_json.code == (0 if result.verdict == "verified" else 1)
    assert as_json.json()["verdict"] == result.verdict
    assert "Traceback" not in plain.err + as_json.err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"epsilon": 4.3772', '"epsilon": 0.1, "epsilon": 4.3772', "the key 'epsilon' occurs twice"),
        ('"epsilon": 4.3772', '"epsilon": "4.3772"', "guarantees.0.epsilon: Input should be a valid number"),
        ('"epsilon": 4.3772', '"epsilon": NaN', "NaN is no number"),
        ('"epsilon": 4.3772', '"epsilon": 1e999', "beyond double precision"),
        ('"count": 1', '"count": true', "events.0.count: Input should be a valid integer"),
        ('"count": 1', '"count": 1.0', "events.0.count: Input should be a valid integer"),
        ('"count": 1', f'"count": {10**25}', "an integer of 26 digits is beyond 64 bits"),
        ('"schema": 1', '"schema": true', "schema: Input should be a valid integer"),
        ('"plan_raised": false', '"plan_raised": 0', "plan_raised: Input should be a valid boolean"),
        ('"remarks": []', f'"remarks": {"[" * 70}{"]" * 70}', "nested more than 64 deep"),
    ],
)
def test_a_certificate_that_two_readers_may_read_differently_is_refused(folder: Path, old: str, new: str, words: str):
    text = certificate_of(folder).read_text()
    assert old in text
    certificate_of(folder).write_text(text.replace(old, new, 1))
    result = verify(folder)
    assert result.verdict == "refused"
    (found,) = [check for check in result.checks if check.name == "certificate"]
    assert words in found.detail


@pytest.mark.parametrize(
    ("change", "check"),
    [
        pytest.param(
            lambda config: config["method_config"]["privacy"].update(noise_multiplier="1.0"), "plan", id="text for 1.0"
        ),
        pytest.param(lambda config: config["method_config"]["method"].update(steps=True), "plan", id="true for 1"),
        pytest.param(lambda config: config["domain"].update(nominal_records="1000"), "config", id="text in the domain"),
    ],
)
def test_a_config_whose_types_need_converting_is_refused(folder: Path, change: Any, check: str):
    edit_json(folder / "config.json", change)
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    edit_json(certificate_of(folder), lambda certificate: certificate.update(config_sha256=digest))
    assert check in failed(verify(folder))
    assert verify(folder).verdict == "refused"


def test_a_whole_number_for_a_real_one_is_no_other_type(folder: Path):
    edit_json(certificate_of(folder), _guarantee(epsilon=5))
    assert verify(folder).verdict == "verified"


@pytest.mark.parametrize(
    "event",
    [
        {"noise_multiplier": 1e-300, "count": 10**18},
        {"noise_multiplier": 1e300, "count": 10**30},
        {"noise_multiplier": 1.0, "count": 10**15, "sampling": {"kind": "poisson", "rate": 1e-300}},
        {"noise_multiplier": 1.0, "count": 10**12, "sampling": {"kind": "routed", "subsets": 10**400}},
    ],
)
def test_extreme_events_end_in_an_answer(folder: Path, event: dict[str, Any]):
    edit_json(certificate_of(folder), lambda certificate: certificate.update(events=[event]))
    assert isinstance(verify(folder).passed, bool)


@pytest.mark.parametrize(
    "broken",
    ["accounting.epsilon", "checks.compare_facts", "checks.replay", "viewers.events_seen", "checks.units_protected"],
)
def test_a_check_that_breaks_down_is_a_refusal(folder: Path, broken: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever a hostile file brings a library to: the answer is a verdict."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("as never before")

    room = "understudy.release." if broken.startswith("checks") else "understudy.privacy."
    monkeypatch.setattr(room + broken, fail)
    result = verify(folder)
    assert result.verdict == "refused"
    assert "as never before" in result.reason.detail


def test_a_replaced_unit_is_covered_by_unsampled_answers_only(folder: Path):
    def change(certificate: dict[str, Any]) -> None:
        certificate["guarantees"][0].update(adjacency="replace-one", viewer="server", unit="client")
        certificate["events"][0].update(sensitivity="2C", unit="client")
        certificate.pop("config_sha256")  # no method of this certificate plans such events

    edit_json(certificate_of(folder), change)
    edit_json(folder / "config.json", lambda config: config["domain"].update(nominal_clients=10))
    edit_json(certificate_of(folder), lambda certificate: certificate["assumed_public"].append("nominal_clients: 10"))
    assert verify(folder).verdict == "consistent"
    assert failed(verify(folder)) == {"config hash", "plan"}


@pytest.mark.parametrize(
    "claim",
    [
        {"viewer": "server", "adjacency": "replace-one"},
        {"viewer": "client", "coalition": 1},
        {"adjacency": "replace-one"},
    ],
    ids=str,
)
def test_whoever_trains_on_records_sees_them_so_nothing_holds_against_him(folder: Path, claim: dict[str, Any]):
    """Unsampled events of sensitivity 2C are also made centrally, from votes of teachers for instance."""
    edit_json(certificate_of(folder), _event(sensitivity="2C"))
    edit_json(certificate_of(folder), _guarantee(**claim))
    assert "guarantee 1: kind" in failed(verify(folder))


@pytest.mark.parametrize("missing", ["assumed_public", "randomness", "runs_on_this_data", "software", "created"])
def test_what_a_reader_must_know_cannot_be_left_out(folder: Path, missing: str):
    edit_json(certificate_of(folder), lambda certificate: certificate.pop(missing))
    assert failed(verify(folder)) == {"certificate"}


def test_events_that_the_config_does_not_plan_are_caught(folder: Path):
    """More noise in the certificate than in the config that it is tied to, with a claim that fits the noise."""
    edit_json(certificate_of(folder), _event(noise_multiplier=50.0))
    assert failed(verify(folder)) == {"plan"}


@pytest.mark.parametrize("fields", [{"sensitivity": "2C"}, {"sensitivity": "sqrt(2)C"}, {"sensitivity": None}], ids=str)
def test_an_event_of_another_sensitivity_than_planned_is_caught(folder: Path, fields: dict[str, Any]):
    """The same multiplier over a larger sensitivity would be more noise than was added."""
    edit_json(certificate_of(folder), _event(**fields))
    assert failed(verify(folder)) == {"plan"}


def test_events_of_another_unit_than_planned_are_caught(folder: Path):
    """A run that protects records does not protect clients, whatever its certificate says."""
    edit_json(certificate_of(folder), _event(unit="client"))
    edit_json(certificate_of(folder), _guarantee(unit="client"))
    assert failed(verify(folder)) == {"plan", "guarantee 1: units"}
    assert verify(folder).verdict == "refused"


def test_a_raised_plan_is_said_aloud(folder: Path):
    edit_json(certificate_of(folder), lambda certificate: certificate.update(plan_raised=True))
    result = verify(folder)
    assert result.passed
    assert any("the plan was raised" in check.detail for check in result.checks)


@pytest.mark.parametrize(
    "claim",
    [
        {"unit": "client"},
        {"viewer": "server"},
        {"viewer": "client"},
        {"adjacency": "replace-one"},
        {"accountant": "none"},
    ],
    ids=str,
)
def test_a_claim_that_the_events_do_not_carry_is_caught(folder: Path, claim: dict[str, str]):
    edit_json(certificate_of(folder), _guarantee(**claim))
    assert failed(verify(folder))


def test_parts_of_delta_are_respected(folder: Path):
    parts = {"accountant": DELTA, "cap": 1e-9}
    edit_json(certificate_of(folder), _guarantee(delta=DELTA + 1e-9, delta_parts=parts))
    assert verify(folder).passed


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match="does not exist"):
        verify(tmp_path / "nothing")


def test_an_empty_folder_fails(tmp_path: Path):
    assert failed(verify(tmp_path)) >= {"files", "certificate"}


def test_data_with_clients_are_said_to_be_protected_record_by_record_whatever_the_certificate_says(folder: Path):
    edit_json(folder / "config.json", lambda config: config["domain"].update(nominal_clients=10))
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()

    def fit(certificate: dict[str, Any]) -> None:
        certificate.update(config_sha256=digest)
        certificate["assumed_public"].append("nominal_clients: 10")

    edit_json(certificate_of(folder), fit)
    result = verify(folder)
    assert result.passed, failed(result)
    assert result.remarks == (RECORDS_ONLY,)


def test_letters_that_the_terminal_has_not_change_no_answer(folder: Path, monkeypatch: pytest.MonkeyPatch):
    edit_json(certificate_of(folder), lambda certificate: certificate.update(stopped_because="\u5b8c"))
    shown = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", shown)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(folder)])
    assert ended.value.code == 0
    shown.flush()
    assert b"the run: \\u5b8c" in shown.buffer.getvalue()  # type: ignore[attr-defined]


def test_more_events_or_guarantees_than_any_release_has_are_not_accounted(folder: Path):
    """Each takes seconds: a thousand of them would take hours."""
    many = [GAUSSIAN | {"noise_multiplier": 1 + number / 100} for number in range(200)]
    edit_json(certificate_of(folder), lambda certificate: certificate.update(events=many))
    assert {"plan", "events"} <= failed(verify(folder))
    claims = [{"epsilon": EPSILON, "delta": DELTA} for _ in range(20)]
    edit_json(certificate_of(folder), lambda certificate: certificate.update(events=[GAUSSIAN], guarantees=claims))
    assert "guarantees" in failed(verify(folder))


@pytest.mark.parametrize("name", ["generator.safetensors", "config.json", "certificate.json"])
def test_a_file_of_a_terabyte_that_takes_no_disk_is_refused_unread(folder: Path, name: str):
    os.truncate(folder / name, 2**40)
    result = verify(folder)
    assert result.verdict == "refused"
    assert any("is larger than" in check.detail for check in result.checks if not check.passed)
