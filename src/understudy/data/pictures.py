"""Pictures of any source become one array: decoded one by one, broken ones counted, all of one size and mode.

A source yields an ``Item`` for each record; ``collect`` does the rest.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from understudy.data.columns import tell
from understudy.data.dicom import decode_dicom, is_dicom
from understudy.data.domain import SourceOptions
from understudy.data.npz import LIMIT_BYTES
from understudy.errors import EmptyDataError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Value = str | int  # a label, or what a person or client is called
Element = TypeVar("Element")

_MAX_SIDE = 8192  # of a picture that is resized; checked before anything is decoded
_LARGEST, _SMALLEST = 64, 8
_AT_ONCE = 512  # pictures that wait for their turn
_WORKERS = 4
_LARGE_BYTES = 20_000  # of a file; smaller ones are decoded faster without threads
_MAY_BE_TURNED = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")  # where Pillow finds an orientation
_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True, slots=True)
class Item:
    """A record as a source has it: a picture in a file or in memory, and what is said about it."""

    name: str  # what an error calls it
    content: Path | bytes
    label: Value | None = None
    person: Value | None = None
    client: Value | None = None
    problem: str | None = None  # a sentence on what is wrong with it, where that is known without its pixels


@dataclass
class Broken:
    """Broken files: up to a declared number are left out, one more is an error.

    Privacy: a file is broken by itself, whatever else the source holds, so leaving it out is a function of that record
    alone. Its name and its number go to the owner, and nowhere else.
    """

    allowed: int | None  # None: any number, to be listed
    found: list[str] = field(default_factory=list)

    def take(self, error: InputError) -> None:
        """One more broken file."""
        self.found.append(str(error))
        if self.allowed == 0:
            raise InputError(f"{error}; `understudy data check` lists all such files")
        if self.allowed is not None and len(self.found) > self.allowed:
            raise InputError(
                f"{error}; more than skip_broken={self.allowed} (--skip-broken {self.allowed}) are broken; "
                "`understudy data check` lists them all"
            )

    def tell(self) -> None:
        """Say what was left out."""
        if self.found and self.allowed:
            tell(f"skip_broken: {len(self.found)} of at most {self.allowed} broken files left out: {self.found[0]}")


@dataclass(frozen=True)
class Content:
    """The images of a source as (N, C, H, W), with the columns that the source has."""

    images: NDArray[np.uint8]
    labels: list[Value] | None
    people: list[Value] | None
    clients: list[Value] | None


def collect(
    source: Path | str, items: Iterable[Item], total: int | None, options: SourceOptions, stack: Stack | None = None
) -> Content:
    """All pictures of a source in one array; the first sets the size and mode that all others must have.

    ``stack``: where they are put, by default in memory.

    Privacy: each picture is decoded by itself with declared options, and nothing is learnt from the records.
    """
    broken, kept = Broken(options.skip_broken), list[Item]()
    stack = stack or Stack(str(source), total)
    with quiet_decoders(), closing(shown(items, total, f"images of {Path(source).name}")) as seen:
        for item, image in decoded(seen, options, broken):
            stack.put(item.name, image)
            kept.append(Item(item.name, b"", item.label, item.person, item.client))
    if not kept:
        left_out = f" ({len(broken.found)} broken ones left out)" if broken.found else ""
        raise EmptyDataError(f"{source}: no PNG or JPEG file in it{left_out}; pass a folder with images")
    broken.tell()
    labels, people, clients = (_column(kept, name) for name in ("label", "person", "client"))
    return Content(stack.images, labels, people, clients)


def _column(items: list[Item], name: str) -> list[Value] | None:
    """A column that all records have, or none."""
    values: list[Value | None] = [getattr(item, name) for item in items]
    present = [value for value in values if value is not None]
    if present and len(present) < len(values):
        without = items[values.index(None)].name
        raise InputError(f"{without}: has no {name}, but other records have one; add it, or remove the record")
    return present or None


def decoded(
    items: Iterable[Item], options: SourceOptions, broken: Broken, any_size: bool = False
) -> Iterator[tuple[Item, NDArray[np.uint8]]]:
    """Items with their pictures, in order; broken ones are handed to ``broken``."""

    def attempt(item: Item) -> NDArray[np.uint8] | InputError:
        try:
            if item.problem is not None:
                raise InputError(item.problem)
            return decode(item.name, item.content, options, any_size)
        except InputError as error:
            return error

    waiting = iter(items)
    with ThreadPoolExecutor(min(_WORKERS, len(os.sched_getaffinity(0)))) as pool:
        while batch := list(islice(waiting, _AT_ONCE)):
            images = pool.map(attempt, batch) if _is_large(batch[0]) else map(attempt, batch)
            for item, image in zip(batch, images, strict=True):
                if isinstance(image, InputError):
                    broken.take(image)
                else:
                    yield item, image


def _is_large(item: Item) -> bool:
    """Whether decoding takes so long that threads are worth their price."""
    if isinstance(item.content, bytes):
        return len(item.content) > _LARGE_BYTES
    try:
        return item.content.stat().st_size > _LARGE_BYTES
    except OSError:
        return False


class Stack:
    """One array that grows; where the number of pictures is known, it is made once."""

    def __init__(self, source: str, total: int | None) -> None:
        self._source, self._total, self.count = source, total, 0
        self._first, self.shape = "", (0, 0, 0)
        self._images: NDArray[np.uint8] = np.empty((0, 0, 0, 0), dtype=np.uint8)

    def put(self, name: str, image: NDArray[np.uint8]) -> None:
        """Add one picture (C, H, W), which must be like the first."""
        shape = (image.shape[0], image.shape[1], image.shape[2])
        if self.count == 0:
            self._first, self.shape = name, shape
        elif shape != self.shape:
            way_out = "channels=1 or channels=3" if shape[1:] == self.shape[1:] else "size=(height, width)"
            raise InputError(
                f"{name}: {describe(shape)}, but {self._first} is {describe(self.shape)}; pass {way_out} to convert"
                " all (--shape CxHxW)"
            )
        self._keep(image)
        self.count += 1

    def _keep(self, image: NDArray[np.uint8]) -> None:
        if self.count == len(self._images):
            self._reserve(2 * self.count or self._total or _AT_ONCE)
        self._images[self.count] = image

    def _reserve(self, count: int) -> None:
        if count * int(np.prod(self.shape)) > LIMIT_BYTES:
            raise InputError(
                f"{self._source}: {count} images take over {LIMIT_BYTES} bytes; pass a smaller size=, or train from a "
                "store (`understudy data store`)"
            )
        larger = np.empty((count, *self.shape), dtype=np.uint8)
        larger[: self.count] = self._images[: self.count] if self.count else 0
        self._images = larger

    @property
    def images(self) -> NDArray[np.uint8]:
        """All of them (N, C, H, W)."""
        return self._images[: self.count]


def describe(shape: tuple[int, ...]) -> str:
    """The size and mode of an image (C, H, W) in words."""
    channels, height, width = shape
    return f"{height}x{width} {'grey' if channels == 1 else 'RGB'}"


# One picture


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Pillow warns of pictures that are refused here for their sides; what pydicom warns of may quote a patient.

    For a whole source at once: filters of warnings are shared by all threads.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode(name: str, content: Path | bytes, options: SourceOptions, any_size: bool = False) -> NDArray[np.uint8]:
    """One picture as (C, H, W); its size is checked before its pixels are decoded.

    ``any_size``: also one that is too large or too small to train on.

    Privacy: nothing but the pixels leaves this function; names, dates and places in a file are not read.
    """
    from PIL import Image, ImageOps

    if is_dicom(content):
        plain = _converted(Image.fromarray(decode_dicom(name, content, options)), options)
        _check_size(name, plain, options, any_size)
        return _as_planes(_resized(plain, options))
    try:
        with Image.open(content if isinstance(content, Path) else BytesIO(content), formats=("PNG", "JPEG")) as picture:
            _check_size(name, picture, options, any_size)
            picture.load()
            if not picture.info.keys().isdisjoint(_MAY_BE_TURNED):
                ImageOps.exif_transpose(picture, in_place=True)
            return _as_planes(_resized(_plain_mode(name, picture, options), options))
    except Image.DecompressionBombError:
        raise InputError(f"{name}: too many pixels; sides up to {_MAX_SIDE} are read, so shrink it") from None
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file; put it there, or remove its row") from None
    except InputError:
        raise
    except Exception as error:  # decoders of a damaged image raise whatever they like
        reason = "cannot identify image file" if "identify image" in str(error) else error
        raise InputError(f"{name}: corrupt or not a PNG or JPEG image ({reason}); repair or remove it") from None


def _as_planes(picture: Image) -> NDArray[np.uint8]:
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _resized(picture: Image, options: SourceOptions) -> Image:
    from PIL import Image

    if options.size is None or picture.size == options.size[::-1]:
        return picture
    return picture.resize(options.size[::-1], Image.Resampling.BILINEAR)


def _check_size(name: str, picture: Image, options: SourceOptions, any_size: bool) -> None:
    width, height = picture.size
    if max(width, height) > _MAX_SIDE:
        raise InputError(f"{name}: {height}x{width} pixels; sides up to {_MAX_SIDE} are read, so shrink it")
    if (
        options.size is None
        and not any_size
        and not (min(width, height) >= _SMALLEST and max(width, height) <= _LARGEST)
    ):
        raise InputError(
            f"{name}: {height}x{width} pixels; sizes from 8x8 to 64x64 are supported, so pass size=(height, width)"
            " (--shape HxW)"
        )


def _plain_mode(name: str, picture: Image, options: SourceOptions) -> Image:
    """Grey or RGB with 8 bits; palettes are looked up, transparency and deeper values are refused."""
    if picture.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in picture.info:
        raise InputError(f"{name}: has transparency (mode {picture.mode}); flatten it onto a background first")
    if picture.mode == "P":
        picture = picture.convert("RGB")
    elif picture.mode == "1":
        picture = picture.convert("L")
    if picture.mode not in ("L", "RGB"):
        raise InputError(f"{name}: mode {picture.mode}; convert it to 8-bit grey or RGB")
    return _converted(picture, options)


def _converted(picture: Image, options: SourceOptions) -> Image:
    mode = picture.mode if options.channels is None else "L" if options.channels == 1 else "RGB"
    return picture if picture.mode == mode else picture.convert(mode)


# Progress


def shown(elements: Iterable[Element], total: int | None, what: str) -> Generator[Element, None, None]:
    """The same elements, with a progress bar on a terminal, or a line every ten seconds, on stderr."""
    if not sys.stderr.isatty():
        heard = time.monotonic()
        for number, element in enumerate(elements, 1):
            if number % _AT_ONCE == 0 and time.monotonic() - heard > _SECONDS_BETWEEN_LINES:
                heard = time.monotonic()
                print(f"{number}{f'/{total}' if total else ''} {what}", file=sys.stderr)
            yield element
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for number, element in enumerate(elements, 1):
            if number % 64 == 0:
                bar.update(task, completed=number)
            yield element
        bar.update(task, completed=total)
