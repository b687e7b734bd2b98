"""Method configs: typed, frozen, in three groups; every mistake is named with its value and the way out."""

import json

import pytest

from understudy.configs import MethodConfig, RuntimeConfig
from understudy.errors import InputError
from understudy.methods.config import apply_settings, build_config, read_config_file
from understudy.methods.embedding.dp_merf import DpMerfConfig
from understudy.methods.registry import get_method, method_names


def test_values_go_to_their_groups_and_the_rest_keeps_its_default():
    config = build_config(DpMerfConfig, {"method": {"steps": 7}, "runtime": {"device": "cpu"}})
    assert (config.method.steps, config.runtime.device) == (7, "cpu")
    assert config.method.batch == DpMerfConfig().method.batch
    assert config.privacy.noise_multiplier is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"methods": {}}, "unknown key 'methods'; known here: method, privacy, runtime"),
        ({"method": {"step": 3}}, r"unknown key 'method\.step'; known here: .*steps"),
        ({"privacy": {"epsilon": 3}}, r"unknown key 'privacy\.epsilon'; known here: noise_multiplier"),
        ({"method": {"steps": 0}}, r"config: method\.steps: 0: .*greater than or equal to 1"),
        ({"method": {"steps": "many"}}, r"config: method\.steps: 'many': "),
        ({"method": {"steps": 2.5}}, r"config: method\.steps: 2\.5: "),
        (
            {"method": {"learning_rate": 1e300}},
            r"config: method\.learning_rate: 1e\+300: .*less than or equal to 1000000000",
        ),
        ({"privacy": {"noise_multiplier": 0}}, r"config: privacy\.noise_multiplier: 0: .*greater than 0"),
        ({"privacy": {"noise_multiplier": float("nan")}}, r"config: privacy\.noise_multiplier: nan: "),
        ({"privacy": {"noise_multiplier": float("inf")}}, r"config: privacy\.noise_multiplier: inf: "),
        ({"runtime": {"device": "gpu"}}, r"config: runtime\.device: 'gpu': "),
        ({"runtime": {"precision": "fp8"}}, r"config: runtime\.precision: 'fp8': "),
        ({"runtime": 3}, r"config: runtime: 3: "),
    ],
)
def test_a_mistake_is_named_with_its_value(values, sentence):
    with pytest.raises(InputError, match=sentence):
        build_config(DpMerfConfig, values)


def test_deciding_the_noise_changes_nothing_else():
    config = build_config(DpMerfConfig, {"method": {"steps": 7}})
    decided = config.with_noise(1.5)
    assert decided.privacy.noise_multiplier == 1.5
    assert config.privacy.noise_multiplier is None
    assert decided.model_copy(update={"privacy": config.privacy}) == config


@pytest.mark.parametrize("method", method_names())
def test_a_config_survives_json(method):
    kind = get_method(method).config_type
    assert build_config(kind, json.loads(json.dumps(kind().model_dump(mode="json")))) == kind()


def test_every_runtime_setting_is_one_that_cannot_change_what_is_done_to_the_data():
    """A new one belongs here only after it was judged; the conformance tests then hold every method to it."""
    assert set(RuntimeConfig.model_fields) == {"device", "precision", "micro_batch", "checkpoint_seconds"}
    assert set(MethodConfig.model_fields) == {"privacy", "runtime"}


def test_files_in_json_and_toml_say_the_same(tmp_path):
    (tmp_path / "a.json").write_text('{"method": {"steps": 7, "length_scales": [0.1, 0.2]}}')
    (tmp_path / "a.toml").write_text("[method]\nsteps = 7\nlength_scales = [0.1, 0.2]\n")
    assert read_config_file(tmp_path / "a.json") == read_config_file(tmp_path / "a.toml")
    assert build_config(DpMerfConfig, read_config_file(tmp_path / "a.toml")).method.length_scales == (0.1, 0.2)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", b"{", "is not valid .json"),
        ("a.toml", b"= 3", "is not valid .toml"),
        ("a", b"steps: 3", "is not valid JSON"),
        ("a.json", b"\xff", "cannot be read"),
        ("a.json", b"[1]", "holds a list, but a table of settings is needed"),
        ("missing.json", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_config_is_one_sentence(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_config_file(tmp_path / name)


def test_settings_are_laid_over_the_values_and_read_as_json_or_text():
    values = {"method": {"steps": 1, "batch": 2}}
    settings = [
        "method.steps=7",
        "method.length_scales=[0.1]",
        "runtime.device=cuda:1",
        "privacy.noise_multiplier=null",
    ]
    assert apply_settings(values, settings) == {
        "method": {"steps": 7, "batch": 2, "length_scales": [0.1]},
        "runtime": {"device": "cuda:1"},
        "privacy": {"noise_multiplier": None},
    }
    assert values == {"method": {"steps": 1, "batch": 2}}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("method.steps", "is not of the form group.key=value"),
        ("=3", "is not of the form group.key=value"),
        ("method.steps.more=3", "goes through 'steps', which is a value and not a group"),
    ],
)
def test_a_setting_that_cannot_be_laid_over_is_refused(setting, sentence):
    with pytest.raises(InputError, match=sentence):
        apply_settings({"method": {"steps": 1}}, [setting])
