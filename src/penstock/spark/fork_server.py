"""A process with Spark's worker modules imported, of which the Python workers of a local session are forks.

Spark starts a Python for each source of a stream, one for each kind of plan, and one for tasks. Each imports pyspark
(from a zip file, without compiled modules), pyarrow and Penstock, which takes it a second of CPU. A fork of a process
that has imported them takes milliseconds.

    server = ForkServer()
    server.start()
    os.environ["PYSPARK_PYTHON"] = server.python     # before the JVM starts

`python` is a script that Spark runs in place of the interpreter. It passes its arguments, environment and standard
streams to this server through a Unix socket in a folder that only this user can enter, and lives as long as its worker:
if Spark ends it, the worker gets SIGTERM. Without a server it becomes the real Python, so nothing depends on one.

The server has no threads that could hold a lock in a fork. It ends when its standard input is closed: with its parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import importlib.util
import marshal
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.spark import fork_client

_PRELOADED: Final = (
    "pyspark.worker",
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark_penstock",
    "penstock.spark.source",
)
_BACKLOG: Final = 64
_REQUEST_TIMEOUT_S: Final = 5.0
_REQUEST_MAX_BYTES: Final = 1 << 20
_CLOSE_S: Final = 2.0
# systemd-tmpfiles removes what nobody has touched for ten days.
_TOUCH_EVERY_S: Final = 3600.0
_STARTED: Final = b"\x01"
# Spark demands the same hash of a text in all of its workers.
_HASH_SEED: Final = "PYTHONHASHSEED"
# A library with threads of its own could not be forked.
_NO_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_IGNORED: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_SCRIPT: Final = """\
#!/bin/sh
# Spark's Python: a worker is a fork of a running process.
exec {python} -IS {client} {socket} "$@"
"""


class ForkServer:
    """The server as its parent sees it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-python-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def python(self) -> str:
        """The script to give Spark as its Python."""
        return str(self._folder / "python")

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns at once. Workers that are started meanwhile wait until the server has imported its modules.

        Raises OSError where it cannot be used: the path of the socket is too long, or nothing in the folder can run.
        """
        path = str(self._folder / "socket")
        client = str(Path(fork_client.__file__).resolve())
        words = {"python": sys.executable, "client": client, "socket": path}
        script = self._folder / "python"
        script.write_text(_SCRIPT.format(**{name: shlex.quote(word) for name, word in words.items()}))
        script.chmod(0o700)
        if not os.access(script, os.X_OK):
            raise PermissionError(errno.EACCES, "programs in this folder cannot be run", str(self._folder))
        with socket.socket(socket.AF_UNIX) as listener:
            # Bound here: a worker that Spark starts at once finds it.
            listener.bind(path)
            listener.listen(_BACKLOG)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(listener.fileno())], stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()], env={**_NO_THREADS, _HASH_SEED: "0", **os.environ},
            )  # fmt: skip

    def close(self) -> None:
        """Ends the server. Workers that still run keep running."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------- in the server's process


class _Server:
    """Forks a worker for each connection, and reports its exit code there."""

    def __init__(self, listener: socket.socket, folder: Path) -> None:
        self._listener = listener
        self._folder = folder
        self._connections: dict[int, socket.socket] = {}
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._woken, False)

    def serve(self) -> None:
        """Returns when the standard input is closed, and, as a fork, never."""
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = select.poll()
        for descriptor in (0, self._listener.fileno(), self._woken):
            poll.register(descriptor, select.POLLIN)
        touched_s = time.monotonic()
        while True:
            ready = dict(poll.poll(_TOUCH_EVERY_S * 1000))
            if time.monotonic() - touched_s >= _TOUCH_EVERY_S:
                touched_s = time.monotonic()
                self._touch()
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if 0 in ready and not os.read(0, 4096):
                return
            if self._listener.fileno() in ready:
                connection, _ = self._listener.accept()
                self._answer(connection)

    def _touch(self) -> None:
        """Keeps the files from being removed as forgotten ones."""
        for each in (self._folder, *self._folder.iterdir()):
            with contextlib.suppress(OSError):
                os.utime(each)

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_REQUEST_TIMEOUT_S)
            arguments, environment, folder, streams = _request(connection)
        except (OSError, ValueError, EOFError):
            connection.close()
            return
        connection.settimeout(None)
        pid = os.fork()
        if not pid:
            self._become(connection, arguments, environment, folder, streams)
        for each in streams:
            os.close(each)
        self._connections[pid] = connection
        with contextlib.suppress(OSError):
            connection.sendall(_STARTED)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            connection = self._connections.pop(pid, None)
            if connection is not None:
                with connection, contextlib.suppress(OSError):
                    connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))

    def _become(
        self, connection: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], folder: str,
        streams: Sequence[int],
    ) -> None:  # fmt: skip
        """The rest of the life of a fork."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for descriptor in (self._woken, self._wakes):
                os.close(descriptor)
            self._listener.close()
            for each in self._connections.values():
                each.close()
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
                os.close(stream)
            _end_with(connection)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            end_on_ignored_exits()
            code = run_worker(arguments)
        except BaseException:  # noqa: BLE001 - a fork never returns into the server
            traceback.print_exc()
        finally:
            for output in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    output.flush()
            os._exit(code)


def _request(connection: socket.socket) -> tuple[list[str], dict[str, str], str, list[int]]:
    """Arguments, environment, working folder and standard streams. Raises OSError, ValueError, EOFError."""
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    try:
        size = int.from_bytes(head, "big")
        if len(head) != 4 or len(streams) != 3 or size > _REQUEST_MAX_BYTES:
            raise ValueError("not a request of fork_client")
        body = bytearray()
        while len(body) < size:
            piece = connection.recv(size - len(body))
            if not piece:
                raise EOFError
            body += piece
        arguments, environment, folder = marshal.loads(body)
    except BaseException:
        for each in streams:
            os.close(each)
        raise
    return arguments, environment, folder, streams


def _end_with(connection: socket.socket) -> None:
    """Makes the kernel send SIGTERM to this process when the other end of the connection is closed."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    # The kernel tells only of what happens from now on. Nothing comes after the request but its end.
    if select.select([connection], [], [], 0)[0]:
        os._exit(1)


def end_on_ignored_exits() -> None:
    """Makes this process, but none of its forks, end with a SystemExit that Python would only print.

    Spark's daemon leaves by a SystemExit of its handler of SIGTERM. A handler runs wherever Python is, and in a
    destructor, or between a fork and the next line, an exception is printed and forgotten.
    """
    pid, report = os.getpid(), sys.unraisablehook

    def leave(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, SystemExit) and os.getpid() == pid:
            os._exit(_exit_code(ignored.exc_value))
        report(ignored)

    sys.unraisablehook = leave


def _exit_code(exit_: SystemExit) -> int:
    return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)


def run_worker(arguments: Sequence[str]) -> int:
    """Runs a module as `python -m` does, in this process. Returns the exit code."""
    module = arguments[0]
    if module not in fork_client.WORKERS:
        raise ValueError(f"{module} is not a worker of Spark")
    sys.path[1:1] = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry and entry not in sys.path]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.loader is None:
        raise ImportError(module)
    sys.argv = [spec.origin or module, *arguments[1:]]
    code = spec.loader.get_code(module)  # type: ignore[attr-defined]
    # Not by runpy: it warns of a module that is imported already.
    main = types.ModuleType("__main__")
    vars(main).update(__file__=spec.origin, __spec__=spec, __package__=spec.parent, __loader__=spec.loader)
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    except SystemExit as exit_:
        return _exit_code(exit_)
    return 0


def main(descriptor: int) -> None:
    """Serves the listening socket that this process has inherited."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # A part of `penstock activity run` has blocked them, and a worker that is to end must get its SIGTERM.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in _PRELOADED:
        # What cannot be imported is reported by the worker that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Python 3.12 warns of a fork if a library has a thread; Arrow's allocator has one that survives a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=descriptor)
    folder = Path(listener.getsockname()).parent
    _Server(listener, folder).serve()
    # A parent that was killed could not do it.
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
