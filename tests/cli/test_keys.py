"""``understudy keys``, ``release --sign``, ``verify --key`` and ``report --key``: from a key to a checked signature."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import understudy as us

from .calling import Caller


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; nothing here changes it."""
    place = tmp_path_factory.mktemp("finished") / "run"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    data = us.from_arrays(pixels, np.arange(40) % 3, records=40, classes=3)
    config = {"method": {"frequencies": 16, "steps": 2, "width": 4}}
    us.train("dp-merf", data, us.Budget(10, 1e-5), place, us.TrainOptions(config=config))
    return place


@pytest.fixture
def keys(call: Caller, tmp_path: Path) -> dict[str, str]:
    return call("keys", "new", "--to", tmp_path / "keys", "--name", "hospital", "--json").json()


@pytest.fixture
def signed(call: Caller, keys: dict[str, str], run: Path, tmp_path: Path) -> Path:
    answer = call("release", run, "--to", tmp_path / "signed", "--sign", keys["private"])
    assert answer.out.splitlines()[-1] == f"signed with key {keys['fingerprint']}"
    return tmp_path / "signed"


def test_a_new_key_says_what_each_half_is_for(call: Caller, tmp_path: Path):
    answer = call("keys", "new", "--to", tmp_path / "keys")
    assert answer.code == 0
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == ["understudy.key", "understudy.pub"]
    fingerprint = answer.out.splitlines()[-1].removeprefix("fingerprint: ")
    assert call("keys", "show", tmp_path / "keys" / "understudy.pub").out.split()[0] == fingerprint
    assert call("keys", "show", tmp_path / "keys", "--json").json()["keys"][0]["fingerprint"] == fingerprint
    assert "never overwritten" in call.refused("keys", "new", "--to", tmp_path / "keys")
    assert "cannot name a key" in call.refused("keys", "new", "--to", tmp_path / "keys", "--name", "../elsewhere")
    assert "holds a private key" in call.refused("keys", "show", tmp_path / "keys" / "understudy.key")


def test_from_a_run_to_a_checked_signature(call: Caller, run: Path, signed: Path, keys: dict[str, str], tmp_path: Path):
    checked = call("verify", signed, "--key", keys["public"])
    assert checked.code == 0
    assert f"signed with key {keys['fingerprint'][:16]}" in checked.out
    assert call("verify", signed, "--key", tmp_path / "keys", "--json").json()["signature"]["state"] == "valid"
    unchecked = call("verify", signed)
    assert unchecked.code == 0
    assert "but not checked: pass --key" in unchecked.out
    bare = call("verify", run)
    assert bare.code == 0
    assert "unsigned: nobody vouches for the events" in bare.out
    assert "there is no model.sig" in call.refused("verify", run, "--key", keys["public"], code=1)


def test_a_wrong_signature_is_refused_with_exit_code_one(call: Caller, signed: Path, tmp_path: Path):
    other = call("keys", "new", "--to", tmp_path / "other", "--json").json()
    assert "not one that you trust" in call.refused("verify", signed, "--key", other["public"], code=1)
    (signed / "README.md").write_text("Trust me.")
    answer = call("verify", signed, "--json")
    assert answer.code == 1
    assert answer.json()["signature"]["state"] == answer.json()["verdict"] == "refused"


@pytest.mark.slow
def test_other_commands_read_a_signed_release(
    call: Caller, run: Path, signed: Path, keys: dict[str, str], archive: Path, tmp_path: Path
):
    assert call("sample", signed, "-n", 3, "--to", tmp_path / "out.npz").code == 0
    assert call("inspect", signed, "--samples", 50, "--to", tmp_path / "inspect.html").code == 0
    scored = ("--test-data", archive, "--metrics", "gaussian_nb", "--samples", 30, "--workers", 1)
    assert call("evaluate", signed, "--data", archive, *scored).code == 0
    for options, words in (((), "not checked"), (("--key", keys["public"]), "which you trust")):
        assert call("report", signed, "--to", tmp_path / "report.html", *options).code == 0
        page = (tmp_path / "report.html").read_text()
        assert keys["fingerprint"] in page
        assert words in page
    assert call("report", run, "--to", tmp_path / "report.html").code == 0
    assert "nobody vouches for the events" in (tmp_path / "report.html").read_text()


def test_a_signature_is_not_lost_by_accident(
    call: Caller, run: Path, signed: Path, keys: dict[str, str], tmp_path: Path
):
    assert "is signed; sign again with --sign" in call.refused("release", run, "--to", signed)
    assert call("release", run, "--to", signed, "--sign", keys["private"]).code == 0
    assert call("verify", signed, "--key", keys["public"]).code == 0
    unsigned = call("release", run, "--to", tmp_path / "unsigned")
    assert unsigned.out.splitlines()[-1] == "unsigned: nobody vouches for the events"
    (tmp_path / "audits.json").write_text('{"audits": []}')
    assert "is signed as it is" in call.refused("audit", "record", signed, tmp_path / "audits.json")


def test_release_says_what_is_wrong_with_a_key_before_it_does_anything(call: Caller, run: Path, tmp_path: Path):
    (tmp_path / "secret").write_text("correct horse\nof no importance")
    (tmp_path / "empty").touch()
    made = call("keys", "new", "--to", tmp_path, "--passphrase-file", tmp_path / "secret", "--json").json()
    signing = ["release", run, "--to", tmp_path / "out", "--sign", made["private"]]
    assert "name a folder for it with --to" in call.refused("release", run, "--sign", made["private"])
    assert "needs its passphrase; pass --passphrase-file" in call.refused(*signing)
    assert "is empty" in call.refused(*signing, "--passphrase-file", tmp_path / "empty")
    assert "cannot be read" in call.refused(*signing, "--passphrase-file", tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()
    assert (
        call(*signing, "--passphrase-file", tmp_path / "secret", "--json").json()["signed_with"] == made["fingerprint"]
    )


_CHILD = """
import json, sys
sys.modules["model_signing"] = None  # as if the extra were not installed
from understudy.cli.main import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted({"cryptography", "OpenSSL", "sigstore"} & set(sys.modules))]), file=sys.stderr)
"""


def test_verify_without_a_key_does_without_the_extra(released: Path):
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, "verify", released], capture_output=True, text=True, timeout=120
    )
    assert json.loads(child.stderr) == [0, []]


def test_a_key_without_the_extra_is_bad_input(call: Caller, released: Path, keys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "model_signing", None)
    sentence = call.refused("verify", released, "--key", keys["public"])
    assert sentence.endswith("install it with pip install 'understudy[sign]'\n")
