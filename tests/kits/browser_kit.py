"""A headless Chromium that is told what to do through a pipe: no port, no driver, no further package."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--remote-debugging-pipe"),
)
PATIENCE = 60.0
"""Seconds after which a browser that does not answer is given up."""


def chromium() -> str | None:
    """Path of an installed Chromium, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a browser of its own; keeps everything that the page reports."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        """Start the browser.

        Args:
            profile: new folder for its settings.
            width: of the window, in pixels.
            height: of the window, in pixels.
        """
        self.events, self._waiting, self._number, self._session = [], b"", 0, None
        read_by_browser, self._out = os.pipe()
        self._in, written_by_browser = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        command = f'exec "$@" 3<&{read_by_browser} 4>&{written_by_browser}'
        told = (f"--user-data-dir={profile}", f"--window-size={width},{height}")
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", chromium(), *FLAGS, *told, "about:blank"],
            pass_fds=(read_by_browser, written_by_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_browser)
        os.close(written_by_browser)
        [page] = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        session, self._session = self._session, None
        if session:
            with contextlib.suppress(AssertionError, OSError):
                self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters):
        """Call a method of the DevTools protocol; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda event: event.get("method") == "Page.loadEventFired")

    def run(self, script: str):
        """Value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key.

        Args:
            key: its name in the DOM, such as `Tab`.
            code: its virtual key code.
            text: what it types.
        """
        told = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def type(self, text: str) -> None:
        """Type into what is focused."""
        self.call("Input.insertText", text=text)

    def requested(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        return [
            one["params"]["request"]["url"] for one in self.events if one.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors and warnings since the page was opened."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(one["params"]) for one in self.events if one.get("method") in kinds]

    def _until(self, wanted) -> None:
        while not wanted(event := self._next()):
            self.events.append(event)

    def _next(self):
        """The next message, whatever it is about."""
        ends = time.monotonic() + PATIENCE
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._in], [], [], max(0.0, ends - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._in, 1 << 20)
            assert received, "the browser has ended"
            self._waiting += received
        message, self._waiting = self._waiting.split(b"\0", 1)
        return json.loads(message)
