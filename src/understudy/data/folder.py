"""Folders of PNG and JPEG files: flat, a sub-folder per class, or a sub-folder per client."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from understudy.data.domain import SourceOptions, require_classes
from understudy.data.npz import LIMIT_BYTES
from understudy.errors import EmptyDataError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image


_IMAGES = (".png", ".jpg", ".jpeg")
_OTHER_IMAGES = (".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".heic")
_MAX_SIDE = 8192  # of a picture that is resized; checked before anything is decoded
_LARGEST, _SMALLEST = 64, 8


@dataclass(frozen=True)
class FolderContent:
    """The images of a folder, with labels and clients where the folder has them."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    client_ids: NDArray[np.int64] | None
    class_names: tuple[str, ...] | None


def read_folder(folder: Path, classes: int | None, options: SourceOptions) -> FolderContent:
    """Read every image below ``folder``.

    Privacy: names of sub-folders become class names only if the caller declared as many classes, or these names.
    """
    clients = sub_folders(folder) if options.clients else [folder]
    if options.clients and not clients:
        raise InputError(f"{folder}: clients=True, but there is no sub-folder per client; add them or leave it out")
    if options.clients and _pictures(folder):
        raise InputError(
            f"{folder}: images beside the client folders ({_pictures(folder)[0].name}); move them into one"
        )
    labelled = _is_labelled(folder, clients, classes, options)
    names = _class_names(folder, clients, classes, options) if labelled else None
    files: list[Path] = []
    labels: list[int] = []
    client_ids: list[int] = []
    for number, client in enumerate(clients):
        for path, label in _files_of(client, names, options):
            files.append(path)
            labels.append(label)
            client_ids.append(number)
    if not files:
        raise EmptyDataError(f"{folder}: no PNG or JPEG file in it; pass a folder with images")
    return FolderContent(
        images=_decode_all(files, options),
        labels=np.array(labels, dtype=np.int64) if labelled else None,
        client_ids=np.array(client_ids, dtype=np.int64) if options.clients else None,
        class_names=options.class_names if labelled else None,  # names found on disk are not published unless declared
    )


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}); check the path and its permissions") from None


def sub_folders(folder: Path) -> list[Path]:
    """The visible sub-folders, sorted by name."""
    return [entry for entry in _visible(folder) if entry.is_dir()]


def _pictures(folder: Path) -> list[Path]:
    pictures = []
    for entry in _visible(folder):
        suffix = entry.suffix.lower()
        if suffix in _OTHER_IMAGES:
            raise InputError(f"{entry}: {suffix} images are not read; convert it to PNG or JPEG")
        if suffix in _IMAGES and entry.is_file():
            pictures.append(entry)
    return pictures


def _is_labelled(folder: Path, clients: list[Path], classes: int | None, options: SourceOptions) -> bool:
    """Whether sub-folders are classes; refuses a folder that is half flat, or that was not declared."""
    if options.unlabelled:
        return False
    flat = [client for client in clients if _pictures(client)]
    nested = [client for client in clients if sub_folders(client)]
    if flat and nested:
        raise InputError(
            f"{folder}: images beside sub-folders ({_pictures(flat[0])[0].name} and {sub_folders(nested[0])[0].name}/);"
            " put every image into a class folder, or pass unlabelled=True"
        )
    declared = classes is not None or options.class_names is not None
    if flat and declared:
        raise InputError(
            f"{folder}: classes were declared, but there is no sub-folder per class; add them or leave it out"
        )
    if nested and not declared:
        names = sorted({sub.name for client in nested for sub in sub_folders(client)})
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise InputError(
            f"{folder}: {len(names)} sub-folders ({shown}), but the classes were not declared;"
            f" pass classes={len(names)} (--classes {len(names)}), unlabelled=True to ignore them, or clients=True if"
            " they are clients (--declare unlabelled=True, --declare clients=True)"
        )
    return bool(nested)


def _class_names(folder: Path, clients: list[Path], classes: int | None, options: SourceOptions) -> tuple[str, ...]:
    """The declared class folders in the order of their labels; a folder that was not declared is an error."""
    declared = require_classes(classes, options)
    found = sorted({sub.name for client in clients for sub in sub_folders(client)})
    if options.class_names is not None:
        unknown = [name for name in found if name not in options.class_names]
        if unknown:
            raise InputError(
                f"{folder}: sub-folder {unknown[0]!r} is not one of class_names={', '.join(options.class_names)};"
                " add it there or remove it"
            )
        return options.class_names
    if _numbered(tuple(found)):
        highest = max(int(name) for name in found)
        if highest >= declared:
            raise InputError(
                f"{folder}: sub-folder {highest}, but classes={declared} was declared;"
                f" pass classes={highest + 1} or remove it"
            )
        return tuple(str(number) for number in range(declared))
    if len(found) != declared:
        raise InputError(
            f"{folder}: {len(found)} sub-folders, but classes={declared} was declared;"
            f" pass classes={len(found)}, or class_names=[...] to name the classes"
        )
    return tuple(found)


def _numbered(names: tuple[str, ...]) -> bool:
    """Whether folders are called 0, 1, 2, ...: then the name is the label ('10' must not sort before '2')."""
    return all(name.isascii() and name.isdigit() and str(int(name)) == name for name in names)


def _files_of(client: Path, names: tuple[str, ...] | None, options: SourceOptions) -> list[tuple[Path, int]]:
    if names is not None:
        numbered = [(sub, names.index(sub.name)) for sub in sub_folders(client)]
        for sub, _ in numbered:
            if inner := sub_folders(sub):
                raise InputError(
                    f"{inner[0]}: a folder inside a class folder; move its images up, or pass clients=True"
                )
        return [(path, label) for sub, label in numbered for path in _pictures(sub)]
    nested = sub_folders(client) if options.unlabelled else []
    return [(path, 0) for place in (client, *nested) for path in _pictures(place)]


def _decode_all(files: list[Path], options: SourceOptions) -> NDArray[np.uint8]:
    """All images in one array; the first image sets the size and mode that all others must have."""
    first = _decode(files[0], options)
    if first.size * len(files) > LIMIT_BYTES:
        raise InputError(f"{files[0].parent}: {len(files)} images take over {LIMIT_BYTES} bytes; pass a smaller size=")
    images = np.empty((len(files), *first.shape), dtype=np.uint8)
    for number, path in enumerate(files):
        image = _decode(path, options)
        if image.shape != first.shape:
            way_out = "channels=1 or channels=3" if image.shape[1:] == first.shape[1:] else "size=(height, width)"
            raise InputError(
                f"{path}: {_describe(image)}, but {files[0]} is {_describe(first)}; pass {way_out} to convert all"
            )
        images[number] = image
    return images


def _describe(image: NDArray[np.uint8]) -> str:
    channels, height, width = image.shape
    return f"{height}x{width} {'grey' if channels == 1 else 'RGB'}"


def _decode(path: Path, options: SourceOptions) -> NDArray[np.uint8]:
    """One image as (C, H, W); its size is checked before its pixels are decoded."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG")) as picture:
                _check_size(path, picture, options)
                picture.load()
                plain = _plain_mode(path, ImageOps.exif_transpose(picture), options)
                if options.size is not None and plain.size != options.size[::-1]:
                    plain = plain.resize(options.size[::-1], Image.Resampling.BILINEAR)
                pixels = np.asarray(plain, dtype=np.uint8)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise InputError(f"{path}: too many pixels; sides up to {_MAX_SIDE} are read, so shrink it") from None
    except InputError:
        raise
    except Exception as error:  # decoders of a damaged image raise whatever they like
        raise InputError(f"{path}: corrupt or not a PNG or JPEG image ({error}); repair or remove it") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _check_size(path: Path, picture: Image, options: SourceOptions) -> None:
    width, height = picture.size
    if max(width, height) > _MAX_SIDE:
        raise InputError(f"{path}: {height}x{width} pixels; sides up to {_MAX_SIDE} are read, so shrink it")
    if options.size is None and not (min(width, height) >= _SMALLEST and max(width, height) <= _LARGEST):
        raise InputError(
            f"{path}: {height}x{width} pixels; sizes from 8x8 to 64x64 are supported, so pass size=(height, width)"
        )


def _plain_mode(path: Path, picture: Image, options: SourceOptions) -> Image:
    """Grey or RGB with 8 bits; palettes are looked up, transparency and deeper values are refused."""
    if picture.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in picture.info:
        raise InputError(f"{path}: has transparency (mode {picture.mode}); flatten it onto a background first")
    if picture.mode == "P":
        picture = picture.convert("RGB")
    elif picture.mode == "1":
        picture = picture.convert("L")
    if picture.mode not in ("L", "RGB"):
        raise InputError(f"{path}: mode {picture.mode}; convert it to 8-bit grey or RGB")
    if options.channels is not None:
        picture = picture.convert("L" if options.channels == 1 else "RGB")
    return picture
