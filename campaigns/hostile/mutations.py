"""Mutations of files: of their bytes, of the JSON in them, and of archives; a random generator decides on each."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

_NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
)
_TEXTS = (
    "",
    "x",
    "x" * 5000,
    "../../outside",
    "/etc/passwd",
    "a\nb",
    "\x1b[31mred",
    "\x00",
    "\ud800",
    "0" * 400,
    "‮abc",
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**9, 10**18, 10**30, 10**400, -(10**30)),
    *(0.5, -0.0, 1e-300, 5e-324, 1e300, 1.7e308, float("nan"), float("inf"), -float("inf")),
    *_TEXTS,
    *([], {}, [[]], [None], {"": None}, [1, 2, 3], [[[[[[[[]]]]]]]], {"kind": "none"}),
)


def mutate_bytes(content: bytes, random: random.Random) -> bytes:
    """One to a few changes at random places: bits, numbers, pieces removed, repeated, moved or put in."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        _change(data, random)
    return bytes(data)


def _change(data: bytearray, random: random.Random) -> None:
    place, length = random.randrange(len(data) + 1), random.choice((1, 2, 4, 8, 16, 64, 1000))
    kind = random.randrange(8)
    if kind == 0 and place < len(data):
        data[place] ^= 1 << random.randrange(8)
    elif kind == 1:
        size = random.choice((1, 2, 4, 8))
        number = random.choice(_NUMBERS) % 2 ** (8 * size)
        data[place : place + size] = number.to_bytes(size, random.choice(("little", "big")))
    elif kind == 2:
        del data[place:]
    elif kind == 3:
        del data[place : place + length]
    elif kind == 4:
        data[place:place] = data[place : place + length] * random.choice((1, 2, 30))
    elif kind == 5:
        data[place:place] = random.randbytes(length)
    elif kind == 6:
        other = random.randrange(len(data) + 1)
        data[place : place + length] = data[other : other + length]
    else:
        data[place : place + length] = bytes([random.choice((0, 255, 32, 123, 91))]) * min(
            length, max(0, len(data) - place)
        )


def mutate_json(content: bytes, random: random.Random) -> bytes:
    """Other values, keys and shapes at random places of a JSON document."""
    document = json.loads(content)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            break
        parent, key = random.choice(places)
        _replace(parent, key, random)
    return dump_json(document)


def dump_json(document: Any) -> bytes:
    """As JSON, with numbers and surrogates that a strict writer would refuse."""
    return json.dumps(document).encode("utf-8")


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def _replace(parent: Any, key: Any, random: random.Random) -> None:
    kind = random.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[random.choice(("surprise", *_TEXTS))] = parent.pop(key)
    elif kind == 2 and isinstance(parent, list):
        parent.extend(copy.deepcopy(parent[key]) for _ in range(random.choice((1, 3, 200))))
    elif kind == 3 and isinstance(parent[key], (int, float)) and not isinstance(parent[key], bool):
        parent[key] = random.choice(
            (-parent[key], parent[key] * 10**6, parent[key] // 7, str(parent[key]), [parent[key]])
        )
    else:
        parent[key] = copy.deepcopy(random.choice(_VALUES))


def nest(content: bytes, random: random.Random) -> bytes:
    """Something nested very deeply, as a whole or in place of a piece."""
    depth = random.choice((10, 1000, 100_000))
    deep = random.choice((b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth))
    place = random.randrange(len(content) + 1)
    return random.choice((deep, content[:place] + deep + content[place:]))


def mutate_archive(content: bytes, random: random.Random) -> bytes:
    """The members of a zip archive under other names, twice, compressed, or with their content changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members:
            _put(archive, name, data, random)
    return target.getvalue() if random.random() < 0.8 else mutate_bytes(target.getvalue(), random)


def _put(archive: zipfile.ZipFile, name: str, data: bytes, random: random.Random) -> None:
    import warnings

    kind = random.randrange(6)
    if kind == 0:
        name = random.choice(
            ("../../outside.npy", "/tmp/outside.npy", "x/../../y.npy", "C:\\x.npy", "a\nb.npy", ".npy", "images")
        )
    elif kind == 1:
        data = mutate_bytes(data, random)
    elif kind == 2:
        data = _other_header(data, random)
    elif kind == 3:
        data = data[:128] + bytes(random.choice((0, 1, 10**6))) + data[128:]
    compression = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(random.choice((1, 1, 1, 2))):
            archive.writestr(name, data, compression)


def _other_header(data: bytes, random: random.Random) -> bytes:
    """A ``.npy`` file whose header promises something else."""
    shape = random.choice(
        ("(-1,)", "(10**9,)", "(99999999999, 8, 8)", "()", "(0,)", "(3, 8, 8)", "(2, 2, 2, 2, 2)", "8", "(1.5,)")
    )
    kind = random.choice(
        ("|O", "<f8", "<f2", "<c16", "|V0", "|S0", "<M8[s]", "<U4", "|b1", ">i8", "<f16", "nonsense", "|u1,")
    )
    text = f"{{'descr': {kind!r}, 'fortran_order': {random.choice(('True', 'False', '7'))}, 'shape': {shape}, }}"
    if random.random() < 0.2:
        text = random.choice(
            ("{", "__import__('os')", "(" * 1000, "{'descr': [('a', '<i4')]}", text + "\x00", "1" * 5000)
        )
    encoded = text.encode("latin1") + b"\n"
    version, size = random.choice(((b"\x01\x00", 2), (b"\x02\x00", 4), (b"\x03\x00", 4), (b"\x09\x00", 2)))
    length = random.choice((len(encoded), len(encoded), len(encoded), 2 ** (8 * size) - 1, 0))
    return b"\x93NUMPY" + version + length.to_bytes(size, "little") + encoded + data[128:]
