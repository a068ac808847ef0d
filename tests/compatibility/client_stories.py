"""What the tests of all clients share: unique names, sample records, and members that die.

A dying member is a process that is killed, so that it cannot leave its group.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from types import TracebackType
from typing import Final, NamedTuple

PARTITIONS: Final = 3
SESSION_TIMEOUT_MS: Final = 10_000
HEARTBEAT_MS: Final = 200
BROKER_SETTINGS: Final = {
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "4",
    "group.min.session.timeout.ms": "500",
}

# message.max.bytes limits a batch with its header; this much less leaves room for the header of one record.
LIMIT_BYTES: Final = 1_048_588
JUST_FITS_BYTES: Final = LIMIT_BYTES - 200

HOUR_MS: Final = 3_600_000
BEGIN_MS: Final = 1_700_000_000_000


class Sample(NamedTuple):
    """A record as it is sent and must come back."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


SAMPLES: Final = (
    Sample(b"key", b"value", [], BEGIN_MS),
    Sample(None, b"no key", [("one", b"1"), ("one", b"2")], BEGIN_MS + HOUR_MS),
    Sample(b"deleted", None, [("empty", b"")], BEGIN_MS + 2 * HOUR_MS),
    Sample(b"", b"", [("ünï", bytes(range(256)))], BEGIN_MS + 3 * HOUR_MS),
)


def unique(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:12]}"


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Numbered values, long enough to be compressed."""
    return [b"value %d " % number + b"again and again " * 10 for number in range(first, first + count)]


class DoomedProcess:
    """A client in a process of its own that is killed. The program prints a line when it is ready."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> DoomedProcess:
        return self

    def wait_for_its_line(self) -> bytes:
        if self._process.stdout is None:
            raise ValueError("the process has no output")
        line: bytes = self._process.stdout.readline()
        return line.strip()

    def go_on(self) -> None:
        """Send a line to the program."""
        if self._process.stdin is None:
            raise ValueError("the process has no input")
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
