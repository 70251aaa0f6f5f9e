"""A page in Chromium, without a driver: a script of the test runs in the page, and what it returns comes back."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)

_HARNESS = """
<script>
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const one = (selector, root = document) => root.querySelector(selector);
const shown = (selector) => all(selector).filter((node) => node.getClientRects().length);
const type = (node, text) => { node.value = text; node.dispatchEvent(new Event("input", {bubbles: true})); };
const choose = (node, value) => { node.value = value; node.dispatchEvent(new Event("change", {bubbles: true})); };
const press = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
addEventListener("error", (event) => console.error(event.message));
(async () => {
  let answer;
  try { answer = {value: await (async () => { %s })()}; } catch (error) { answer = {error: String(error)}; }
  const written = document.createElement("pre");
  written.id = "answer-of-the-test";
  written.textContent = JSON.stringify(answer);
  document.body.append(written);
})();
</script>
"""


@dataclass(frozen=True)
class Seen:
    """What a script saw.

    Attributes:
        value: What it returned.
        console: What the page wrote to the console.
    """

    value: Any
    console: list[str]


def visit(page: str, script: str, folder: Path, *, place: str = "", width: int = 1200, dark: bool = False) -> Seen:
    """Open a page, run a script in it, and return what it gives.

    Args:
        page: The page.
        script: Body of an asynchronous function.
        folder: An empty folder.
        place: What stands behind ``#`` in the address.
        width: Of the window, in pixels.
        dark: The system prefers dark colours.
    """
    assert CHROMIUM is not None
    file = folder / "page.html"
    file.write_text(page.replace("</body>", _HARNESS % script + "</body>"), encoding="utf-8", errors="backslashreplace")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *(["--force-dark-mode"] if dark else []),
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},900",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"{file.as_uri()}#{place}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shown = re.search(r'<pre id="answer-of-the-test">(.*?)</pre>', done.stdout, re.DOTALL)
    assert shown, done.stderr
    answer = json.loads(html.unescape(shown[1]))
    assert "error" not in answer, answer["error"]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(answer.get("value"), console)
