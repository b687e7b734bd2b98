"""DICOM: pixels through a declared window, and nothing of a patient anywhere."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from understudy.data import dicom
from understudy.data.dataset import ImageDataset
from understudy.data.domain import source_options
from understudy.data.sources import load
from understudy.errors import InputError

pydicom = pytest.importorskip("pydicom")
HOUNSFIELD = np.array([-160, 0, 40, 140, 240, 2000], dtype=np.int16)


def write(path: Path, pixels: np.ndarray, patient: str = "Mustermann^Erika", **elements: object) -> Path:
    """A file as a scanner writes it, with a patient in it."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    data = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.PatientName, data.PatientID = patient, f"ID-{patient}"
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    data.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    if pixels.ndim == 3:
        data.PlanarConfiguration = 0
    data.BitsAllocated = data.BitsStored = 8 * pixels.dtype.itemsize
    data.HighBit, data.PixelRepresentation = data.BitsStored - 1, int(pixels.dtype.kind == "i")
    data.PixelData = pixels.tobytes()
    for name, value in elements.items():
        setattr(data, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path)
    return path


def opened(path: Path, **declared: object) -> ImageDataset:
    classes = declared.pop("classes", None)
    return load(path, records=9, classes=classes, options=source_options(**declared))  # type: ignore[arg-type]


def refused(path: Path, **declared: object) -> str:
    with pytest.raises(InputError) as caught:
        opened(path, **declared)
    return str(caught.value)


def scan(values: np.ndarray = HOUNSFIELD) -> np.ndarray:
    pixels = np.zeros((8, 8), dtype=values.dtype)
    pixels[0, : len(values)] = values
    return pixels


def test_the_declared_window_becomes_the_range_of_an_image(tmp_path: Path) -> None:
    write(tmp_path / "a.dcm", scan())
    data = opened(tmp_path, window=(40, 400))
    assert data.images[0, 0, 0, :6].tolist() == [0, 102, 128, 191, 255, 255]
    assert data.domain.shape == (1, 8, 8)


def test_an_element_that_dicom_does_not_know_is_no_broken_file(tmp_path: Path) -> None:
    write(tmp_path / "a.dcm", scan())
    sentence = refused(tmp_path, window=(40, 400), person="column:PatientId", nominal_people=2)
    assert "DICOM has no element 'PatientId'; pass its keyword, for example PatientID" in sentence


def test_values_are_rescaled_first_and_inverted_where_white_is_zero(tmp_path: Path) -> None:
    stored = (HOUNSFIELD + 1024).astype(np.uint16)
    write(tmp_path / "x" / "IM0001", scan(stored), RescaleSlope="1", RescaleIntercept="-1024")
    assert opened(tmp_path / "x", window=(40, 400)).images[0, 0, 0, :6].tolist() == [0, 102, 128, 191, 255, 255]
    write(tmp_path / "y" / "a.dcm", scan(), PhotometricInterpretation="MONOCHROME1")
    assert opened(tmp_path / "y", window=(40, 400)).images[0, 0, 0, :2].tolist() == [255, 153]


def test_a_window_is_declared_and_not_taken_from_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.dcm", scan(), WindowCenter="40", WindowWidth="400")
    sentence = refused(tmp_path)
    assert f"{path}: 16 bits a pixel, but no window was declared; pass window=(centre, width)" in sentence
    write(tmp_path / "b" / "a.dcm", scan(np.array([0, 9, 255], dtype=np.uint8)))
    assert opened(tmp_path / "b").images[0, 0, 0, :3].tolist() == [0, 9, 255]


def test_colour_and_sizes(tmp_path: Path) -> None:
    pixels = np.zeros((20, 30, 3), dtype=np.uint8)
    pixels[..., 1] = 77
    write(tmp_path / "a.dcm", pixels)
    assert opened(tmp_path).images[0, :, 0, 0].tolist() == [0, 77, 0]
    assert opened(tmp_path, size=(10, 12), channels=1).domain.shape == (1, 10, 12)
    write(tmp_path / "b" / "a.dcm", np.zeros((200, 100), dtype=np.uint8))
    assert "200x100 pixels; sizes from 8x8 to 64x64" in refused(tmp_path / "b")


def test_folders_say_the_class_and_an_element_may_tell_people_apart(tmp_path: Path) -> None:
    write(tmp_path / "ill" / "a.dcm", scan(), patient="Zoe")
    write(tmp_path / "ill" / "b.dcm", scan(), patient="Ann")
    write(tmp_path / "well" / "c.dcm", scan(), patient="Zoe")
    declared = {"classes": 2, "window": (40, 400), "nominal_people": 3}
    data = opened(tmp_path, person="column:PatientID", **declared)
    assert data.people is not None
    assert data.people.tolist() == [1, 0, 1]
    assert "has no element PatientAge" in refused(tmp_path, person="column:PatientAge", **declared)


def test_no_element_of_a_patient_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    read = pydicom.dcmread

    def watched(*arguments: object, **options: object) -> object:
        found = read(*arguments, **options)
        seen.append({element.keyword for element in found})
        return found

    monkeypatch.setattr(pydicom, "dcmread", watched)
    write(tmp_path / "a.dcm", scan())
    opened(tmp_path, window=(40, 400))
    assert seen
    assert all(keywords <= set(dicom._PIXEL_TAGS) for keywords in seen)
    assert not any("Patient" in keyword for keyword in dicom._PIXEL_TAGS)


def test_broken_files_are_named_without_a_word_from_within(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write(tmp_path / "a.dcm", scan()).read_bytes()
    cases = {
        "b.dcm": (whole[:-60], "its pixels cannot be decoded"),
        "c.dcm": (b"junk" * 100, "corrupt or not a DICOM file"),
        "d.dcm": (b"", "corrupt or not a DICOM file"),
    }
    for name, (content, sentence) in cases.items():
        (tmp_path / name).write_bytes(content)
        found = refused(tmp_path, window=(40, 400))
        assert f"{name}: {sentence}" in found
        assert "Erika" not in found
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(opened(tmp_path, window=(40, 400), skip_broken=1)) == 1
        assert "Erika" not in capsys.readouterr().err
        (tmp_path / name).unlink()
    write(tmp_path / "e.dcm", np.concatenate([scan(), scan()]), NumberOfFrames=2, Rows=8)
    assert "e.dcm: 2 frames; save each as a file of its own" in refused(tmp_path, window=(40, 400))


def test_text_that_damage_put_where_pixels_are_described_is_not_quoted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.dcm", np.zeros((8, 8, 3), dtype=np.uint8), PhotometricInterpretation="ERIKA M")
    assert "ERIKA" not in refused(tmp_path)
    write(path, scan(), RescaleSlope="1.25")
    damaged = path.read_bytes().replace(b"1.25", b"Erik")
    path.write_bytes(damaged)
    sentence = refused(tmp_path, window=(40, 400))
    assert "a.dcm: corrupt or not a DICOM file" in sentence
    assert "Erik" not in sentence


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.dcm", scan())
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    assert "pip install 'understudy[medical]'" in refused(tmp_path, window=(40, 400))
