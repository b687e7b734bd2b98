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
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from understudy.data import idx, tables, webdataset
from understudy.data.arrays import from_arrays
from understudy.data.catalog import is_known, known_names, load_named
from understudy.data.columns import CLIENT_NAMES, IMAGE_NAMES, LABEL_NAMES, column_name, shorten
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Declared, Domain, SourceOptions, parse_place, require_records, source_options
from understudy.data.folder import folder_items, holds_pictures, sub_folders, visible
from understudy.data.npz import array_names, read_array
from understudy.data.pictures import Content, Stack, collect
from understudy.data.store import StoredDataset, is_store, new_store, open_store
from understudy.data.tables import Table
from understudy.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset

_SPLITS = ("train", "test")
_SHARDS = (".parquet", *webdataset.SUFFIXES)
_HUB_FOLDER = "data"  # where repositories of Hugging Face keep their parquet files


@dataclass(frozen=True)
class _Arrays:
    """What an archive or an IDX file holds."""

    images: NDArray[Any]
    labels: NDArray[Any] | None = None
    clients: NDArray[Any] | None = None
    people: NDArray[Any] | None = None


def load(
    source: str | Path,
    *,
    split: str = "train",
    records: int | None = None,
    classes: int | None = None,
    options: SourceOptions | None = None,
) -> ImageDataset:
    """A data set by name (``understudy data list`` shows them) or from a path.

    A path is a folder of PNG, JPEG or DICOM files (flat, or with a sub-folder for each class, person or client, or for
    several), a CSV or parquet table, a data set that Hugging Face's library saved to disk, WebDataset archives, an
    ``.npz`` archive, an IDX file or a folder of IDX files, or a data store (``write_store``), whose images stay on disk
    and are read as they are needed. A folder with nothing but ``train`` and ``test`` in it is entered by ``split``.
    docs/data.md shows each of them.

    For a path ``records`` is required, and ``classes`` where there are labels: both are published, so they are declared
    and never read from the data. Named sets are public and need neither.

    Privacy: reads private data and releases nothing.
    """
    return _read(source, split, Declared(records, classes, options or SourceOptions()))


def write_store(
    source: str | Path,
    to: str | Path,
    *,
    split: str = "train",
    records: int | None = None,
    classes: int | None = None,
    options: SourceOptions | None = None,
) -> None:
    """Write a source into a data store, from which one trains without loading it; all else is as for ``load``.

    Pictures go to disk as they are decoded, so they need not fit into memory.

    Privacy: as ``load``; the store is private, and for its owner alone.
    """
    declared = Declared(records, classes, options or SourceOptions())
    with new_store(Path(to).expanduser(), str(source)) as writer:
        writer.finish(_read(source, split, declared, writer))


def _read(source: str | Path, split: str, declared: Declared, stack: Stack | None = None) -> ImageDataset:
    """A data set; pictures are put on ``stack``, by default one in memory."""
    if split not in _SPLITS:
        raise InputError(f"split: {split!r}; choose train or test")
    if isinstance(source, str) and is_known(source):
        return load_named(source, split, declared)
    path = existing(source)
    if is_store(path):
        _one_set_only(path, split)
        return open_store(path, declared)
    if declared.options.min_images is not None:
        raise InputError("min_images: a filter of femnist only, because it looks at whole clients; leave it out")
    if declared.options.name is None:
        declared = declared.with_options(name=path.name.removesuffix(".npz"))
    arrays = read_arrays(path, split, declared)
    if arrays is not None:
        if declared.options.skip_broken:
            raise InputError(f"skip_broken: {path} holds arrays, which are whole or not; leave it out")
        return _finish(arrays, declared)
    require_records(declared.records)  # before the images are decoded
    return _collected(path, items_of(path, split, declared), declared, stack)


def from_hugging_face(
    dataset: Dataset, *, records: int | None = None, classes: int | None = None, options: SourceOptions | None = None
) -> ImageDataset:
    """An ``ImageDataset`` from a data set of Hugging Face's library in memory (one split of it); needs the extra [hf].

    Columns are found as in a table: ``image``, ``label``, and what ``options.person`` says.

    Privacy: as ``load``.
    """
    declared = Declared(records, classes, options or SourceOptions())
    require_records(records)
    if not hasattr(dataset, "features") or not hasattr(dataset, "select_columns"):
        raise InputError(f"dataset: a {type(dataset).__name__}; pass one split, a datasets.Dataset in memory")
    name = declared.options.name or "hugging-face"
    table = tables.hugging_face_table(name, dataset, declared.options, declared.labelled)
    return _collected(name, table, declared.with_options(name=name))


def _collected(source: Path | str, table: Table, declared: Declared, stack: Stack | None = None) -> ImageDataset:
    content = collect(source, table.items, table.rows, declared.options, stack)
    return _finish(content, declared.with_options(size=None, channels=None))


def _finish(arrays: _Arrays | Content, declared: Declared) -> ImageDataset:
    return from_arrays(
        arrays.images,
        arrays.labels,
        client_ids=arrays.clients,
        people=arrays.people,
        records=declared.records,
        classes=declared.classes,
        options=declared.options,
    )


def existing(source: str | Path) -> Path:
    """The path of a source that is there."""
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
        raise InputError(
            f"split: {split!r} was asked, but {path} holds one set only; pass the path of the {split} set (to evaluate:"
            " --test-data PATH)"
        )


# Pictures one by one


def items_of(path: Path, split: str, declared: Declared, damaged: list[str] | None = None) -> Table:
    """The records of a source that holds pictures, whatever its kind; ``damaged``: see ``webdataset.tar_items``."""
    options, labelled = declared.options, declared.labelled
    if path.is_dir():
        if tables.is_hugging_face(path):
            return tables.hugging_face_table(path, tables.open_hugging_face(path, split), options, labelled)
        shards = _shards(path, split)
        if not shards:
            items = list(folder_items(_entered(path, split), declared.classes, options))
            return Table(iter(items), len(items))
        path = shards[0]
    else:
        _one_set_only(path, split)
        shards = [path]
    if path.suffix == ".parquet":
        return tables.parquet_table(shards, options, labelled)
    if path.suffix in (".csv", ".tsv"):
        return tables.csv_table(path, options, labelled)
    if path.name.endswith(webdataset.SUFFIXES):
        return Table(webdataset.tar_items(shards, options, damaged), None)
    raise InputError(
        f"{path}: not a known kind of file; pass a folder of images, a .csv, .parquet, .tar or .npz file, or IDX files"
    )


def picture_folder(path: Path, split: str) -> Path | None:
    """The folder of a source whose folders say what its images are; None for tables, archives and arrays."""
    if not path.is_dir() or tables.is_hugging_face(path) or any(idx.mnist_files(path, name) for name in _SPLITS):
        return None
    return None if _shards(path, split) else _entered(path, split)


def _entered(path: Path, split: str) -> Path:
    """The folder of a split, where a folder holds nothing but splits."""
    inner = {folder.name for folder in sub_folders(path)}
    if not (inner and inner <= set(_SPLITS)):
        _one_set_only(path, split)
        return path
    if split not in inner:
        raise InputError(f"split: {split!r} was asked, but {path} has no folder {split}; add it")
    return path / split


def _shards(folder: Path, split: str) -> list[Path]:
    """The parquet or tar files of a folder, or of a folder ``data`` in it, that belong to a split by their names."""
    for place in (folder, folder / _HUB_FOLDER):
        inner = place.is_dir() and (place == folder or not holds_pictures(folder, apart_from=place.name))
        entries = visible(place) if inner else []
        found = [Path(entry.path) for entry in entries if entry.name.endswith(_SHARDS) and entry.is_file()]
        if not found:
            continue
        if len({entry.suffix == ".parquet" for entry in found}) > 1:
            raise InputError(f"{place}: parquet and tar files side by side; pass one of them")
        if holds_pictures(place):
            raise InputError(f"{found[0]}: lies beside images or folders; pass its own path, or move it away")
        of_splits = [entry for entry in found if _split_of(entry) is not None]
        if not of_splits:
            _one_set_only(place, split)
            return found
        if len(of_splits) < len(found):
            other = next(entry.name for entry in found if entry not in of_splits)
            raise InputError(
                f"{place}: {other} belongs to no split, but {of_splits[0].name} does; rename it, or move it away"
            )
        chosen = [entry for entry in of_splits if _split_of(entry) == split]
        if not chosen:
            raise InputError(f"split: {split!r} was asked, but no file in {place} begins with {split}; add it")
        return chosen
    return []


def _split_of(shard: Path) -> str | None:
    """The split that a file is of by the first word of its name."""
    word = re.split(r"[^A-Za-z]", shard.name, maxsplit=1)[0]
    return word if word in _SPLITS else None


# Arrays


def read_arrays(path: Path, split: str, declared: Declared) -> _Arrays | None:
    """The arrays of a source that holds such, or None."""
    options = declared.options
    if path.is_dir():
        if not any(idx.mnist_files(path, name) for name in _SPLITS):
            return None
        files = idx.mnist_files(path, split)
        if files is None:
            raise InputError(f"{path}: the IDX files of the {split} split are missing; add them")
        _no_units(path, options)
        return _Arrays(idx.read_idx(files[0]), None if options.unlabelled else idx.read_idx(files[1]))
    if path.suffix == ".npz":
        return _read_npz(path, split, declared)
    return _read_idx_file(path, split, options) if idx.looks_like_idx(path) else None


def _read_npz(path: Path, split: str, declared: Declared) -> _Arrays:
    options, names = declared.options, array_names(path)
    usual = IMAGE_NAMES if options.image is None else (parse_place(options.image).column,)
    spellings = (("", f"_{split}"), (f"{split}_", ""))  # x_train, or train_images
    affixes = [pair for pair in spellings if any(f"{pair[0]}{name}{pair[1]}" in names for name in usual)]
    if not affixes and any(name in names for name in usual):
        _one_set_only(path, split)
        affixes = [("", "")]
    if not affixes:
        raise InputError(
            f"{path}: holds {shorten(names) or 'no arrays'}, but no images for {split};"
            f" name them x or images, or x_{split}, or pass image=column:NAME"
        )
    before, after = affixes[0]
    plain = [
        name.removeprefix(before).removesuffix(after)
        for name in names
        if name.startswith(before) and name.endswith(after)
    ]

    def found(place: str | None, candidates: tuple[str, ...], what: str) -> NDArray[Any] | None:
        if place is not None and parse_place(place).kind != "column":
            raise InputError(f"{what}: {place}, but {path} holds arrays; pass {what}=column:NAME")
        name = column_name(place, candidates, plain, str(path), what)
        return None if name is None else read_array(path, f"{before}{name}{after}")

    images = found(options.image, usual, "image")
    assert images is not None
    clients = found(None, CLIENT_NAMES, "clients") if options.clients else None
    if options.clients and clients is None:
        raise InputError(f"{path}: clients=True, but there is no array writer{after} or clients{after}; add it")
    labels = None if options.unlabelled else found(options.label, LABEL_NAMES, "label")
    if declared.labelled and labels is None:
        raise InputError(
            f"{path}: classes were declared, but no array says them; it holds {shorten(plain)}, so pass"
            " label=column:NAME (--declare label=column:NAME), or leave the classes out"
        )
    return _Arrays(images, labels, clients, found(options.person, (), "person"))


def _read_idx_file(path: Path, split: str, options: SourceOptions) -> _Arrays:
    _one_set_only(path, split)
    _no_units(path, options)
    images = idx.read_idx(path)
    if images.ndim < 3:
        raise InputError(f"{path}: holds {images.ndim}-dimensional data, not images; pass the file of the images")
    sibling = None if options.unlabelled else idx.sibling_labels(path)
    return _Arrays(images, None if sibling is None else idx.read_idx(sibling))


def _no_units(path: Path, options: SourceOptions) -> None:
    for name, asked in (("clients", options.clients), ("person", options.person), ("label", options.label)):
        if asked:
            raise InputError(f"{name}: {path} does not say who contributed what; leave {name} out")


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
        """The data set in memory, with its declared domain."""
        data = self.open(split)
        return data.in_memory() if isinstance(data, StoredDataset) else data

    def open(self, split: str = "train") -> ImageDataset:
        """The same to train on: images of a data store stay on disk."""
        return load(self.source, split=split, records=self.records, classes=self.classes, options=self.source_options())

    def source_options(self) -> SourceOptions:
        """What was declared beyond the number of records and of classes."""
        values = parse_declarations(self.declared)
        if self.shape is not None:
            channels, height, width = parse_shape(self.shape)
            values |= {"size": (height, width)} | ({"channels": channels} if channels else {})
        return source_options(**values)

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

    def completed_from(self, domain: Domain, units: bool = True) -> DataOptions:
        """The same data with everything that is left open declared as in an earlier run.

        ``units``: with its clients and its broken files too; other data, compared image by image, need neither.
        """
        known = parse_declarations(self.declared)
        extra = []
        if domain.class_names is not None and "class_names" not in known:
            extra.append(f"class_names={json.dumps(list(domain.class_names))}")
        if domain.classes is None and "unlabelled" not in known:
            extra.append("unlabelled=true")
        if units and domain.skip_broken is not None and "skip_broken" not in known:
            extra.append(f"skip_broken={domain.skip_broken}")
        if units and domain.nominal_clients is not None:
            clients = {"clients": "true", "nominal_clients": str(domain.nominal_clients)}
            extra += [f"{key}={value}" for key, value in clients.items() if key not in known]
        return replace(
            self,
            records=self.records or domain.nominal_records,
            classes=self.classes or domain.classes,
            shape=self.shape or "x".join(str(side) for side in domain.shape),
            declared=(*self.declared, *extra),
        )


_LISTS = ("class_names", "value_range", "size", "window")
_TEXTS = ("person", "label", "image", "name")


def parse_shape(text: str) -> tuple[int | None, int, int]:
    """``1x28x28`` or ``28x28`` as (channels or None, height, width)."""
    match = re.fullmatch(r"(?:([1-9]\d{0,5})x)?(\d{1,6})x(\d{1,6})", text.strip().lower())
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
        name, value = key.strip(), raw.strip()
        values[name] = value if name in _TEXTS else _parse_value(value, is_list=name in _LISTS)
    return values


def _parse_value(raw: str, is_list: bool) -> Any:
    try:
        value = json.loads(raw.lower() if raw.lower() in ("true", "false", "none", "null") else raw)
    except (ValueError, RecursionError):
        value = raw
    if is_list and not isinstance(value, list):
        return [part.strip() for part in raw.strip("()[]").split(",")]
    return value
