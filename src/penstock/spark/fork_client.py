"""The program that Spark starts as its Python while a fork server runs (see `fork_server`).

It hands its arguments, environment and standard streams to the server, waits for the worker that the server forks, and
exits as that worker does. If there is no server, and for anything but a worker, it becomes the real Python.

It runs with `python -IS` and imports only what starts in milliseconds: nothing of Penstock.
"""

import contextlib
import marshal
import os
import signal
import socket
import sys

WORKERS = (
    "penstock.spark.worker_daemon",
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
)
"""The modules that the server runs. Spark gives what else it needs as further arguments."""
_STREAMS = (0, 1, 2)


def main(path: str, arguments: list[str]) -> None:
    """`path` is the server's socket; `arguments` are those of a Python."""
    if arguments[:1] == ["-m"] and arguments[1:2] and arguments[1] in WORKERS:
        code = _forked(path, arguments[1:])
        if code is not None:
            _exit(code)
    os.execv(sys.executable, [sys.executable, *arguments])


def _forked(path: str, arguments: list[str]) -> int | None:
    """Runs the worker in a fork of the server and returns its exit code; None if there is no server."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            request = marshal.dumps((arguments, dict(os.environ), os.getcwd()))
            socket.send_fds(connection, [len(request).to_bytes(4, "big")], _STREAMS)
            connection.sendall(request)
            if not connection.recv(1):
                return None
        except OSError:
            return None
        # Spark sees the end of a pipe only if nobody else holds it.
        os.close(0)
        try:
            answer = connection.recv(4)
        except OSError:
            answer = b""
    return int.from_bytes(answer, "big", signed=True) if len(answer) == 4 else 1


def _exit(code: int) -> None:
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to replace
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
