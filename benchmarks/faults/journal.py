"""Journals: what a client saw, written by its own process as it happens and read by the process that judges it.

    s PARTITION NUMBER SENDER SENT_S                     a record is about to be handed to the client library
    a PARTITION NUMBER SENDER OFFSET SENT_S ACKED_S      it was acknowledged
    f PARTITION NUMBER SENDER SENT_S FAILED_S TEXT       or failed
    r MEMBER PARTITION OFFSET SENDER NUMBER AT_S         a record was read
    c MEMBER AT_S PARTITION:OFFSET,...                   a commit of the member was acknowledged
    g MEMBER AT_S PARTITION,PARTITION,...                a member was assigned these partitions
    e MEMBER AT_S TEXT                                   a member was told of an error

There is one line per event, in the order in which the events happened. Times are those of the machine's monotonic
clock, which all its processes share. A line counts once its end is written. The value of a record names its sender,
partition and number, which together identify it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from sys import intern
from typing import Final, NamedTuple, TextIO

VALUE_BYTES: Final = 100


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


class Told(NamedTuple):
    member: int
    at_s: float
    text: str


Event = Sent | Acked | Failed | Read | Committed | Assigned | Told


def value_of(sender: str, partition: int, number: int) -> bytes:
    return f"{sender} {partition} {number} ".encode().ljust(VALUE_BYTES, b".")


def identity_of(value: bytes) -> tuple[str, int, int]:
    """Sender, partition and number. ValueError if it is none of ours."""
    sender, partition, number, _ = value.decode().split(" ", 3)
    return sender, int(partition), int(number)


class Journal:
    """Written by several threads of one process."""

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
            self.told(member, f"a record for partition {written_to} stands in {partition} at {offset}")
        self._write(f"r {member} {partition} {offset} {sender} {number} {time.monotonic():.6f}")

    def committed(self, member: int, offsets: Mapping[int, int]) -> None:
        """Nothing is written for a commit of nothing."""
        if offsets:
            pairs = ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
            self._write(f"c {member} {time.monotonic():.6f} {pairs}")

    def assigned(self, member: int, partitions: list[int]) -> None:
        self._write(f"g {member} {time.monotonic():.6f} {','.join(map(str, sorted(partitions))) or '-'}")

    def told(self, member: int, text: str) -> None:
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
    """Reads a journal while it grows; `events` has all that there was so far."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self._path = path
        self._position = 0

    def more(self) -> list[Event]:
        """What is new."""
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
        return Told(int(member), float(at), text)
    raise ValueError(f"{line!r} is no event")


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "(no text)"
