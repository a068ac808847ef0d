"""A Java program of ours that holds a conversation in lines of JSON: see java/Lines.java.

The programs in `java/` are compiled against a peer's jars, once for each state of their sources, into the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.peers.installing import CACHE
from tests.peers.provision import Found

SOURCES = Path(__file__).with_name("java")
HEAP = "-Xmx256m"
# Short lives on few cores: what the optimising compiler and parallel collectors cost is never earned back.
FLAGS = (HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_COMPILE_S = 120
_STOP_S = 10
_TAIL_CHARACTERS = 2000


class JavaFailed(Exception):
    """The program ended, or answered that a question failed."""


def classpath(jars: Found, *before: Path) -> str:
    return os.pathsep.join(map(str, [*before, *sorted(jars.path.glob("*.jar"))]))


def compiled(java: Found, jars: Found, sources: tuple[str, ...]) -> Path:
    """The folder with the classes of the programs, compiled against the jars."""
    state = hashlib.sha256(f"{java.version}|{jars.version}|{sources}".encode())
    for source in sources:
        state.update((SOURCES / source).read_bytes())
    done = CACHE / "classes" / f"{jars.name}-{state.hexdigest()[:16]}"
    if done.exists():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=done.parent))
    try:
        paths = [str(SOURCES / source) for source in sources]
        command = ["-proc:none", "-encoding", "UTF-8", "-d", str(fresh), "-cp", classpath(jars), *paths]
        javac = [str(java.path), HEAP, "--module", "jdk.compiler/com.sun.tools.javac.Main", *command]
        run = subprocess.run(javac, capture_output=True, text=True, timeout=_COMPILE_S)
        if run.returncode != 0:
            raise JavaFailed(f"{', '.join(sources)} against {jars.name}:\n{run.stderr}")
        try:
            fresh.rename(done)
        except OSError:
            # Somebody else was quicker.
            if not done.exists():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return done


class JavaProcess:
    """A running program; `ask` puts a question to it."""

    def __init__(self, java: Found, jars: Found, main: str, sources: tuple[str, ...]) -> None:
        classes = compiled(java, jars, sources)
        self.name = f"{main} on {jars.name}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            [str(java.path), *FLAGS, "-cp", classpath(jars, classes), main],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def ask(self, about: str, **question: Any) -> Any:
        """The program's answer; JavaFailed with what it says if it has none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise JavaFailed(f"{self.name} has no pipes")
        try:
            stdin.write(json.dumps({"about": about, **question}).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise JavaFailed(f"{self.name} ended: {self._last_errors()}")
        reply = json.loads(line)
        if "error" in reply:
            raise JavaFailed(f"{self.name}: {reply['error']}")
        return reply["answer"]

    def _last_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-_TAIL_CHARACTERS:]

    def close(self) -> None:
        """End it: politely, then for good."""
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

    def __enter__(self) -> JavaProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
