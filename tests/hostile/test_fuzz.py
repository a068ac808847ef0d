"""A little of the fuzzer: `python -m tests.hostile.fuzz` does as much as wanted (docs/testing.md)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.hostile.fuzz.attackers import STATES
from tests.hostile.fuzz.decoders import TARGETS, check, mutate
from tests.hostile.fuzz.run import LIMIT_MS, Run

MANY = 4_000
GENEROUS_MS = 4 * LIMIT_MS
"""Of the loop's processor time: `make fuzz` on a quiet machine judges by the limit itself."""


def fuzz(state: str, requests: int, folder: Path) -> None:
    report = Run(state, int(time.time()), requests, folder, baseline_s=0.1, limit_ms=GENEROUS_MS).run()
    sys.stdout.write(f"{report.line}\n")
    assert report.problems == [], f"seed {report.seed}"
    assert report.served >= requests * 0.5


def test_a_broker_stands_hostile_requests_of_every_kind(tmp_path: Path) -> None:
    fuzz("PLAINTEXT after", 600, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
def test_a_broker_stands_thousands_of_hostile_requests_in_every_state(state: str, tmp_path: Path) -> None:
    fuzz(state, MANY, tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_parsers_raise_what_they_may_raise(name: str) -> None:
    mutate(name, 150, int(time.time()))


@pytest.mark.parametrize("name", TARGETS)
def test_parsers_take_nothing_and_anything(name: str) -> None:
    for data in (b"", b"\0", b"\xff" * 100, bytes(1_000), b"," * 5_000, "ü=ß,\U0001f600".encode() * 10, b"[" * 50_000):
        check(name, data)
