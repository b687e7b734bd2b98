"""Taking local files into the user's cache under the name of a known data set, after checking them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from understudy.data.catalog import KnownSet, cache_folder, known_set
from understudy.data.femnist import load_femnist, read_leaf
from understudy.data.named import load_known_from, read_pair
from understudy.data.npz import array_names, read_array, write_arrays
from understudy.data.options import Declared
from understudy.errors import InputError

_SPLITS = ("train", "test")


def import_local(name: str, path: str | Path, *, folder: Path | None = None) -> Path:
    """Copy a known data set from local files into the cache, in one step, and return where it lies.

    ``path`` is an ``.npz`` archive, a folder with the four IDX files, or for femnist the JSON folder of LEAF. Both
    splits are loaded and checked first; nothing is written if they do not fit.
    """
    known = known_set(name)
    source = Path(path).expanduser()
    if known.name == "digits":
        raise InputError("data: digits come with scikit-learn; there is nothing to import")
    if not source.exists():
        raise InputError(f"data: {str(path)!r} does not exist; pass the file or folder that holds {name}")
    arrays = _femnist_arrays(source) if known.name == "femnist" else _split_arrays(known, source)
    target = (folder or cache_folder()) / f"{known.name}.npz"
    try:
        write_arrays(target, arrays)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error}); set XDG_CACHE_HOME") from None
    return target


def _split_arrays(known: KnownSet, source: Path) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for split in _SPLITS:
        load_known_from(source, known, split, Declared())
        arrays[f"x_{split}"], arrays[f"y_{split}"] = read_pair(source, split)
    return arrays


def _femnist_arrays(source: Path) -> dict[str, NDArray[Any]]:
    if source.is_dir():
        return read_leaf(source)
    load_femnist(source, "train", Declared())
    optional = [name for name in ("writer_names",) if name in array_names(source)]
    return {name: read_array(source, name) for name in ("x", "y", "writer", *optional)}
