"""A headless Chromium for tests: started, driven over its DevTools protocol, and ended again."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--mute-audio",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
START_LIMIT_S, REPLY_LIMIT_S = 60.0, 60.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
KEYS: dict[str, tuple[str, int, str]] = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    " ": ("Space", 32, " "),
}
"""Key -> its code, its virtual key code, the text it types."""


def program() -> str | None:
    """The browser that is installed here; None where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One tab. ``console_errors`` collects what the page's console called an error, and what it did not catch."""

    def __init__(self, socket_url: str) -> None:
        from websockets.sync.client import connect

        self._open = ExitStack()
        self._socket = self._open.enter_context(
            connect(socket_url, max_size=None, compression=None, open_timeout=START_LIMIT_S)
        )
        self._number = 0
        self.console_errors: list[str] = []
        self.requests: list[str] = []
        """Every address that the page asked for."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one DevTools command and wait for its answer; raises RuntimeError with what the browser said."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        ends_s = time.monotonic() + REPLY_LIMIT_S
        while True:
            message = json.loads(self._socket.recv(timeout=max(0.01, ends_s - time.monotonic())))
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error'].get('message')}")
                return dict(message["result"])
            self._hear(message)

    def open(self, url: str, limit_s: float = 30.0) -> Self:
        """Go there and wait until the document is loaded."""
        told = self.command("Page.navigate", url=url)
        if told.get("errorText"):
            raise RuntimeError(f"{url}: {told['errorText']}")
        self.wait_for("document.readyState === 'complete'", limit_s)
        return self

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression (a promise is awaited); what it throws is raised."""
        told = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            details = told["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return told["result"].get("value")

    def wait_for(self, script: str, limit_s: float = 20.0) -> Any:
        """Ask until the expression is true; returns its value, raises TimeoutError with the page's errors."""
        ends_s = time.monotonic() + limit_s
        while True:
            try:
                value = self.evaluate(script)
            except RuntimeError as error:
                # While a page is being replaced there is nothing to ask.
                value, why = None, str(error)
            else:
                why = repr(value)
            if value:
                return value
            if time.monotonic() > ends_s:
                raise TimeoutError(f"after {limit_s:g} s {script!r} is still {why}; console: {self.console_errors}")
            time.sleep(0.05)

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """The size of the visible page, CSS pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    def prefer(self, **features: str) -> None:
        """Media features, such as ``prefers_color_scheme="dark"``."""
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.command("Emulation.setEmulatedMedia", features=told)

    def press(self, key: str, shift: bool = False) -> None:
        """One key down and up: a name of ``KEYS``, or a character."""
        code, number, text = KEYS.get(key, ("", ord(key[0].upper()), key))
        told = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        self.command("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **told)
        self.command("Input.dispatchKeyEvent", type="keyUp", **told)

    def type(self, text: str) -> None:
        """Put ``text`` where the focus is."""
        self.command("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """A real click in the middle of the first element that ``selector`` finds."""
        where = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            " return [r.left + r.width / 2, r.top + r.height / 2]; })()"
        )
        told = {"x": where[0], "y": where[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, **told)

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        """Write a PNG of what is visible, or of the whole page."""
        told = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(told["data"]))
        return path

    def close(self) -> None:
        self._open.close()

    def _hear(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.console_errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if told["type"] in {"error", "assert"}:
                words = [str(part.get("value", part.get("description", ""))) for part in told["args"]]
                self.console_errors.append(" ".join(words))
            case "Log.entryAdded" if told["entry"]["level"] == "error":
                self.console_errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}".strip())
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Callable[[], Page]]:
    """A browser with its profile in ``folder``; gives a function that opens a new tab, and ends with every process."""
    name = program()
    if name is None:
        raise FileNotFoundError("no Chromium is installed: apt-get install chromium")
    command = [name, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    log = (folder / "chromium.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    pages: list[Page] = []
    try:
        port = _port(process, folder)

        def new_page() -> Page:
            pages.append(Page(_new_tab(port)))
            pages[-1].resize(1280, 900)
            return pages[-1]

        yield new_page
    finally:
        for page in pages:
            page.close()
        _end(process)
        log.close()


def _port(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Chromium writes the port that it took into its profile."""
    ends_s = time.monotonic() + START_LIMIT_S
    told = folder / "profile" / "DevToolsActivePort"
    while time.monotonic() < ends_s and process.poll() is None:
        if told.exists() and (lines := told.read_text(encoding="utf-8").split()):
            return int(lines[0])
        time.sleep(0.05)
    log = (folder / "chromium.log").read_text(encoding="utf-8", errors="replace")
    raise RuntimeError(f"Chromium did not start: {log[-500:]}")


def _new_tab(port: int) -> str:
    with urlopen(Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT"), timeout=START_LIMIT_S) as told:
        return str(json.load(told)["webSocketDebuggerUrl"])


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
