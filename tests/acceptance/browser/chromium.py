"""A real Chromium without a window, driven by its DevTools protocol over a pipe: no driver and no package is needed.

https://chromedevtools.github.io/devtools-protocol/; with `--remote-debugging-pipe` its messages are JSON, each ended by
a zero byte, on the browser's file descriptors 3 and 4.
"""

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

import pytest

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
"""Without a sandbox, as root in a container has none to give; the pages are ours."""
FLAGS += ["--disable-background-networking", "--no-proxy-server"]
_WAIT_S = 60.0


def chromium() -> str:
    """The browser's command. Fails with what to install when there is none."""
    for name in (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name) if name else None
        if found is not None:
            return found
    pytest.fail("no Chromium: install Debian's package `chromium`, or set CHROMIUM=/path/to/it")


class Browser:
    """One browser with one page. faults holds what its console reported: errors, refused loads, broken policies."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.faults: list[str] = []
        self._size = (width, height)
        self._dark = dark
        self._number = 0
        self._rest = b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The shell puts the pipes where the browser looks for them.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        words = [chromium(), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Browser:
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        width, height = self._size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScrollbarsHidden", hidden=True)  # pictures have none, and would be cut by their width
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> Any:
        """One command to the page, and its result."""
        return self._send(method, self._session, **parameters)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression, once it is true."""
        end = time.monotonic() + _WAIT_S
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"it did not come true: {script}; the page says {self.faults}"
            time.sleep(0.05)
        return found

    def type(self, selector: str, text: str) -> None:
        """Types into a field, as a person does: by the keyboard, with the page's events."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Clicks an element once the page takes clicks on it: buttons of a section are disabled while it loads."""
        at = f"document.querySelector({json.dumps(selector)})"
        self.until(f"!{at}.disabled")
        self.run(f"{at}.click()")

    def choose(self, selector: str, value: str) -> None:
        """Chooses an option of a list."""
        self.run(
            f"(at => {{ at.value = {json.dumps(value)}; at.dispatchEvent(new Event('change')); }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )

    def text(self, selector: str) -> str:
        found: str = self.run(f"document.querySelector({json.dumps(selector)}).textContent")
        return found

    def picture(self, selector: str | None = None) -> bytes:
        """PNG of the page's window, or of one element with all that is in it."""
        clip: dict[str, Any] = {}
        if selector is not None:
            box = self.run(
                f"(({{x, y, width, height}}) => ({{x: x + scrollX, y: y + scrollY, width, height, scale: 1}}))"
                f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
            )
            clip = {"clip": box, "captureBeyondViewport": True}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"])

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _receive(self) -> Any:
        end = time.monotonic() + _WAIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, f"the browser says nothing any more; it ended with {self._process.poll()}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.faults.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.faults.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
