"""Commands about a cluster, run in this process or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from tests.timeouts import PATIENCE_S

from penstock.cli.main import cli


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


def put_on_path(folder: Path) -> dict[str, str]:
    """An environment whose path has the command, whatever it was installed as."""
    program = folder / "penstock"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from penstock.cli.main import main; main()' \"$@\"\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
