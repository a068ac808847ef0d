"""One client at work in its own process, and the journal of what it saw.

    s PARTITION NUMBER SENDER SENT_S                     a record is about to be handed to the client library
    a PARTITION NUMBER SENDER OFFSET SENT_S ACKED_S      it was acknowledged
    f PARTITION NUMBER SENDER SENT_S FAILED_S TEXT       or failed
    r MEMBER PARTITION OFFSET SENDER NUMBER AT_S         a record was read
    c MEMBER AT_S PARTITION:OFFSET,...                   a commit of the member was acknowledged
    g MEMBER AT_S PARTITION,PARTITION,...                a member was assigned these partitions
    e MEMBER AT_S TEXT                                   a member got an error

One line per event, in order, with times of the monotonic clock that all processes share; a line counts once its end is
written. The client sends at a steady pace to every partition and reads all in a group; the last member is closed and
reopened every few seconds. On standard input, `flush` ends the sending and `end` everything.

    main([CLIENT, JOURNAL, TOPIC, PARTITIONS, RATE, MEMBERS, LOGIN, BOOTSTRAP, ...])
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from sys import intern
from typing import Final, NamedTuple, TextIO

from benchmarks.faults.access import Access
from benchmarks.faults.clients import READERS, SENDERS, Reader, Sender, group_of

VALUE_BYTES: Final = 100
FLUSH, END, READY = "flush", "end", "ready"
# The member number of errors of senders.
SENDER: Final = -1
_TICK_S: Final = 0.005
_WRITE_S: Final = 0.05
_POLL_S: Final = 0.1
_ERROR_PAUSE_S: Final = 0.2
_MOST_IN_FLIGHT: Final = 500
_REOPEN_S: Final = 12.0

# ---------------------------------------------------------------------------------------------- the process


def main(arguments: Sequence[str]) -> None:
    client, path, topic, partitions, rate, members, login, *bootstrap = arguments
    access = Access.load(Path(login))
    journal = Journal(Path(path))
    is_over = threading.Event()

    def keep_writing() -> None:
        while not is_over.wait(_WRITE_S):
            journal.flush()

    writing = threading.Thread(target=keep_writing, daemon=True)
    writing.start()
    sending = Sending(client, journal, bootstrap, topic, access, int(partitions), float(rate))
    readings = [
        Reading(client, number, journal, bootstrap, topic, access, is_reopened=0 < number == int(members) - 1)
        for number in range(int(members))
    ]
    for thread in (sending, *readings):
        thread.start()
    print(READY, flush=True)
    for line in sys.stdin:
        if line.strip() == FLUSH:
            sending.end()
        elif line.strip() == END:
            break
        journal.flush()
        print(line.strip(), flush=True)
    for reading in readings:
        reading.end()
    is_over.set()
    writing.join()
    journal.close()
    print(END, flush=True)


class Sending(threading.Thread):
    """Sends to each partition in turn. A broken sender is replaced by one with a new name."""

    def __init__(self, client: str, journal: Journal, bootstrap: Sequence[str], topic: str, access: Access,
                 partitions: int, rate: float) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self._client = client
        self._journal = journal
        self._servers, self._topic, self._access = bootstrap, topic, access
        self._partitions = partitions
        self._period_s = partitions / rate
        self._is_ending = threading.Event()
        self._incarnation = 0
        self._open()

    def _open(self) -> None:
        self.name = f"{self._client}.{self._incarnation}"
        self._sender: Sender = SENDERS[self._client](self._servers, self._topic, self._access)
        self._next = [0] * self._partitions
        self._in_flight = [0] * self._partitions

    def run(self) -> None:
        due_s = time.monotonic()
        while not self._is_ending.is_set():
            self._sender.serve()
            if time.monotonic() < due_s:
                time.sleep(_TICK_S)
                continue
            due_s = max(due_s + self._period_s, time.monotonic() - self._period_s)
            for partition in range(self._partitions):
                if self._in_flight[partition] < _MOST_IN_FLIGHT:
                    self._send(partition)
            if self._sender.is_broken:
                self._close()
                self._incarnation += 1
                self._open()
        self._close()

    def _close(self) -> None:
        """Closes the sender within a bound. Unresolved records stay so in the journal, where the checks count them."""
        try:
            self._sender.close()
        except Exception as error:  # noqa: BLE001 - the checks find unresolved records; this says why
            self._journal.error(SENDER, f"{self.name} at close: {type(error).__name__}: {error}")

    def _send(self, partition: int) -> None:
        name, number, sent_s, in_flight = self.name, self._next[partition], time.monotonic(), self._in_flight
        self._next[partition] += 1
        in_flight[partition] += 1

        def done(offset: int, error: str) -> None:
            now_s = time.monotonic()
            in_flight[partition] -= 1
            if error:
                self._journal.failed(Failed(partition, number, name, sent_s, now_s, error))
            else:
                self._journal.acked(Acked(partition, number, name, offset, sent_s, now_s))

        self._journal.sent(Sent(partition, number, name, sent_s))
        try:
            self._sender.send(partition, value_of(name, partition, number), done)
        except Exception as error:  # noqa: BLE001 - any error of the library is a failed record
            done(-1, f"{type(error).__name__}: {error}")

    def end(self) -> None:
        self._is_ending.set()
        self.join()


class Reading(threading.Thread):
    """A member of the client's group. Errors are written to the journal."""

    def __init__(self, client: str, member: int, journal: Journal, bootstrap: Sequence[str], topic: str,
                 access: Access, *, is_reopened: bool) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self._client, self._member = client, member
        self._journal = journal
        self._servers, self._topic, self._access = bootstrap, topic, access
        self._is_reopened = is_reopened
        self._is_ending = threading.Event()

    def run(self) -> None:
        journal, member = self._journal, self._member
        reader: Reader | None = None
        opened_s = 0.0
        while not self._is_ending.is_set():
            try:
                if reader is None:
                    reader, opened_s = self._opened(), time.monotonic()
                for partition, offset, value in reader.poll(_POLL_S):
                    journal.read(member, partition, offset, value)
            except Exception as error:  # noqa: BLE001 - any error of the library is written to the journal
                journal.error(member, f"{type(error).__name__}: {error}")
                self._is_ending.wait(_ERROR_PAUSE_S)
            if self._is_reopened and reader is not None and time.monotonic() > opened_s + _REOPEN_S:
                self._close(reader)
                reader = None
        if reader is not None:
            self._close(reader)

    def _opened(self) -> Reader:
        journal, member = self._journal, self._member
        return READERS[self._client](
            self._servers, self._topic, self._access, group_of(self._client),
            lambda some: journal.assigned(member, some), lambda offsets: journal.committed(member, offsets),
        )  # fmt: skip

    def _close(self, reader: Reader) -> None:
        try:
            reader.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._journal.error(self._member, f"at close: {type(error).__name__}: {error}")

    def end(self) -> None:
        self._is_ending.set()
        self.join()


# ---------------------------------------------------------------------------------------------- the journal


class Sent(NamedTuple):
    partition: int
    number: int
    sender: str
    sent_s: float


class Acked(NamedTuple):
    partition: int
    number: int
    sender: str
    offset: int
    sent_s: float
    acked_s: float


class Failed(NamedTuple):
    partition: int
    number: int
    sender: str
    sent_s: float
    failed_s: float
    text: str


class Read(NamedTuple):
    member: int
    partition: int
    offset: int
    sender: str
    number: int
    at_s: float


class Committed(NamedTuple):
    """`offsets` has (partition, offset of the next record to read)."""

    member: int
    at_s: float
    offsets: tuple[tuple[int, int], ...]


class Assigned(NamedTuple):
    member: int
    at_s: float
    partitions: tuple[int, ...]


class ClientError(NamedTuple):
    member: int
    at_s: float
    text: str


Event = Sent | Acked | Failed | Read | Committed | Assigned | ClientError


class Journal:
    """The journal of a process, written by several threads."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a")
        self._lock = threading.Lock()

    def sent(self, event: Sent) -> None:
        self._write(f"s {event.partition} {event.number} {event.sender} {event.sent_s:.6f}")

    def acked(self, event: Acked) -> None:
        self._write(f"a {event.partition} {event.number} {event.sender} {event.offset} "
                    f"{event.sent_s:.6f} {event.acked_s:.6f}")  # fmt: skip

    def failed(self, event: Failed) -> None:
        self._write(f"f {event.partition} {event.number} {event.sender} {event.sent_s:.6f} {event.failed_s:.6f} "
                    f"{_one_line(event.text)}")  # fmt: skip

    def read(self, member: int, partition: int, offset: int, value: bytes) -> None:
        sender, written_to, number = identity_of(value)
        if written_to != partition:
            self.error(member, f"a record for partition {written_to} is in partition {partition} at {offset}")
        self._write(f"r {member} {partition} {offset} {sender} {number} {time.monotonic():.6f}")

    def committed(self, member: int, offsets: Mapping[int, int]) -> None:
        """An empty commit is not written."""
        if offsets:
            pairs = ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
            self._write(f"c {member} {time.monotonic():.6f} {pairs}")

    def assigned(self, member: int, partitions: list[int]) -> None:
        self._write(f"g {member} {time.monotonic():.6f} {','.join(map(str, sorted(partitions))) or '-'}")

    def error(self, member: int, text: str) -> None:
        self._write(f"e {member} {time.monotonic():.6f} {_one_line(text)}")

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _write(self, line: str) -> None:
        with self._lock:
            self._file.write(line + "\n")


class Tail:
    """Reads a growing journal; `events` has everything so far."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self._path = path
        self._position = 0

    def more(self) -> list[Event]:
        """The new events."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data.rpartition(b"\n")[0]
        if not whole:
            return []
        self._position += len(whole) + 1
        found = [parse(line) for line in whole.decode().split("\n")]
        self.events += found
        return found


def parse(line: str) -> Event:
    kind, _, rest = line.partition(" ")
    if kind == "s":
        partition, number, sender, sent = rest.split(" ")
        return Sent(int(partition), int(number), intern(sender), float(sent))
    if kind == "a":
        partition, number, sender, offset, sent, acked = rest.split(" ")
        return Acked(int(partition), int(number), intern(sender), int(offset), float(sent), float(acked))
    if kind == "r":
        member, partition, offset, sender, number, at = rest.split(" ")
        return Read(int(member), int(partition), int(offset), intern(sender), int(number), float(at))
    if kind == "f":
        partition, number, sender, sent, failed, text = rest.split(" ", 5)
        return Failed(int(partition), int(number), sender, float(sent), float(failed), text)
    member, at, text = rest.split(" ", 2)
    if kind == "c":
        pairs = (pair.split(":") for pair in text.split(","))
        return Committed(int(member), float(at), tuple((int(partition), int(offset)) for partition, offset in pairs))
    if kind == "g":
        partitions = () if text == "-" else tuple(map(int, text.split(",")))
        return Assigned(int(member), float(at), partitions)
    if kind == "e":
        return ClientError(int(member), float(at), text)
    raise ValueError(f"{line!r} is not an event")


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "(no text)"


# ---------------------------------------------------------------------------------------------- values


def value_of(sender: str, partition: int, number: int) -> bytes:
    return f"{sender} {partition} {number} ".encode().ljust(VALUE_BYTES, b".")


def identity_of(value: bytes) -> tuple[str, int, int]:
    """Sender, partition and number. Raises ValueError for another value."""
    sender, partition, number, _ = value.decode().split(" ", 3)
    return sender, int(partition), int(number)
