"""``understudy federated`` on the command line: simulate, init, spending, and what is said about bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from understudy.release.release import load
from understudy.release.verify import verify

from ..federated.helpers import tiny_config
from .calling import Caller

SIMULATE = ("federated", "simulate", "--data", "digits", "--epsilon", "10", "--delta", "1e-5")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny_config()))
    return str(path)


def test_simulate_deals_out_data_without_clients_and_says_what_holds_against_whom(config, tmp_path, call: Caller):
    answer = call(*SIMULATE, "--clients", "5", "--config", config, "--out", str(tmp_path / "run"))
    assert answer.code == 0, answer.err
    for words in (
        "against the public, that is whoever sees the release: epsilon",
        "against the server that runs the training and sees every answer: epsilon",
        "against clients that took part and share what they saw (a coalition of 1): epsilon",
    ):
        assert words in answer.out
    assert load(tmp_path / "run").certificate.events[0].sampling.subsets == 5
    assert verify(tmp_path / "run").passed


def test_train_in_one_process_states_no_figure_against_a_server_that_was_not_there(config, tmp_path, call: Caller):
    images, clients = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 5
    np.savez(tmp_path / "wards.npz", images=images, clients=clients)
    declared = ("--records", 20, "--declare", "clients=true", "--declare", "nominal_clients=5")
    budget = ("--epsilon", 10, "--delta", "1e-5", "--config", config)
    answer = call(
        "train", "gs-wgan-federated", "--data", tmp_path / "wards.npz", *declared, *budget, "--out", tmp_path / "run"
    )
    assert answer.code == 0, answer.err
    assert "against the public, that is whoever sees the release: epsilon" in answer.out
    assert "all clients were in this one process, so there was no server" in answer.out
    assert "against the server" not in answer.out


def test_simulate_can_answer_in_json(config, tmp_path, call: Caller):
    answer = call(*SIMULATE, "--clients", "3", "--config", config, "--out", str(tmp_path / "run"), "--json")
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)
    assert [guarantee["viewer"] for guarantee in said["guarantees"]] == ["public", "server", "client"]
    assert said["epsilon"] <= 10


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((*SIMULATE, "--out", "x"), 2, "pass --clients N to deal the records out"),
        ((*SIMULATE, "--out", "x", "--clients", "0"), 2, "clients: 0 is not a positive whole number"),
        ((*SIMULATE, "--out", "x", "--clients", "3", "--method", "no-such"), 2, "method: 'no-such' is unknown"),
        ((*SIMULATE, "--out", "x", "--clients", "3", "--method", "dp-merf"), 2, "method: dp-merf cannot be federated"),
        (("federated", "spending", "no-such-folder"), 2, "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(arguments, code, words, tmp_path, monkeypatch, call: Caller):
    monkeypatch.chdir(tmp_path)
    answer = call(*arguments)
    assert answer.code == code
    assert words in answer.err
    assert answer.err.count("\n") == 1


def test_a_federation_can_be_planned_without_data(config, call: Caller):
    arguments = ("plan", "gs-wgan-federated", "--records", "30", "--shape", "8x8", "--classes", "3", "--config", config)
    answer = call(*arguments, "--epsilon", "10", "--delta", "1e-5", "--clients", "3")
    assert answer.code == 0, answer.err
    assert "bytes to and from each client" in answer.out
    assert "nominal_clients: 3" in answer.out
    assert "declare nominal_clients" in call.refused(*arguments, "--epsilon", "10", "--delta", "1e-5")


def test_init_writes_a_federation_and_a_client_can_print_its_spending(config, tmp_path, call: Caller):
    pytest.importorskip("flwr", reason="the extra [federated] is not installed")
    options = (
        "--clients",
        "3",
        "--epsilon",
        "10",
        "--delta",
        "1e-5",
        "--records",
        "30",
        "--shape",
        "8x8",
        "--classes",
        "3",
    )
    folder = tmp_path / "federation"
    answer = call("federated", "init", str(folder), *options, "--config", config, "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["clients"] == 3
    assert sorted(path.name for path in (folder / "clients").iterdir()) == ["client-000", "client-001", "client-002"]
    answer = call("federated", "spending", str(folder / "clients" / "client-001"), "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out) | {"most_epsilon": 0} == {
        "client": 1, "answers": 0, "most_answers": 40, "epsilon": 0.0, "most_epsilon": 0, "delta": 1e-5,
        "unit": "client", "adjacency": "replace-one", "viewer": "server",
    }  # fmt: skip
    again = call("federated", "init", str(folder), *options, "--config", config)
    assert again.code == 2
    assert "holds one already" in again.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "0"), "--port: input should be greater than or equal to 1"),
        (("--round-seconds", "nan"), "--round-seconds: input should be a finite number"),
        (("--round-seconds", "0"), "--round-seconds: input should be greater than 0"),
        (("--least-clients", "0"), "--least-clients: input should be greater than or equal to 1"),
        (("--least-clients", "4"), "--least-clients: only 3 clients are enrolled, so 4 never come"),
        (("--host", ""), "host: '' is no name or address"),
        (("--host", "two words"), "host: 'two words' is no name or address"),
        (("--host", "b\u00fccher.example"), "in its xn-- form"),
        (("--host", "0.0.0.0"), "0.0.0.0 as --listen only"),
        (("--listen", "not an address"), "host: 'not an address' is no name or address"),
        (("--set", "method=3"), "config: method: 3"),
        (("--set", "privacy.unknown=3"), "unknown key 'privacy.unknown'"),
        (("--epsilon", "nan"), "epsilon: nan is not a positive finite number"),
        (("--client-epsilon", "0"), "epsilon: 0.0 is not a positive finite number"),
    ],
)
def test_init_refuses_bad_input_in_one_sentence_and_writes_nothing(arguments, words, config, tmp_path, call: Caller):
    pytest.importorskip("flwr", reason="the extra [federated] is not installed")
    declared = ("--clients", "3", "--records", "30", "--shape", "8x8", "--classes", "3", "--config", config)
    folder = tmp_path / "federation"
    budget = ("--epsilon", "10", "--delta", "1e-5")
    assert words in call.refused("federated", "init", folder, *declared, *budget, *arguments)
    assert not folder.exists()


@pytest.fixture
def home(config, tmp_path, call: Caller):
    """The folder of a client as init wrote it."""
    pytest.importorskip("flwr", reason="the extra [federated] is not installed")
    declared = ("--clients", "3", "--records", "30", "--shape", "8x8", "--classes", "3", "--config", config)
    answer = call("federated", "init", tmp_path / "federation", *declared, "--epsilon", "10", "--delta", "1e-5")
    assert answer.code == 0, answer.err
    return tmp_path / "federation" / "clients" / "client-001"


@pytest.mark.parametrize("address", ["server", "server:", ":9092", "server:0", "server:65536", "server:port"])
def test_a_client_refuses_what_is_no_address_and_does_not_keep_it(address, home, call: Caller):
    before = (home / "client.json").read_bytes()
    words = f"superlink: {address!r} is no address of a server; pass --superlink HOST:PORT"
    assert words in call.refused("federated", "client", home, "--superlink", address)
    assert (home / "client.json").read_bytes() == before


@pytest.mark.parametrize(("data", "kept"), [("images.npz", "{here}/images.npz"), ("digits", "digits")])
def test_where_the_images_are_is_kept_for_a_start_from_anywhere(data, kept, home, tmp_path, monkeypatch, call: Caller):
    from understudy.federated.deployment import supernode

    monkeypatch.setattr(supernode, "run_client", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    assert call("federated", "client", home, "--data", data).code == 0
    assert json.loads((home / "client.json").read_text())["source"] == kept.format(here=tmp_path)


def test_without_flower_the_way_out_is_named(tmp_path, monkeypatch, call: Caller):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = call("federated", "demo", "--out", str(tmp_path / "demo"))
    assert answer.code == 2
    assert "pip install 'understudy[federated]'" in answer.err


def test_flower_is_told_not_to_phone_home_before_it_is_imported(monkeypatch):
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    script = (
        "import os, sys; from understudy.cli import federated; federated._require_flower(); "
        "assert 'flwr' not in sys.modules; print(os.environ['FLWR_TELEMETRY_ENABLED'])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "0", result.stderr
