"""Files that appear whole or not at all: safetensors, text and JSON, written aside, synced and renamed. No pickle.

What is private is written for its owner alone, whatever the umask, and from the moment that its name is there.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from understudy.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_JSON = 4 * 2**20  # bytes
_LARGEST_INTEGER, _MOST_DIGITS = 2**64 - 1, 20  # inodes, and nodes of Flower, are unsigned
_DEEPEST = 64
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)  # a string is skipped as a whole
_YOUNG_SECONDS = 5.0
_OWNER_ONLY_FILE, _OWNER_ONLY_FOLDER, _OTHERS = 0o600, 0o700, 0o077


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Save tensors to a safetensors file of a run; they are for its owner alone."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    temporary = _temporary(path)
    try:
        open_private(temporary, "wb").close()  # a version of safetensors that does not ask who may read finds it closed
        save_file(contiguous, temporary, metadata=dict(metadata or {}))
        _publish(temporary, path)
    except (OSError, SafetensorError) as error:
        _discard(temporary)
        raise _unwritable(path, error) from None


def read_tensors(path: Path, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a damaged or missing one is an InputError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=device) as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise InputError(f"tensors: {path} cannot be read ({error}); the file is missing or damaged") from None


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write a text file, where it is ``private`` for its owner alone."""
    write_bytes(path, text.encode("utf-8"), private=private)


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a binary file, where it is ``private`` for its owner alone."""
    temporary = _temporary(path)
    try:
        with open_private(temporary, "wb") if private else temporary.open("wb") as file:
            file.write(content)
        _publish(temporary, path)
    except OSError as error:
        _discard(temporary)
        raise _unwritable(path, error) from None


def read_json(path: Path, what: str) -> Any:
    """The value of a JSON file, read strictly (``decode_json``) and within a size."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_JSON + 1)
        if len(content) > LARGEST_JSON:
            raise InputError(f"{what}: {path} is larger than {LARGEST_JSON} bytes; it is not a {what}")
        return decode_json(content.decode("utf-8"))
    except OSError as error:
        raise InputError(f"{what}: {path} cannot be read ({error.strerror}); is this a release folder?") from None
    except UnicodeDecodeError:
        raise InputError(f"{what}: {path} is not valid JSON (it is not UTF-8); the file is damaged") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}: {path} is not valid JSON ({error}); the file is damaged") from None


def decode_json(text: str) -> Any:
    """The value of a JSON text, or a ValueError where two readers could see two values in it, or none could.

    A key that occurs twice, NaN and Infinity, a number beyond double precision, an integer beyond 64 bits, deep nesting
    and half a character are refused: nothing here writes them, and what one program shows of them is not what another
    computes with.
    """
    if _depth(text) > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    value = json.loads(
        text, object_pairs_hook=_object, parse_int=_integer, parse_float=_finite, parse_constant=_no_constant
    )
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half a character is escaped") from None
    return value


def _depth(text: str) -> int:
    """How deep lists and objects lie in each other; brackets within strings do not count."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        bracket = found.group()
        if bracket in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in ("]", "}"):
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:60]!r} occurs twice")
        found[key] = value
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS or not -_LARGEST_INTEGER <= int(digits) <= _LARGEST_INTEGER:
        raise ValueError(f"an integer of {len(digits.lstrip('-'))} digits is beyond 64 bits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:60]} is beyond double precision")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def laid_out(value: Any) -> str:
    """A value as the text of a JSON file."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def is_laid_out(path: Path) -> bool:
    """Whether a JSON file that can be read is written as ``laid_out`` does, so that nothing is told by its blanks."""
    with path.open("rb") as file:
        content = file.read(LARGEST_JSON + 1)
    try:
        return laid_out(decode_json(content.decode("utf-8"))).encode("utf-8") == content
    except (ValueError, RecursionError):
        return True  # whoever reads it says what is wrong


def read_object(path: Path, what: str) -> dict[str, Any]:
    """A JSON file that holds an object."""
    raw = read_json(path, what)
    if not isinstance(raw, dict):
        raise InputError(f"{what}: {path} holds a {type(raw).__name__}, but an object is needed; the file is damaged")
    return raw


def file_sha256(path: Path, largest: int | None = None) -> str:
    """The SHA-256 of a file's bytes; one of more than ``largest`` is refused unread, however little disk it takes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if largest is not None and os.fstat(file.fileno()).st_size > largest:
            raise InputError(f"{path.name}: it is larger than {largest} bytes; this is not the file of a release")
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def make_folder(path: Path, what: str) -> None:
    """Create a folder that can be written to, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another process may be probing too
    except OSError as error:
        raise InputError(f"{what}: {path} cannot be written ({error.strerror}); choose another folder") from None


def make_private_folder(path: Path, what: str) -> None:
    """Create a folder that can be written to, and that its owner alone may enter; one that others may is closed."""
    with suppress(OSError):  # whatever it is, the next line says it
        path.mkdir(mode=_OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
    make_folder(path, what)
    close_to_others(path, what)


def close_to_others(folder: Path, what: str) -> None:
    """Take all permissions on a folder, and on everything in it, from everybody but its owner; links are left alone.

    Privacy: earlier versions left private folders to the umask. The outermost is closed first: whoever cannot enter it
    reaches nothing below.
    """
    top = folder.resolve()
    try:
        _close(top)
        for place, folders, files in os.walk(top):
            for name in (*folders, *files):
                _close(Path(place, name))
    except OSError as error:
        raise InputError(
            f"{what}: {folder} is open to other users, and that cannot be changed ({error.strerror}); make it your own "
            "with chown, or choose another folder"
        ) from None


def _close(path: Path) -> None:
    with suppress(FileNotFoundError):  # removed meanwhile
        mode = path.lstat().st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file to write to that its owner alone can read: it is created so, and closed to others before a word."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, _OWNER_ONLY_FILE)
        os.fchmod(descriptor, _OWNER_ONLY_FILE)
        return descriptor

    return open(path, mode, opener=opener, encoding=None if "b" in mode else "utf-8")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def aside(path: Path, folder: bool = False) -> Iterator[Path]:
    """An empty file or folder beside ``path`` for this process alone; gone at the end unless it was renamed.

    Several processes may write to one ``path`` this way: the last one wins, and none sees half of another's. What a
    killed process left there is recognised by its free lock and cleared away.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        _clear_abandoned(left)
    place = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    place.mkdir() if folder else place.touch()
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield place
    finally:
        os.close(descriptor)
        _remove(place)


def _clear_abandoned(place: Path) -> None:
    with suppress(OSError):
        if time.time() - place.stat().st_mtime < _YOUNG_SECONDS:
            return  # its owner may not hold it yet
        descriptor = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(place)
        finally:
            os.close(descriptor)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        _discard(place)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _discard(temporary: Path) -> None:
    with suppress(OSError):  # what went wrong before is what the user must hear
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def _unwritable(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"output: {path} could not be written ({reason}); free the disk or choose another folder")
