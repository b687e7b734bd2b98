"""Hostile signatures: ``model.sig`` of any bytes beside a sound release, also with statements that are truly signed.

Only a signature of exactly the five files as they are may be called valid, whatever else it holds.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from understudy.release import signing
from understudy.release.folders import ALLOWED_FILES, SIGNATURE

from . import seeds
from .mutations import mutate_json


@cache
def _owner() -> tuple[signing.KeyPair, Path]:
    """A key, and a release that is signed with it."""
    from understudy.release.release import load

    home = Path(tempfile.mkdtemp(prefix="understudy-signed-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    key = signing.new_key(home)
    return key, load(seeds.release_folder()).save(home / "release", sign=key.private)


def signatures() -> list[bytes]:
    """``model.sig`` of a signed release."""
    return [(_owner()[1] / SIGNATURE).read_bytes()]


def restate(content: bytes, chance: random.Random) -> bytes:
    """Another statement in the envelope, half of the time with a true signature of the owner's key."""
    bundle = json.loads(content)
    envelope = bundle["dsseEnvelope"]
    payload = mutate_json(base64.b64decode(envelope["payload"]), chance)
    envelope["payload"] = base64.b64encode(payload).decode()
    if chance.random() < 0.5:
        envelope["signatures"][0]["sig"] = base64.b64encode(_signed(payload)).decode()
    return json.dumps(bundle).encode()


def _signed(payload: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    kind = b"application/vnd.in-toto+json"
    framed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    key = serialization.load_pem_private_key(_owner()[0].private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.sign(framed, ec.ECDSA(hashes.SHA256()))


def check(content: bytes, folder: Path) -> None:
    """The signature with and without the owner's key; a valid one is looked at once more."""
    key, release = _owner()
    place = folder / "release"
    shutil.copytree(release, place)
    (place / SIGNATURE).write_bytes(content)
    unchecked = signing.check(place)
    assert unchecked.state in (signing.NOT_CHECKED, signing.REFUSED), unchecked
    if signing.check(place, {key.fingerprint: key.public}).state == signing.VALID:
        assert _stated(content) == {name: _digest(place / name) for name in ALLOWED_FILES}, "it covers other files"


def _stated(content: bytes) -> dict[str, Any]:
    statement = json.loads(base64.b64decode(json.loads(content)["dsseEnvelope"]["payload"]))
    return {each["name"]: each["digest"] for each in statement["predicate"]["resources"]}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
