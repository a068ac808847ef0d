"""Draws docs/images/activity-page.png and activity-terminal.svg from a real run of `penstock activity run`.

The run uses a temporary folder and free ports, and is drawn some seconds into the incident planted a minute after its
start. Only the ports and the folder are replaced by the defaults. The page needs Chromium (on Debian: apt-get install
chromium).

    .venv/bin/python tools/activity_pictures.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.terminal_theme import MONOKAI

from penstock.activity.live.state import Snapshot
from penstock.activity.live.terminal import screen

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 100, 30
TIMEOUT_S = 300.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rate", default="1000", help="events per second")
    options.add_argument("--images", type=Path, default=IMAGES, help="folder of the pictures")
    options.add_argument("--whole", action="store_true", help="also draw the whole page, dark, and for a phone")
    asked = options.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed. On Debian: apt-get install chromium")
    sys.path.insert(0, str(ROOT))
    asked.images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "penstock", "activity", "run", "--data-dir", f"{folder}/penstock-activity",
            "--port", "0", "--http-port", "0", "--rate", asked.rate, "--rhythm", "flat",
        ]  # fmt: skip
        said = Path(folder) / "said"
        with said.open("w") as output:
            run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            url = _page(run, said)
            snapshot = _in_the_incident(run, url)
            _draw_terminal(snapshot, asked.images / "activity-terminal.svg")
            _draw_page(Path(chromium), url, asked.images, is_whole=asked.whole)
        finally:
            began_s = time.monotonic()
            run.send_signal(signal.SIGINT)
            run.wait(60)
            print(f"{said.read_text()}ended in {time.monotonic() - began_s:.1f} s")


def _page(run: subprocess.Popen[bytes], said: Path) -> str:
    """The address of the page, once it is served."""
    while run.poll() is None:
        found = re.search(r"page +(http://\S+)\n(?s:.*)broker ", said.read_text())
        if found is not None:
            return found[1]
        time.sleep(0.2)
    sys.exit("The run ended early.")


def _in_the_incident(run: subprocess.Popen[bytes], url: str) -> Snapshot:
    """The state once every section has something to show and an incident is open."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s and run.poll() is None:
        time.sleep(1)
        with urllib.request.urlopen(f"{url}/api/state", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
        snapshot = msgspec.convert(state, Snapshot)
        generating_s = (snapshot.time_ms - snapshot.generating_since_ms) / 1000 if snapshot.generating_since_ms else 0
        has_all = all((snapshot.ranking, snapshot.suspects, snapshot.rising, snapshot.members))
        if has_all and len(snapshot.open_incidents) >= 2 and generating_s > 80:
            return snapshot
    sys.exit(f"No incident within {TIMEOUT_S:.0f} s.")


def _draw_terminal(snapshot: Snapshot, picture: Path) -> None:
    shown = msgspec.structs.replace(snapshot, facts={**snapshot.facts, "page": "http://127.0.0.1:8092"})
    with open(os.devnull, "w") as nothing:
        console = Console(record=True, width=WIDTH, height=HEIGHT, force_terminal=True, file=nothing)
        console.print(screen(shown, WIDTH, HEIGHT))
        console.save_svg(str(picture), title="make run", theme=MONOKAI)
    print(f"wrote {picture}")


def _draw_page(chromium: Path, url: str, images: Path, *, is_whole: bool) -> None:
    from tests.peers.activity.browser import Browser

    with Browser(chromium, 1280, 800, 2) as browser:
        browser.open(url)
        browser.wait_for("document.querySelector('#ranking tbody tr') && document.querySelector('#feed li')")
        browser.screenshot(images / "activity-page.png")
        print(f"wrote {images / 'activity-page.png'}; errors of the page: {browser.complaints or 'none'}")
        if is_whole:
            for name, width, is_dark in (("whole", 1280, False), ("dark", 1280, True), ("phone", 390, False)):
                browser.resize(width, 800, 1, is_dark=is_dark)
                browser.wait_for(f"innerWidth === {width}")
                height = browser.evaluate("document.documentElement.scrollHeight")
                browser.resize(width, height, 1, is_dark=is_dark)
                time.sleep(1.5)
                browser.screenshot(images / f"activity-page-{name}.png")


if __name__ == "__main__":
    main()
