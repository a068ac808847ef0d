"""A program of ours that holds a conversation: a question is one line of JSON, so is its answer.

An answer is {"answer": ...} or {"error": text}; the program ends when its input does.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

_STOP_S = 10
_TAIL_CHARACTERS = 2000


class ProgramFailed(Exception):
    """The program ended, or answered that a question failed."""


class Conversation:
    """A running program; `ask` puts a question to it."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment
        )

    def ask(self, about: str, **question: Any) -> Any:
        """The program's answer; ProgramFailed with what it says if it has none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ProgramFailed(f"{self.name} has no pipes")
        try:
            stdin.write(json.dumps({"about": about, **question}).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise ProgramFailed(f"{self.name} ended: {self._last_errors()}")
        reply = json.loads(line)
        if "error" in reply:
            raise ProgramFailed(f"{self.name}: {reply['error']}")
        return reply["answer"]

    def _last_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-_TAIL_CHARACTERS:]

    def kill(self) -> None:
        """End it by SIGKILL, in the middle of whatever it does; `close` is still needed."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it: by its input first, then by a signal."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
