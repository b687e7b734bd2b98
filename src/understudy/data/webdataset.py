"""WebDataset archives: tar files in which members of one name and different endings are one record.

``0001.jpg`` and ``0001.cls`` are an image and its class; ``0001.json`` may hold its label and its person. Nothing is
unpacked to disk, and members that would need unpickling are passed over.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Self

from understudy.data.columns import CLIENT_NAMES, LABEL_NAMES, locator
from understudy.data.domain import SourceOptions, parse_place
from understudy.data.pictures import Item, Value
from understudy.errors import InputError

SUFFIXES = (".tar", ".tgz", ".tar.gz")
_IMAGES = ("png", "jpg", "jpeg", "dcm")
_CLASS = "cls"
_FIELDS = "json"
_LARGEST_MEMBER = 256 * 2**20


def tar_items(paths: Sequence[Path], options: SourceOptions, damaged: list[str] | None = None) -> Iterator[Item]:
    """The records of one or more archives, in their order.

    An archive that cannot be read to its end is an error, whatever else may be skipped: nobody knows how many records
    it held. A check passes ``damaged``, which takes the sentence instead, and the next archive is read.
    """
    for path in paths:
        for key, members in _samples(path, options, damaged):
            name = f"{path}: {key}"
            image = next((ending for ending in _IMAGES if ending in members), None)
            if image is None:
                if _CLASS in members or _FIELDS in members:
                    yield Item(name, b"", problem=f"{name} has no .png or .jpg; add it, or remove its other members")
                continue
            try:
                fields = _fields(name, members)
                yield Item(
                    f"{name}.{image}",
                    members[image],
                    None if options.unlabelled else _value("label", options.label, path, f"{key}.{image}", fields),
                    _value("person", options.person, path, f"{key}.{image}", fields),
                    _first(fields, CLIENT_NAMES, name, "client") if options.clients else None,
                )
            except InputError as error:
                yield Item(name, b"", problem=str(error))


def _samples(path: Path, options: SourceOptions, damaged: list[str] | None) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Members that follow each other and have one key: the name up to the first dot after the last slash.

    Privacy: a member that comes twice is two people's, or one's that hides another's, so the archive is refused.
    """
    key, members = "", dict[str, bytes]()
    wanted = {*_IMAGES, _CLASS, _FIELDS, *_declared_endings(options)}
    try:
        with tarfile.open(path, "r|*", tarinfo=_CheckedHeader) as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                stem, _, ending = name.name.partition(".")
                if not member.isfile() or not stem or ending.lower() not in wanted:
                    continue
                if member.size > _LARGEST_MEMBER:
                    raise InputError(f"{path}: {member.name} takes {member.size} bytes; shrink it")
                found = str(name.with_name(stem))
                if members and found != key:
                    yield key, members
                    members = {}
                if ending.lower() in members:
                    raise InputError(f"{path}: {member.name} comes twice; give every record a name of its own")
                stream = archive.extractfile(member)
                key, members[ending.lower()] = found, b"" if stream is None else stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        sentence = f"{path}: not a readable tar archive ({error}); copy it or write it again"
        if damaged is None:
            raise InputError(sentence) from None
        damaged.append(sentence)
    if members:
        yield key, members


class _CheckedHeader(tarfile.TarInfo):
    """A header that must be whole: Python takes one that is not for the end, and whatever follows is lost silently."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the mark of its end
            raise tarfile.ReadError(str(error) if buf else "it has no end") from None


def _declared_endings(options: SourceOptions) -> list[str]:
    places = [parse_place(text) for text in (options.label, options.person) if text is not None]
    return [place.column.lower() for place in places if place.kind == "column"]


def _fields(name: str, members: Mapping[str, bytes]) -> dict[str, Any]:
    """What members say in text: each ending that is no image, and the fields of the JSON member."""
    fields: dict[str, Any] = {}
    for ending, content in members.items():
        if ending in _IMAGES:
            continue
        try:
            text = content.decode("utf-8").strip()
            fields |= json.loads(text) if ending == _FIELDS else {ending: text}
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{name}.{ending} cannot be read as text; repair or remove it") from None
    return fields


def _value(what: str, declared: str | None, archive: Path, member: str, fields: Mapping[str, Any]) -> Value | None:
    """What a record says of itself; ``member`` is its image in the archive."""
    place = None if declared is None else parse_place(declared)
    if place is not None and place.kind != "column":
        return locator(place, what)(member, PurePosixPath(member).parts[:-1])
    name = f"{archive}: {member}"
    if place is not None:
        return _first(fields, (place.column, place.column.lower()), name, what)
    return _first(fields, (_CLASS, *LABEL_NAMES), name, what, needed=False) if what == "label" else None


def _first(fields: Mapping[str, Any], names: Sequence[str], where: str, what: str, needed: bool = True) -> Value | None:
    """The first field of these names: a name, or a whole number."""
    value = next((fields[name] for name in names if name in fields), None)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str | int) and value != "":
        return value
    if value is None and not needed:
        return None
    raise InputError(f"{where}: no {what} in {names[0]!r}; add it, or remove the record")
