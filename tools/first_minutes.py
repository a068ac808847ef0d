"""Draws docs/images/first-minutes.svg: the first minutes of a new user.

The commands run against a real broker on a free port in a temporary folder, and their output is drawn unchanged, except
that folder and port are replaced by the defaults.

    .venv/bin/python tools/first_minutes.py
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "first-minutes.svg"
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
WIDTH = 108
STEPS = (
    "penstock topics create views --partitions 3",
    "seq 1 5 | sed 's/.*/member-&:page \\/jobs/' | penstock produce views --key-separator :",
    "penstock consume views --group feed --from-beginning --max-messages 3 --format '%p/%o %k: %s\\n'",
    "penstock groups describe feed",
    "penstock topics describe views",
)


def main() -> None:
    PICTURE.write_text(recorded().export_svg(title="the first minutes", theme=MONOKAI))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


def recorded() -> Console:
    """A console with the commands and what they print."""
    console = Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PATH": f"{Path(PENSTOCK).parent}:{os.environ['PATH']}",
            "FORCE_COLOR": "1",
            "COLUMNS": str(WIDTH),
            "TERM": "xterm-256color",
        }
        command = [PENSTOCK, "up", "--data-dir", f"{folder}/penstock-data", "--port", "0", "--http-port", "0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as broker:
            try:
                said, port = _start(broker)
                environment["PENSTOCK_BOOTSTRAP_SERVER"] = f"localhost:{port}"

                def shown(text: str) -> str:
                    return text.replace(f"{folder}/", "").replace(str(port), "9092")

                _prompt(console, "penstock up")
                console.print(Text.from_ansi(shown(said)))
                for step in STEPS:
                    _prompt(console, step)
                    done = subprocess.run(
                        ["bash", "-c", step],
                        capture_output=True,
                        text=True,
                        env=environment,
                        cwd=folder,
                        timeout=60,
                        check=True,
                    )
                    console.print(Text.from_ansi(shown((done.stdout + done.stderr).rstrip())))
            finally:
                broker.send_signal(signal.SIGINT)
                broker.wait(30)
    return console


def _start(broker: subprocess.Popen[str]) -> tuple[str, str]:
    """The output of `penstock up`, and its port."""
    said, port = "", ""
    for line in broker.stdout or ():
        said += line
        found = re.search(r"(?:localhost|127\.0\.0\.1):(\d+)", line)
        port = port or (found[1] if found else "")
        if "Ctrl-C" in line and "to stop" in line:
            return said.rstrip(), port
    raise RuntimeError(f"the broker ended: {said}")


def _prompt(console: Console, command: str) -> None:
    console.print(Text.assemble(("\n$ ", "bold green"), (command, "bold")))


if __name__ == "__main__":
    main()
