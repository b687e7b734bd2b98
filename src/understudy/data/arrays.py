"""From arrays to an ``ImageDataset``: layouts, value ranges, labels, clients and people are checked, then mapped."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from understudy.data.columns import normalise_ids, normalise_labels
from understudy.data.dataset import STORED_RANGE, ImageDataset
from understudy.data.domain import (
    Declared,
    SourceOptions,
    declare_domain,
    require_classes,
    require_clients,
    require_people,
    require_records,
)
from understudy.errors import EmptyDataError, InputError

_CHUNK = 4096  # records converted at a time, so that floats of the whole set never exist twice


def from_arrays(
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    client_ids: ArrayLike | None = None,
    people: ArrayLike | None = None,
    records: int | None = None,
    classes: int | None = None,
    options: SourceOptions | None = None,
) -> ImageDataset:
    """An ``ImageDataset`` from arrays in memory.

    ``images`` is (N, H, W), (N, C, H, W) or (N, H, W, C). Values that are not 8-bit need
    ``options.value_range=(lowest, highest)`` and are mapped linearly to 0..255 and rounded: released images live
    there. ``labels`` are whole numbers or names; ``people`` say whom each record is of. ``records`` (the public size)
    is required, ``classes`` with labels, ``options.nominal_clients`` with ``client_ids``, and
    ``options.nominal_people`` with ``people``.

    Privacy: each record is converted by itself with declared constants; nothing is learnt from the records.
    """
    options = Declared(records, classes, options or SourceOptions()).options
    nominal_records = require_records(records)
    _refuse_absent(options, client_ids, people)
    pixels = normalise_images(np.asarray(images), options)
    if labels is None or options.unlabelled:
        if labels is None and (classes is not None or options.class_names is not None):
            raise InputError("classes: declared, but there are no labels; pass labels, or leave the classes out")
        numbers, declared_classes = None, None
    else:
        declared_classes = require_classes(classes, options)
        numbers = normalise_labels(np.asarray(labels), len(pixels), declared_classes, options.class_names)
    domain = declare_domain(
        shape=pixels.shape[1:],
        classes=declared_classes,
        class_names=options.class_names if declared_classes is not None else None,
        value_range=STORED_RANGE,
        nominal_records=nominal_records,
        nominal_clients=None if client_ids is None else require_clients(options),
        nominal_people=None if people is None else require_people(options),
        skip_broken=options.skip_broken or None,
    )
    clients = None if client_ids is None else normalise_ids("client_ids", client_ids, len(pixels))
    persons = None if people is None else normalise_ids("people", people, len(pixels))
    return ImageDataset(options.name or "arrays", domain, pixels, numbers, clients, persons)


def _refuse_absent(options: SourceOptions, client_ids: ArrayLike | None, people: ArrayLike | None) -> None:
    """Clients or people that were declared and are not there."""
    if options.nominal_clients is not None and client_ids is None:
        raise InputError("nominal_clients: declared, but records carry no clients; pass them, or leave it out")
    if options.nominal_people is not None and people is None:
        raise InputError(
            "nominal_people: declared, but nothing says whom records are of; pass people (--declare person=...), or"
            " leave it out"
        )


def normalise_images(images: NDArray[Any], options: SourceOptions) -> NDArray[np.uint8]:
    """Images as contiguous uint8 (N, C, H, W), resized and converted if the options say so."""
    if images.ndim not in (3, 4) or images.dtype.kind not in "buif":
        raise InputError(
            f"images: {images.dtype} of shape {images.shape};"
            " pass numbers of shape (N, H, W), (N, C, H, W) or (N, H, W, C)"
        )
    if len(images) == 0:
        raise EmptyDataError("images: the set is empty; pass at least one image")
    pixels = map_values(_channels_first(images), options.value_range)
    pixels = convert_channels(pixels, options.channels)
    return np.ascontiguousarray(resize(pixels, options.size))


def _channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """(N, C, H, W); sides are at least 8, so an axis of 1 or 3 can only be the channels."""
    if images.ndim == 3:
        return images[:, None]
    if images.shape[1] in (1, 3):
        return images
    if images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    raise InputError(f"images: shape {images.shape}; images are grey (1 channel) or RGB (3 channels)")


def map_values(images: NDArray[Any], value_range: tuple[float, float] | None) -> NDArray[np.uint8]:
    """Map the declared range linearly to 0..255 and round; refuse values outside it, NaN and infinity."""
    if value_range is None:
        if images.dtype.kind == "f":
            raise InputError(
                f"images: {images.dtype} values without a declared range; pass value_range=(0, 1), say "
                "(--declare value_range=0,1)"
            )
        value_range = (0.0, 1.0) if images.dtype.kind == "b" else STORED_RANGE
    if images.dtype == np.uint8 and value_range == STORED_RANGE:
        return images
    mapped = np.empty(images.shape, dtype=np.uint8)
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK].astype(np.float64)
        _check_values(part, value_range, start)
        mapped[start : start + _CHUNK] = np.rint((part - value_range[0]) * (255.0 / (value_range[1] - value_range[0])))
    return mapped


def _check_values(part: NDArray[np.float64], value_range: tuple[float, float], start: int) -> None:
    low, high = value_range
    finite = np.isfinite(part)
    if not finite.all():
        record, *rest = np.argwhere(~finite)[0]
        value = part[(record, *rest)]
        found = "NaN" if np.isnan(value) else f"{value:g}"
        raise InputError(f"images: found {found} in record {start + record}; repair or drop that record")
    lowest, highest = float(part.min()), float(part.max())
    if lowest < low or highest > high:
        found = f"{lowest:g}" if lowest < low else f"{highest:g}"
        raise InputError(
            f"images: found {found}, but the range {low:g}..{high:g} was declared;"
            " pass the right value_range or clip the values"
        )


def convert_channels(images: NDArray[np.uint8], channels: int | None) -> NDArray[np.uint8]:
    """Grey to RGB by repetition, RGB to grey by the usual luma weights (ITU-R 601)."""
    if channels is None or images.shape[1] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=1)
    grey = np.empty((len(images), 1, *images.shape[2:]), dtype=np.uint8)
    weights = np.array([0.299, 0.587, 0.114])
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK]
        grey[start : start + _CHUNK, 0] = np.rint(np.einsum("nchw,c->nhw", part, weights))
    return grey


def resize(images: NDArray[np.uint8], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Each image resized by itself (area-aware bilinear filter); None keeps the size."""
    if size is None or images.shape[2:] == size:
        return images
    if 0 in images.shape:
        raise InputError(f"images: shape {images.shape} holds no pixels; pass images of at least 8x8")
    from PIL import Image

    height, width = size
    resized = np.empty((*images.shape[:2], height, width), dtype=np.uint8)
    for record, image in enumerate(images):
        for channel, plane in enumerate(image):
            picture = Image.fromarray(np.ascontiguousarray(plane))
            resized[record, channel] = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return resized
