"""Downloads against a real server on loopback that knows ranges and can misbehave on purpose."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from understudy.data import fetch as fetching
from understudy.data.catalog import KnownSet, RemoteFile, known_names, known_set
from understudy.data.fetch import fetch
from understudy.errors import InputError

CONTENT = np.random.default_rng(3).integers(0, 256, 700_000, dtype=np.uint8).tobytes()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; the server object says how badly."""

    server: Server

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers.get("Range"))
        if self.path != "/set/file.bin":
            self.send_error(404)
            return
        body = self.server.content
        start = 0
        header = self.headers.get("Range")
        if header and self.server.knows_ranges:
            start = int(header.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body)
        if self.server.cuts:
            end = start + self.server.cuts.pop(0)
        self.wfile.write(body[start:end])
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """Keep the test output quiet."""


class Server(http.server.ThreadingHTTPServer):
    """What it serves, and how."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.knows_ranges = True
        self.cuts: list[int] = []  # bytes after which the next answers break off
        self.ranges: list[str | None] = []

    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/set/"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def entry(*mirrors: str, name: str = "file.bin") -> KnownSet:
    remote = RemoteFile(name, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    return KnownSet("toy", "a toy", (1, 28, 28), 10, {"train": 1}, mirrors=mirrors, files=(remote,))


def get(known: KnownSet, folder: Path) -> list[Path]:
    return fetch("toy", folder=folder, known=known, progress=False)


def refused(known: KnownSet, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        get(known, folder)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_whole_download(server: Server, tmp_path: Path) -> None:
    assert get(entry(server.url()), tmp_path) == [tmp_path / "toy" / "file.bin"]
    assert (tmp_path / "toy" / "file.bin").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["file.bin"]


def test_what_is_here_is_checked_and_kept(server: Server, tmp_path: Path) -> None:
    get(entry(server.url()), tmp_path)
    get(entry(server.url()), tmp_path)
    assert len(server.ranges) == 1
    (tmp_path / "toy" / "file.bin").write_bytes(b"damaged")
    get(entry(server.url()), tmp_path)
    assert (tmp_path / "toy" / "file.bin").read_bytes() == CONTENT


def test_a_broken_connection_is_resumed_within_one_call(server: Server, tmp_path: Path) -> None:
    server.cuts = [300_000, 100_000]
    get(entry(server.url()), tmp_path)
    assert (tmp_path / "toy" / "file.bin").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=400000-"]


def test_a_download_that_keeps_breaking_goes_on_with_the_next_call(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000] * 3
    assert "kept what arrived" in refused(entry(server.url()), tmp_path)
    part = tmp_path / "toy" / "file.bin.part"
    assert part.read_bytes() == CONTENT[:300_000]
    assert not (tmp_path / "toy" / "file.bin").exists()
    get(entry(server.url()), tmp_path)
    assert server.ranges[-1] == "bytes=300000-"
    assert not part.exists()


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.knows_ranges = False
    server.cuts = [300_000]
    get(entry(server.url()), tmp_path)
    assert server.ranges == [None, "bytes=300000-"]
    assert (tmp_path / "toy" / "file.bin").read_bytes() == CONTENT


def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "toy" / "file.bin.part"
    part.parent.mkdir()
    for wrong in (b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)):
        part.write_bytes(wrong)
        get(entry(server.url()), tmp_path)
        assert (tmp_path / "toy" / "file.bin").read_bytes() == CONTENT
        (tmp_path / "toy" / "file.bin").unlink()


def test_a_server_that_has_less_than_our_part(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "toy" / "file.bin.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT[:600_000])
    server.content = CONTENT[:500_000]
    sentence = refused(entry(server.url()), tmp_path)
    assert "the server could not continue the file" in sentence
    assert "kept" not in sentence


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.content = bytes(len(CONTENT))
    sentence = refused(entry(server.url()), tmp_path)
    assert "file.bin of toy could not be downloaded" in sentence
    assert "wrong checksum" in sentence
    assert list((tmp_path / "toy").iterdir()) == []


def test_more_bytes_than_expected_are_never_stored(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT + bytes(10_000_000)
    assert "sends more than the expected 700000 bytes" in refused(entry(server.url()), tmp_path)
    assert sum(path.stat().st_size for path in (tmp_path / "toy").iterdir()) <= len(CONTENT)


def test_a_missing_file_and_the_next_mirror(server: Server, tmp_path: Path) -> None:
    missing = f"http://127.0.0.1:{server.server_port}/elsewhere/"
    sentence = refused(entry(missing), tmp_path)
    assert "HTTP 404 Not Found" in sentence
    assert "`understudy data import toy PATH`" in sentence
    get(entry(missing, server.url()), tmp_path)
    assert (tmp_path / "toy" / "file.bin").read_bytes() == CONTENT


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    sentence = refused(entry(f"http://127.0.0.1:{port}/"), tmp_path)
    assert f"127.0.0.1:{port}: no connection" in sentence
    assert "try again later" in sentence


def test_a_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetching, "_TIMEOUT_SECONDS", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "could not be downloaded" in refused(entry(f"http://127.0.0.1:{silent.getsockname()[1]}/"), tmp_path)


def test_progress_goes_to_stderr(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch("toy", folder=tmp_path, known=entry(server.url()), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "file.bin" in captured.err


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "cannot be written" in refused(entry("http://127.0.0.1:1/"), tmp_path / "file")


def test_what_cannot_be_fetched() -> None:
    assert fetch("digits") == []
    with pytest.raises(InputError, match=r"no mirror that is fetched from; create it with LEAF"):
        fetch("femnist")
    with pytest.raises(InputError, match="'cifar' is not a known data set"):
        fetch("cifar")


def test_every_known_file_has_a_size_and_a_checksum() -> None:
    for name in known_names():
        known = known_set(name)
        assert bool(known.mirrors) == bool(known.files)
        for remote in known.files:
            assert len(bytes.fromhex(remote.sha256)) == 32
            assert remote.size > 1000
        assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in known.mirrors)
