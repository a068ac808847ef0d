"""Commands about a cluster, run in this process or in one of their own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.timeouts import PATIENCE_S

from penstock.cli.main import cli, main
from penstock.client.consumer import Consumer, ConsumerRecord


class Shell:
    """The command with its broker in the environment."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.environment = {"PENSTOCK_BOOTSTRAP_SERVER": address}

    def __call__(self, *args: str | Path | int, stdin: str | bytes | None = None) -> Result:
        """In this process; whatever was raised but an exit is raised here."""
        result = CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, env=self.environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def done(self, *args: str | Path | int, stdin: str | bytes | None = None) -> str:
        """What it printed; it must have succeeded."""
        result = self(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *args: str | Path | int) -> Any:
        return json.loads(self.done(*args, "--format", "json"))

    def lines(self, *args: str | Path | int, stdin: str | bytes | None = None) -> list[str]:
        return self.done(*args, stdin=stdin).splitlines()

    def at_terminal(self, *args: str | Path | int, answer: str = "") -> subprocess.CompletedProcess[str]:
        """In a process of its own whose standard input is a terminal, at which `answer` was typed."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, answer.encode())
            return subprocess.run(
                [sys.executable, "-m", "penstock", *map(str, args)], stdin=theirs, capture_output=True, text=True,
                env={**os.environ, **self.environment}, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
        finally:
            os.close(ours)
            os.close(theirs)

    def error(self, *args: str | Path | int) -> dict[str, Any]:
        """What a command that fails writes to standard error for programs, and nothing else; with its exit code."""
        words = [*map(str, args), "--format", "json"]
        # The command sets the last one for its children; it must not stay.
        with CliRunner().isolation(env={**self.environment, "PYTHONSAFEPATH": "1"}) as (_, stderr, _):
            with pytest.raises(SystemExit) as ended:
                main(words)
            sys.stderr.flush()
            (line,) = stderr.getvalue().splitlines()
        found: dict[str, Any] = json.loads(line)
        assert found["exitCode"] == ended.value.code
        return found

    def error_of_process(self, *args: str | Path | int) -> dict[str, Any]:
        """The same, of a process of its own: for commands that take signals, or leave threads."""
        result = subprocess.run(
            [sys.executable, "-m", "penstock", *map(str, args)], capture_output=True, text=True,
            env={**os.environ, **self.environment}, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return {"exitCode": result.returncode, "message": result.stderr, "code": _code_of(result.stderr)}

    @contextmanager
    def process(self, *args: str | Path | int, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """In a process of its own, for signals and pipes; killed if it outlives its time or the block."""
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment},
            **options,
        )
        # A test that waits for its output would otherwise wait for a process that never ends.
        limit = threading.Timer(PATIENCE_S, process.kill)
        limit.start()
        try:
            with process:
                try:
                    yield process
                finally:
                    process.kill()
        finally:
            limit.cancel()
            limit.join()


def _code_of(text: str) -> str:
    return "UNREACHABLE" if "Cannot reach a broker" in text else ""


def put_on_path(folder: Path) -> dict[str, str]:
    """An environment whose path has the command, whatever it was installed as."""
    program = folder / "penstock"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from penstock.cli.main import main; main()' \"$@\"\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def stored(shell: Shell, topic: str) -> list[ConsumerRecord[Any, Any]]:
    """All records of a topic, by partition and offset."""
    found: list[ConsumerRecord[Any, Any]] = []
    with Consumer(bootstrap_servers=shell.address, auto_offset_reset="earliest") as consumer:
        partitions = [(topic, index) for index in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        wanted = sum(consumer.end_offsets(partitions).values())
        while len(found) < wanted:
            for records in consumer.poll(timeout_ms=10_000).values():
                found += records
    return sorted(found, key=lambda record: (record.partition, record.offset))
