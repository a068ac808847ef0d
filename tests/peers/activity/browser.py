"""A headless Chromium with one page, driven by its developer tools protocol over two pipes: no driver, no socket.

Complaints of a page (script errors, policy violations, missing files) are kept, so that a test can check that there are
none. Waits are for conditions in the page itself.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.timeouts import PATIENCE_S

_ANSWER_S = 60.0
_LOOK_S = 0.1
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--password-store=basic",
)  # fmt: skip


class Browser:
    """Started with the context, ended with it."""

    def __init__(self, program: Path, width: int = 1280, height: int = 800, scale: float = 1) -> None:
        self._program = program
        self._size = width, height, scale
        self._number = 0
        self._rest = b""
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = [*_FLAGS, f"--user-data-dir={self._folder.name}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Which root cannot have.

        def as_three_and_four() -> None:
            low, high = os.dup(to_browser), os.dup(from_browser)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [self._program, *flags, "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=as_three_and_four,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._write)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._folder.cleanup()

    # --- what a person does

    def open(self, url: str) -> None:
        self.call("Page.navigate", {"url": url})

    def resize(self, width: int, height: int, scale: float = 1, *, is_dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37}.get(key, 0)
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code})

    def type(self, text: str) -> None:
        self.call("Input.insertText", {"text": text})

    def evaluate(self, expression: str) -> Any:
        """A value of the page's script; what it throws is raised."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 30.0) -> None:
        """Until it is true of the page."""
        deadline_s = time.monotonic() + timeout_s
        while not self.evaluate(f"!!({expression})"):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{expression} did not become true; the page says {self.text()[:2000]!r}")
            self._take(_LOOK_S)

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def screenshot(self, path: Path, *, is_whole: bool = False) -> None:
        answer = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": is_whole})
        path.write_bytes(base64.b64decode(answer["data"]))

    # --- the protocol

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        return self._call(method, parameters, self._session)

    def _call(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None) -> Any:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline_s:
            for answer in self._take(_LOOK_S):
                if answer.get("id") == number:
                    if "error" in answer:
                        raise RuntimeError(f"{method}: {answer['error']}")
                    return answer["result"]
        raise TimeoutError(f"{method} was not answered within {_ANSWER_S:.0f} s")

    def _take(self, timeout_s: float) -> list[dict[str, Any]]:
        """What has come, with complaints put aside."""
        if not select.select([self._read], [], [], timeout_s)[0]:
            return []
        data = os.read(self._read, 1 << 20)
        if not data:
            raise RuntimeError(f"{self._program} has ended, with code {self._process.wait(PATIENCE_S)}")
        *whole, self._rest = (self._rest + data).split(b"\0")
        found: list[dict[str, Any]] = [json.loads(each) for each in whole]
        for each in found:
            self._complain(each.get("method", ""), each.get("params", {}))
        return found

    def _complain(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"].get("exception", parameters)))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.complaints.append(str(parameters["args"]))
