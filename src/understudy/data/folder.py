"""Folders of PNG, JPEG and DICOM files: flat, or with a folder for each class, person or client, or for several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from understudy.data.columns import label_names, locator, shorten
from understudy.data.dicom import SUFFIXES, is_dicom, tag_of
from understudy.data.domain import DEEPEST_FOLDER, Place, SourceOptions, parse_place, require_classes
from understudy.data.pictures import Content, Item, collect
from understudy.errors import InputError

_IMAGES = (".png", ".jpg", ".jpeg", *SUFFIXES)
_OTHER_IMAGES = (".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".heic")
_MANY_CLASSES = 50  # so many folders are rather people than classes


def read_folder(folder: Path, classes: int | None, options: SourceOptions) -> Content:
    """Read every image below ``folder``.

    Privacy: names of sub-folders become labels only if the caller declared as many classes, or these names; they are
    published only if these names were declared.
    """
    items = list(folder_items(folder, classes, options))
    return collect(folder, items, len(items), options)


def folder_items(folder: Path, classes: int | None, options: SourceOptions) -> Iterator[Item]:
    """Every image below ``folder``, with what the folders above it and its name say."""
    if options.image is not None:
        raise InputError(f"image: {folder} is a folder of images, which has no columns; leave image out")
    layout = _layout(folder, classes, options)
    if options.label is not None and parse_place(options.label).kind == "column":
        raise InputError(f"label: {options.label}, but a folder has no columns; pass folder:LEVEL or name:REGEX")
    for place in layout.places:
        for path in place.pictures:
            yield _item(path, place, layout, options)


def _item(path: Path, place: _Folder, layout: _Layout, options: SourceOptions) -> Item:
    label, person = (None if text is None else parse_place(text) for text in (options.label, options.person))
    client = place.parts[0] if options.clients else None
    if path.suffix.lower() in _OTHER_IMAGES:
        sentence = f"{path}: {path.suffix.lower()} images are not read; convert it to PNG or JPEG"
        return Item(str(path), path, problem=sentence)
    try:
        by_name = None if label is None or label.kind != "name" else locator(label, "label")(str(path), place.parts)
        return Item(str(path), path, by_name or layout.label_of(place), _person(person, path, place), client)
    except InputError as error:
        return Item(str(path), path, problem=str(error))


def _person(place: Place | None, path: Path, found: _Folder) -> str | None:
    """Whom a picture is of.

    Privacy: private; numbered in memory, and written nowhere.
    """
    if place is None:
        return None
    if place.kind != "column":
        return locator(place, "person")(str(path), found.parts)
    if not is_dicom(path):
        raise InputError(
            f"{path}: person=column:{place.column}, but only DICOM files have such elements; pass person=name:REGEX or"
            " person=folder:LEVEL"
        )
    return tag_of(str(path), path, place.column)


# The tree


@dataclass(frozen=True)
class _Folder:
    """A folder with its pictures; ``parts`` are its own name and those above it, below the source."""

    path: Path
    parts: tuple[str, ...]
    pictures: tuple[Path, ...]


@dataclass(frozen=True)
class _Layout:
    """The folders of a source, which level of them says the class, and the classes in the order of their labels."""

    places: tuple[_Folder, ...]
    class_level: int | None
    names: tuple[str, ...]

    def label_of(self, place: _Folder) -> int | None:
        return None if self.class_level is None else self.names.index(place.parts[self.class_level - 1])


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, sorted by name, without hidden entries."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}); check the path and its permissions") from None


def sub_folders(folder: Path) -> list[Path]:
    """The visible sub-folders, sorted by name."""
    return [Path(entry.path) for entry in visible(folder) if entry.is_dir()]


def holds_pictures(folder: Path, apart_from: str | None = None) -> bool:
    """Whether there are pictures or sub-folders in a folder, apart from a sub-folder of one name."""
    entries = visible(folder)
    return any(_pictures(entries)) or any(entry.is_dir() and entry.name != apart_from for entry in entries)


def _walk(folder: Path, parts: tuple[str, ...] = ()) -> Iterator[_Folder]:
    """A folder and all below it, in sorted order."""
    entries = visible(folder)
    yield _Folder(folder, parts, tuple(_pictures(entries)))
    for entry in entries:
        if entry.is_dir():
            if len(parts) >= DEEPEST_FOLDER:
                raise InputError(f"{entry.path}: more than {DEEPEST_FOLDER} folders deep; move its images up")
            yield from _walk(Path(entry.path), (*parts, entry.name))


def _pictures(entries: list[os.DirEntry[str]]) -> Iterator[Path]:
    for entry in entries:
        suffix = os.path.splitext(entry.name)[1].lower()
        if suffix not in (*_IMAGES, *_OTHER_IMAGES) and (suffix or entry.name == "DICOMDIR"):
            continue
        if entry.is_file() and (suffix or is_dicom(Path(entry.path))):
            yield Path(entry.path)


def _layout(folder: Path, classes: int | None, options: SourceOptions) -> _Layout:
    places = tuple(_walk(folder))
    taken = _taken_levels(folder, places, options)
    level, declared = _class_level(options, taken), classes is not None or options.class_names is not None
    if options.unlabelled or (options.label is not None and parse_place(options.label).kind == "name"):
        return _Layout(places, None, ())
    flat = [place for place in places if place.pictures and len(place.parts) < level]
    nested = [place for place in places if len(place.parts) == level]
    if flat and nested:
        beside = next((place for place in nested if place.parts[:-1] == flat[0].parts), nested[0])
        raise InputError(
            f"{folder}: images beside sub-folders ({flat[0].pictures[0].name} and {beside.path.name}/);"
            " put every image into a class folder, or pass unlabelled=True"
        )
    if flat and declared:
        raise InputError(
            f"{folder}: classes were declared, but there is no sub-folder per class; add them or leave it out"
        )
    if not nested:
        return _Layout(places, None, ())
    found = sorted({place.parts[level - 1] for place in nested})
    if not declared:
        _explain_undeclared(folder, found, level)
    deeper = [place for place in places if place.pictures and len(place.parts) > max(level, *taken, 0)]
    if deeper:
        raise InputError(
            f"{deeper[0].path}: a folder inside a class folder; move its images up, or pass clients=True or"
            " person=folder:LEVEL"
        )
    names = label_names(found, require_classes(classes, options), options.class_names, f"{folder}: sub-folders")
    return _Layout(places, level, names)


def _taken_levels(folder: Path, places: tuple[_Folder, ...], options: SourceOptions) -> set[int]:
    """The levels of folders that say who contributed; images that lie above them are refused."""
    person = None if options.person is None else parse_place(options.person)
    taken = {1} if options.clients else set()
    if person is not None and person.kind == "folder":
        taken.add(person.level)
    for level in taken:
        whom, asked = ("client", "clients=True") if options.clients else ("person", f"person={options.person}")
        if not any(len(place.parts) >= level for place in places):
            raise InputError(f"{folder}: {asked}, but there is no sub-folder per {whom}; add them or leave it out")
        above = [place for place in places if place.pictures and len(place.parts) < level]
        if above:
            raise InputError(
                f"{folder}: images beside the {whom} folders ({above[0].pictures[0].name}); move them into one"
            )
    return taken


def _class_level(options: SourceOptions, taken: set[int]) -> int:
    """The declared level of the classes, or the first that says nothing else."""
    declared = None if options.label is None else parse_place(options.label)
    if declared is not None and declared.kind == "folder":
        if declared.level in taken:
            raise InputError(f"label: {options.label} says already who contributed; pass another level")
        return declared.level
    return next(level for level in range(1, DEEPEST_FOLDER + 1) if level not in taken)


def _explain_undeclared(folder: Path, found: list[str], level: int) -> None:
    """Sub-folders of which nobody said what they are."""
    shown = shorten(found[:3]) + (", ..." if len(found) > 3 else "")
    as_classes = f"pass classes={len(found)} (--classes {len(found)}) if they are classes"
    as_people = f"person=folder:{level} (--declare person=folder:{level} --declare nominal_people=N) if they are people"
    first, second = (as_classes, as_people) if len(found) <= _MANY_CLASSES else (f"pass {as_people}", as_classes)
    raise InputError(
        f"{folder}: {len(found)} sub-folders ({shown}), but the classes were not declared; {first}, {second},"
        " clients=True if they are clients, or unlabelled=True to ignore them"
        " (--declare clients=True, --declare unlabelled=True)"
    )
