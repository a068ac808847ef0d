"""Spark's Python workers as forks of one process: they start, end and are distinguished as real ones are."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.timeouts import PATIENCE_S, until

from penstock.spark import fork_client
from penstock.spark.environment import runs_own_workers
from penstock.spark.fork_server import _PRELOADED, ForkServer, _request, run_worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is used on Linux")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    made.start()
    yield made
    made.close()


@pytest.fixture
def short_folder() -> Iterator[str]:
    """The path of a Unix socket has room for 107 bytes; that of a test's own folder may be too long."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


class Daemon:
    """Spark's daemon of workers, started as Spark starts it."""

    def __init__(self, python: str, folder: str) -> None:
        environment = {
            **os.environ,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
        }
        self.process = subprocess.Popen(
            [python, "-m", "pyspark.daemon", "pyspark.worker"], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        (length,) = struct.unpack("!i", self._pipe(self.process.stdout).read(4))
        self.address = self._pipe(self.process.stdout).read(length).decode()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def worker(self) -> tuple[int, socket.socket]:
        """A new worker: its process id, and Spark's end of its connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        return pid, connection

    def close(self) -> int:
        """As Spark ends a daemon. Returns the exit code."""
        self._pipe(self.process.stdin).close()
        code = self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdout, self.process.stderr):
            self._pipe(pipe).close()
        return code


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_daemon_and_its_workers_are_forks_with_their_own_environment(server: ForkServer, short_folder: str) -> None:
    daemon = Daemon(server.python, short_folder)
    pid, connection = daemon.worker()
    daemon_pid = parent_of(pid)
    assert daemon_pid != daemon.process.pid, "Spark's child only passes on"
    assert parent_of(daemon_pid) == server.pid
    assert daemon.address.startswith(short_folder), "a variable of this daemon, not of the server"
    with connection:
        # Nothing more comes from Spark: the worker ends as a real one does.
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    until(lambda: not is_there(pid), "the worker ends")
    assert daemon.close() == 1, "as with the real Python: its last word is an exit with code 1"
    until(lambda: not is_there(daemon_pid), "the daemon ends")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_spark_ends_its_child_the_worker_ends_too(
    server: ForkServer, short_folder: str, number: signal.Signals
) -> None:
    daemon = Daemon(server.python, short_folder)
    pid, connection = daemon.worker()
    daemon_pid = parent_of(pid)
    daemon.process.send_signal(number)
    assert daemon.process.wait(PATIENCE_S) == -number
    until(lambda: not is_there(daemon_pid), "the daemon ends")
    connection.close()
    daemon.close()


@pytest.mark.parametrize(("who", "code"), [("parent", 5), ("child", 0)])
def test_an_exit_in_a_hook_of_a_fork_ends_the_daemon_and_not_its_worker(who: str, code: int) -> None:
    """Python only prints what a handler raises in such a hook."""
    program = f"""\
import os, signal, sys
from penstock.spark.fork_server import end_on_ignored_exits
def leave(*_):
    sys.exit(5)
signal.signal(signal.SIGTERM, leave)
def ended():
    os.kill(os.getpid(), signal.SIGTERM)
    return None
os.register_at_fork(after_in_{who}=ended)
end_on_ignored_exits()
pid = os.fork()
if not pid:
    os._exit(7)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 7
"""
    assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode == code


def test_workers_get_the_signals_that_the_parent_of_the_server_has_blocked(short_folder: str) -> None:
    """A part of `penstock activity run` has blocked them."""
    blocked = ForkServer()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    try:
        blocked.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        test_when_spark_ends_its_child_the_worker_ends_too(blocked, short_folder, signal.SIGTERM)
    finally:
        blocked.close()


def test_a_worker_that_is_killed_is_reported_as_such(server: ForkServer, short_folder: str) -> None:
    daemon = Daemon(server.python, short_folder)
    pid, connection = daemon.worker()
    os.kill(parent_of(pid), signal.SIGKILL)
    assert daemon.process.wait(PATIENCE_S) == -signal.SIGKILL
    connection.close()
    daemon.close()


def test_a_worker_whose_client_is_gone_before_it_begins_ends_at_once() -> None:
    asks = (
        "import socket\nfrom penstock.spark.fork_server import _end_with\n"
        "ours, theirs = socket.socketpair()\n{}\n_end_with(ours)\nprint('goes on', flush=True)"
    )
    said = []
    for before in ("theirs.close()", ""):
        done = subprocess.run(
            [sys.executable, "-c", asks.format(before)], capture_output=True, text=True, timeout=PATIENCE_S
        )
        said.append((done.returncode, done.stdout.strip()))
    assert said == [(1, ""), (0, "goes on")]


def test_what_a_worker_prints_and_its_exit_code_reach_spark(server: ForkServer) -> None:
    # Without the variables of a connection it fails.
    done = subprocess.run(
        [server.python, "-m", "pyspark.sql.streaming.python_streaming_source_runner"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON_WORKER")},
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeWarning" not in done.stderr


def test_anything_but_a_worker_runs_in_the_real_python(server: ForkServer) -> None:
    asks = "import os, sys; print(sys.argv[1:], sys.version_info[:2], os.getppid())"
    done = subprocess.run([server.python, "-c", asks, "a b"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == f"['a b'] {sys.version_info[:2]} {os.getpid()}"
    with pytest.raises(ValueError, match="not a worker"):
        run_worker(["json.tool"])


def test_without_a_server_workers_are_started_as_usual(short_folder: str, tmp_path: Path) -> None:
    gone = ForkServer()
    gone.start()
    script = Path(gone.python).read_text()
    gone.close()
    assert not Path(gone.python).exists()
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o700)
    daemon = Daemon(str(tmp_path / "python"), short_folder)
    pid, connection = daemon.worker()
    assert parent_of(pid) == daemon.process.pid
    connection.close()
    daemon.close()


def test_the_server_ends_with_its_parent_and_not_by_ctrl_c() -> None:
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys\nfrom penstock.spark.fork_server import ForkServer\n"
            "server = ForkServer()\nserver.start()\nprint(server.pid, server.python, flush=True)\nsys.stdin.read()\n",
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    number, python = parent.stdout.readline().split()
    pid = int(number)
    ignored = 1 << (signal.SIGINT - 1)
    until(lambda: bool(int(status_of(pid)["SigIgn"], 16) & ignored), "it ignores Ctrl-C")
    os.kill(pid, signal.SIGINT)
    time.sleep(0.05)
    assert is_there(pid)
    parent.kill()
    parent.communicate()
    until(lambda: not is_there(pid), "the server ends")
    assert not Path(python).parent.exists()


def test_its_files_do_not_look_forgotten_however_long_it_runs(short_folder: str) -> None:
    script = Path(short_folder, "python")
    script.touch()
    asks = (
        "import sys\nfrom penstock.spark import fork_server\n"
        "fork_server._PRELOADED, fork_server._TOUCH_EVERY_S = (), 0.01\nfork_server.main(int(sys.argv[1]))\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(short_folder, "socket")))
        listener.listen()
        every = (script, Path(short_folder, "socket"), Path(short_folder))
        for each in every:
            os.utime(each, (0, 0))
        running = subprocess.Popen(
            [sys.executable, "-c", asks, str(listener.fileno())], stdin=subprocess.PIPE, pass_fds=[listener.fileno()]
        )
    until(lambda: all(each.stat().st_mtime > 0 for each in every), "they are touched")
    running.communicate()
    assert running.returncode == 0
    os.mkdir(short_folder)  # it has removed it


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("request_", [b"", b"\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x04ab"])
def test_a_broken_request_starts_nothing_and_the_next_one_is_served(server: ForkServer, request_: bytes) -> None:
    path = str(Path(server.python).parent / "socket")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with open(os.devnull, "rb") as nothing:
            if request_:
                socket.send_fds(connection, [request_[:4]], [nothing.fileno()] * 3)
                with contextlib.suppress(BrokenPipeError):  # rejected by its head already
                    connection.sendall(request_[4:])
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection)
    test_what_a_worker_prints_and_its_exit_code_reach_spark(server)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end closes it without a byte: it may have left bytes unread."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_request_that_claims_too_much_is_rejected_before_anything_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "rb") as nothing:
        socket.send_fds(ours, [b"\x7f\xff\xff\xff"], [nothing.fileno()] * 3)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(ValueError, match="not a request"):
            _request(theirs)


def test_every_worker_that_is_preloaded_exists() -> None:
    for name in {*fork_client.WORKERS, *_PRELOADED}:
        assert importlib.util.find_spec(name) is not None, name


@pytest.mark.parametrize(
    ("master", "environment", "is_used"),
    [
        (None, {}, True),
        ("local[2]", {}, True),
        ("spark://host:7077", {}, False),
        ("local-cluster[2,1,1024]", {}, False),
        (None, {"MASTER": "spark://host:7077"}, False),
        (None, {"PYSPARK_PYTHON": sys.executable}, True),
        (None, {"PYSPARK_PYTHON": "/usr/bin/python3"}, False),
        (None, {"PYSPARK_DRIVER_PYTHON": "ipython"}, False),
        (None, {"SPARK_HOME": "/opt/spark"}, False),
        (None, {"PYSPARK_SUBMIT_ARGS": "--conf spark.pyspark.python=/x pyspark-shell"}, False),
        (None, {"SPARK_REMOTE": "sc://host"}, False),
    ],
)
def test_it_is_used_only_where_workers_run_here_with_this_python(
    master: str | None, environment: dict[str, str], is_used: bool
) -> None:
    assert runs_own_workers(master, environment) is is_used
