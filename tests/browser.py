"""Control a headless Chromium: open a page, press keys, evaluate JavaScript, take screenshots."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).parents[1] / "build/pictures"
"""Screenshots stay here after a run of the tests, for a person to inspect."""

KEYS = {"Enter": ("Enter", 13, "\r"), "Space": (" ", 32, " "), "Tab": ("Tab", 9, "")}


class Browser:
    """One page of a headless Chromium, over the pipe of its DevTools protocol."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb", 0)
        self._number, self._rest, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol, and return its result."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]  # type: ignore[no-any-return]

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        """Load a page, and wait until it is complete."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Page.navigate", url=page.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key; the focused element receives it."""
        name, code, text = KEYS[key]
        event = {"key": name, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def style(self, media: str = "", scheme: str = "light") -> None:
        """Show the page as on a screen or (``print``) on paper, in the user's preferred colours."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])

    def picture(self, name: str) -> None:
        """Save a screenshot as ``PICTURES/name``."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        data = self.call("Page.captureScreenshot")["data"]
        (PICTURES / name).write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._commands.close()
        self._answers.close()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._answers.read(1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with an empty page; it reads commands from descriptor 3 and answers on 4."""
    program = shutil.which("chromium")
    assert program
    its_commands, commands = os.pipe()
    answers, its_answers = os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    pipes = f'exec "$@" 3<&{its_commands} 4>&{its_answers}'
    running = subprocess.Popen(
        ["bash", "-c", pipes, "bash", program, "--remote-debugging-pipe", *options],
        pass_fds=(its_commands, its_answers),
        stderr=subprocess.DEVNULL,
    )
    os.close(its_commands)
    os.close(its_answers)
    browser = Browser(commands, answers)
    try:
        yield browser
    finally:
        browser.call("Browser.close")
        running.wait()
        browser.close()
