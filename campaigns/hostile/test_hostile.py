"""Hostile files and arguments: none crashes, hangs, takes much memory or shows more than one printable sentence.

A few hundred cases are tried here, beside the corpus of those that once were findings; ``make fuzz`` tries 100,000.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.data.domain import source_options
from understudy.data.folder import read_folder
from understudy.data.npz import read_array
from understudy.data.sources import load
from understudy.errors import InputError
from understudy.privacy.certificate import parse_certificate
from understudy.privacy.ledger import Ledger
from understudy.release.contents import generator_from_bytes, make_config

from .judging import REFUSED, judge
from .targets import TARGETS

CORPUS = sorted(Path(__file__).with_name("corpus").iterdir())
QUICK = {name: 30 for name in TARGETS if name not in ("release", "weights", "checkpoint", "federated-question")}
QUICK |= {"release": 10, "weights": 20, "checkpoint": 20, "federated-question": 10}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
few = settings(
    max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("name", QUICK)
def test_mutated_files_are_accepted_or_refused_in_one_sentence(name):
    for number in range(QUICK[name]):
        verdict, problem = judge(TARGETS[name], TARGETS[name].case(number))
        assert problem is None, f"case {number}: {problem}"
        assert verdict


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_once_was_a_finding_is_none_any_more(path):
    name, _, _ = path.name.partition("--")
    _, problem = judge(TARGETS[name], path.read_bytes())
    assert problem is None


@few
@given(json_values)
def test_any_json_is_a_certificate_or_one_sentence(value):
    with pytest.raises(InputError) as refused:
        parse_certificate(value)
    assert str(refused.value).isprintable()


@few
@given(st.dictionaries(st.sampled_from(["method", "generator", "domain", "method_config", "schema"]), json_values))
def test_any_json_is_a_config_or_one_sentence(values):
    with pytest.raises(InputError) as refused:
        make_config(**values)
    assert str(refused.value).isprintable()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, colour: int = 0, depth: int = 8, more: bytes = b"") -> bytes:
    """A PNG that promises so many pixels and holds none."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + more + _chunk(b"IDAT", zlib.compress(b"")) + _chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png(2**31 - 1, 2**31 - 1), "too many pixels|sides up to 8192"),
        (png(60_000, 60_000), "too many pixels|sides up to 8192"),
        (png(9_000, 10), "sides up to 8192"),
        (png(0, 8), "corrupt"),
        (png(16, 16, depth=16), "corrupt|mode I;16; convert it to 8-bit"),
        (png(16, 16, colour=3), "corrupt"),
        (png(16, 16, more=_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(10**8)))), "corrupt"),
    ],
)
def test_pictures_that_promise_too_much_are_refused_before_they_are_decoded(content, words, tmp_path):
    (tmp_path / "picture.png").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_folder(tmp_path, None, source_options(size=(8, 8)))


def test_an_array_header_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + (2**27).to_bytes(4, "little") + b" " * 2**27)
    (tmp_path / "bomb.npz").write_bytes(target.getvalue())
    with pytest.raises(InputError, match="has a header of 134217728 bytes; at most 10000 are read"):
        read_array(tmp_path / "bomb.npz", "x")


def test_names_in_an_archive_lead_nowhere(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name in ("../../outside.npy", "/tmp/outside.npy", "x.npy"):
            stream = io.BytesIO()
            np.save(stream, np.zeros((3, 8, 8), dtype=np.uint8))
            archive.writestr(name, stream.getvalue())
    assert len(load(tmp_path / "data.npz", records=3).images) == 3
    assert [path.name for path in tmp_path.rglob("*")] == ["data.npz"]
    assert not (tmp_path.parent.parent / "outside.npy").exists()


def test_an_idx_header_that_promises_gigabytes_takes_no_memory(tmp_path):
    (tmp_path / "images-idx3-ubyte").write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 2**20, 64, 64) + bytes(100))
    with pytest.raises(InputError, match="holds only 100 of the 4294967296 bytes its header says"):
        load(tmp_path / "images-idx3-ubyte", records=3)


def test_a_safetensors_header_has_a_limit():
    header = b'{"x":' + b" " * 2**20 + b"{}}"
    config = {"shape": [1, 8, 8], "kind": "dcgan", "width": 2, "latent": 2}
    from understudy.models.generator import GeneratorConfig

    with pytest.raises(InputError, match="weights: a header of 1048584 bytes; at most 1048576 are read"):
        generator_from_bytes(struct.pack("<Q", len(header)) + header, GeneratorConfig.model_validate(config))


def test_a_ledger_whose_checksums_are_right_but_makes_no_sense_is_refused(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    with pytest.raises(KeyError):
        ledger._append({"kind": "reserve", "purpose": "never planned", "count": 1})
    with pytest.raises(InputError, match="is damaged at line 1; its spending is unknown"):
        Ledger.open(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "x" * 5000, "‮abc", "\ud800"])
def test_a_sentence_stays_one_printable_line_whatever_it_quotes(key, tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps({key: 1}))
    verdict, problem = judge(TARGETS["certificate"], path.read_bytes())
    assert (verdict, problem) == (REFUSED, None)
