"""Who vouches for a release: keys, and ``model.sig`` in the format of OpenSSF Model Signing.

A certificate proves its arithmetic; that its events took place is a statement of whoever trained. A signature says
whose statement it is, and covers every file of the release. Signing and checking need no network. The libraries behind
both are an extra and are imported when a key is at hand; what a signature says of itself is read without them.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from understudy.errors import InputError, UnderstudyError
from understudy.files import decode_json, file_sha256, read_object, write_bytes
from understudy.release import folders

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

UNSIGNED, NOT_CHECKED, VALID, REFUSED = "unsigned", "not checked", "valid", "refused"
NOBODY_VOUCHES = "unsigned: nobody vouches for the events"

_PRIVATE_ENDING, _PUBLIC_ENDINGS = ".key", (".pub", ".pem")
_CURVES = ("secp256r1", "secp384r1", "secp521r1")  # those of the format
_MOST_BYTES = 64 * 2**10  # of a key or a signature; ours have some thousands at most
_MOST_CARD_BYTES = 4 * 2**20
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_IN_CARD = re.compile(r"the key with the SHA-256 fingerprint `([0-9a-f]{64})`")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Signature:
    """What is known of the signature of a release: its state, the key that it names unless refused, and a sentence.

    ``unsigned``: there is none. ``not checked``: there is one, and it names the files as they are, but no key was at
    hand. ``valid``: made with a key that is trusted. ``refused``: wrong, or missing where it must not be.
    """

    state: str
    fingerprint: str | None
    detail: str

    @property
    def refused(self) -> bool:
        """Whether the release must be refused because of it."""
        return self.state == REFUSED

    def as_dict(self) -> dict[str, str | None]:
        """Plain data for ``--json``."""
        return {"state": self.state, "fingerprint": self.fingerprint, "detail": self.detail}


NONE = Signature(UNSIGNED, None, NOBODY_VOUCHES)


@dataclass(frozen=True)
class SigningKey:
    """A private key that was read: where it lies, and the fingerprint of its public half."""

    path: Path
    fingerprint: str
    passphrase: bytes | None = field(default=None, repr=False)


# Keys


@dataclass(frozen=True)
class KeyPair:
    """Two new files: the key that signs and stays where it is, and the one to hand out."""

    private: Path
    public: Path
    fingerprint: str


def new_key(folder: Path | str, name: str = "understudy", passphrase: str | None = None) -> KeyPair:
    """Make a key (elliptic curve P-256) and write both halves to a folder; nothing is ever overwritten.

    The private half is readable by its owner alone, whatever the umask, and encrypted if there is a passphrase.
    """
    _require_libraries()
    from cryptography.hazmat.primitives.asymmetric import ec

    place = Path(folder)
    pair = place / f"{name}{_PRIVATE_ENDING}", place / f"{name}{_PUBLIC_ENDINGS[0]}"
    _check_new(place, name, pair)
    key = ec.generate_private_key(ec.SECP256R1())
    public = _public_pem(key.public_key())
    try:
        place.mkdir(parents=True, exist_ok=True)
        _write_new(pair[0], _private_pem(key, passphrase), 0o600)
        try:
            _write_new(pair[1], public, 0o644)
        except OSError:
            pair[0].unlink()
            raise
    except OSError as error:
        raise InputError(f"keys: {place} cannot be written ({error.strerror}); choose another folder") from None
    return KeyPair(*pair, _fingerprint(public))


def _check_new(place: Path, name: str, pair: tuple[Path, Path]) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"keys: {name!r} cannot name a key; use letters, digits, dots, hyphens and underscores")
    if (place / folders.CERTIFICATE).exists():
        raise InputError(f"keys: {place} holds a release, where no key belongs; choose another folder")
    for path in pair:
        if os.path.lexists(path):
            raise InputError(f"keys: {path} exists, and a key is never overwritten; choose another --name or folder")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _private_pem(key: EllipticCurvePrivateKey, passphrase: str | None) -> bytes:
    from cryptography.hazmat.primitives import serialization

    if passphrase is None:
        protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    else:
        protection = serialization.BestAvailableEncryption(passphrase.encode("utf-8"))
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


def _public_pem(key: EllipticCurvePublicKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _fingerprint(public_pem: bytes) -> str:
    """The SHA-256 of the public key file, as ``sha256sum`` prints it and as ``model.sig`` names its key."""
    import hashlib

    return hashlib.sha256(public_pem).hexdigest()


def public_fingerprint(path: Path | str) -> str:
    """The fingerprint of a public key in a file."""
    _require_libraries()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    content = _key_bytes(Path(path))
    if b"PRIVATE KEY" in content:
        raise InputError(f"key: {path} holds a private key; pass the public one, and keep this one to yourself")
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"key: {path} holds no public key in PEM format; `understudy keys new` makes one") from None
    return _fingerprint(_public_pem(_checked_curve(key, path)))


def trusted_keys(path: Path | str) -> dict[str, Path]:
    """Public keys by their fingerprints: that of one file, or all that end in .pub or .pem in a folder."""
    place = Path(path)
    if not place.is_dir():
        return {public_fingerprint(place): place}
    found = sorted(entry for entry in place.iterdir() if entry.suffix in _PUBLIC_ENDINGS)
    if not found:
        raise InputError(f"key: {place} holds no file that ends in .pub or .pem; put the keys that you trust there")
    return {public_fingerprint(entry): entry for entry in found}


def signing_key(path: Path | str, passphrase: str | None = None) -> SigningKey:
    """A private key to sign with; what is wrong with it is one sentence."""
    _require_libraries()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    content, secret = _key_bytes(Path(path)), None if passphrase is None else passphrase.encode("utf-8")
    if b"PRIVATE KEY" not in content:
        raise InputError(f"key: {path} holds no private key in PEM format; pass the {_PRIVATE_ENDING} file of yours")
    try:
        key = serialization.load_pem_private_key(content, secret)
    except TypeError:
        problem = "needs its passphrase" if secret is None else "has no passphrase"
        way = "pass --passphrase-file FILE" if secret is None else "leave --passphrase-file out"
        raise InputError(f"key: {path} {problem}; {way} (in Python passphrase=...)") from None
    except (ValueError, UnsupportedAlgorithm):
        reason = "is not a private key" if secret is None else "cannot be opened with this passphrase"
        raise InputError(f"key: {path} {reason}, or is damaged; try another one") from None
    return SigningKey(Path(path), _fingerprint(_public_pem(_checked_curve(key.public_key(), path))), secret)


def _key_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"key: {path} cannot be read ({error.strerror}); pass the file of a key") from None
    if len(content) > _MOST_BYTES:
        raise InputError(f"key: {path} is larger than {_MOST_BYTES} bytes; it is not a key")
    return content


def _checked_curve(key: Any, path: Path | str) -> EllipticCurvePublicKey:
    curve = getattr(getattr(key, "curve", None), "name", None)
    if curve not in _CURVES:
        kind = curve or type(key).__name__.strip("_")
        raise InputError(f"key: {path} is of kind {kind}; use an elliptic curve key on P-256, P-384 or P-521")
    return key


# Signing


def in_card(fingerprint: str) -> str:
    """How a model card names the key; ``check`` finds the name again."""
    return f"the key with the SHA-256 fingerprint `{fingerprint}`"


def sign(place: Path, name: str, key: SigningKey) -> None:
    """Write ``model.sig`` for all files of a folder; ``name`` is what the folder will be called."""
    _require_libraries()
    from model_signing import hashing, signing

    secret: Any = key.passphrase  # bytes, as the library behind it needs
    ignoring = hashing.Config().set_ignored_paths(paths=[folders.SIGNATURE], ignore_git_paths=False)
    config = signing.Config().use_elliptic_key_signer(private_key=key.path, password=secret)
    target = place / folders.SIGNATURE
    config.set_hashing_config(_Named(ignoring, name)).sign(place, target)  # type: ignore[arg-type]
    write_bytes(target, target.read_bytes())  # synced, as the other files are


class _Named:
    """Hashes a folder under another name than the temporary one in which a release is written."""

    def __init__(self, config: Any, name: str) -> None:
        self._config, self._name = config, name

    def hash(self, model_path: Path) -> Any:
        """The manifest of a folder: what the library signs."""
        from model_signing.manifest import FileManifestItem, Manifest, SerializationType

        found = self._config.hash(model_path)
        items = [
            FileManifestItem(path=PurePosixPath(each.identifier), digest=each.digest)
            for each in found.resource_descriptors()
        ]
        return Manifest(self._name, items, SerializationType.from_args(found.serialization_type))


# Checking


def check(place: Path, trusted: Mapping[str, Path] | None = None) -> Signature:
    """What the signature of a release folder is worth; with ``trusted`` keys it must be there and be one of theirs.

    Whatever the bytes are, the answer is a ``Signature``. One that does not name exactly the five files as they are is
    refused without any key, and so is a folder whose model card names another key than the signature or has lost it.
    """
    try:
        return _found(place, trusted)
    except UnderstudyError as error:
        return Signature(REFUSED, None, str(error))
    except Exception as error:  # hostile bytes may fail in any way
        return Signature(REFUSED, None, f"model.sig cannot be read ({type(error).__name__}); it is damaged")


def _found(place: Path, trusted: Mapping[str, Path] | None) -> Signature:
    """The signature of a folder; an InputError where it must be refused."""
    path, named = place / folders.SIGNATURE, _named_in_card(place / folders.MODEL_CARD)
    if not os.path.lexists(path):
        if named:
            raise InputError(f"the model card names {_short(min(named))}, but there is no model.sig")
        if trusted is not None:
            raise InputError("there is no model.sig, so none of the keys that you trust vouches for it")
        return NONE
    fingerprint, digests = _read(path)
    _compare_files(place, digests)
    if others := named - {fingerprint}:
        raise InputError(f"the model card names {_short(min(others))}, but model.sig {_short(fingerprint)}")
    if trusted is None:
        words = f"signed with {_short(fingerprint)}, but not checked: pass --key"
        return Signature(NOT_CHECKED, fingerprint, words)
    _check_with(trusted, fingerprint, place, path)
    card = "" if named else "; the model card names no key"
    return Signature(VALID, fingerprint, f"every file is signed with {_short(fingerprint)}, which you trust{card}")


def _short(fingerprint: str) -> str:
    return f"key {fingerprint[:16]}..."


def _named_in_card(path: Path) -> set[str]:
    """The fingerprints that a model card names; a card that cannot be read names none."""
    if path.is_symlink() or not path.is_file():
        return set()
    with path.open("rb") as file:
        return set(_IN_CARD.findall(file.read(_MOST_CARD_BYTES).decode("utf-8", "replace")))


def _read(path: Path) -> tuple[str, dict[str, str]]:
    """The key that a signature names, and the SHA-256 that it states of each file; nothing is proven by that."""
    if path.is_symlink() or not path.is_file():
        raise InputError("model.sig is not a plain file")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"model.sig is larger than {_MOST_BYTES} bytes; it is not the signature of a release")
    bundle = read_object(path, "signature")
    try:
        fingerprint = bundle["verificationMaterial"]["publicKey"]["hint"]
        statement = decode_json(base64.b64decode(bundle["dsseEnvelope"]["payload"], validate=True).decode("utf-8"))
        stated = [(each["name"], each["algorithm"], each["digest"]) for each in statement["predicate"]["resources"]]
        understood = _is_plain(bundle) and _FINGERPRINT.fullmatch(fingerprint) is not None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        understood = False
    if not understood:
        raise InputError("model.sig is not a signature with a key in the format of OpenSSF Model Signing")
    if sorted(map(str, (name for name, _, _ in stated))) != sorted(folders.ALLOWED_FILES):
        raise InputError("model.sig does not name exactly the five files of a release, so it does not cover them")
    if any(algorithm != "sha256" for _, algorithm, _ in stated):
        raise InputError("model.sig states other digests than SHA-256; sign the release again")
    return fingerprint, {name: str(digest) for name, _, digest in stated}


def _is_plain(bundle: Mapping[str, Any]) -> bool:
    """Whether a signature has the fields of one made with a key and no other, which another reader might prefer."""
    material, envelope = bundle["verificationMaterial"], bundle["dsseEnvelope"]
    (signature,) = envelope["signatures"]
    return (
        bundle.keys() == {"mediaType", "verificationMaterial", "dsseEnvelope"}
        and material.keys() <= {"publicKey", "tlogEntries"}
        and material["publicKey"].keys() == {"hint"}
        and envelope.keys() == {"payload", "payloadType", "signatures"}
        and signature.keys() <= {"sig", "keyid"}
    )


def _compare_files(place: Path, digests: Mapping[str, str]) -> None:
    others = sorted({entry.name for entry in place.iterdir()} - {*folders.ALLOWED_FILES, folders.SIGNATURE})
    if others:
        raise InputError(f"the folder also holds {others[0]!r}, which no signature of a release covers")
    for name in folders.ALLOWED_FILES:
        path = place / name
        if path.is_symlink() or not path.is_file():
            raise InputError(f"model.sig names {name}, which is missing or not a plain file")
        if file_sha256(path, folders.LARGEST_BYTES) != digests[name]:
            raise InputError(f"{name} is not the file that was signed")


def _check_with(trusted: Mapping[str, Path], fingerprint: str, place: Path, path: Path) -> None:
    """Check the signature with the trusted key that it names; the name alone proves nothing."""
    if fingerprint not in trusted:
        known = ", ".join(_short(each) for each in sorted(trusted)[:3])
        raise InputError(f"model.sig names {_short(fingerprint)}, which is not one that you trust ({known})")
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    config = verifying.Config().use_elliptic_key_verifier(public_key=trusted[fingerprint])
    try:
        config.verify(place, path)
    except InvalidSignature:
        raise InputError(f"model.sig was not made with {_short(fingerprint)}, which it names") from None


def _require_libraries() -> None:
    try:
        import cryptography
        import model_signing.signing  # noqa: F401
    except ImportError:
        raise InputError("key: signatures need model-signing; install it with pip install 'understudy[sign]'") from None
    del cryptography
