"""The programs on the pages are run, one after the other, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker() as broker:
        broker.create_topic("views", 6)
        yield broker.address


def test_the_page_has_programs() -> None:
    assert len(PROGRAMS) >= 6


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_page_runs(address: str, number: int) -> None:
    program = f"ADDRESS = {address!r}\n{PROGRAMS[number]}"
    if number:
        program = f"{_FILL}\n{program}".replace("HERE", repr(address))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


_FILL = """
from penstock import Producer as _Producer
with _Producer(HERE) as _producer:
    _producer.send("views", b"so that there is something to read").result(30)
"""
