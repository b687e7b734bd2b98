"""The data sets known by name: what is public about them, where they may lie, where they can be had, how they load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.data import idx
from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Declared, SourceOptions
from understudy.data.femnist import load_femnist
from understudy.data.npz import array_names, read_array
from understudy.errors import InputError

_DIGITS_TEST_EVERY = 5
_DEBIAN = Path("/usr/share/datasets")
_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class RemoteFile:
    """A file on a mirror, with the size and checksum that it must have."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class KnownSet:
    """A public benchmark: its declared facts are built in, because they are printed in every paper."""

    name: str
    about: str
    shape: tuple[int, int, int]
    classes: int
    records: Mapping[str, int]  # nominal records of each split
    class_names: tuple[str, ...] | None = None
    mirrors: tuple[str, ...] = ()
    files: tuple[RemoteFile, ...] = ()
    where: str | None = None  # how to get files that ``data import`` takes, where there is nothing to fetch
    column: str | None = None  # what the array is called that says whom records are of
    people: Mapping[str, int] = field(default_factory=dict)  # nominal people of each split
    enrolled: bool = False  # people are the clients of a federation unless declared otherwise

    @property
    def stems(self) -> tuple[str, ...]:
        """The spellings under which its files may lie."""
        return tuple(dict.fromkeys((self.name, self.name.replace("-", "_"))))


def _idx_files(*facts: tuple[int, str]) -> tuple[RemoteFile, ...]:
    """The four files of MNIST and its relatives, with the size and the checksum of each."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(RemoteFile(f"{part}-ubyte.gz", *fact) for part, fact in zip(parts, facts, strict=True))


_DIGITS = KnownSet(
    name="digits",
    about="handwritten digits bundled with scikit-learn (UCI optical recognition, CC BY 4.0); no download",
    shape=(1, 8, 8),
    classes=10,
    records={"train": 1437, "test": 360},
)
_MNIST = KnownSet(
    name="mnist",
    about="handwritten digits (LeCun, Cortes and Burges; CC BY-SA 3.0)",
    shape=(1, 28, 28),
    classes=10,
    records={"train": 60_000, "test": 10_000},
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    files=_idx_files(
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
)
_FASHION_MNIST = KnownSet(
    name="fashion-mnist",
    about="pictures of clothes (Zalando Research; MIT)",
    shape=(1, 28, 28),
    classes=10,
    records={"train": 60_000, "test": 10_000},
    class_names=_FASHION_CLASSES,
    mirrors=(  # the first offers no https; the checksum guards what arrives
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    files=_idx_files(
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
)
_FEMNIST = KnownSet(
    name="femnist",
    about="handwritten digits and letters by writer (LEAF's sample of NIST SD19); no single-file mirror",
    shape=(1, 28, 28),
    classes=62,
    records={"train": 66_128, "test": 6_991},
    where="create it with LEAF (github.com/TalwalkarLab/leaf, data/femnist)",
    column="writer",
    people={"train": 710, "test": 710},
    enrolled=True,
)
_MNIST_WRITERS = KnownSet(
    name="mnist-writers",
    about="MNIST with the writer of each digit (QMNIST's labels; BSD)",
    shape=(1, 28, 28),
    classes=10,
    records={"train": 60_000, "test": 10_000},
    where="put qmnist-train-labels-idx2-int.gz and qmnist-test-labels-idx2-int.gz of"
    " github.com/facebookresearch/qmnist into a folder",
    column="writer",
    people={"train": 539, "test": 297},
    enrolled=True,
)
_CIFAR_10 = KnownSet(
    name="cifar-10",
    about="small colour photographs of ten kinds of things (Krizhevsky)",
    shape=(3, 32, 32),
    classes=10,
    records={"train": 50_000, "test": 10_000},
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    where="download cifar-10-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html",
)
_MALARIA_CELLS = KnownSet(
    name="malaria-cells",
    about="blood cells in colour by patient, with and without parasites (US National Library of Medicine)",
    shape=(3, 32, 32),
    classes=2,
    records={"train": 23_708, "test": 3_850},
    class_names=("Uninfected", "Parasitized"),
    where="download cell_images.zip from data.lhncbc.nlm.nih.gov/public/Malaria",
    column="patient",
    people={"train": 170, "test": 30},
)
_KNOWN = {
    known.name: known
    for known in (_DIGITS, _MNIST, _FASHION_MNIST, _FEMNIST, _MNIST_WRITERS, _CIFAR_10, _MALARIA_CELLS)
}


def known_names() -> tuple[str, ...]:
    """The names that ``load`` understands."""
    return tuple(_KNOWN)


def is_known(name: str) -> bool:
    """Whether ``name`` is a data set known by name."""
    return name in _KNOWN


def known_set(name: str) -> KnownSet:
    """The entry of a data set known by name."""
    if name not in _KNOWN:
        raise InputError(
            f"data: {name!r} is not a known data set; choose one of {', '.join(_KNOWN)}, or load a path directly"
        )
    return _KNOWN[name]


def cache_folder() -> Path:
    """Where fetched and imported sets are kept: $XDG_CACHE_HOME/understudy or ~/.cache/understudy."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "understudy"


def search_folders() -> tuple[Path, ...]:
    """Where named sets are looked for, in this order: $UNDERSTUDY_DATA, the user's cache, Debian's data sets."""
    own = os.environ.get("UNDERSTUDY_DATA")
    return (*((Path(own),) if own else ()), cache_folder(), _DEBIAN)


def locate(known: KnownSet) -> Path | None:
    """The archive (NAME.npz) or the folder of IDX files (NAME/) of a set, or None if it is nowhere."""
    for folder in search_folders():
        for stem in known.stems:
            if (folder / f"{stem}.npz").is_file():
                return folder / f"{stem}.npz"
            if any(idx.mnist_files(folder / stem, split) for split in ("train", "test")):
                return folder / stem
    return None


def require_located(known: KnownSet) -> Path:
    """Where a set lies; if nowhere, an error that says how to get it."""
    place = locate(known)
    if place is None:
        fetch = f"`understudy data fetch {known.name}` or " if known.mirrors else ""
        where = f" ({known.where})" if known.where else ""
        raise InputError(
            f"data: {known.name} is not on this machine; run {fetch}`understudy data import {known.name} PATH`{where},"
            " or set UNDERSTUDY_DATA to the folder that holds it"
        )
    return place


def load_named(name: str, split: str, declared: Declared) -> ImageDataset:
    """One of the known data sets; ``records`` and ``classes`` are built in and need not be declared."""
    known = known_set(name)
    if declared.options.value_range is not None:
        raise InputError(f"value_range: built in for {name}; leave it out")
    if declared.options.min_images is not None and name != "femnist":
        raise InputError("min_images: a filter of femnist only, because it looks at whole clients; leave it out")
    for option in ("label", "image", "skip_broken", "window"):
        if getattr(declared.options, option):
            raise InputError(f"{option}: built in for {name}; leave it out")
    _check_person(known, declared.options)
    if name == "digits":
        images, labels = _digits(split)
        return _finish(known, (images, labels, None), split, declared.with_options(value_range=(0.0, 16.0)))
    return load_known_from(require_located(known), known, split, declared)


def _check_person(known: KnownSet, options: SourceOptions) -> None:
    if options.person is None and options.nominal_people is None:
        return
    if known.column is None:
        raise InputError(f"person: {known.name} does not say whom records are of; leave person out")
    if options.person != f"column:{known.column}":
        raise InputError(f"person: {known.name} says it in one place; pass person=column:{known.column}")


def load_known_from(place: Path, known: KnownSet, split: str, declared: Declared) -> ImageDataset:
    """A known set from an archive or a folder of IDX files; its shape and labels are checked."""
    if known.name == "femnist":
        return load_femnist(place, split, declared)
    images, labels, owners = read_split(place, known, split)
    channels, height, width = known.shape
    layouts = [(height, width)] if channels == 1 else [(height, width, channels), known.shape]
    if images.shape[1:] not in layouts:
        raise InputError(
            f"{place}: images of shape {images.shape[1:]}, but {known.name} is {'x'.join(map(str, layouts[0]))};"
            " pass the path itself to `load` if it is another data set"
        )
    return _finish(known, (images, labels, owners), split, declared)


def _finish(
    known: KnownSet, columns: tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None], split: str, declared: Declared
) -> ImageDataset:
    images, labels, owners = columns
    options = declared.options
    if declared.classes not in (None, known.classes):
        raise InputError(f"classes: {declared.classes}, but {known.name} has {known.classes}; leave classes out")
    if options.clients and known.column is None:
        raise InputError(f"clients: {known.name} does not say who contributed what; leave clients out or use femnist")
    as_people = options.person is not None
    as_clients = not as_people and (options.clients or known.enrolled)
    update: dict[str, Any] = {"name": options.name or known.name}
    if options.class_names is None and not options.unlabelled:
        update["class_names"] = known.class_names
    if as_people or as_clients:
        unit = "nominal_people" if as_people else "nominal_clients"
        update[unit] = getattr(options, unit) or known.people[split]
    return from_arrays(
        images,
        labels,
        client_ids=owners if as_clients else None,
        people=owners if as_people else None,
        records=known.records[split] if declared.records is None else declared.records,
        classes=None if options.unlabelled else known.classes,
        options=options.model_copy(update=update),
    )


def _digits(split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bundled digits; records 0, 5, 10, ... are the test split, so both splits hold all writers' batches."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    held_out = np.arange(len(digits.images)) % _DIGITS_TEST_EVERY == 0
    chosen = held_out if split == "test" else ~held_out
    return digits.images[chosen], digits.target[chosen]


def read_split(place: Path, known: KnownSet, split: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Images, labels and people of one split from an archive or a folder of IDX files.

    The writers of MNIST may lie in an archive of their own, without the images.
    """
    pictures = place
    if known is _MNIST_WRITERS and not place.is_dir() and f"x_{split}" not in array_names(place):
        pictures = require_located(_MNIST)
    owners = None if known.column is None else _array(place, f"{known.column}_{split}")
    return *read_pair(pictures, split), owners


def read_pair(place: Path, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels of one split from an archive or a folder of IDX files."""
    if place.is_dir():
        files = idx.mnist_files(place, split)
        if files is None:
            raise InputError(f"{place}: the IDX files of the {split} split are missing; fetch or import the set again")
        return idx.read_idx(files[0]), idx.read_idx(files[1])
    return _array(place, f"x_{split}"), _array(place, f"y_{split}")


def _array(place: Path, name: str) -> NDArray[Any]:
    if place.is_dir() or name not in array_names(place):
        raise InputError(
            f"{place}: array {name!r} is missing; pass x_train, y_train, x_test and y_test, and all others"
        )
    return read_array(place, name)
