"""What Spark prints, kept away from the output of a command.

A command that succeeds prints its result and nothing else. While the JVM starts, its output is held back, and shown
only if it does not start: the warnings of Java and of Spark's own log4j are the same every time and nobody can act on
them. While it runs, errors are passed on to standard error, but for tracebacks of Python workers that say only that
Spark reads no more from them, as it does when a task or a plan has all that it needs. What comes after `end`, when
Spark takes its parts down, is dropped. A log4j configuration of the user's counts before ours.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.configured import is_local

if TYPE_CHECKING:
    from pyspark import SparkConf

_MOST_LINES: Final = 1000
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG4J: Final = "log4j2.properties"


def quiet_settings(told: Mapping[str, str], master: str | None, home: Path) -> dict[str, str]:
    """Settings of a session that logs only errors; `told` is what is set already, which stays."""
    chosen = {"spark.ui.showConsoleProgress": "false"}
    options = told.get(_JAVA_OPTIONS, "")
    theirs = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", _LOG4J)
    if "log4j" not in options and not theirs.is_file():
        ours = Path(__file__).with_name(_LOG4J).as_uri()
        chosen[_JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={ours}".strip()
    if is_local(master):
        chosen["spark.python.daemon.module"] = "penstock.spark.worker_daemon"
    return {name: value for name, value in chosen.items() if name == _JAVA_OPTIONS or name not in told}


class TracebackFilter:
    """Passes lines on, except tracebacks that end with a closed pipe, with what chains them."""

    def __init__(self) -> None:
        self._traceback: list[bytes] = []
        self._follows_dropped = False

    def lines(self, line: bytes) -> list[bytes]:
        """What is to be shown now that this line has come."""
        if line.startswith((b"Traceback (most recent", b"PySpark daemon failed to flush")):
            self._traceback.append(line)
            return []
        if not self._traceback:
            chains = self._follows_dropped and (not line.strip() or line.startswith(b"During handling of the above"))
            self._follows_dropped = chains
            return [] if chains else [line]
        self._traceback.append(line)
        if not line.strip() or line.startswith(b" "):
            return []
        found, self._traceback = self._traceback, []
        self._follows_dropped = line.startswith((b"BrokenPipeError", b"ConnectionResetError"))
        return [] if self._follows_dropped else found


class ConsoleOutput:
    """The standard error of a JVM that this process starts."""

    def __init__(self) -> None:
        self.held: deque[bytes] | None = deque(maxlen=_MOST_LINES)
        self.is_closed = False
        self._is_over = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def held_back(self, conf: SparkConf) -> Iterator[None]:
        """Starts the JVM, if none runs, for a session that is made meanwhile."""
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            reading, writing = os.pipe()
            threading.Thread(target=self._pump, args=(reading,), name="penstock-spark-output", daemon=True).start()
            try:
                gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
            except BaseException:
                self._show_held()
                raise
            finally:
                os.close(writing)
            SparkContext._ensure_initialized(gateway=gateway)
        try:
            yield
        except BaseException:
            self._show_held()
            raise
        with self._lock:
            self.held = None

    def end(self) -> None:
        """From now on nothing is shown."""
        with self._lock:
            self._is_over = True

    def _pump(self, reading: int) -> None:
        kept = TracebackFilter()
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                with self._lock:
                    if self.held is not None:
                        self.held.append(line)
                        continue
                    for one in kept.lines(line):
                        if not self._is_over:
                            _show(one)
        self.is_closed = True

    def _show_held(self) -> None:
        with self._lock:
            held, self.held = self.held or deque(), None
        for line in held:
            _show(line)


def _show(line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line.decode("utf-8", "replace"))
        sys.stderr.flush()
