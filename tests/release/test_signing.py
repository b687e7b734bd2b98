"""Who vouches for a release: keys, signatures, and everything that is not one."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from understudy.errors import InputError
from understudy.privacy.randomness.streams import SEEDED
from understudy.release import signing
from understudy.release.release import load
from understudy.release.signing import KeyPair, check, new_key, trusted_keys
from understudy.release.verify import Verification, verify

from .building import edit_json, make_release

FILES = ("generator.safetensors", "config.json", "certificate.json", "README.md", "samples.png")


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return new_key(tmp_path_factory.mktemp("owner"), "hospital")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return new_key(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def signed(owner: KeyPair, tmp_path: Path) -> Path:
    return make_release().save(tmp_path / "signed", sign=owner.private)


def refusal(result: Verification) -> str:
    """Why the signature was refused, with which the release must be refused too."""
    assert result.signature.refused
    assert result.verdict == "refused"
    assert not result.passed
    return result.signature.detail


def tool(*arguments: object) -> bool:
    """The command ``model_signing`` of OpenSSF Model Signing, in this process: whether it succeeds."""
    (entry,) = entry_points(group="console_scripts", name="model_signing")
    return CliRunner().invoke(entry.load(), [str(argument) for argument in arguments]).exit_code == 0


def sign_with_the_tool(folder: Path, key: Path, *options: object) -> None:
    assert tool("sign", "key", folder, "--signature", folder / "model.sig", "--private_key", key, *options)


def check_with_the_tool(folder: Path, key: Path) -> bool:
    return tool("verify", "key", folder, "--signature", folder / "model.sig", "--public_key", key)


# Keys


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_private_key_is_for_its_owner_alone_whatever_the_umask(umask: int, tmp_path: Path):
    before = os.umask(umask)
    try:
        made = new_key(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.private.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.public.stat().st_mode) == 0o644
    assert b"PRIVATE" not in made.public.read_bytes()


@pytest.mark.parametrize("there", ["understudy.key", "understudy.pub"])
def test_a_key_is_never_overwritten(there: str, tmp_path: Path):
    (tmp_path / there).symlink_to("nowhere")
    with pytest.raises(InputError, match="never overwritten"):
        new_key(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_two_keys_are_two_keys(owner: KeyPair, stranger: KeyPair):
    assert owner.fingerprint != stranger.fingerprint


def test_a_key_is_not_made_inside_a_release(folder: Path):
    with pytest.raises(InputError, match="where no key belongs"):
        new_key(folder)


def test_the_fingerprint_is_the_digest_of_the_public_key_file(owner: KeyPair):
    import hashlib

    assert owner.fingerprint == hashlib.sha256(owner.public.read_bytes()).hexdigest()
    assert signing.public_fingerprint(owner.public) == owner.fingerprint


def test_a_key_with_a_passphrase_signs_with_it_and_not_without(tmp_path: Path, release):
    made = new_key(tmp_path / "keys", passphrase="correct horse")
    assert b"ENCRYPTED" in made.private.read_bytes()
    for wrong, sentence in ((None, "--passphrase-file"), ("battery", "cannot be opened with this passphrase")):
        with pytest.raises(InputError, match=sentence):
            release.save(tmp_path / "out", sign=made.private, passphrase=wrong)
    assert not (tmp_path / "out").exists()
    place = release.save(tmp_path / "out", sign=made.private, passphrase="correct horse")
    assert verify(place, keys=made.public).signature.state == "valid"
    assert "horse" not in repr(signing.signing_key(made.private, "correct horse"))


def test_what_is_not_the_right_half_of_a_key_is_said(owner: KeyPair, folder: Path, tmp_path: Path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    other = tmp_path / "other.pub"
    pem = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    other.write_bytes(pem)
    (tmp_path / "empty").mkdir()
    (tmp_path / "huge.pub").write_bytes(b"x" * 100_000)
    for keys, sentence in (
        (owner.private, "holds a private key"),
        (folder / "config.json", "no public key"),
        (tmp_path / "empty", "no file that ends in"),
        (tmp_path / "nowhere", "cannot be read"),
        (tmp_path / "huge.pub", "larger than"),
        (other, "use an elliptic curve key"),
    ):
        with pytest.raises(InputError, match=sentence):
            verify(folder, keys=keys)
    with pytest.raises(InputError, match="no private key"):
        load(folder).save(tmp_path / "out", sign=owner.public)


# A signature that holds


def test_a_signed_release_has_a_sixth_file_and_is_verified_with_the_key(signed: Path, owner: KeyPair):
    assert sorted(path.name for path in signed.iterdir()) == sorted((*FILES, "model.sig"))
    result = verify(signed, keys=owner.public)
    assert result.verdict == "verified"
    assert result.as_dict()["signature"]["state"] == "valid"
    assert result.as_dict()["signature"]["fingerprint"] == owner.fingerprint


def test_one_of_a_folder_of_trusted_keys_is_enough(signed: Path, owner: KeyPair, stranger: KeyPair, tmp_path: Path):
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    shutil.copy(stranger.public, trusted / "a.pub")
    assert "not one that you trust" in refusal(verify(signed, keys=trusted))
    shutil.copy(owner.public, trusted / "b.pem")
    assert verify(signed, keys=trusted).signature.state == "valid"


def test_without_a_key_a_signature_is_not_said_to_be_checked(signed: Path, owner: KeyPair):
    result = verify(signed)
    assert result.verdict == "verified"
    assert result.signature.state == "not checked"
    assert result.signature.fingerprint == owner.fingerprint
    assert "not checked: pass --key" in result.signature.detail


def test_without_a_signature_nobody_vouches(folder: Path):
    result = verify(folder)
    assert result.verdict == "verified"
    signature = {"state": "unsigned", "fingerprint": None, "detail": "unsigned: nobody vouches for the events"}
    assert result.as_dict()["signature"] == signature


def test_the_tool_of_the_format_accepts_our_signature_as_it_is_and_we_accept_its(
    signed: Path, owner: KeyPair, stranger: KeyPair, folder: Path, tmp_path: Path
):
    moved = signed.rename(tmp_path / "under another name")
    assert check_with_the_tool(moved, owner.public)
    assert not check_with_the_tool(moved, stranger.public)
    (moved / "README.md").write_text("Trust me.")
    assert not check_with_the_tool(moved, owner.public)
    sign_with_the_tool(folder, owner.private)
    result = verify(folder, keys=owner.public)
    assert result.verdict == "verified"
    assert "the model card names no key" in result.signature.detail


def test_the_signature_names_the_folder_and_not_where_it_was_written(signed: Path):
    assert statement_of(signed)["subject"][0]["name"] == "signed"


def test_the_model_card_names_the_key_and_a_copy_without_it_says_so(signed: Path, owner: KeyPair, tmp_path: Path):
    assert owner.fingerprint in (signed / "README.md").read_text()
    assert "nobody vouches" not in (signed / "README.md").read_text()
    copy = load(signed).save(tmp_path / "copy")
    assert sorted(path.name for path in copy.iterdir()) == sorted(FILES)
    assert owner.fingerprint not in (copy / "README.md").read_text()
    assert "nobody vouches" in (copy / "README.md").read_text()
    assert verify(copy).signature.state == "unsigned"


def test_a_release_may_be_signed_again_by_somebody_else(signed: Path, owner: KeyPair, stranger: KeyPair):
    load(signed).save(signed, sign=stranger.private)
    assert verify(signed, keys=stranger.public).verdict == "verified"
    assert "not one that you trust" in refusal(verify(signed, keys=owner.public))
    assert owner.fingerprint not in (signed / "README.md").read_text()


@pytest.mark.parametrize("curve", ["SECP384R1", "SECP521R1"])
def test_larger_curves_sign_too(curve: str, tmp_path: Path, release):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(getattr(ec, curve)())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "k.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "k.pem").write_bytes(public.replace(b"\n", b"\r\n"))
    place = release.save(tmp_path / "out", sign=tmp_path / "k.key")
    assert verify(place, keys=tmp_path / "k.pem").signature.state == "valid"


def test_nobody_vouches_for_what_is_not_for_release(owner: KeyPair, tmp_path: Path):
    with pytest.raises(InputError, match="nobody should vouch"):
        make_release(randomness=SEEDED).save(tmp_path / "out", allow_seeded=True, sign=owner.private)
    assert not (tmp_path / "out").exists()


def test_a_crash_while_signing_leaves_nothing_half_signed(
    owner: KeyPair, signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    before = {path.name: path.read_bytes() for path in signed.iterdir()}
    monkeypatch.setattr(signing, "sign", crash)
    for place in (tmp_path / "new", signed):
        with pytest.raises(KeyboardInterrupt):
            load(signed).save(place, sign=owner.private)
    assert not (tmp_path / "new").exists()
    assert before == {path.name: path.read_bytes() for path in signed.iterdir()}


# A signature that does not


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_covered_with_or_without_the_key(name: str, signed: Path, owner: KeyPair):
    with (signed / name).open("ab") as file:
        file.write(b" ")
    assert refusal(verify(signed, keys=owner.public)) == f"{name} is not the file that was signed"
    assert check(signed).state == "refused"


def test_another_key_is_refused(signed: Path, stranger: KeyPair):
    assert "not one that you trust" in refusal(verify(signed, keys=stranger.public))


def test_a_missing_signature_is_refused_where_a_key_is_given(folder: Path, owner: KeyPair):
    assert "there is no model.sig" in refusal(verify(folder, keys=owner.public))


def test_a_signature_that_was_taken_away_is_missed_by_the_model_card(signed: Path, owner: KeyPair):
    (signed / "model.sig").unlink()
    for keys in (None, owner.public):
        assert "the model card names" in refusal(verify(signed, keys=keys))


def test_a_model_card_that_names_another_key_is_refused(
    signed: Path, owner: KeyPair, stranger: KeyPair, tmp_path: Path
):
    card = (signed / "README.md").read_text()
    (signed / "README.md").write_text(card.replace(owner.fingerprint, stranger.fingerprint))
    (signed / "model.sig").unlink()
    sign_with_the_tool(signed, owner.private)
    assert check_with_the_tool(signed, owner.public)
    for keys in (None, owner.public):
        assert f"the model card names key {stranger.fingerprint[:16]}" in refusal(verify(signed, keys=keys))


def test_names_from_outside_cannot_name_a_key_in_the_model_card(owner: KeyPair, stranger: KeyPair, tmp_path: Path):
    names = ("a", "b", "c", signing.in_card(stranger.fingerprint))
    place = make_release(class_names=names).save(tmp_path / "out", sign=owner.private)
    assert verify(place, keys=owner.public).signature.state == "valid"


def test_the_list_of_allowed_files_still_applies(signed: Path, owner: KeyPair):
    (signed / ".git").mkdir()
    (signed / ".git" / "records.npz").write_bytes(b"private")
    assert check_with_the_tool(signed, owner.public), "the tool overlooks it"
    result = verify(signed, keys=owner.public)
    assert result.verdict == "refused"
    assert "files" in {each.name for each in result.checks if not each.passed}
    assert "'.git'" in refusal(result)


def test_a_signature_of_another_release_is_refused(signed: Path, owner: KeyPair, tmp_path: Path):
    other = make_release(runs_on_this_data=2).save(tmp_path / "other", sign=owner.private)
    shutil.copy(other / "model.sig", signed)
    assert "is not the file that was signed" in refusal(verify(signed, keys=owner.public))


def test_a_signature_that_leaves_a_file_out_is_refused_though_the_tool_accepts_it(folder: Path, owner: KeyPair):
    sign_with_the_tool(folder, owner.private, "--ignore-paths", str(folder / "certificate.json"))
    assert check_with_the_tool(folder, owner.public)
    edit_json(folder / "certificate.json", lambda certificate: certificate.update(runs_on_this_data=0))
    assert check_with_the_tool(folder, owner.public), "the tool overlooks it"
    assert "exactly the five files" in refusal(verify(folder, keys=owner.public))


def bundle_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model.sig").read_text())


def statement_of(folder: Path) -> dict[str, Any]:
    return json.loads(base64.b64decode(bundle_of(folder)["dsseEnvelope"]["payload"]))


def restate(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what is signed, and leave the signature as it is."""
    statement, bundle = statement_of(folder), bundle_of(folder)
    change(statement)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (folder / "model.sig").write_text(json.dumps(bundle))


def test_a_statement_that_nobody_signed_is_refused(signed: Path, owner: KeyPair):
    """The digest of a changed file is written into the statement: all files fit, and the signature does not."""
    import hashlib

    (signed / "samples.png").write_bytes(b"other samples")
    digest = hashlib.sha256(b"other samples").hexdigest()
    restate(signed, lambda statement: statement["predicate"]["resources"][4].update(digest=digest))
    assert verify(signed).signature.state == "not checked"
    assert "was not made with" in refusal(verify(signed, keys=owner.public))


def test_a_stranger_who_names_the_owners_key_is_refused(
    signed: Path, owner: KeyPair, stranger: KeyPair, tmp_path: Path
):
    (signed / "model.sig").unlink()
    sign_with_the_tool(signed, stranger.private)
    bundle = bundle_of(signed)
    bundle["verificationMaterial"]["publicKey"]["hint"] = owner.fingerprint
    (signed / "model.sig").write_text(json.dumps(bundle))
    assert "was not made with" in refusal(verify(signed, keys=owner.public))


def _resources(change: Callable[[list[Any]], object]) -> Callable[[Path], None]:
    return lambda folder: restate(folder, lambda statement: change(statement["predicate"]["resources"]))


def _bundle(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "model.sig", lambda bundle: change(bundle) and None)


def _bytes(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.sig").write_bytes(content) and None


def _truncated(folder: Path) -> None:
    (folder / "model.sig").write_bytes((folder / "model.sig").read_bytes()[:-40])


def _link(folder: Path) -> None:
    (folder / "model.sig").rename(folder.parent / "elsewhere.sig")
    (folder / "model.sig").symlink_to(folder.parent / "elsewhere.sig")


def _pipe(folder: Path) -> None:
    (folder / "model.sig").unlink()
    os.mkfifo(folder / "model.sig")


def _folder(folder: Path) -> None:
    (folder / "model.sig").unlink()
    (folder / "model.sig").mkdir()


def _twice(folder: Path) -> None:
    text = (folder / "model.sig").read_text()
    (folder / "model.sig").write_text(text[:-1] + ', "dsseEnvelope": {}' + "}")


HOSTILE: dict[str, Callable[[Path], None]] = {
    "empty": _bytes(b""),
    "truncated": _truncated,
    "huge": _bytes(b"{" + b" " * 10_000_000 + b"}"),
    "no text": _bytes(bytes(range(256))),
    "deep": _bytes(b"[" * 50_000),
    "other JSON": _bytes(b'{"a": [1, 2, null]}'),
    "a list": _bytes(b"[]"),
    "a number": _bytes(b"1e999"),
    "a link": _link,
    "a pipe": _pipe,
    "a folder": _folder,
    "a field twice": _twice,
    "a field under another name": _bundle(lambda bundle: bundle.update(dsse_envelope=bundle["dsseEnvelope"])),
    "no material": _bundle(lambda bundle: bundle.pop("verificationMaterial")),
    "material of another type": _bundle(lambda bundle: bundle.update(verificationMaterial=3)),
    "no hint": _bundle(lambda bundle: bundle["verificationMaterial"]["publicKey"].pop("hint")),
    "a hint of another type": _bundle(lambda bundle: bundle["verificationMaterial"]["publicKey"].update(hint=[1])),
    "a certificate": _bundle(lambda bundle: bundle["verificationMaterial"].update(certificate={"rawBytes": ""})),
    "no signature": _bundle(lambda bundle: bundle["dsseEnvelope"].update(signatures=[])),
    "two signatures": _bundle(lambda bundle: bundle["dsseEnvelope"]["signatures"].append({"sig": "AA=="})),
    "a signature of no bytes": _bundle(lambda bundle: bundle["dsseEnvelope"].update(signatures=[{"sig": ""}])),
    "a signature of other bytes": _bundle(lambda bundle: bundle["dsseEnvelope"]["signatures"][0].update(sig="AAAA")),
    "no base64": _bundle(lambda bundle: bundle["dsseEnvelope"].update(payload="\u20ac")),
    "a payload of another type": _bundle(lambda bundle: bundle["dsseEnvelope"].update(payloadType="text/plain")),
    "another media type": _bundle(lambda bundle: bundle.update(mediaType="text/plain")),
    "deep payload": _bundle(
        lambda bundle: bundle["dsseEnvelope"].update(payload=base64.b64encode(b"[" * 40_000).decode())
    ),
    "another statement": lambda folder: restate(folder, lambda statement: statement.clear()),
    "another predicate": lambda folder: restate(folder, lambda statement: statement.update(predicateType="x")),
    "no files": _resources(lambda files: files.clear()),
    "a file less": _resources(lambda files: files.pop()),
    "a file twice": _resources(lambda files: files.append(files[0])),
    "a path outside": _resources(lambda files: files.append(files[0] | {"name": "../../etc/passwd"})),
    "an absolute path": _resources(lambda files: files[0].update(name="/etc/passwd")),
    "another digest": _resources(lambda files: files[0].update(algorithm="blake2")),
    "a digest of another type": _resources(lambda files: files[0].update(digest=7)),
    "names of another type": _resources(lambda files: [file.update(name=1) for file in files]),
}


SEEN_WITH_A_KEY_ONLY = {
    "a signature of no bytes",
    "a signature of other bytes",
    "a payload of another type",
    "another media type",
    "another predicate",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_signatures_get_a_verdict(kind: str, signed: Path, owner: KeyPair, capsys: pytest.CaptureFixture[str]):
    HOSTILE[kind](signed)
    found = check(signed, trusted_keys(owner.public))
    assert found.refused, found
    assert check(signed).state == ("not checked" if kind in SEEN_WITH_A_KEY_ONLY else "refused")
    assert capsys.readouterr().out == "", "nothing but the verdict is printed"
    if kind in ("a link", "no text", "another media type"):
        result = verify(signed, keys=owner.public)
        assert refusal(result) == found.detail
        assert json.loads(json.dumps(result.as_dict()))["signature"] == found.as_dict()


def test_a_model_card_of_any_bytes_gets_a_verdict(signed: Path, owner: KeyPair):
    (signed / "README.md").write_bytes(b"\xff" * 5_000_000)
    assert refusal(verify(signed, keys=owner.public)) == "README.md is not the file that was signed"


# Without the extra


def test_keys_are_refused_with_the_way_out_where_the_extra_is_missing(
    signed: Path, folder: Path, owner: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in list(sys.modules):
        if name.split(".")[0] in ("model_signing", "cryptography", "OpenSSL"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "model_signing", None)
    assert verify(folder).signature.state == "unsigned"
    assert verify(signed).signature.state == "not checked"
    for action in (
        lambda: verify(signed, keys=owner.public),
        lambda: load(folder).save(tmp_path / "out", sign=owner.private),
        lambda: new_key(tmp_path / "keys"),
    ):
        with pytest.raises(InputError, match=r"pip install 'understudy\[sign\]'"):
            action()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["README.md", "samples.png"])
def test_a_signed_file_that_grew_to_a_terabyte_is_refused_unread(signed: Path, name: str):
    os.truncate(signed / name, 2**40)
    assert "is larger than" in refusal(verify(signed))
