"""The tables and pipelines of a warehouse, as `penstock table` and `penstock pipeline` report them.

Reading tables needs Arrow and Delta, 150 MB that most visitors never need. So a command in a process of its own reads
them, with the login of the visitor, while somebody looks: at most a fifth of the time, and one login after the other.
The console keeps what it printed. Its size and its time are bounded, and it ends with the console.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeVar

import msgspec

_log = logging.getLogger(__name__)
T = TypeVar("T")

INTERVAL_S: Final = 10.0
_SHARE: Final = 4
_WANTED_S: Final = 60.0
_STATUS_S: Final = 300.0
_DEAD_S: Final = 60.0
_REPLAY_S: Final = 3600.0
_MOST_BYTES: Final = 32 * 1024 * 1024
_ERROR_BYTES: Final = 64 * 1024
_LOGGED_BYTES: Final = 2_000
_MOST_REPLAYS: Final = 2
_KEPT_REPLAYS: Final = 50
MOST_LETTERS: Final = 100
_WAIT_S: Final = 5.0
# For all logins together: each command takes some 150 MB.
_READINGS = threading.BoundedSemaphore(1)
_LETTERS = threading.BoundedSemaphore(2)
_REPLAYS = threading.BoundedSemaphore(4)
_LETTER_BYTES: Final = 2_000
_HEX: Final = "\\u{:04x}"


class WarehouseError(Exception):
    """A command that could not do its work: what failed, and what to do."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


@dataclass(frozen=True, slots=True)
class WarehouseOptions:
    """Where the tables are, and how to run the commands that read them."""

    uri: str
    program: tuple[str, ...]
    """The words that start `penstock`."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Client properties of the commands, besides the login of a visitor."""


# --------------------------------------------------------------------------------------------------- what they print


class Hour(msgspec.Struct, frozen=True):
    """The offsets of an hour of the log: produced, and what became of them."""

    start: int
    produced: int
    landed: int
    dead: int
    dropped: int
    waiting: int
    empty: int
    missing: int
    surplus: int
    complete: bool


class Audit(msgspec.Struct, frozen=True, rename="camel"):
    """Produced against loaded records of the last day, by hour."""

    complete_until: int | None
    sound: bool
    hours: list[Hour]

    def total(self, name: str) -> int:
        return sum(getattr(hour, name) for hour in self.hours)


class Reason(msgspec.Struct, frozen=True):
    reason: str
    count: int


class LastLoad(msgspec.Struct, frozen=True):
    time: int
    records: int


class TableRow(msgspec.Struct, frozen=True, rename="camel"):
    """A table. Without an audit, `error` says why."""

    name: str
    topic: str = ""
    format: str = ""
    mode: str = ""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    version: int = 0
    dead: int = 0
    dropped: int = 0
    reasons: list[Reason] = []
    last_load: LastLoad | None = None
    audit: Audit | None = None
    error: str | None = None
    hint: str | None = None

    @property
    def complete_until(self) -> int | None:
        return None if self.audit is None else self.audit.complete_until

    def total(self, name: str) -> int | None:
        return None if self.audit is None else self.audit.total(name)

    @property
    def trouble(self) -> str:
        """What is wrong with it, in a few words."""
        if self.error:
            return self.error
        missing, surplus = self.total("missing"), self.total("surplus")
        words = [
            f"{missing:,} records are missing" if missing else "",
            f"{surplus:,} are duplicates" if surplus else "",
        ]
        return ", ".join(filter(None, words))


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that is not in the table, and why. The value is its beginning."""

    partition: int
    offset: int
    timestamp: int
    reason: str | None
    dropped: bool
    bytes: int | None
    value: str | None


class QueryRow(msgspec.Struct, frozen=True):
    """A query of a pipeline. Lag is in records, -1 if unknown."""

    name: str
    state: str
    batch_id: int = -1
    batch_ms: int = 0
    rows_per_s: float = 0.0
    input_rows_total: int = 0
    malformed_total: int = 0
    lag: int = -1
    last_commit_ms: int = 0
    restarts: int = 0
    message: str = ""


class PipelineRow(msgspec.Struct, frozen=True):
    """A pipeline, as it reports itself."""

    name: str
    state: str
    is_alive: bool
    message: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    queries: list[QueryRow] = []

    @property
    def shown_state(self) -> str:
        """A process that ended without saying so is gone."""
        return "gone" if not self.is_alive and self.state not in ("stopped", "failed") else self.state

    @property
    def is_failed(self) -> bool:
        return self.shown_state in ("failed", "gone")


class _Status(msgspec.Struct):
    time: int
    tables: list[TableRow]


class _Letters(msgspec.Struct):
    count: int
    dead: list[DeadLetter]


class _Replayed(msgspec.Struct):
    tried: int
    landed: int


@dataclass(frozen=True, slots=True)
class View:
    """What is known of the warehouse at `time_ms`; 0 before the first reading."""

    time_ms: int = 0
    took_s: float = 0.0
    tables: Mapping[str, TableRow] = field(default_factory=dict)
    pipelines: tuple[PipelineRow, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    """Parts that could not be read: what failed, and what to do."""

    @property
    def is_known(self) -> bool:
        return self.time_ms > 0


@dataclass(slots=True)
class Replay:
    """Dead letters of a table that are tried again, or were."""

    table: str
    started_ms: int
    done: threading.Event = field(default_factory=threading.Event)
    text: str = ""
    is_failed: bool = False


# --------------------------------------------------------------------------------------------------- the warehouse


class Warehouse:
    """A warehouse, as one login may read it. `view` is kept up to date while somebody looks."""

    def __init__(self, options: WarehouseOptions, servers: str, login: Mapping[str, str]) -> None:
        """`login` has the client properties of the visitor's login."""
        self.options = options
        self.view = View()
        self.replays: dict[str, Replay] = {}
        self._servers = servers
        self._properties = {**options.properties, **login}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._children: dict[subprocess.Popen[bytes], bool] = {}
        """The running commands, and whether each is a replay."""
        self._ready, self._wake, self._pause = threading.Event(), threading.Event(), threading.Event()
        self._wanted_at = 0.0
        self._closing = self._ending = False
        self.is_resting = False
        """Whether nobody has looked for a while."""

    def look(self) -> View:
        """The view, which is kept up to date from now on for a while."""
        self._wanted_at = time.monotonic()
        with self._lock:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="penstock-console-warehouse", daemon=True)
                self._thread.start()
        self._wake.set()
        return self.view

    async def first(self, timeout_s: float) -> View:
        """The view, after the first reading if that comes in time."""
        found = self.look()
        if not found.is_known:
            await asyncio.to_thread(self._ready.wait, timeout_s)
        return self.view

    def refresh_soon(self) -> None:
        self._pause.set()

    @property
    def is_replaying(self) -> bool:
        with self._lock:
            return any(not each.done.is_set() for each in self.replays.values())

    def close(self, *, keep_replays: bool = False) -> None:
        """End the thread and the commands. It may be called twice, the second time to end replays too."""
        with self._lock:
            self._closing = True
            self._ending |= not keep_replays
            children = [each for each, is_replay in self._children.items() if self._ending or not is_replay]
        self._wake.set()
        self._pause.set()
        for child in children:
            child.kill()
        if self._thread is not None:
            self._thread.join(5)

    # ------------------------------------------------------------------------------------------ dead letters

    def letters(self, table: str, reason: str) -> tuple[list[DeadLetter], int]:
        """The newest dead letters of a table, with one reason if given, and how many there are. Blocking."""
        words = ["--max", str(MOST_LETTERS), "--value-bytes", str(_LETTER_BYTES)]
        words += ["--reason", reason] if reason else []
        if not _LETTERS.acquire(timeout=_WAIT_S):
            raise WarehouseError("Too many visitors are reading dead letters.", "Try again in a moment.")
        try:
            found = self._json(["table", "dead", *words, "-w", self.options.uri], _Letters, _DEAD_S, table)
        finally:
            _LETTERS.release()
        return found.dead, found.count

    def replay_words(self, table: str) -> list[str]:
        """The command that tries the dead letters of a table again."""
        return ["table", "replay-dead", table, "--local", "-w", self.options.uri]

    def replay(self, table: str) -> Replay:
        """Start to try the dead letters of a table again. WarehouseError if that, or enough of it, is under way."""
        with self._lock:
            running = [each.table for each in self.replays.values() if not each.done.is_set()]
            if table in running:
                raise WarehouseError(f"The dead letters of {table} are being tried again already.")
            if len(running) >= _MOST_REPLAYS:
                raise WarehouseError(f"{len(running)} replays are under way.", "Wait until one of them has ended.")
            if not _REPLAYS.acquire(blocking=False):
                raise WarehouseError("Other visitors' replays are under way.", "Wait until one of them has ended.")
            replay = self.replays[table] = Replay(table, time.time_ns() // 1_000_000)
            for old in list(self.replays)[:-_KEPT_REPLAYS]:
                if self.replays[old].done.is_set():
                    del self.replays[old]
        threading.Thread(target=self._replay, args=(replay,), name="penstock-console-replay", daemon=True).start()
        return replay

    def _replay(self, replay: Replay) -> None:
        try:
            found = self._json(
                ["table", "replay-dead", "--local", "-w", self.options.uri], _Replayed, _REPLAY_S, replay.table,
                is_replay=True,
            )  # fmt: skip
            replay.text = f"{found.tried:,} dead letters were tried again, {found.landed:,} landed."
        except WarehouseError as error:
            replay.text, replay.is_failed = " ".join(filter(None, (error.text, error.hint))), True
        finally:
            _REPLAYS.release()
            replay.done.set()
            self.refresh_soon()

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._closing:
            # Cleared before the test: a visit in between must not be forgotten.
            self._wake.clear()
            if time.monotonic() - self._wanted_at > _WANTED_S and not self._closing:
                self.is_resting = True
                self._wake.wait()
                self.is_resting = False
                continue
            self._pause.clear()
            started = time.monotonic()
            try:
                with _READINGS:
                    self.view = self._read()
            except Exception:  # noqa: BLE001 - a bug in one part must not end the console
                _log.exception("the warehouse cannot be read")
                self.view = View(_now_ms(), errors=(("The console failed to read the warehouse; see its log.", ""),))
            self._ready.set()
            self._pause.wait(max(INTERVAL_S, _SHARE * (time.monotonic() - started)))

    def _read(self) -> View:
        started = time.monotonic()
        errors: list[tuple[str, str]] = []
        tables: list[TableRow] = []
        pipelines: list[PipelineRow] = []
        try:
            tables = self._json(["table", "status", "-w", self.options.uri], _Status, _STATUS_S).tables
        except WarehouseError as error:
            errors.append((error.text, error.hint))
        if _may_have_pipelines(self.options.uri) and not self._closing:
            try:
                pipelines = self._json(
                    ["pipeline", "status", "-w", self.options.uri], list[PipelineRow], _DEAD_S, is_of_cluster=False
                )
            except WarehouseError as error:
                errors.append((error.text, error.hint))
        if errors and not tables and self.view.tables:
            tables = list(self.view.tables.values())  # the best that is known; the error says that it is old
        by_name = {each.name: each for each in tables}
        return View(_now_ms(), time.monotonic() - started, by_name, tuple(pipelines), tuple(dict.fromkeys(errors)))

    # ------------------------------------------------------------------------------------------ commands

    def _json(
        self, words: Sequence[str], kind: type[T], timeout_s: float, *names: str, is_of_cluster: bool = True,
        is_replay: bool = False,
    ) -> T:  # fmt: skip
        """What a command prints as JSON. WarehouseError has what it reports instead."""
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as reported:
            with _properties_file(self._properties if is_of_cluster else {}) as path:
                given = [*self.options.program, *words, "--format", "json"]
                given += ["-b", self._servers] if is_of_cluster else []
                given += ["--command-config", path] if path is not None else []
                code = self._ended([*given, "--", *names], printed, reported, timeout_s, is_replay)
            text = _read_back(printed, _MOST_BYTES + 1)
            if len(text) > _MOST_BYTES:
                raise WarehouseError("The warehouse has more than this page can show.", "Use `penstock table status`.")
            try:
                return msgspec.json.decode(text, type=kind)
            except msgspec.DecodeError:
                raise _reported(_end_of(reported, _ERROR_BYTES), code) from None

    def _ended(
        self, words: list[str], printed: IO[bytes], reported: IO[bytes], timeout_s: float, is_replay: bool
    ) -> int:
        with self._lock:
            if self._ending or (self._closing and not is_replay):
                raise WarehouseError("The console is stopping.")
            try:
                child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=printed, stderr=reported)
            except OSError as error:
                raise WarehouseError(f"A command cannot be started: {error.strerror or error}.") from None
            except ValueError as error:  # a null byte in a name
                raise WarehouseError(f"A command cannot be started: {error}.") from None
            self._children[child] = is_replay
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise WarehouseError(f"Reading the warehouse took longer than {timeout_s:.0f} s.") from None
        finally:
            child.kill()
            child.wait()
            with self._lock:
                self._children.pop(child, None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _may_have_pipelines(uri: str) -> bool:
    return "://" in uri or os.path.isdir(os.path.join(uri, "_pipelines"))


def _read_back(file: IO[bytes], most: int) -> bytes:
    file.seek(0)
    return file.read(most)


def _end_of(file: IO[bytes], most: int) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - most))
    return file.read(most)


def _reported(text: bytes, code: int) -> WarehouseError:
    """The error that a command printed for programs."""
    for line in reversed(text.decode("utf-8", "replace").splitlines()):
        try:
            document: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and isinstance(document.get("message"), str):
            return WarehouseError(document["message"], str(document.get("hint") or ""))
    _log.warning("warehouse command failed: code=%d stderr=%r", code, text[-_LOGGED_BYTES:].decode("utf-8", "replace"))
    return WarehouseError(f"The command that reads the warehouse ended with code {code}.", "See the console's log.")


@contextmanager
def _properties_file(properties: Mapping[str, str]) -> Iterator[str | None]:
    """A file that only this user can read, for as long as the command runs: it may hold a password."""
    if not properties:
        yield None
        return
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".properties") as file:
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in properties.items())
        file.flush()
        yield file.name


def _escaped(text: str) -> str:
    """A name or value of a properties file: what could mean something there is written by its number."""
    return "".join(
        each if each.isascii() and (each.isalnum() or each in "._-/") else _units(each) for each in text
    )  # fmt: skip


def _units(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(_HEX.format(int.from_bytes(data[at : at + 2], "big")) for at in range(0, len(data), 2))
