"""Rounds of clients: each contender in a process of its own, the order turning from round to round; medians count."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.servers import Server

PARTITIONS: Final = 6
PATIENCE_S: Final = 120.0

Outcome = dict[str, float]


def in_a_process(module: str, name: str, *arguments: object, environment: Mapping[str, str] | None = None) -> Outcome:
    """What a contender of a module's table measured of itself."""
    command = [sys.executable, "-m", module, "--work", name, *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome


def new_topic(server: Server) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result()
    return name


def turned(names: Sequence[str], number: int) -> list[str]:
    """The same names, beginning with another one in each round."""
    place = number % len(names)
    return [*names[place:], *names[:place]]


def medians(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Outcome]:
    return {
        name: {field: statistics.median(each[field] for each in some) for field in some[0]}
        for name, some in outcomes.items()
    }


def status_kb(field: str) -> int:
    """Of this process: VmRSS is what it holds, VmHWM the most that it held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])
