"""Known data sets on this machine: downloaded from their official mirrors, or taken in from local files.

A download is checked by its checksum, shows progress, can be resumed, and takes its place in one atomic step.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from numpy.typing import NDArray

from understudy.data.catalog import KnownSet, RemoteFile, cache_folder, known_set, load_known_from, read_split
from understudy.data.columns import normalise_labels
from understudy.data.domain import Declared
from understudy.data.femnist import load_femnist, read_leaf
from understudy.data.npz import array_names, read_array, write_arrays
from understudy.data.originals import read_cifar, read_malaria, read_mnist_writers
from understudy.errors import InputError

Advance = Callable[[RemoteFile, int], None]  # called with the bytes of a file that are here by now

_BLOCK = 256 * 1024
_TIMEOUT_SECONDS = 30.0
_ATTEMPTS = 3  # on each mirror, as long as the connection breaks half-way


class _BrokenError(Exception):
    """The connection broke after it had been made; what arrived is kept and can be resumed."""


class _MirrorError(Exception):
    """This mirror cannot serve the file."""


def fetch(name: str, *, folder: Path | None = None, known: KnownSet | None = None, progress: bool = True) -> list[Path]:
    """Download a known data set into the user's cache and return its files (none for the bundled digits).

    Files that are here already are checked and kept. A broken download leaves a ``.part`` file, and the next call goes
    on from there. A file gets its name only after its checksum was confirmed.
    """
    known = known or known_set(name)
    if known.name == "digits":
        return []
    if not known.mirrors:
        raise InputError(
            f"data: {known.name} has no mirror that is fetched from; {known.where}, and run"
            f" `understudy data import {known.name} PATH`"
        )
    target = (folder or cache_folder()) / known.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _progress(known, progress) as advance:
            return [_fetch_file(known, remote, target / remote.name, advance) for remote in known.files]
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error}); set XDG_CACHE_HOME") from None


def _fetch_file(known: KnownSet, remote: RemoteFile, path: Path, advance: Advance) -> Path:
    """One file from the first mirror that delivers it whole."""
    if path.is_file() and _sha256(path) == remote.sha256:
        advance(remote, remote.size)
        return path
    reasons = []
    for mirror in known.mirrors:
        try:
            _from_mirror(mirror + remote.name, remote, path, advance)
            return path
        except _MirrorError as error:
            reasons.append(f"{urlsplit(mirror).netloc}: {error}")
    raise InputError(
        f"data: {remote.name} of {known.name} could not be downloaded ({'; '.join(reasons)});"
        f" try again later, or run `understudy data import {known.name} PATH` with local files"
    )


def _from_mirror(url: str, remote: RemoteFile, path: Path, advance: Advance) -> None:
    """Download to ``path``.part, going on where an earlier attempt stopped, and move it once the checksum is right."""
    part = path.with_name(path.name + ".part")
    for attempt in range(1, _ATTEMPTS + 1):
        resumed = part.is_file() and part.stat().st_size > 0
        try:
            _transfer(url, remote, part, advance)
        except _BrokenError as error:
            if attempt == _ATTEMPTS:
                kept = ", kept what arrived: the next try goes on from there" if part.is_file() else ""
                raise _MirrorError(f"{error}{kept}") from None
            continue
        found = _sha256(part)
        if found == remote.sha256:
            os.replace(part, path)
            return
        part.unlink()
        if not resumed:
            raise _MirrorError(f"wrong checksum {found[:12]}..., expected {remote.sha256[:12]}...")
    raise _MirrorError("the file kept changing while it was resumed")


def _transfer(url: str, remote: RemoteFile, part: Path, advance: Advance) -> None:
    """Append what is missing to ``part``; start over where the server does not continue a file."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= remote.size:
        have = 0
    request = urllib.request.Request(url, headers={"User-Agent": "understudy", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            if have and not _continues(response, have):
                have = 0
            _append(response, remote, part, have, advance)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
            raise _BrokenError("the server could not continue the file") from None
        raise _MirrorError(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _MirrorError(f"no connection ({error.reason})") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _BrokenError(f"the connection broke ({type(error).__name__})") from None


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the answer starts at byte ``have``."""
    content_range = response.headers.get("Content-Range", "")
    return response.status == http.HTTPStatus.PARTIAL_CONTENT and content_range.startswith(f"bytes {have}-")


def _append(response: http.client.HTTPResponse, remote: RemoteFile, part: Path, have: int, advance: Advance) -> None:
    """Write the answer behind the first ``have`` bytes; more than the expected size is never stored."""
    with part.open("r+b" if have else "wb") as stream:
        stream.seek(have)
        stream.truncate()
        advance(remote, have)
        while block := response.read(min(_BLOCK, remote.size + 1 - have)):
            have += len(block)
            if have > remote.size:
                raise _MirrorError(f"sends more than the expected {remote.size} bytes")
            stream.write(block)
            advance(remote, have)
        stream.flush()
        os.fsync(stream.fileno())
    if have < remote.size:
        raise _BrokenError(f"the connection broke after {have} of {remote.size} bytes")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _progress(known: KnownSet, shown: bool) -> Iterator[Advance]:
    """A progress bar on stderr, so that stdout stays free for results."""
    if not shown:
        yield lambda remote, have: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {remote.name: bars.add_task(remote.name, total=remote.size) for remote in known.files}
        yield lambda remote, have: bars.update(tasks[remote.name], completed=have)


_SPLITS = ("train", "test")
_ORIGINALS = {"cifar-10": read_cifar, "malaria-cells": read_malaria, "mnist-writers": read_mnist_writers}


def import_local(name: str, path: str | Path, *, folder: Path | None = None) -> Path:
    """Copy a known data set from local files into the cache, in one step, and return where it lies.

    ``path`` is an ``.npz`` archive, a folder with the four IDX files, or what the publisher hands out: LEAF's JSON
    folder (femnist), cifar-10-binary.tar.gz, cell_images.zip (malaria-cells), QMNIST's label files (mnist-writers).
    Both splits are checked first; nothing is written if they do not fit.
    """
    known = known_set(name)
    source = Path(path).expanduser()
    if known.name == "digits":
        raise InputError("data: digits come with scikit-learn; there is nothing to import")
    if not source.exists():
        raise InputError(f"data: {str(path)!r} does not exist; pass the file or folder that holds {name}")
    if known.name == "femnist":
        arrays = _femnist_arrays(source)
    elif known.name in _ORIGINALS and source.suffix != ".npz":
        arrays = _ORIGINALS[known.name](source)
        for split in _SPLITS:
            if f"x_{split}" in arrays:
                normalise_labels(arrays[f"y_{split}"], len(arrays[f"x_{split}"]), known.classes)
    else:
        arrays = _split_arrays(known, source)
    target = (folder or cache_folder()) / f"{known.name}.npz"
    try:
        write_arrays(target, arrays)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error}); set XDG_CACHE_HOME") from None
    return target


def _split_arrays(known: KnownSet, source: Path) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for split in _SPLITS:
        load_known_from(source, known, split, Declared())
        arrays[f"x_{split}"], arrays[f"y_{split}"], owners = read_split(source, known, split)
        if owners is not None:
            arrays[f"{known.column}_{split}"] = owners
    return arrays


def _femnist_arrays(source: Path) -> dict[str, NDArray[Any]]:
    if source.is_dir():
        return read_leaf(source)
    load_femnist(source, "train", Declared())
    optional = [name for name in ("writer_names",) if name in array_names(source)]
    return {name: read_array(source, name) for name in ("x", "y", "writer", *optional)}
