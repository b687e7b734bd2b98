"""Well-formed files that mutations start from, built in memory: small, of every kind that is read."""

from __future__ import annotations

import atexit
import gzip
import io
import json
import os
import shutil
import struct
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin
from tests.helpers.certificates import AS_DESIGNED

_PIXELS = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8)
_LABELS = np.array([0, 1, 2])
_RUN_FOLDER = "UNDERSTUDY_HOSTILE_RUN"


def archives() -> list[bytes]:
    """``.npz`` archives of images, with labels or splits."""
    return [
        _npz(images=_PIXELS, labels=_LABELS),
        _npz(x_train=_PIXELS, y_train=_LABELS, x_test=_PIXELS, y_test=_LABELS, compressed=True),
        _npz(x=_PIXELS.astype(np.float32) / 255, y=_LABELS.astype(np.float64)),
        _npz(x=np.stack([_PIXELS] * 3, axis=-1), y=_LABELS[:, None], writer=np.array(["a", "b", "c"])),
    ]


def _npz(compressed: bool = False, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


def pictures() -> list[bytes]:
    """PNG and JPEG files of several modes: grey, RGB, palette, two colours, 16 bits, transparency, EXIF, comments."""
    grey, rgb = Image.fromarray(_PIXELS[0]), Image.merge("RGB", [Image.fromarray(plane) for plane in _PIXELS])
    comments = PngImagePlugin.PngInfo()
    comments.add_text("comment", "x" * 200, zip=True)
    comments.add_itxt("wide", "y" * 50, "de", "z", zip=True)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "turned"
    return [
        *(_encoded(image, "PNG") for image in (grey, rgb, rgb.quantize(7), grey.convert("1"), grey.convert("I;16"))),
        *(_encoded(image, "PNG") for image in (rgb.convert("RGBA"), grey.convert("LA"))),
        _encoded(rgb, "PNG", pnginfo=comments, exif=exif),
        _encoded(grey, "PNG", save_all=True, append_images=[grey]),
        *(_encoded(image, "JPEG") for image in (grey, rgb, rgb.convert("CMYK"))),
        _encoded(rgb, "JPEG", progressive=True, exif=exif, comment=b"hello", icc_profile=b"\0" * 200),
    ]


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def tables() -> list[bytes]:
    """CSV tables of pictures beside them."""
    return [b"path,label,who\na.png,cat,1\na.png,dog,2\n", b"file_name;class;who\na.png;0;x\n", b"path\ta\nb.png\t1\n"]


def parquet_tables() -> list[bytes]:
    """Parquet tables of bytes, of paths, and as Hugging Face stores images."""
    import pyarrow
    from pyarrow import parquet

    found, picture = [], pictures()[0]
    for content in (
        {"image": [picture, picture], "label": [0, 1], "who": ["a", "b"]},
        {"path": ["a.png"], "label": ["cat"], "who": [1]},
        {"image": [{"bytes": picture, "path": "a.png"}], "label": [2.0], "who": [5]},
    ):
        stream = io.BytesIO()
        parquet.write_table(pyarrow.table(content), stream)
        found.append(stream.getvalue())
    return found


def shards() -> list[bytes]:
    """WebDataset archives, packed or not."""
    found, members = (
        [],
        {"1.png": pictures()[0], "1.cls": b"1", "2.png": pictures()[0], "2.json": b'{"label": 2, "who": 3}'},
    )
    for mode in ("w", "w:gz"):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        found.append(stream.getvalue())
    return found


def scans() -> list[bytes]:
    """DICOM files: grey with 8 and 16 bits, and colour."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    found = []
    for pixels in (_PIXELS[0], _PIXELS[0].astype(np.int16) * 9, np.stack([_PIXELS[0]] * 3, axis=-1)):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, SecondaryCaptureImageStorage
        meta.MediaStorageSOPInstanceUID = "1.2.3"
        scan = FileDataset("scan", {}, file_meta=meta, preamble=b"\0" * 128)
        scan.PatientID, scan.PatientName = "7", "Mustermann^Erika"
        scan.Rows, scan.Columns, scan.SamplesPerPixel = *pixels.shape[:2], 1 if pixels.ndim == 2 else 3
        scan.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
        scan.PlanarConfiguration, scan.PixelRepresentation = 0, int(pixels.dtype.kind == "i")
        scan.BitsAllocated = scan.BitsStored = 8 * pixels.dtype.itemsize
        scan.HighBit, scan.RescaleSlope, scan.RescaleIntercept = scan.BitsStored - 1, "1", "-10"
        scan.PixelData = pixels.tobytes()
        stream = io.BytesIO()
        scan.save_as(stream)
        found.append(stream.getvalue())
    return found


def idx_images() -> list[bytes]:
    """IDX files of images, plain and compressed."""
    plain = struct.pack(">BBBBIII", 0, 0, 8, 3, *_PIXELS.shape) + _PIXELS.tobytes()
    return [plain, gzip.compress(plain), struct.pack(">BBBBIIII", 0, 0, 8, 4, 1, 8, 8, 3) + _PIXELS.tobytes()]


def idx_labels() -> list[bytes]:
    """IDX files of labels."""
    plain = struct.pack(">BBBBI", 0, 0, 8, 1, 3) + bytes([0, 1, 2])
    return [plain, gzip.compress(plain)]


def certificates() -> list[bytes]:
    """Certificates: as designed, of real runs, with claims of several viewers."""
    real = json.loads((release_folder() / "certificate.json").read_text())
    client = {"unit": "client", "viewer": "server", "adjacency": "replace-one", "epsilon": 500.0, "delta": 1e-3}
    limits = {"clients": 10, "rounds": 4, "queries": 12, "slots": 3, "answers": 6}
    several = real | {
        "guarantees": [*real["guarantees"], client | {"limits": limits, "delta_parts": {"accountant": 1e-3}}]
    }
    return [json.dumps(each).encode() for each in (AS_DESIGNED, real, several)]


def release_configs() -> list[bytes]:
    """``config.json`` of releases."""
    return [(release_folder() / "config.json").read_bytes()]


def weights() -> list[bytes]:
    """``generator.safetensors`` of releases."""
    return [(release_folder() / "generator.safetensors").read_bytes()]


def method_configs() -> list[bytes]:
    """Settings as a user writes them."""
    groups = {
        "privacy": {"noise_multiplier": 2.0},
        "method": {"steps": 10, "batch": 8, "width": 4},
        "runtime": {"device": "cpu"},
    }
    return [json.dumps(groups).encode(), b"{}", b'{"method": {"latent": 3}}']


def toml_configs() -> list[bytes]:
    """The same as TOML."""
    return [
        b'[privacy]\nnoise_multiplier = 2.0\n[method]\nsteps = 10\n[runtime]\ndevice = "cpu"\n',
        b"method.latent = 3\n",
    ]


def descriptions() -> list[bytes]:
    """``run.json`` of runs."""
    return [(run_folder() / "run.json").read_bytes()]


def ledgers() -> list[bytes]:
    """``ledger.jsonl`` of runs."""
    return [(run_folder() / "ledger.jsonl").read_bytes()]


def checkpoints() -> list[bytes]:
    """Checkpoints of runs."""
    return [next((run_folder() / "private").glob("checkpoint-*")).read_bytes()]


def writers() -> list[bytes]:
    """A file of LEAF."""
    return [json.dumps({"user_data": {"a": {"x": [[0.5] * 784, [1.0] * 784], "y": [3, 61]}}}).encode()]


def texts() -> list[bytes]:
    """Arguments of the command line."""
    return [
        b"method.steps=20",
        b"value_range=0,1",
        b"class_names=cat,dog",
        b"1x28x28",
        b"3,5",
        b"privacy.subsets=1e3",
        b"size=[8, 8]",
    ]


def run_folder() -> Path:
    """A finished run of dp-merf: the one this process was given, or one that it trains for itself."""
    given = os.environ.get(_RUN_FOLDER)
    return Path(given) if given else _own_run_folder()


def use_run_folder(folder: Path) -> None:
    """Take the run of another process."""
    os.environ[_RUN_FOLDER] = str(folder)


@cache
def _own_run_folder() -> Path:
    from tests.helpers.data import tiny_data
    from tests.helpers.runs import own_state_folder, tiny_train

    home = Path(tempfile.mkdtemp(prefix="understudy-hostile-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with own_state_folder(home):
        tiny_train("dp-merf", tiny_data(), home / "run")
    return home / "run"


def release_folder() -> Path:
    """Its release."""
    return run_folder() / "release"
