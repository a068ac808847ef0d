"""Checks before a run starts: its folder, ports, Java, packages, the cluster.

A failed check raises `CannotRun` with what to do; nothing has been started by then. A folder belongs to one cluster
and one site, since offsets of another cluster or members of another site would corrupt its tables, and to one run at a
time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from penstock.activity.live.run import Plan


OWN_BROKER: Final = "own broker"
_LOCK: Final = "lock"
_MADE: Final = "run.json"
_HOST: Final = "127.0.0.1"
_TRIED: Final = 100
_TIMEOUT_MS: Final = 5_000
_REMOTE: Final = "sc://"
_KEPT_STARTS: Final = 16

# ---------------------------------------------------------------------------------------------- the folder


class CannotRun(Exception):
    """A run cannot start; says why, and what to do."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem} {advice}")
        self.problem = problem
        self.advice = advice


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The site and cluster of the first run in a folder."""

    seed: int
    cluster: str
    """The id of the cluster, or `OWN_BROKER`."""
    version: int = 1
    value_format: str = "json"


class RunFolder:
    """The folder of a run, locked until it is released or the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self) -> None:
        """Creates the folder if needed and locks it. Raises CannotRun."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CannotRun(
                f"Cannot write {self.path}: {error.strerror}.",
                "Choose a writable folder with --data-dir.",
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip()
            os.close(handle)
            raise CannotRun(
                f"{self.path} is in use by another run{f' (process {holder})' if holder else ''}.",
                "Stop it with Ctrl-C, or use another --data-dir (and other ports).",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._lock = handle

    def release(self) -> None:
        handle, self._lock = self._lock, None
        if handle is not None:
            os.ftruncate(handle, 0)
            os.close(handle)

    def made(self) -> RunIdentity | None:
        """The identity of the first run; None if there was none. Raises CannotRun."""
        try:
            text = (self.path / _MADE).read_bytes()
        except FileNotFoundError:
            self._check_fresh()
            return None
        try:
            return msgspec.json.decode(text, type=RunIdentity)
        except msgspec.DecodeError as error:
            raise CannotRun(
                f"Cannot read {self.path / _MADE}: {error}.", "Use another --data-dir, or remove the folder."
            ) from None

    def _check_fresh(self) -> None:
        if any((self.path / name).exists() for name in ("warehouse", "broker", "meta.properties")):
            raise CannotRun(
                f"{self.path} contains data that was not created by `penstock activity run`.",
                "Use another --data-dir.",
            )

    def check(self, seed: int | None, cluster: str, value_format: str = "json") -> RunIdentity:
        """The identity of the folder, if it matches this run. Raises CannotRun."""
        made = self.made()
        if made is None:
            return RunIdentity(seed=1 if seed is None else seed, cluster=cluster, value_format=value_format)
        if made.cluster != cluster:
            of = "a broker of its own" if made.cluster == OWN_BROKER else f"cluster {made.cluster}"
            now = "a broker of its own" if cluster == OWN_BROKER else f"cluster {cluster}"
            raise CannotRun(
                f"{self.path} has tables of {of}, but this run uses {now}.",
                "Use another --data-dir, or the --bootstrap-server of the first run.",
            )
        if value_format != made.value_format:
            raise CannotRun(
                f"{self.path} has events whose values are {made.value_format}, not {value_format}.",
                f"Use --value-format {made.value_format}, or another --data-dir.",
            )
        if seed is not None and seed != made.seed:
            raise CannotRun(
                f"{self.path} has the activity of the site with seed {made.seed}, not {seed}.",
                "Remove --seed to continue it, or use another --data-dir.",
            )
        return made

    def remember(self, made: RunIdentity) -> None:
        """Stores the identity for later runs."""
        temporary = self.path / f".{_MADE}"
        temporary.write_bytes(msgspec.json.encode(made))
        os.replace(temporary, self.path / _MADE)


# ---------------------------------------------------------------------------------------------- earlier starts


def start_times_path(environment: Mapping[str, str]) -> Path:
    """The file of this user's earlier starts on this machine."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or Path.home(), ".cache"))
    return Path(cache, "penstock", "activity-starts.json")


class StartTimes:
    """How long the steps of the last start of the same pipelines took. Nothing depends on the file."""

    def __init__(self, path: Path, pipelines: Sequence[str]) -> None:
        self._path = path
        self._key = ",".join(sorted(pipelines))

    def read(self) -> dict[str, int]:
        """When each step ended, in milliseconds from the start; empty if unknown."""
        return self._all().get(self._key, {})

    def write(self, ended_ms: Mapping[str, int]) -> None:
        """Replaces the times of these pipelines. A file that cannot be written is left as it is."""
        kept = {key: times for key, times in self._all().items() if key != self._key}
        newest = dict(list(kept.items())[-_KEPT_STARTS + 1 :]) | {self._key: dict(ended_ms)}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(newest))
            os.replace(temporary, self._path)

    def _all(self) -> dict[str, dict[str, int]]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, dict[str, int]])
        except (OSError, msgspec.DecodeError):
            return {}


# -------------------------------------------------------------------------------- packages, Java, ports and the cluster


def check_packages() -> None:
    """Checks the optional packages of Spark, tables and the page."""
    from penstock.client.errors import MissingDependency
    from penstock.client.serializers.base import load_optional

    try:
        for module, package, extra in (
            ("numpy", "numpy", "spark"),
            ("pyspark", "pyspark", "spark"),
            ("deltalake", "deltalake", "spark"),
            ("pyarrow", "pyarrow", "spark"),
            ("starlette", "starlette", "console"),
            ("uvicorn", "uvicorn", "console"),
        ):
            load_optional(module, package, extra, "a site's activity")
    except MissingDependency as error:
        raise CannotRun(_sentence(error.message), error.hint or "pip install 'penstock[spark,console]'") from None


def check_java(master: str | None) -> str:
    """The Java that will be used; a Spark Connect server has its own."""
    if master is not None and master.startswith(_REMOTE):
        return "of the Spark Connect server"
    from penstock.spark.session import NoJava, find_java

    try:
        java = find_java()
    except NoJava as error:
        raise CannotRun(_sentence(error.message), _sentence(error.hint)) from None
    return f"Java {java.version}, {java.origin}"


def bound_page(port: int) -> socket.socket:
    """The socket of the page."""
    from penstock.activity.live.page.server import bound

    return _bound(port, bound, "--http-port", "")


def check_broker_port(port: int) -> int:
    """The port of the broker; a free one for 0."""
    from penstock.activity.live.page.server import bound

    use_it = f"To use the broker there, add --bootstrap-server {_HOST}:{port}; otherwise "
    with _bound(port, bound, "--port", use_it) as probe:
        return int(probe.getsockname()[1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def cluster_id(plan: Plan) -> str:
    """The id of an existing cluster."""
    from penstock.client.errors import PenstockError

    try:
        with plan.cluster.admin(
            "penstock-activity", request_timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS
        ) as admin:
            return admin.describe_cluster().cluster_id or plan.servers
    except PenstockError as error:
        raise CannotRun(
            f"{_sentence(error.message)}", _sentence(error.hint or "Give a running broker with --bootstrap-server")
        ) from None


def _bound(port: int, bind: Callable[[int], socket.socket], option: str, use_it: str) -> socket.socket:
    try:
        return bind(port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise CannotRun(
                f"Cannot listen on {_HOST}:{port}: {error.strerror}.", f"Use a port above 1023: {option} N."
            ) from None
    free = next((each for each in range(port + 1, min(port + _TRIED, 65_536)) if _is_free(each)), 0)
    raise CannotRun(
        f"{_HOST}:{port} is in use by another process (see `ss -ltnp`).",
        _sentence(f"{use_it}stop it or use {option} {free}"),
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def _sentence(text: str) -> str:
    text = text.strip()
    if text.partition(" ")[0] in ("a", "it", "no", "stop", "the"):  # names keep their case
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
