"""Which data an account has seen: a private print that only warns their owner, on this machine.

Nothing is decided by it, and nothing of it is published: whether data were seen before depends on the data. The prints
are kept beside the accounts, for their owner alone. They are made with a key that lies in a file of its own, so that
they confirm no guess to whoever gets hold of them alone.

An image is marked by how bright its parts are, so that data are mostly known again in another size, and in grey; but
hardly at 8x8, where parts are of few pixels. Images of one kind may now and then have a mark in common.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import secrets
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from understudy.data.dataset import ImageDataset
from understudy.errors import UnderstudyError
from understudy.files import read_object, write_text
from understudy.runs.accounts import account_names, accounts_folder, exclusive

_KEPT = 256  # smallest marks of single images: enough to tell a tenth in common from none
_SHARED = 0.1
_BLOCK = 1024
_GRID, _STEP = 4, 16  # fields of an image to each side, and the shades that count as one (of 256)
_GREY = np.array([0.299, 0.587, 0.114])  # as pictures are turned to grey
Seen = dict[str, list[list[str]]]


def warn_past_accounts(data: ImageDataset, account: str | None, warn: Callable[[str], None] | None) -> None:
    """Tell the owner that these data belong to an account that this run is not charged to.

    Privacy: it depends on the data, so it is said to whoever runs this program and written nowhere.
    """
    names = account_names()
    if not any(name != account for name in names):
        return
    try:
        key, seen = _read()
        if not any(seen.get(name) for name in names if name != account):
            return
        marks = _print(data, key)
    except (UnderstudyError, OSError, ValueError) as error:
        _tell(warn, f"account: whether these data belong to one cannot be told ({error}); remove the file to end this")
        return
    for name in names:
        if name != account and any(_alike(marks, set(known)) for known in seen.get(name, [])):
            _tell(
                warn,
                f"account: these data went through {name} before, which does not count this run; pass --account {name} "
                "(account=...) to have it counted, or its promise holds without this run only",
            )


def remember(account: str | None, data: ImageDataset) -> None:
    """Keep the print of data that are charged to an account, if they are to any.

    Privacy: it stays in a file of the owner. That it cannot be kept stops no run, because nothing rests on it.
    """
    if account is None:
        return
    try:
        with exclusive():
            if not _key().exists():
                write_text(_key(), secrets.token_hex(32) + "\n", private=True)
            key, _ = _read()
        marks = _print(data, key)  # takes a while, so others need not wait for it
        with exclusive():
            _, seen = _read()
            known = seen.get(account, [])
            if marks not in map(set, known):
                changed = {**seen, account: [*known, sorted(marks)]}
                write_text(_prints(), json.dumps(changed) + "\n", private=True)
    except (UnderstudyError, OSError, ValueError):
        return


def _tell(warn: Callable[[str], None] | None, sentence: str) -> None:
    if warn is not None:
        warn(sentence)
    else:
        warnings.warn(sentence, UserWarning, stacklevel=2)


def _prints() -> Path:
    return accounts_folder() / "seen"


def _key() -> Path:
    return accounts_folder() / "seen.key"


def _read() -> tuple[bytes, Seen]:
    """The key and what was seen; nothing was where there is no key."""
    if not _key().exists():
        return b"", {}
    key = bytes.fromhex(_key().read_text(encoding="utf-8").strip())
    seen = read_object(_prints(), "prints of data") if _prints().exists() else {}
    if not all(isinstance(each, list) for each in seen.values()):
        raise ValueError(f"{_prints()} is damaged")
    return key, seen


def _print(data: ImageDataset, key: bytes) -> set[str]:
    """The smallest keyed marks of single images, whatever their order and labels, and one of all data together.

    Images of a data store stay unread: such data are known as a whole or not at all.
    """
    whole = hashlib.blake2b(data.fingerprint().encode(), digest_size=16, key=key).hexdigest()
    if not isinstance(data.images, np.ndarray):
        return {whole}
    return {whole, *heapq.nsmallest(_KEPT, set(_marks(data, key)))}


def _marks(data: ImageDataset, key: bytes) -> Iterator[str]:
    for start in range(0, len(data.images), _BLOCK):
        for fields in _fields(data.images[start : start + _BLOCK]):
            yield hashlib.blake2b(fields.tobytes(), digest_size=8, key=key).hexdigest()


def _fields(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Of images (N, C, H, W) the shade of each field of a grid, whatever their size and colours."""
    channels, height, width = images.shape[1:]
    grey = np.einsum("c,nchw->nhw", _GREY if channels == 3 else np.full(channels, 1 / channels), images)
    shades = np.einsum("ah,nhw,bw->nab", _shares(height), grey, _shares(width))
    return (shades / _STEP).astype(np.uint8)


def _shares(side: int) -> NDArray[np.float64]:
    """How much each of the pixels along a side adds to the mean of each field."""
    starts, pixels = np.arange(_GRID)[:, None] * side / _GRID, np.arange(side)
    covered = np.minimum(starts + side / _GRID, pixels + 1) - np.maximum(starts, pixels)
    return np.maximum(covered, 0) * _GRID / side


def _alike(first: set[str], second: set[str]) -> bool:
    """Whether two prints are of the same data, or of data with more than a tenth of their marks in common."""
    ours, theirs = ({mark for mark in marks if len(mark) == 16} for marks in (first, second))
    if {mark for mark in first if len(mark) != 16} & {mark for mark in second if len(mark) != 16}:
        return True
    smallest = heapq.nsmallest(min(_KEPT, len(ours | theirs)), ours | theirs)
    shared = sum(mark in ours and mark in theirs for mark in smallest)
    return bool(smallest) and shared > _SHARED * len(smallest)
