"""A headless Chromium by the WebDriver protocol: just the doors that these tests need."""

import base64
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

KEYS = {
    "Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "Home": "\ue011", "End": "\ue010",
    "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015", "PageDown": "\ue00f",
}  # fmt: skip
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--js-flags=--expose-gc"),
    "--enable-precise-memory-info",
)


def missing() -> str:
    """Return the reason why no browser can be started; "" if one can."""
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(programs)}" if programs else ""


class Browser:
    def __init__(self, address: str) -> None:
        self._address = address
        self._http = httpx.Client(timeout=60)

    def send(self, method: str, path: str, **body: Any) -> Any:
        answer = self._http.request(
            method, f"{self._address}/{path}", json=body if method == "POST" else None
        ).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{answer['error']}: {answer['message']}")
        return answer

    def close(self) -> None:
        self._http.delete(self._address).raise_for_status()
        self._http.close()

    def open(self, address: str) -> None:
        # A change behind the # alone would not load the page again.
        self.send("POST", "url", url="about:blank")
        self.send("POST", "url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.send("POST", "execute/sync", script=script, args=list(arguments))

    def wait_for(self, script: str, seconds: float = 20) -> Any:
        """Return the value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < end, f"not true after {seconds} s: {script}\n{self.text()[:2000]}"
            time.sleep(0.03)
        return value

    def press(self, *keys: str) -> None:
        """Press and release keys one after the other, wherever the focus is."""
        steps = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self.send("POST", "actions", actions=[{"type": "key", "id": "keyboard", "actions": steps}])

    def text(self, selector: str = "body") -> str:
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.send("POST", "goog/cdp/execute", cmd=command, params=parameters)

    def resize(self, width: int, height: int) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def colors(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("GET", "screenshot")))

    def console(self) -> list[str]:
        """Return the errors that the page logged since the last call."""
        return [entry["message"] for entry in self.send("POST", "se/log", type="browser")]


@contextmanager
def running(arguments: Sequence[str] = ()) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    with tempfile.TemporaryDirectory() as profile:
        driver = subprocess.Popen(
            [shutil.which("chromedriver") or "chromedriver", "--port=0"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert driver.stdout is not None
            port = next(
                line.split()[-1].rstrip(".")
                for line in driver.stdout
                if "started successfully on port" in line
            )
            address = f"http://127.0.0.1:{port}"
            options = {
                "binary": shutil.which("chromium"),
                "args": [*_ARGUMENTS, f"--user-data-dir={profile}", *arguments],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = httpx.post(
                f"{address}/session", json={"capabilities": {"alwaysMatch": wanted}}, timeout=60
            ).json()["value"]
            assert "sessionId" in answer, answer
            browser = Browser(f"{address}/session/{answer['sessionId']}")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
            driver.wait(10)
