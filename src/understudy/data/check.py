"""``understudy data check``: what a source holds, and every file of it that is broken, not only the first.

Privacy: all of it is read off the private records without noise. It is for the eyes of their owner, as are the errors
of ``load``; what is declared afterwards should be a public figure, and not copied from here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from understudy.data.catalog import is_known, load_named
from understudy.data.columns import normalise_ids, shorten
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Declared
from understudy.data.folder import sub_folders
from understudy.data.pictures import Broken, Item, decoded, describe, quiet_decoders, shown
from understudy.data.sources import DataOptions, existing, items_of, picture_folder, read_arrays
from understudy.data.store import is_store, open_store
from understudy.errors import InputError, one_line

STAMP = "private: read from the records without noise, for the eyes of their owner"
_MOST_CLASSES = 50
_AT_ONCE = 4096  # images of a store
_CLASSES_OR_PEOPLE = (
    "classes (--classes N, --declare person=folder:1 --declare nominal_people=N if its folders are people, or --declare"
    " unlabelled=true)"
)


@dataclass(frozen=True)
class SourceCheck:
    """What a source holds. Privacy: private, all of it."""

    path: str
    readable: int
    broken: list[str]  # a sentence for each file
    sizes: dict[str, int]  # images by size and mode, the most frequent first
    labels: dict[str, int] | None  # images by label; None: the source says none, or nobody declared where
    people: dict[str, int] | None = None  # how many, and the fewest and most images of one
    folders: list[str] = field(default_factory=list)  # names of sub-folders, where nobody said what they are
    damaged: list[str] = field(default_factory=list)  # a sentence for each archive with records that nobody can count

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {"stamp": STAMP, **asdict(self)}

    def lines(self) -> list[str]:
        """The same in words."""
        found = [f"{self.path}: {self.readable:,} images can be read, {len(self.broken):,} broken ({STAMP})"]
        found += [f"damaged: {sentence}" for sentence in self.damaged]
        found += [f"sizes: {_listed(self.sizes)}"] if self.sizes else []
        if len(self.sizes) > 1 or any(_unusual(words) for words in self.sizes):
            found.append("  to train on, bring all to one form from 8x8 to 64x64, for example with --shape 3x32x32")
        if self.labels is not None:
            found.append(f"labels: {_listed(self.labels)}")
        if self.people is not None:
            found.append("people: {people:,}, with {fewest:,} to {most:,} images each".format(**self.people))
        if self.folders:
            found.append(f"sub-folders: {len(self.folders)} ({shorten(self.folders)}), and nobody said what they are:")
            found.append(
                "  classes (--classes N), people (--declare person=folder:1) or clients (--declare clients=true)"
            )
        return [one_line(line) for line in (*found, *(f"broken: {sentence}" for sentence in self.broken))]


def _unusual(words: str) -> bool:
    """Whether images of such a size must be resized."""
    return not all(8 <= int(side) <= 64 for side in words.split()[0].split("x"))


def _listed(counts: dict[str, int]) -> str:
    shown_first = [f"{name} ({count:,})" for name, count in list(counts.items())[:_MOST_CLASSES]]
    more = len(counts) - len(shown_first)
    return ", ".join(shown_first) + (f" and {more:,} more" if more else "")


def check_source(source: str | Path, split: str, declared: Declared) -> SourceCheck:
    """Look at every file of a source; nothing needs to be declared.

    Privacy: see the module.
    """
    if isinstance(source, str) and is_known(source):
        return _check_loaded(source, load_named(source, split, declared))
    path = existing(source)
    if is_store(path):
        return _check_store(path, declared)
    undeclared, tree = list[str](), picture_folder(path, split)
    if tree is not None and not declared.labelled and not declared.options.unlabelled and not declared.options.clients:
        undeclared = [] if declared.options.person else [folder.name for folder in sub_folders(tree)]
        declared = declared.with_options(unlabelled=declared.options.label is None)
    try:
        arrays = read_arrays(path, split, declared)
    except InputError as error:
        return SourceCheck(str(path), 0, [str(error)], {}, None)
    if arrays is not None:
        return _check_arrays(path, arrays, declared)
    damaged = list[str]()
    table = items_of(path, split, declared, damaged)
    found = _check_items(path, shown(table.items, table.rows, f"files of {path.name}"), declared)
    return replace(found, folders=undeclared, damaged=damaged)


def refuse_undeclared(source: DataOptions) -> None:
    """Where size or classes are not declared: say what the source holds, and that what is declared becomes public.

    Files are counted and none is decoded, so that the answer is quick.

    Privacy: see the module; the error is for the owner who called the command.
    """
    options = source.source_options()
    path = None if is_known(source.source) else existing(source.source)
    if path is None or is_store(path):
        return
    said = options.unlabelled or options.clients or options.person or options.class_names or options.label
    tree = None if source.classes or said else picture_folder(path, "train")
    folders = [] if tree is None else sub_folders(tree)
    missing = [] if source.records else ["records (--records N)"]
    missing += [_CLASSES_OR_PEOPLE] if folders else []
    if not missing:
        return
    named = [folder.name for folder in folders]
    inner = f" in {len(named)} sub-folders ({shorten(named)})" if named else ""
    raise InputError(
        f"{missing[0].split()[0]}: the number of {' and of '.join(missing)} is not declared; {path} holds "
        f"{_counted(path, source)}{inner}. What you declare becomes public with the certificate and need not be exact, "
        "so pass a figure that is known anyway, or round it"
    )


def _counted(path: Path, source: DataOptions) -> str:
    """How many images there are, as far as that can be told without decoding them."""
    declared = Declared(options=source.source_options()).with_options(unlabelled=True, label=None, class_names=None)
    arrays = read_arrays(path, "train", declared)
    number = len(arrays.images) if arrays is not None else items_of(path, "train", declared).rows
    return "images" if number is None else f"{number:,} images"


def _check_items(path: Path, items: Any, declared: Declared) -> SourceCheck:
    broken, sizes, kept = Broken(None), Counter[str](), list[Item]()
    with quiet_decoders():
        for item, image in decoded(items, declared.options, broken, any_size=True):
            sizes[describe(image.shape)] += 1
            kept.append(item)
    labels = Counter(str(item.label) for item in kept if item.label is not None)
    names = declared.options.class_names
    named = {names[int(key)] if names and key.isdigit() else key: labels[key] for key in sorted(labels)}
    people = [str(item.person) for item in kept if item.person is not None]
    return SourceCheck(str(path), len(kept), broken.found, dict(sizes.most_common()), named or None, _people(people))


def _people(names: Any) -> dict[str, int] | None:
    if len(names) == 0:
        return None
    counts = np.bincount(normalise_ids("people", names, len(names)))
    return {"people": len(counts), "fewest": int(counts.min()), "most": int(counts.max())}


def _check_arrays(path: Path, arrays: Any, declared: Declared) -> SourceCheck:
    from understudy.data.arrays import normalise_images

    try:
        images = normalise_images(arrays.images, declared.options)
        labels = None if arrays.labels is None else np.asarray(arrays.labels).reshape(len(images), -1)
    except (InputError, ValueError) as error:
        return SourceCheck(str(path), 0, [str(error)], {}, None)
    counts = None
    if labels is not None:
        values, numbers = np.unique(labels if labels.shape[1] > 1 else labels[:, 0], axis=0, return_counts=True)
        counts = {str(value): int(number) for value, number in zip(values, numbers, strict=True)}
    people = None if arrays.people is None else _people(arrays.people)
    return SourceCheck(str(path), len(images), [], {describe(images.shape[1:]): len(images)}, counts, people)


def _check_store(path: Path, declared: Declared) -> SourceCheck:
    """All of a store is read, and every block of images compared with its checksum."""
    try:
        data = open_store(path, declared)
        for start in range(0, len(data), _AT_ONCE):
            data.images[start : start + _AT_ONCE]
    except InputError as error:
        return SourceCheck(str(path), 0, [str(error)], {}, None)
    return _check_loaded(str(path), data)


def _check_loaded(source: str, data: ImageDataset) -> SourceCheck:
    """A data set with its domain: a store, or one that is known by name."""
    labels = None
    if data.labels is not None:
        counts = np.bincount(data.labels, minlength=data.domain.classes or 0).tolist()
        names = data.domain.class_names or tuple(str(label) for label in range(len(counts)))
        labels = dict(zip(names, counts, strict=True))
    people = None if data.people is None else _people(data.people)
    return SourceCheck(source, len(data), [], {describe(data.domain.shape): len(data)}, labels, people)
