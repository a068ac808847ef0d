"""A `penstock` process that runs beside a test: what it says, line by line, and signals for it."""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.timeouts import PATIENCE_S

CLEAN_MARKER = ".kafka_cleanshutdown"


class Running:
    """The process, killed at the end of the block if it still runs."""

    def __init__(self, *args: str | Path, cwd: Path | None = None) -> None:
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, text: str) -> str:
        """The next line that contains the text."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without saying {text!r}:\n" + "\n".join(self.said))

    def address(self) -> str:
        """Where it serves, once it does."""
        found = re.search(r"PLAINTEXT://(\S+:\d+)", self.until("broker started: "))
        assert found is not None
        return found[1]

    def end(self) -> int:
        """Its exit code, with everything that it said in `said`."""
        code = self._process.wait(PATIENCE_S)
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.said.append(line)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self.end()

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def server(folder: Path, *options: str | Path) -> Running:
    """`penstock server start` on a free port, without HTTP unless the options have it."""
    quiet = () if "--http-port" in options else ("--http-port", "0")
    return Running("server", "start", "--data-dir", folder, "--listen", "127.0.0.1:0", *quiet, *options)


def produce(address: str, topic: str, *values: bytes) -> None:
    """Send the values and wait until each is acknowledged."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=address, acks="all")) as producer:
        for value in values:
            producer.send(topic, value).get(timeout=PATIENCE_S)


def consume(address: str, topic: str, count: int) -> list[bytes]:
    """The first values of a topic's first partition."""
    values: list[bytes] = []
    with contextlib.closing(KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(values) < count:
            polled = consumer.poll(timeout_ms=int(PATIENCE_S * 1000), max_records=count)
            assert polled, f"{count - len(values)} records are missing"
            values += [record.value for records in polled.values() for record in records]
    return values
