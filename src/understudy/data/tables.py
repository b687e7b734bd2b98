"""Tables of images: CSV with paths, parquet with paths or bytes, Hugging Face data sets on disk or in memory.

A table has a column of images (or of paths to them, below the folder of the table), and may have columns that say the
class, the person and the client of each. Usual names are found; others are declared (``image=column:NAME``).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from understudy.data.columns import CLIENT_NAMES, IMAGE_NAMES, LABEL_NAMES, Locator, column_name, locator, shorten
from understudy.data.domain import SourceOptions, parse_place
from understudy.data.pictures import Item, Value
from understudy.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset
    from pyarrow import Schema

Row = Mapping[str, Any]
_IMAGE_COLUMNS = (
    *IMAGE_NAMES,
    "bytes",
    "png",
    "jpg",
    "path",
    "file",
    "file_name",
    "filename",
    "filepath",
    "image_path",
)
_ROWS_AT_ONCE = 256
_LONGEST_CELL = 2**20  # characters
_HF_FILES = ("dataset_info.json", "state.json")
_HF_SPLITS = "dataset_dict.json"


@dataclass(frozen=True)
class Table:
    """The items of a table, and how many rows it has, where that is known."""

    items: Iterator[Item]
    rows: int | None


# Rows to items


class _Reader:
    """Turns rows into items, once it is settled which column says what."""

    def __init__(self, source: Path | str, columns: Sequence[str], options: SourceOptions, labelled: bool) -> None:
        self._source, self._base = str(source), Path(source).parent
        image = column_name(options.image, _IMAGE_COLUMNS, columns, self._source, "image")
        if image is None:
            raise InputError(
                f"{source}: no column of images or of their paths; it has {shorten(columns) or 'none'}, so pass"
                " image=column:NAME (--declare image=column:NAME)"
            )
        self.image = image
        self.label = None if options.unlabelled else self._column(options.label, LABEL_NAMES, columns, "label")
        self.person = self._column(options.person, (), columns, "person")
        self.client = self._column(None, CLIENT_NAMES, columns, "clients") if options.clients else None
        self._located = {"label": _located(options.label, "label"), "person": _located(options.person, "person")}
        if labelled and self.label is None and self._located["label"] is None:
            raise InputError(
                f"{source}: classes were declared, but no column says them; it has {shorten(columns)}, so pass"
                " label=column:NAME (--declare label=column:NAME), or leave the classes out"
            )
        if options.clients and self.client is None:
            raise InputError(f"{source}: clients=True, but there is no column writer or client; add it")

    def _column(self, declared: str | None, usual: Sequence[str], columns: Sequence[str], what: str) -> str | None:
        return column_name(declared, usual, [name for name in columns if name != self.image], self._source, what)

    @property
    def needed(self) -> list[str]:
        """The columns that are read; no other leaves the file."""
        return list(dict.fromkeys(name for name in (self.image, self.label, self.person, self.client) if name))

    def item(self, row: Row, number: int) -> Item:
        """The item of a row; what is wrong with it is kept for whoever counts broken ones."""
        where = f"{self._source}: row {number}"
        try:
            content, path = self._picture(row[self.image], where)
            name = str(content) if isinstance(content, Path) else where
            return Item(
                name,
                content,
                self._value(row, self.label, "label", path, where),
                self._value(row, self.person, "person", path, where),
                self._value(row, self.client, "client", path, where),
            )
        except InputError as error:
            return Item(where, b"", problem=str(error))

    def _picture(self, cell: Any, where: str) -> tuple[Path | bytes, str | None]:
        """What to decode, and the path that the table gives for it."""
        if isinstance(cell, Mapping):  # as Hugging Face stores an image
            path = cell.get("path")
            cell = cell.get("bytes") or path
        else:
            path = cell if isinstance(cell, str) else None
        if isinstance(cell, bytes | bytearray | memoryview) and len(cell):
            return bytes(cell), path
        if isinstance(cell, str) and cell.strip():
            return self._base / cell.strip(), cell.strip()
        kind = "nothing" if cell is None or cell == "" else type(cell).__name__
        raise InputError(f"{where} has {kind} for an image in column {self.image!r}; write a path or PNG or JPEG bytes")

    def _value(self, row: Row, column: str | None, what: str, path: str | None, where: str) -> Value | None:
        located = self._located.get(what)
        if located is not None:
            if path is None:
                raise InputError(f"{where} has no file name to find the {what} in; pass {what}=column:NAME")
            folders = PurePath(path).parts[:-1]
            if PurePath(path).is_absolute() or ".." in folders:
                raise InputError(
                    f"{where}: {path} does not say its folders below the table; write the path from there, or pass"
                    f" {what}=column:NAME"
                )
            return located(path, folders)
        if column is None:
            return None
        value = row[column]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int) and value != "":
            return value.strip() if isinstance(value, str) else int(value)
        raise InputError(f"{where} has no {what} in column {column!r}; fill it in, or remove the row")


def _located(declared: str | None, what: str) -> Locator | None:
    place = None if declared is None else parse_place(declared)
    return None if place is None or place.kind == "column" else locator(place, what)


# CSV


def csv_table(path: Path, options: SourceOptions, labelled: bool) -> Table:
    """A CSV file (commas, semicolons or tabs) with a header line; paths are below its folder."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header = stream.readline(_LONGEST_CELL)
            delimiter = max(",;\t", key=header.count)
            columns = next(csv.reader([header], delimiter=delimiter, strict=True), [])
        reader = _Reader(path, columns, options, labelled)
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save the table again as CSV in UTF-8") from None
    except (OSError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error}); save the table again as CSV") from None
    return Table(_csv_items(path, delimiter, reader), None)


def _csv_items(path: Path, delimiter: str, reader: _Reader) -> Iterator[Item]:
    """The rows of a table, each on a line of its own.

    Privacy: a quote that is not closed would swallow the rows of others, so a cell with a line break ends the reading.
    """
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream, delimiter=delimiter, restval="", strict=True)
        try:
            for number, row in enumerate(rows, 1):
                if any("\n" in str(cell) or "\r" in str(cell) for cell in row.values()):
                    raise InputError(
                        f"{path}: row {number} goes over several lines up to line {rows.line_num}; close its quotes, or"
                        " take the line breaks out"
                    )
                yield reader.item(row, number)
        except UnicodeDecodeError:
            raise InputError(f"{path}: not UTF-8 text; save the table again as CSV in UTF-8") from None
        except csv.Error as error:
            raise InputError(f"{path}: line {rows.line_num} cannot be read ({error}); save the table again") from None


# Parquet


def parquet_table(paths: Sequence[Path], options: SourceOptions, labelled: bool) -> Table:
    """One or more parquet files of the same columns."""
    files = [_open_parquet(path) for path in paths]
    parts = []
    for path, file in zip(paths, files, strict=True):
        reader = _Reader(path, file.schema_arrow.names, options, labelled)
        _check_image_type(path, reader.image, file.schema_arrow)
        parts.append(_rows(path, file, reader))
    return Table(chain.from_iterable(parts), sum(file.metadata.num_rows for file in files))


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: parquet needs pyarrow; install it with pip install 'understudy[parquet]'") from None
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pyarrow raises whatever its decoders raise
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path}: not a readable parquet file ({reason}); copy it or write it again")


def _check_image_type(path: Path, column: str, schema: Schema) -> None:
    import pyarrow.types as kinds

    kind = schema.field(column).type
    fine = (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary, kinds.is_string, kinds.is_large_string)
    if not (any(is_kind(kind) for is_kind in fine) or kinds.is_struct(kind)):
        raise InputError(
            f"{path}: column {column!r} is {kind}, not an image; it holds PNG or JPEG bytes, or paths to such files"
        )


def _rows(path: Path, file: Any, reader: _Reader) -> Iterator[Item]:
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=reader.needed):
            for row in batch.to_pylist():
                number += 1
                yield reader.item(row, number)
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None


# Hugging Face


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder was written by ``save_to_disk`` of the library ``datasets``."""
    return (folder / _HF_SPLITS).is_file() or all((folder / name).is_file() for name in _HF_FILES)


def open_hugging_face(folder: Path, split: str) -> Dataset:
    """One split of a data set that was saved to disk."""
    import json

    try:
        from datasets import load_from_disk
    except ImportError:
        raise InputError(
            f"{folder}: a data set of Hugging Face needs datasets; install it with pip install 'understudy[hf]'"
        ) from None
    place = folder
    try:
        if (folder / _HF_SPLITS).is_file():
            splits = json.loads((folder / _HF_SPLITS).read_text(encoding="utf-8"))["splits"]
            if split not in splits:
                raise InputError(f"split: {split!r} was asked, but {folder} has {shorten(splits)}; add it")
            place = folder / split
        elif split != "train":
            raise InputError(
                f"split: {split!r} was asked, but {folder} holds one set only; pass the path of the {split} set (to"
                " evaluate: --test-data PATH)"
            )
        return load_from_disk(str(place))
    except InputError:
        raise
    except Exception as error:  # what a damaged file raises is up to three libraries
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{place}: not a readable data set of Hugging Face ({reason}); save it again") from None


def hugging_face_table(source: Path | str, dataset: Dataset, options: SourceOptions, labelled: bool) -> Table:
    """The rows of a data set in memory; names of its classes count where classes are declared by name."""
    from datasets import ClassLabel, Image

    reader = _Reader(source, list(dataset.column_names), options, labelled)
    if isinstance(dataset.features[reader.image], Image):
        dataset = dataset.cast_column(reader.image, Image(decode=False))
    feature = dataset.features[reader.label] if reader.label is not None else None
    named = feature.int2str if isinstance(feature, ClassLabel) and options.class_names is not None else None
    return Table(_hf_items(dataset.select_columns(reader.needed), reader, named), len(dataset))


def _hf_items(dataset: Iterable[Row], reader: _Reader, named: Callable[[int], str] | None) -> Iterator[Item]:
    for number, row in enumerate(dataset, 1):
        if named is not None and reader.label is not None:
            label = row[reader.label]
            row = {**row, reader.label: None if label is None or label < 0 else named(label)}
        yield reader.item(row, number)
