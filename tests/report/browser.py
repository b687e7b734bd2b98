"""A real browser for the tests: headless Chromium, spoken to over a pipe (DevTools protocol), without any driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60.0


def find_chromium() -> str | None:
    """The browser of this machine, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """What one page did while it was opened, and a way to ask it more."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.requests: list[str] = []  # what it asked for besides itself
        self.complaints: list[str] = []  # exceptions, and errors and warnings of the console

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self._browser.call("Runtime.evaluate", self._session, expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def set_view(self, width: int, height: int = 844, dark: bool = False, media: str = "screen") -> None:
        """The size of the window, light or dark, and what it is shown on (``screen`` or ``print``)."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._browser.call("Emulation.setDeviceMetricsOverride", self._session, **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._browser.call("Emulation.setEmulatedMedia", self._session, media=media, features=features)

    def press(self, key: str) -> None:
        """Press one key: a letter, or ``Tab``, ``Enter``, ``Escape``, ``ArrowDown``."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowDown": 40}
        written = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        for kind in ("keyDown" if written else "rawKeyDown", "keyUp"):
            text = {"text": written} if written and kind == "keyDown" else {}
            self._browser.call("Input.dispatchKeyEvent", self._session, type=kind, **event, **text)

    def type(self, words: str) -> None:
        """Write words into what has the focus."""
        self._browser.call("Input.insertText", self._session, text=words)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self._browser.call("Page.captureScreenshot", self._session, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        answer = self._browser.call("Page.printToPDF", self._session, printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])


class Browser:
    """Headless Chromium in a process of its own."""

    def __init__(self, program: str, home: Path) -> None:
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={home}"]
        # Chromium reads commands from descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{read} 4>&{write}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, program, *flags],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._number, self._buffer = 0, b""
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    def open(self, path: Path, width: int = 1280) -> Page:
        """Open a file and wait until it has been loaded and drawn."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        page = self._pages[session] = Page(self, session)
        page.set_view(width)
        self._loaded.discard(session)
        self.call("Page.navigate", session, url=path.resolve().as_uri())
        while session not in self._loaded:
            self._receive()
        page.ask("1")  # whatever the console has to say has arrived before this answer
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come before it are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(timeout=_SECONDS)
        os.close(self._read)
        os.close(self._write)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._read, 2**16) if ready else b""
            assert piece, "Chromium does not answer"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        session, values = message.get("sessionId", ""), message.get("params", {})
        page = self._pages.get(session)
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded.add(session)
            case "Network.requestWillBeSent" if page and values.get("type") != "Document":
                if not values["request"]["url"].startswith("data:"):
                    page.requests.append(values["request"]["url"])
            case "Runtime.exceptionThrown" if page:
                page.complaints.append(str(values["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if page and values.get("type") in ("error", "warning", "assert"):
                page.complaints.append(str(values["args"]))
            case "Log.entryAdded" if page and values["entry"]["level"] in ("error", "warning"):
                page.complaints.append(values["entry"]["text"])
