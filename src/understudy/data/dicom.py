"""DICOM files: the pixels through a declared window, and nothing else of them; with pydicom, the extra [medical]."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from understudy.data.domain import SourceOptions
from understudy.errors import InputError

if TYPE_CHECKING:
    from pydicom import Dataset

SUFFIXES = (".dcm", ".dicom")
_MAX_VALUES = 8192 * 8192
# All that is ever parsed of a file. Privacy: nothing here names anybody.
_PIXEL_TAGS = [
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "PlanarConfiguration",
    "NumberOfFrames",
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "RescaleSlope",
    "RescaleIntercept",
    "PixelData",
]


def is_dicom(content: Path | bytes) -> bool:
    """Whether a file is DICOM: by its name, or, where it has no ending, by the mark at its beginning."""
    if isinstance(content, bytes):
        return content[128:132] == b"DICM"
    if content.suffix:
        return content.suffix.lower() in SUFFIXES
    try:
        with content.open("rb") as stream:
            return stream.read(132)[128:] == b"DICM"
    except OSError:
        return False


def decode_dicom(name: str, content: Path | bytes, options: SourceOptions) -> NDArray[np.uint8]:
    """The image of a file as 8-bit (H, W) or (H, W, 3).

    Stored values are rescaled as the file says (to Hounsfield units, in computed tomography), and the declared window
    is mapped to 0..255; images that are stored with 8 bits need none.

    Privacy: only elements that describe pixels are parsed, so no name, number or date of a patient is ever read, let
    alone copied. The window is declared, not taken from the file.
    """
    with _nothing_quoted(name):
        return _decoded(name, _read(name, content, _PIXEL_TAGS), options)


def _decoded(name: str, dataset: Dataset, options: SourceOptions) -> NDArray[np.uint8]:
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames != 1:
        raise InputError(f"{name}: {frames} frames; save each as a file of its own")
    if int(dataset.get("Rows") or 0) * int(dataset.get("Columns") or 0) > _MAX_VALUES:
        raise InputError(f"{name}: too many pixels; sides up to 8192 are read, so shrink it")
    pixels = _pixels(name, dataset)
    if pixels.ndim == 3:
        return _colour(name, pixels, str(dataset.get("PhotometricInterpretation", "")))
    values = pixels * float(dataset.get("RescaleSlope") or 1) + float(dataset.get("RescaleIntercept") or 0)
    grey = _windowed(name, values, int(dataset.get("BitsStored") or 16), options)
    return 255 - grey if dataset.get("PhotometricInterpretation") == "MONOCHROME1" else grey


def tag_of(name: str, content: Path | bytes, keyword: str) -> str:
    """The value of one element, to tell people apart.

    Privacy: private. It is numbered in memory and forgotten; it goes into no file, no error and no progress line.
    """
    with warnings.catch_warnings():  # which may quote the value
        warnings.simplefilter("ignore")
        with _nothing_quoted(name):
            value = str(_read(name, content, [keyword]).get(keyword) or "")
    if not value:
        raise InputError(f"{name}: has no element {keyword}; remove the file, or say otherwise who is in it")
    return value


@contextmanager
def _nothing_quoted(name: str) -> Iterator[None]:
    """What goes wrong inside is one sentence without a word of the file: a damaged one may hold a name anywhere."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # in a damaged file any element may be anything
        raise InputError(f"{name}: corrupt or not a DICOM file ({type(error).__name__}); repair or remove it") from None


def _read(name: str, content: Path | bytes, keywords: list[str]) -> Dataset:
    try:
        import pydicom
    except ImportError:
        raise InputError(f"{name}: DICOM needs pydicom; install it with pip install 'understudy[medical]'") from None
    unknown = next((keyword for keyword in keywords if pydicom.datadict.tag_for_keyword(keyword) is None), None)
    if unknown is not None:
        raise InputError(f"{name}: DICOM has no element {unknown!r}; pass its keyword, for example PatientID")
    stream = content if isinstance(content, Path) else BytesIO(content)
    return pydicom.dcmread(stream, specific_tags=list(keywords))


def _pixels(name: str, dataset: Dataset) -> NDArray[Any]:
    try:
        pixels: NDArray[Any] = dataset.pixel_array
    except Exception as error:
        from pydicom.uid import UID_dictionary

        syntax = getattr(getattr(dataset, "file_meta", None), "TransferSyntaxUID", None)
        kind = UID_dictionary[syntax][0] if syntax in UID_dictionary else "nobody knows what"
        raise InputError(
            f"{name}: its pixels cannot be decoded ({type(error).__name__}, stored as {kind}); repair it, store it"
            " uncompressed, or install a decoder such as pylibjpeg"
        ) from None
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3) or 0 in pixels.shape:
        raise InputError(f"{name}: pixels of shape {pixels.shape}; images are grey or RGB")
    return pixels


def _colour(name: str, pixels: NDArray[Any], interpretation: str) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8:
        raise InputError(f"{name}: colour with {pixels.dtype} values; convert it to 8 bits")
    if interpretation.startswith("YBR"):
        from pydicom.pixels import convert_color_space

        pixels = convert_color_space(pixels, interpretation, "RGB")
    elif interpretation != "RGB":
        raise InputError(f"{name}: colours that are neither RGB nor YBR; convert it to RGB")
    return np.ascontiguousarray(pixels, dtype=np.uint8)


def _windowed(name: str, values: NDArray[Any], bits: int, options: SourceOptions) -> NDArray[np.uint8]:
    """The declared window of centre c and width w: c - w/2 becomes 0, c + w/2 becomes 255, beyond is cut off."""
    if options.window is None:
        if bits > 8 or values.min() < 0 or values.max() > 255:
            raise InputError(
                f"{name}: {bits} bits a pixel, but no window was declared; pass window=(centre, width), for example"
                " --declare window=40,400 for soft tissue in computed tomography"
            )
        return np.rint(values).astype(np.uint8)
    centre, width = options.window
    share = (values.astype(np.float64) - (centre - width / 2)) / width
    if not np.isfinite(share).all():
        raise InputError(f"{name}: values that are no numbers; repair or remove it")
    return np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)
