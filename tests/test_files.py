"""Files appear whole or not at all; what goes wrong is one sentence, and nothing is left lying about."""

import json
import os

import pytest
import torch

from understudy.errors import InputError
from understudy.files import aside, make_folder, read_json, read_tensors, write_bytes, write_tensors, write_text

WRITERS = {
    "text": lambda path: write_text(path, "new"),
    "bytes": lambda path: write_bytes(path, b"new"),
    "tensors": lambda path: write_tensors(path, {"new": torch.ones(100)}),
}


def _no_space(*arguments, **options):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch, write, failing):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(failing, _no_space)
    with pytest.raises(InputError, match=r"output: .*file could not be written \(No space left on device\)"):
        write(path)
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_written_file_was_synced_before_it_got_its_name_and_its_folder_after(tmp_path, monkeypatch, write):
    """In any other order a power cut could leave an empty file under the final name, or no file at all."""
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda descriptor: (done.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr("os.replace", lambda source, target: (done.append("rename"), replace(source, target))[1])
    write(tmp_path / "file")
    assert done == ["sync", "rename", "sync"]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_folder_that_is_not_there_is_one_sentence(tmp_path, write):
    (tmp_path / "in the way").write_text("x")
    for parent in (tmp_path / "missing", tmp_path / "in the way"):
        with pytest.raises(InputError, match="could not be written"):
            write(parent / "file")


def test_a_file_that_a_killed_process_left_half_written_is_replaced(tmp_path):
    (tmp_path / ".file.partial").write_text("half")
    write_text(tmp_path / "file", "whole")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "whole"


def test_text_is_utf_8_whatever_the_locale(tmp_path):
    write_text(tmp_path / "file", "Größe ≤ 1")
    assert (tmp_path / "file").read_bytes() == "Größe ≤ 1".encode()


def test_tensors_keep_values_types_and_metadata(tmp_path):
    tensors = {
        "view": torch.arange(12.0).view(3, 4).t()[1:],
        "whole": torch.arange(3),
        "gradient": torch.ones(2).requires_grad_(),
    }
    write_tensors(tmp_path / "file", tensors, {"step": "3"})
    found, metadata = read_tensors(tmp_path / "file")
    assert metadata == {"step": "3"}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert not found["gradient"].requires_grad


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100, b"\x80\x04."])
def test_damaged_tensors_are_one_sentence(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=r"tensors: .*file cannot be read .*; the file is missing or damaged"):
        read_tensors(tmp_path / "file")


def test_missing_tensors_are_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_tensors(tmp_path / "file")


def test_a_folder_is_made_with_its_parents_and_left_empty(tmp_path):
    make_folder(tmp_path / "a" / "b", "run")
    make_folder(tmp_path / "a" / "b", "run")
    assert os.listdir(tmp_path / "a" / "b") == []


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=rf"run: {path} cannot be written \(.*\); choose another folder"):
            make_folder(path, "run")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("folder", [False, True])
def test_two_writers_of_one_place_do_not_disturb_each_other(folder, tmp_path):
    target = tmp_path / "samples[1]"
    with aside(target, folder) as first:
        _age(first)
        with aside(target, folder) as second:
            assert first != second
            assert first.exists(), "it is held by its owner, however old it looks"
            second.rename(target)
        assert target.exists()
        assert first.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["samples[1]"]


@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_writer_left_behind_is_cleared_away(folder, tmp_path):
    left = tmp_path / ".samples.0123abcd.partial"
    left.mkdir() if folder else left.touch()
    with aside(tmp_path / "samples", folder):
        assert left.exists(), "its owner may be about to take hold of it"
    _age(left)
    with aside(tmp_path / "samples", folder):
        assert not left.exists()


def _age(path):
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "the key 'c' occurs twice"),
        ("[NaN]", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[1e400]", "beyond double precision"),
        (f"[{2**64}]", "an integer of 20 digits is beyond 64 bits"),
        (f"[{'9' * 5000}]", "an integer of 5000 digits is beyond 64 bits"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ('{"a": "\\ud800"}', "half a character"),
        ('"' + '\\"' * 10_000, "Unterminated string"),
    ],
)
def test_json_that_two_readers_may_read_differently_is_refused(tmp_path, text, words):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=r"thing: .*file is not valid JSON") as refused:
        read_json(tmp_path / "file", "thing")
    assert words in str(refused.value)


def test_json_that_everybody_reads_alike_is_read(tmp_path):
    value = {"a": [1, -2.5, 5e-324, 2**64 - 1, -(2**63) + 1, True, None], "[[{": "]" * 100 + '"\\', "é": {"a": {}}}
    (tmp_path / "file").write_text(json.dumps(value))
    assert read_json(tmp_path / "file", "thing") == value


def test_a_huge_json_file_is_refused_unread(tmp_path):
    (tmp_path / "file").write_bytes(b" " * (4 * 2**20 + 1))
    with pytest.raises(InputError, match="is larger than 4194304 bytes"):
        read_json(tmp_path / "file", "thing")
