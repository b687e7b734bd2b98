from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from understudy.data import npz
from understudy.data.domain import SourceOptions
from understudy.data.sources import load
from understudy.errors import InputError

IMAGES = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
LABELS = np.array([0, 1, 2, 0])


def test_images_and_labels_under_either_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    np.savez_compressed(tmp_path / "b.npz", images=IMAGES, labels=LABELS)
    first = load(tmp_path / "a.npz", records=9, classes=3)
    second = load(str(tmp_path / "b.npz"), records=9, classes=3)
    assert first.fingerprint() == second.fingerprint()
    assert (first.name, second.name) == ("a", "b")


def test_train_and_test_layout(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:1], y_test=LABELS[:1])
    assert len(load(tmp_path / "a.npz", records=9, classes=3)) == 4
    assert len(load(tmp_path / "a.npz", split="test", records=9, classes=3)) == 1


def test_clients_are_read_only_when_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS, writer=np.array([7, 7, 3, 3]))
    assert load(tmp_path / "a.npz", records=9, classes=3).client_ids is None
    data = load(tmp_path / "a.npz", records=9, classes=3, options=SourceOptions(clients=True, nominal_clients=2))
    assert data.client_ids is not None
    assert data.client_ids.tolist() == [1, 1, 0, 0]


def test_unlabelled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=np.array(["not", "read", "at", "all"]))
    assert load(tmp_path / "a.npz", records=9, options=SourceOptions(unlabelled=True)).labels is None
    np.savez(tmp_path / "b.npz", x=IMAGES)
    assert load(tmp_path / "b.npz", records=9).labels is None


def refused(path: Path, split: str = "train", options: SourceOptions | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load(path, split=split, records=9, classes=3, options=options)
    return str(caught.value)


def test_missing_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pictures=IMAGES)
    assert "holds pictures, but no images for train; name them x or images" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=IMAGES, y=LABELS)
    assert "holds one set only; pass the path of the test set" in refused(tmp_path / "b.npz", "test")
    clients = SourceOptions(clients=True, nominal_clients=2)
    assert "no array writer or clients; add it" in refused(tmp_path / "b.npz", options=clients)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([object()]), y=LABELS)
    assert "array 'x' holds Python objects, which could run code" in refused(tmp_path / "a.npz")


def test_damaged_archives(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).integers(0, 255, (50, 8, 8), dtype=np.uint8))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[:-40])
    assert "not a readable .npz archive" in refused(tmp_path / "short.npz")
    (tmp_path / "text.npz").write_text("hello")
    assert "not a readable .npz archive" in refused(tmp_path / "text.npz")
    (tmp_path / "empty.npz").write_bytes(b"")
    assert "not a readable .npz archive" in refused(tmp_path / "empty.npz")
    middle = bytearray(whole)
    middle[len(whole) // 2] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(middle)
    assert "array 'x' cannot be read" in refused(tmp_path / "flipped.npz")


def header_only(path: Path, shape: tuple[int, ...]) -> Path:
    """An archive whose header promises an array that is not there."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", buffer.getvalue())
    return path


def test_a_header_that_promises_too_much_takes_no_memory(tmp_path: Path) -> None:
    assert "at most 8589934592 are read" in refused(header_only(tmp_path / "a.npz", (10**12, 64, 64)))
    assert "shorter than its header says" in refused(header_only(tmp_path / "b.npz", (10**4, 64, 64)))


def test_a_bomb_is_refused_by_its_declared_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "LIMIT_BYTES", 10_000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 8, 8), dtype=np.uint8))
    assert "at most 10000 are read, so split or shrink it" in refused(tmp_path / "a.npz")


def test_writing_is_atomic_and_refuses_objects(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a.npz"
    npz.write_arrays(target, {"x": IMAGES})
    with pytest.raises(ValueError, match="Python objects"):
        npz.write_arrays(target, {"x": np.array([object()])})
    assert [path.name for path in target.parent.iterdir()] == ["a.npz"]
    assert np.array_equal(npz.read_array(target, "x"), IMAGES)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.npz"
    npz.write_arrays(target, {"x": IMAGES})

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("understudy.data.npz.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        npz.write_arrays(target, {"x": IMAGES[:1]})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert np.array_equal(npz.read_array(target, "x"), IMAGES)


@pytest.mark.parametrize(("images", "labels"), [("data", "target"), ("X", "Y"), ("image", "label"), ("img", "class")])
def test_usual_names_are_found_and_others_declared(tmp_path: Path, images: str, labels: str) -> None:
    np.savez(tmp_path / "a.npz", **{images: IMAGES, labels: LABELS})
    assert load(tmp_path / "a.npz", records=9, classes=3).labels is not None
    np.savez(tmp_path / "b.npz", scans=IMAGES, kind=LABELS)
    declared = SourceOptions(image="column:scans", label="column:kind")
    data = load(tmp_path / "b.npz", records=9, classes=3, options=declared)
    assert data.labels is not None
    assert data.labels.tolist() == LABELS.tolist()


def test_archives_as_medmnist_writes_them(tmp_path: Path) -> None:
    parts = {"train": IMAGES, "val": IMAGES[:2], "test": IMAGES[:3]}
    arrays = {f"{split}_images": content for split, content in parts.items()}
    arrays |= {f"{split}_labels": LABELS[: len(content), None] for split, content in parts.items()}
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    data = load(tmp_path / "pathmnist.npz", records=9, classes=3)
    assert data.labels is not None
    assert data.labels.tolist() == LABELS.tolist()
    assert len(load(tmp_path / "pathmnist.npz", split="test", records=9, classes=3)) == 3


def test_labels_under_another_name_are_asked_for_with_the_names_that_there_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pixels=IMAGES, diagnosis=LABELS)
    asked = "no array says them; it holds pixels, diagnosis, so pass label=column:NAME"
    assert asked in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x_train=IMAGES, diagnosis_train=LABELS)
    assert "it holds x, diagnosis, so" in refused(tmp_path / "b.npz")
    options = SourceOptions(label="column:diagnosis")
    assert load(tmp_path / "b.npz", records=9, classes=3, options=options).labels is not None


def test_labels_may_be_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=np.array(["dog", "cat", "dog", "emu"]))
    data = load(tmp_path / "a.npz", records=9, options=SourceOptions(class_names=("emu", "dog", "cat", "fox")))
    assert data.labels is not None
    assert data.labels.tolist() == [1, 2, 1, 0]
    assert "'emu' is not one of class_names=dog, cat" in refused_names(tmp_path / "a.npz", ("dog", "cat"))


def refused_names(path: Path, names: tuple[str, ...]) -> str:
    with pytest.raises(InputError) as caught:
        load(path, records=9, options=SourceOptions(class_names=names))
    return str(caught.value)


def test_arrays_are_whole_or_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    assert "skip_broken: " in refused(tmp_path / "a.npz", options=SourceOptions(skip_broken=1))
