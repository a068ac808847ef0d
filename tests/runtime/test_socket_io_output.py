"""Regions of files reach their sockets without being read, and no byte of one reaches another connection."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.runtime.socket_stories import Region, descriptors

from penstock.runtime.files import Buffer, File, PosixFiles
from penstock.runtime.socket_io import STEP_BYTES, TURN_BYTES, Output, PageMover

CONTENT = Random(31).randbytes(3 * STEP_BYTES)

needs_splice = pytest.mark.skipif(not hasattr(os, "splice"), reason="splice is Linux's")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    opened = PosixFiles().open(str(path))
    yield opened
    opened.close()


@pytest.fixture
def pages() -> Iterator[PageMover]:
    mover = PageMover()
    yield mover
    mover.close()


class Pair:
    """A connection whose sending end does not block."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.peer = socket.create_connection(listener.getsockname())
            self.near, _ = listener.accept()
        self.near.setblocking(False)
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        self.peer.setblocking(False)
        self.received = bytearray()

    def read(self) -> None:
        """Everything that has arrived."""
        with suppress(BlockingIOError):
            while part := self.peer.recv(1 << 20):
                self.received += part

    def close(self) -> None:
        self.near.close()
        self.peer.close()


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    opened = [Pair() for _ in range(3)]
    yield opened
    for pair in opened:
        pair.close()


def send_all(pages: PageMover, pair: Pair, file: File, position: int, count: int) -> None:
    expected = len(pair.received) + count
    while count:
        with suppress(BlockingIOError):
            sent, taken = pages.send(pair.near.fileno(), file.fileno(), position, min(count, STEP_BYTES))
            assert 0 < taken <= STEP_BYTES
            position, count = position + sent, count - sent
        pair.read()
    while len(pair.received) < expected:
        pair.read()


@pytest.mark.parametrize("count", [200_000, STEP_BYTES])
def test_a_full_socket_leaves_nothing_for_the_next_connection(
    count: int, pages: PageMover, pairs: list[Pair], file: File
) -> None:
    deaf, other, _ = pairs
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += pages.send(deaf.near.fileno(), file.fileno(), sent, count)[0]
    assert 0 < sent < len(CONTENT)
    for _ in range(3):
        # Of the next piece nothing can be sent, or only a part.
        with suppress(BlockingIOError):
            sent += pages.send(deaf.near.fileno(), file.fileno(), sent, count)[0]
        send_all(pages, other, file, 100, 1_000_000)
        deaf.peer.recv(50_000)
    assert bytes(other.received) == CONTENT[100:1_000_100] * 3


def test_many_connections_in_any_order_each_get_their_own_bytes(
    pages: PageMover, pairs: list[Pair], file: File
) -> None:
    random = Random(7)
    positions = [0, 1_000_000, 2_000_001]
    sent = [0, 0, 0]
    for _ in range(300):
        number = random.randrange(3)
        at = positions[number] + sent[number]
        with suppress(BlockingIOError):
            sent[number] += pages.send(
                pairs[number].near.fileno(), file.fileno(), at, random.randrange(1, STEP_BYTES + 1)
            )[0]
        if random.random() < 0.5:
            pairs[random.randrange(3)].read()
    for position, count, pair in zip(positions, sent, pairs, strict=True):
        while len(pair.received) < count:
            pair.read()
        assert bytes(pair.received) == CONTENT[position : position + count]
    assert min(sent) > 0


def test_a_connection_that_broke_leaves_nothing_for_the_next_one(
    pages: PageMover, pairs: list[Pair], file: File
) -> None:
    broken, other, _ = pairs
    broken.near.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenPipeError):
        pages.send(broken.near.fileno(), file.fileno(), 0, STEP_BYTES)
    send_all(pages, other, file, 5, 200_000)
    assert bytes(other.received) == CONTENT[5:200_005]


@needs_splice
def test_a_pipe_that_cannot_be_emptied_is_not_used_again(
    pages: PageMover, pairs: list[Pair], file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf, other, _ = pairs
    splice = os.splice
    null: list[int] = []
    opened = os.open

    def watched(path: str, *arguments: int) -> int:
        null.append(opened(path, *arguments))
        return null[-1]

    def failing(source: int, target: int, count: int, **more: Any) -> int:
        if target in null:
            raise OSError("it cannot be emptied")
        return splice(source, target, count, **more)

    monkeypatch.setattr(os, "open", watched)
    monkeypatch.setattr(os, "splice", failing)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += pages.send(deaf.near.fileno(), file.fileno(), sent, STEP_BYTES)[0]
    assert null
    assert not pages.is_usable
    send_all(pages, other, file, 5, 200_000)
    assert bytes(other.received) == CONTENT[5:200_005]


def no_splice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "splice", raising=False)


def small_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(descriptor: int, command: int, size: int) -> int:
        raise PermissionError("this user has too many pages in pipes")

    monkeypatch.setattr(fcntl, "fcntl", denied)


def no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(flags: int) -> tuple[int, int]:
        raise OSError("too many open files")

    monkeypatch.setattr(os, "pipe2", denied, raising=False)


@pytest.mark.parametrize("obstacle", [no_splice, small_pipes, no_descriptors])
def test_without_a_large_pipe_regions_go_by_sendfile(
    obstacle: Callable[[pytest.MonkeyPatch], None], pairs: list[Pair], file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    obstacle(monkeypatch)
    pages = PageMover()
    send_all(pages, pairs[0], file, 17, 2_000_000)
    assert bytes(pairs[0].received) == CONTENT[17:2_000_017]
    assert not pages.is_usable
    assert descriptors() == before


def test_where_splice_is_forbidden_regions_go_by_sendfile(
    pages: PageMover, pairs: list[Pair], file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*arguments: Any, **more: Any) -> int:
        raise PermissionError("a sandbox")

    monkeypatch.setattr(os, "splice", forbidden, raising=False)
    send_all(pages, pairs[0], file, 17, 2_000_000)
    assert bytes(pairs[0].received) == CONTENT[17:2_000_017]


@pytest.mark.parametrize("count", [1000, STEP_BYTES])
def test_at_the_end_of_a_file_nothing_is_taken(count: int, pages: PageMover, pairs: list[Pair], file: File) -> None:
    assert pages.send(pairs[0].near.fileno(), file.fileno(), len(CONTENT), count) == (0, 0)


def test_a_closed_mover_leaves_no_descriptors(pairs: list[Pair], file: File) -> None:
    before = descriptors()
    pages = PageMover()
    assert descriptors() == before, "it opens them when it needs them"
    pages.send(pairs[0].near.fileno(), file.fileno(), 0, STEP_BYTES)
    pages.close()
    assert descriptors() == before


# --- turns


class Taker(PageMover):
    """A socket that takes everything, and what moves pages to it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    def fileno(self) -> int:
        return -1

    def sendmsg(self, batch: Sequence[Buffer], ancillary: object = (), flags: int = 0) -> int:
        self.taken.append(sum(map(len, batch)))
        return self.taken[-1]

    def send(self, target: int, source: int, position: int, count: int) -> tuple[int, int]:
        """As a pipe of whole pages: less of a region that begins within one."""
        count = min(count, STEP_BYTES - position % 4096)
        self.taken.append(count)
        return count, count


@pytest.mark.parametrize("position", [0, 1, 4095])
def test_a_megabyte_leaves_in_one_turn_with_what_is_around_it(position: int, file: File) -> None:
    taker = Taker()
    output = Output(taker, taker)  # type: ignore[arg-type]
    output.queue.extend([b"head", Region(file, position, STEP_BYTES), b"tail"])
    assert output.flush() == STEP_BYTES + 8
    assert not output.queue
    assert len(taker.taken) == 3


def test_a_turn_is_over_after_a_step_however_much_the_socket_takes(file: File) -> None:
    taker = Taker()
    output = Output(taker, taker)  # type: ignore[arg-type]
    output.queue.extend([b"head", Region(file, 1, 3 * STEP_BYTES - 1), *[b"x" * 1000] * 5000])
    turns = []
    while output.queue:
        turns.append(output.flush())
        # At most one step too many, and one batch that does not wait.
        assert turns[-1] <= TURN_BYTES + STEP_BYTES
    assert sum(turns) == 4 + 3 * STEP_BYTES - 1 + 5_000_000
    assert all(sent >= TURN_BYTES for sent in turns[:-1])
    assert len(turns) >= 7
