"""Columns beside the images: labels as numbers or names, and whom each record is of; and how a source says it.

What a reader has to say about the data it read goes to stderr, for the owner alone.
"""

from __future__ import annotations

import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from understudy.data.dataset import check_column, check_label_range
from understudy.data.domain import Place, parse_place
from understudy.errors import InputError, one_line

IMAGE_NAMES = ("x", "images", "image", "img", "imgs", "data", "X", "pixels")
LABEL_NAMES = ("y", "labels", "label", "targets", "target", "classes", "class", "Y")
CLIENT_NAMES = ("writer", "clients", "client_ids", "client")
_MOST_SHOWN = 20  # names in a sentence

Locator = Callable[[str, Sequence[str]], str]  # (what the file is called, its folders below the source) -> the value


def tell(sentence: str) -> None:
    """Say something to the owner of the data, on stderr."""
    print(f"understudy: {one_line(sentence)}", file=sys.stderr)


# Places


def locator(place: Place, what: str) -> Locator:
    """How to read a value off the name of a file or the folders above it.

    Privacy: a function of the name of one record's file alone.
    """

    def of_name(source: str, folders: Sequence[str]) -> str:
        assert place.pattern is not None
        found = place.pattern.search(PurePath(source).name)
        value = None if found is None else found.group(1 if place.pattern.groups else 0)
        if not value:
            raise InputError(
                f"{source}: {what}=name:{place.pattern.pattern} finds nothing in its name; rename the file"
            )
        return value

    def of_folder(source: str, folders: Sequence[str]) -> str:
        if len(folders) < place.level:
            raise InputError(
                f"{source}: {what}=folder:{place.level}, but it lies in {len(folders)} folders; move it deeper, or pass"
                " another level"
            )
        return folders[place.level - 1]

    return of_name if place.kind == "name" else of_folder


def column_name(
    declared: str | None, candidates: Iterable[str], present: Sequence[str], source: str, what: str
) -> str | None:
    """The column that holds something: the declared one, which must be there, or the first of the usual names."""
    if declared is None:
        return next((name for name in candidates if name in present), None)
    place = parse_place(declared)
    if place.kind != "column":
        return None
    if place.column not in present:
        shown = shorten(present)
        raise InputError(
            f"{source}: no column {place.column!r} for {what}={declared}; pass one that it has: {shown or 'none'}"
        )
    return place.column


def shorten(names: Sequence[str]) -> str:
    """Names in a sentence, however many there are."""
    shown = ", ".join(str(name) for name in names[:_MOST_SHOWN])
    return shown + (", ..." if len(names) > _MOST_SHOWN else "")


# Labels


def normalise_labels(
    labels: NDArray[Any], records: int, classes: int, class_names: Sequence[str] | None = None
) -> NDArray[np.int64]:
    """Labels as int64 in 0..classes-1; names and whole numbers stored as floats are accepted, fractions are not."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    check_column("labels", labels, records)
    if labels.dtype.kind in "USO":
        return number_names([_text(value) for value in labels.tolist()], classes, class_names)
    if labels.dtype.kind not in "buif":
        raise InputError(f"labels: type {labels.dtype}; pass names, or whole numbers from 0 to {classes - 1}")
    if labels.dtype.kind == "f":
        wrong = labels[~np.isfinite(labels) | (labels != np.floor(labels))]
        if wrong.size:
            raise InputError(f"labels: found {wrong[0]:g}; pass whole numbers from 0 to {classes - 1}")
    too_far = labels[(labels > 2.0**62) | (labels < -(2.0**62))]
    if too_far.size:
        raise InputError(f"labels: found {too_far[0]:g}, but classes={classes} was declared; renumber or drop them")
    numbers = labels.astype(np.int64)
    check_label_range(numbers, classes)
    return numbers


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"labels: found {value!r}; pass one name or whole number per record")
    return str(value)


def number_names(names: Sequence[str], classes: int, class_names: Sequence[str] | None) -> NDArray[np.int64]:
    """The label of each record from the name of its class.

    Privacy: names that were declared are public, and one that was not is an error. Names that were only found are told
    to the owner and not published; how many there are was declared.
    """
    known = label_names(sorted(set(names)), classes, class_names, "labels")
    place = {name: label for label, name in enumerate(known)}
    return np.array([place[name] for name in names], dtype=np.int64)


def label_names(found: Sequence[str], classes: int, class_names: Sequence[str] | None, source: str) -> tuple[str, ...]:
    """The names of all classes in the order of their labels; a name that was not declared is an error.

    Without declared names, numbers are their own labels ('10' must not sort before '2'), and other names are sorted,
    which the owner is told. Numbers and other names together are refused.

    Privacy: one record with a name among numbers would otherwise give every other record another label.
    """
    if class_names is not None:
        unknown = [name for name in found if name not in class_names]
        if unknown:
            raise InputError(
                f"{source}: {unknown[0]!r} is not one of class_names={', '.join(class_names)};"
                " add it there or remove it"
            )
        return tuple(class_names)
    numbers = [name for name in found if re.fullmatch(r"0|[1-9][0-9]{0,17}", name)]
    if 0 < len(numbers) < len(found):
        other = next(name for name in found if name not in numbers)
        raise InputError(
            f"{source}: {other!r} is no number from 0 on, but {numbers[0]!r} is; correct it, or name all classes by"
            " class_names=[...]"
        )
    if len(numbers) == len(found):
        highest = max((int(name) for name in found), default=0)
        if highest >= classes:
            raise InputError(
                f"{source}: found class {highest}, but classes={classes} was declared; pass classes={highest + 1} or"
                " remove it"
            )
        return tuple(str(number) for number in range(classes))
    if len(found) != classes:
        raise InputError(
            f"{source}: {len(found)} classes ({shorten(found)}), but classes={classes} was declared;"
            f" pass classes={len(found)}, or class_names=[...] to name the classes"
        )
    tell_order(found)
    return tuple(found)


def tell_order(names: Sequence[str]) -> None:
    """Which label stands for which name, where nobody declared it."""
    numbered = shorten([f"{label} = {name}" for label, name in enumerate(names)])
    listed = ",".join([*names[:_MOST_SHOWN], *(["..."] if len(names) > _MOST_SHOWN else [])])
    tell(
        f"labels: {numbered} (in the sorted order of the names, which are not published; to publish them or to choose"
        f" the order, pass --declare {shlex.quote(f'class_names={listed}')})"
    )


# People and clients


def normalise_ids(name: str, ids: ArrayLike, records: int) -> NDArray[np.int64]:
    """Clients or people numbered from 0 in sorted order; ids may be whole numbers or text.

    Blanks around an id, and the two ways in which Unicode writes an accent, make no difference.

    Privacy: the numbers stay private, and what a person is called goes nowhere. A person who went by two ids would be
    protected as two.
    """
    column = np.asarray(ids)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    check_column(name, column, records)
    if column.dtype.kind in "OSU":
        column = np.array([_id_text(name, value) for value in column.tolist()])
    if column.dtype.kind not in "iuU":
        raise InputError(f"{name}: type {column.dtype}; pass one whole number or name per record")
    return np.unique(column, return_inverse=True)[1].astype(np.int64)


def _id_text(name: str, value: object) -> str:
    """What somebody is called, always written in the same way."""
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{name}: an id is not UTF-8 text; pass one whole number or name per record") from None
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or not str(value).strip():
        raise InputError(f"{name}: some records have none; pass one whole number or name per record")
    return unicodedata.normalize("NFC", str(value).strip())
