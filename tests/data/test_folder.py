from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from understudy.data.domain import SourceOptions
from understudy.data.sources import load
from understudy.errors import InputError

Write = Callable[..., Path]
UNLABELLED = SourceOptions(unlabelled=True)
CLIENTS = SourceOptions(clients=True, nominal_clients=5)


def refused(path: Path, classes: int | None = None, options: SourceOptions | None = None, split: str = "train") -> str:
    with pytest.raises(InputError) as caught:
        load(path, split=split, records=9, classes=classes, options=options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flat_and_unlabelled(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "set" / "b.png", value=2)
    write_image(tmp_path / "set" / "a.PNG", value=1)
    write_image(tmp_path / "set" / "c.jpeg", value=3)
    write_image(tmp_path / "set" / ".hidden.png", size=(4, 4))
    (tmp_path / "set" / "readme.txt").write_text("ignored")
    data = load(tmp_path / "set", records=9)
    assert data.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert data.labels is None
    assert data.name == "set"


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_sub_folder_per_class(write_image: Write, tmp_path: Path, mode: str) -> None:
    for number, name in enumerate(("cat", "dog", "fox")):
        write_image(tmp_path / name / "1.png", mode=mode, size=(16, 12), value=number)
    data = load(tmp_path, records=9, classes=3)
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 2]
    assert data.images[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert data.domain.class_names is None, "names found on disk are published only where they were declared"
    assert data.domain.shape == (1 if mode == "L" else 3, 16, 12)


def test_declared_names_set_the_order_and_may_have_no_images(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "cat" / "1.png")
    write_image(tmp_path / "dog" / "1.png")
    options = SourceOptions(class_names=("fox", "dog", "cat"))
    data = load(tmp_path, records=9, options=options)
    assert data.labels is not None
    assert data.labels.tolist() == [2, 1]
    assert data.domain.class_names == ("fox", "dog", "cat")


def test_numbered_folders_are_their_own_labels(write_image: Write, tmp_path: Path) -> None:
    for name in ("2", "10", "0"):
        write_image(tmp_path / name / "1.png", value=int(name))
    data = load(tmp_path, records=9, classes=11)
    assert data.labels is not None
    assert data.labels.tolist() == data.images[:, 0, 0, 0].tolist() == [0, 10, 2]
    assert data.domain.class_names is None
    assert "sub-folders: found class 10, but classes=10 was declared; pass classes=11 or remove it" in refused(
        tmp_path, 10
    )


def test_a_folder_per_client(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "ann" / "cat" / "1.png", value=1)
    write_image(tmp_path / "bob" / "dog" / "1.png", value=2)
    write_image(tmp_path / "bob" / "cat" / "1.png", value=3)
    (tmp_path / "zoe").mkdir()
    data = load(tmp_path, records=9, classes=2, options=CLIENTS)
    assert data.client_ids is not None
    assert data.labels is not None
    assert data.client_ids.tolist() == [0, 1, 1]
    assert data.labels.tolist() == [0, 0, 1]
    assert data.images[:, 0, 0, 0].tolist() == [1, 3, 2]
    assert data.domain.nominal_clients == 5
    assert load(tmp_path, records=9, options=CLIENTS.model_copy(update={"unlabelled": True})).labels is None


def test_clients_without_classes(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "ann" / "1.png")
    write_image(tmp_path / "bob" / "1.png")
    data = load(tmp_path, records=9, options=CLIENTS)
    assert data.client_ids is not None
    assert data.labels is None


def test_train_and_test_folders(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "cat" / "1.png", value=1)
    write_image(tmp_path / "test" / "cat" / "1.png", value=2)
    assert load(tmp_path, records=9, classes=1).images[0, 0, 0, 0] == 1
    assert load(tmp_path, split="test", records=9, classes=1).images[0, 0, 0, 0] == 2
    (tmp_path / "test" / "cat" / "1.png").unlink()
    (tmp_path / "test" / "cat").rmdir()
    (tmp_path / "test").rmdir()
    assert "has no folder test; add it" in refused(tmp_path, 1, split="test")


def test_unlabelled_reads_below_sub_folders(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "cat" / "1.png")
    write_image(tmp_path / "2.png")
    assert len(load(tmp_path, records=9, options=UNLABELLED)) == 2


def test_missing_and_empty(tmp_path: Path) -> None:
    assert "is neither an existing path nor a known data set" in refused(tmp_path / "nowhere")
    assert f"{tmp_path}: no PNG or JPEG file in it; pass a folder with images" in refused(tmp_path)
    (tmp_path / "cat").mkdir()
    assert "no PNG or JPEG file" in refused(tmp_path, 1)
    with pytest.raises(InputError, match="records: the number of records was not declared"):
        load(tmp_path)


def test_undeclared_folders(write_image: Write, tmp_path: Path) -> None:
    for name in ("cat", "dog", "emu", "fox"):
        write_image(tmp_path / name / "1.png")
    sentence = refused(tmp_path)
    assert "4 sub-folders (cat, dog, emu, ...), but the classes were not declared; pass classes=4" in sentence
    assert "clients=True" in sentence
    assert "4 classes (cat, dog, emu, fox), but classes=3 was declared; pass classes=4" in refused(tmp_path, 3)
    names = SourceOptions(class_names=("cat", "dog", "emu"))
    assert "'fox' is not one of class_names=cat, dog, emu; add it there or remove it" in refused(
        tmp_path, options=names
    )
    assert "nominal_clients" in refused(tmp_path, options=SourceOptions(clients=True))


def test_folders_that_are_half_one_thing(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    assert "no sub-folder per class; add them or leave it out" in refused(tmp_path, 2)
    assert "no sub-folder per client" in refused(tmp_path, options=CLIENTS)
    write_image(tmp_path / "cat" / "1.png")
    assert "images beside sub-folders (a.png and cat/)" in refused(tmp_path, 1)
    assert "images beside the client folders (a.png)" in refused(tmp_path, options=CLIENTS)
    (tmp_path / "a.png").unlink()
    write_image(tmp_path / "cat" / "ann" / "1.png")
    assert "a folder inside a class folder" in refused(tmp_path, 1)
    assert "holds one set only" in refused(tmp_path, 1, split="test")


def test_mixed_sizes_name_two_files_and_size_repairs_it(write_image: Write, tmp_path: Path) -> None:
    first = write_image(tmp_path / "a.png", size=(8, 8))
    second = write_image(tmp_path / "b.png", size=(9, 8))
    sentence = refused(tmp_path)
    assert f"{second}: 9x8 grey, but {first} is 8x8 grey; pass size=(height, width) to convert all" in sentence
    assert load(tmp_path, records=9, options=SourceOptions(size=(10, 12))).domain.shape == (1, 10, 12)


def test_mixed_modes_name_two_files_and_channels_repairs_it(write_image: Write, tmp_path: Path) -> None:
    first = write_image(tmp_path / "a.png", mode="RGB")
    second = write_image(tmp_path / "b.png", mode="L")
    assert f"{second}: 8x8 grey, but {first} is 8x8 RGB; pass channels=1 or channels=3" in refused(tmp_path)
    assert load(tmp_path, records=9, options=SourceOptions(channels=1)).domain.shape == (1, 8, 8)
    assert load(tmp_path, records=9, options=SourceOptions(channels=3)).domain.shape == (3, 8, 8)


def test_large_pictures_need_a_size(write_image: Write, tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.jpg", size=(300, 200), value=77)
    assert f"{path}: 300x200 pixels; sizes from 8x8 to 64x64 are supported, so pass size=" in refused(tmp_path)
    assert (load(tmp_path, records=9, options=SourceOptions(size=(32, 32))).images == 77).all()


def png_header(path: Path, width: int, height: int) -> Path:
    """A PNG that promises many pixels and holds none."""
    body = b"IHDR" + struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    content = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content + b"\0\0\0\0IEND\xaeB`\x82")
    return path


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_bombs_are_refused_before_they_are_decoded(tmp_path: Path, side: int) -> None:
    png_header(tmp_path / "bomb.png", side, side)
    sentence = refused(tmp_path, options=SourceOptions(size=(8, 8)))
    assert "bomb.png" in sentence
    assert "sides up to 8192 are read, so shrink it" in sentence


def test_corrupt_and_truncated_images_are_named(write_image: Write, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (32, 32), dtype=np.uint8)
    for suffix in ("png", "jpg"):
        path = tmp_path / suffix / f"x.{suffix}"
        path.parent.mkdir()
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:-300])
        assert f"{path}: corrupt or not a PNG or JPEG image" in refused(tmp_path / suffix)
    bad = tmp_path / "text" / "x.png"
    bad.parent.mkdir()
    bad.write_text("not an image")
    assert f"{bad}: corrupt or not a PNG or JPEG image" in refused(bad.parent)
    bad.write_bytes(b"")
    assert f"{bad}: corrupt" in refused(bad.parent)


def test_other_formats_hidden_behind_a_png_name_are_refused(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "x.bmp")
    assert "x.bmp: .bmp images are not read; convert it to PNG or JPEG" in refused(tmp_path)
    (tmp_path / "x.bmp").rename(tmp_path / "x.png")
    assert "corrupt or not a PNG or JPEG" in refused(tmp_path)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_refused(write_image: Write, tmp_path: Path, mode: str) -> None:
    write_image(tmp_path / "x.png", mode=mode)
    assert f"x.png: has transparency (mode {mode}); flatten it" in refused(tmp_path)


def test_deep_and_printing_modes_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint16)).save(tmp_path / "x.png")
    assert "x.png: mode I" in refused(tmp_path)
    (tmp_path / "x.png").unlink()
    Image.new("CMYK", (8, 8)).save(tmp_path / "x.jpg")
    assert "x.jpg: mode CMYK; convert it to 8-bit grey or RGB" in refused(tmp_path)


def test_palette_and_bitmap_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    Image.new("RGB", (8, 8), (255, 0, 10)).quantize(4).save(tmp_path / "p" / "x.png")
    assert load(tmp_path / "p", records=1).images[0, :, 0, 0].tolist() == [255, 0, 10]
    (tmp_path / "b").mkdir()
    Image.new("1", (8, 8), 1).save(tmp_path / "b" / "x.png")
    assert (load(tmp_path / "b", records=1).images == 255).all()


def test_orientation_of_photographs_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by a quarter
    Image.new("L", (8, 16), 5).save(tmp_path / "x.jpg", exif=exif)
    assert load(tmp_path, records=1).domain.shape == (1, 8, 16)


def test_an_archive_beside_images_is_not_taken_for_all_there_is(write_image: Write, tmp_path: Path) -> None:
    write_image(tmp_path / "cat" / "1.png")
    (tmp_path / "old.tar").write_bytes(b"")
    assert "old.tar: lies beside images or folders; pass its own path, or move it away" in refused(tmp_path, 1)
    (tmp_path / "old.tar").unlink()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.parquet").write_bytes(b"")
    assert len(load(tmp_path, records=9, classes=2)) == 1, "a class may be called data"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_loading_shows_a_bar_on_a_terminal_and_lines_elsewhere(
    write_image: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1100):
        write_image(tmp_path / "set" / f"{number}.png")
    monkeypatch.setattr("sys.stderr", Terminal())
    load(tmp_path / "set", records=9)
    assert "images of set" in sys.stderr.getvalue()  # type: ignore[attr-defined]
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("understudy.data.pictures._SECONDS_BETWEEN_LINES", 0.0)
    load(tmp_path / "set", records=9)
    assert sys.stderr.getvalue() == "512/1100 images of set\n1024/1100 images of set\n"  # type: ignore[attr-defined]


# Broken files


@pytest.fixture
def half_broken(write_image: Write, tmp_path: Path) -> Path:
    """Two images and three files that are none."""
    for name in ("a", "e"):
        write_image(tmp_path / "set" / f"{name}.png")
    for name in ("b", "c", "d"):
        (tmp_path / "set" / f"{name}.png").write_text("not an image")
    return tmp_path / "set"


def test_up_to_a_declared_number_of_broken_files_is_left_out(
    half_broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for allowed in (3, 10):
        data = load(half_broken, records=9, options=SourceOptions(skip_broken=allowed))
        assert len(data) == 2
        assert f"skip_broken: {allowed}" in data.domain.assumed_public()
        assert (
            f"skip_broken: 3 of at most {allowed} broken files left out: {half_broken}/b.png" in capsys.readouterr().err
        )
    sentence = refused(half_broken, options=SourceOptions(skip_broken=2))
    assert "d.png: corrupt or not a PNG or JPEG" in sentence
    assert "more than skip_broken=2 (--skip-broken 2) are broken; `understudy data check` lists them all" in sentence
    assert "b.png: corrupt" in refused(half_broken)


def test_what_is_left_out_does_not_hang_on_other_records(half_broken: Path, write_image: Write) -> None:
    """An image of another size is not broken by itself: which of two were it?"""
    write_image(half_broken / "z.png", size=(9, 9))
    assert "z.png: 9x9 grey, but" in refused(half_broken, options=SourceOptions(skip_broken=9))


def test_nothing_but_broken_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no")
    assert "no PNG or JPEG file in it (1 broken ones left out)" in refused(
        tmp_path, options=SourceOptions(skip_broken=1)
    )


def test_names_in_sorted_order_are_told(write_image: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("Uninfected", "Parasitized"):
        write_image(tmp_path / name / "1.png")
    load(tmp_path, records=9, classes=2)
    assert "labels: 0 = Parasitized, 1 = Uninfected" in capsys.readouterr().err
