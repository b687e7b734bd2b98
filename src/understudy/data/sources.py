"""``load``: one door for every source, by name or by path; and data as they are named in text.

``DataOptions`` say where the data are and what their owner declares, as a command line or a run on disk writes it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from understudy.data import idx
from understudy.data.arrays import from_arrays
from understudy.data.catalog import is_known, known_names, load_named
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Declared, Domain, SourceOptions, require_records, source_options
from understudy.data.folder import read_folder, sub_folders
from understudy.data.npz import array_names, read_array
from understudy.errors import InputError

_SPLITS = ("train", "test")
_IMAGE_ARRAYS = ("x", "images")
_LABEL_ARRAYS = ("y", "labels")
_CLIENT_ARRAYS = ("writer", "clients", "client_ids")
_Arrays = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]


def load(
    source: str | Path,
    *,
    split: str = "train",
    records: int | None = None,
    classes: int | None = None,
    options: SourceOptions | None = None,
) -> ImageDataset:
    """A data set by name (digits, mnist, fashion-mnist, femnist) or from a path.

    A path is an ``.npz`` archive (x or images, y or labels, writer or clients; or x_train, y_train, x_test, y_test), a
    folder of PNG/JPEG files (flat, a sub-folder per class, or with ``options.clients`` a sub-folder per client), an IDX
    file or a folder of IDX files. A folder with nothing but ``train`` and ``test`` in it is entered by ``split``.

    For a path ``records`` is required, and ``classes`` where there are labels: both are published, so they are declared
    and never read from the data. Named sets are public and need neither.

    Privacy: reads private data into memory and releases nothing.
    """
    declared = Declared(records, classes, options or SourceOptions())
    if split not in _SPLITS:
        raise InputError(f"split: {split!r}; choose train or test")
    if isinstance(source, str) and is_known(source):
        return load_named(source, split, declared)
    if declared.options.min_images is not None:
        raise InputError("min_images: a filter of femnist only, because it looks at whole clients; leave it out")
    path = _existing(source)
    if declared.options.name is None:
        declared = declared.with_options(name=path.name.removesuffix(".npz"))
    if path.is_dir():
        return _load_folder(path, split, declared)
    if path.suffix == ".npz":
        return _finish(_read_npz(path, split, declared.options), declared)
    return _finish(_read_idx_file(path, split, declared.options), declared)


def _finish(arrays: _Arrays, declared: Declared) -> ImageDataset:
    images, labels, clients = arrays
    return from_arrays(
        images, labels, client_ids=clients, records=declared.records, classes=declared.classes, options=declared.options
    )


def _existing(source: str | Path) -> Path:
    path = Path(source).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if not exists:
        close = difflib.get_close_matches(str(source), known_names(), n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; pass a path, or one of {', '.join(known_names())}"
        raise InputError(f"data: {str(source)!r} is neither an existing path nor a known data set{hint}")
    return path.resolve() if str(path) in (".", "..") else path


def _one_set_only(path: Path, split: str) -> None:
    if split != "train":
        raise InputError(f"split: {split!r} was asked, but {path} holds one set only; pass the path of the {split} set")


def _load_folder(path: Path, split: str, declared: Declared) -> ImageDataset:
    options = declared.options
    if any(idx.mnist_files(path, name) for name in _SPLITS):
        files = idx.mnist_files(path, split)
        if files is None:
            raise InputError(f"{path}: the IDX files of the {split} split are missing; add them")
        _no_clients(path, options)
        labels = None if options.unlabelled else idx.read_idx(files[1])
        return _finish((idx.read_idx(files[0]), labels, None), declared)
    inner = {folder.name for folder in sub_folders(path)}
    if inner and inner <= set(_SPLITS):
        if split not in inner:
            raise InputError(f"split: {split!r} was asked, but {path} has no folder {split}; add it")
        path = path / split
    else:
        _one_set_only(path, split)
    require_records(declared.records)  # before the images are decoded
    content = read_folder(path, declared.classes, options)
    declared = declared.with_options(class_names=content.class_names, size=None, channels=None)
    return _finish((content.images, content.labels, content.client_ids), declared)


def _read_npz(path: Path, split: str, options: SourceOptions) -> _Arrays:
    names = array_names(path)
    suffix = f"_{split}"
    if any(f"{name}{suffix}" in names for name in _IMAGE_ARRAYS):
        pass
    elif any(name in names for name in _IMAGE_ARRAYS):
        _one_set_only(path, split)
        suffix = ""
    else:
        raise InputError(
            f"{path}: holds {', '.join(names) or 'no arrays'}, but no images for {split};"
            f" name them x or images, or x_{split}"
        )

    def first(candidates: tuple[str, ...]) -> NDArray[Any] | None:
        present = [f"{name}{suffix}" for name in candidates if f"{name}{suffix}" in names]
        return read_array(path, present[0]) if present else None

    images = first(_IMAGE_ARRAYS)
    assert images is not None
    labels = None if options.unlabelled else first(_LABEL_ARRAYS)
    clients = first(_CLIENT_ARRAYS) if options.clients else None
    if options.clients and clients is None:
        raise InputError(f"{path}: clients=True, but there is no array writer{suffix} or clients{suffix}; add it")
    return images, labels, clients


def _read_idx_file(path: Path, split: str, options: SourceOptions) -> _Arrays:
    if not idx.looks_like_idx(path):
        raise InputError(f"{path}: not a known kind of file; pass an .npz archive, an IDX file or a folder of images")
    _one_set_only(path, split)
    _no_clients(path, options)
    images = idx.read_idx(path)
    if images.ndim < 3:
        raise InputError(f"{path}: holds {images.ndim}-dimensional data, not images; pass the file of the images")
    sibling = None if options.unlabelled else idx.sibling_labels(path)
    return images, None if sibling is None else idx.read_idx(sibling), None


def _no_clients(path: Path, options: SourceOptions) -> None:
    if options.clients:
        raise InputError(f"clients: {path} does not say who contributed what; leave clients out")


# Data as they are named in text


@dataclass(frozen=True)
class DataOptions:
    """Where the data are and what their owner declares about them."""

    source: str
    records: int | None = None
    classes: int | None = None
    shape: str | None = None
    declared: Sequence[str] = field(default_factory=tuple)

    def load(self, split: str = "train") -> ImageDataset:
        """The data set, with its declared domain."""
        values = parse_declarations(self.declared)
        if self.shape is not None:
            channels, height, width = parse_shape(self.shape)
            values |= {"size": (height, width)} | ({"channels": channels} if channels else {})
        options = source_options(**values)
        return load(self.source, split=split, records=self.records, classes=self.classes, options=options)

    def held_out(self, test_data: str | None) -> tuple[DataOptions, str]:
        """The data that figures are measured on, and which part of them; by default the test part of these."""
        return (self, "test") if test_data is None else (replace(self, source=test_data), "train")

    def as_dict(self) -> dict[str, Any]:
        """The declarations as plain data, for whoever resumes the run."""
        return {"records": self.records, "classes": self.classes, "shape": self.shape, "declared": list(self.declared)}

    def completed_by(self, earlier: Mapping[str, Any] | None) -> DataOptions:
        """The same data with everything that is left open declared as it was when the run was started."""
        if earlier is None:
            return self
        known = parse_declarations(self.declared)
        extra = [text for text in earlier["declared"] if text.partition("=")[0].strip() not in known]
        return replace(
            self,
            records=self.records or earlier["records"],
            classes=self.classes or earlier["classes"],
            shape=self.shape or earlier["shape"],
            declared=(*self.declared, *extra),
        )

    def completed_from(self, domain: Domain) -> DataOptions:
        """The same data with everything that is left open declared as in an earlier run."""
        known = parse_declarations(self.declared)
        extra = []
        if domain.class_names is not None and "class_names" not in known:
            extra.append(f"class_names={json.dumps(list(domain.class_names))}")
        if domain.classes is None and "unlabelled" not in known:
            extra.append("unlabelled=true")
        if domain.nominal_clients is not None:
            clients = {"clients": "true", "nominal_clients": str(domain.nominal_clients)}
            extra += [f"{key}={value}" for key, value in clients.items() if key not in known]
        return replace(
            self,
            records=self.records or domain.nominal_records,
            classes=self.classes or domain.classes,
            shape=self.shape or "x".join(str(side) for side in domain.shape),
            declared=(*self.declared, *extra),
        )


def parse_shape(text: str) -> tuple[int | None, int, int]:
    """``1x28x28`` or ``28x28`` as (channels or None, height, width)."""
    match = re.fullmatch(r"(?:(\d{1,6})x)?(\d{1,6})x(\d{1,6})", text.strip().lower())
    if match is None:
        raise InputError(f"shape: {text!r} is not of the form channels x height x width; pass for example 1x28x28")
    channels, height, width = match.groups()
    return (int(channels) if channels else None), int(height), int(width)


def parse_declarations(declared: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs; a value is JSON, true or false, or a list separated by commas."""
    values: dict[str, Any] = {}
    for text in declared:
        key, separator, raw = text.partition("=")
        if not separator or not key.strip():
            raise InputError(f"--declare: {text!r} is not of the form key=value; for example value_range=0,1")
        values[key.strip()] = _parse_value(raw.strip(), is_list=key.strip() in ("class_names", "value_range", "size"))
    return values


def _parse_value(raw: str, is_list: bool) -> Any:
    try:
        value = json.loads(raw.lower() if raw.lower() in ("true", "false", "none", "null") else raw)
    except (ValueError, RecursionError):
        value = raw
    if is_list and not isinstance(value, list):
        return [part.strip() for part in raw.strip("()[]").split(",")]
    return value
