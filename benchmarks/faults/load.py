"""One client at work, in a process of its own: it sends at a steady pace to every partition, and reads all in a group.

    main([CLIENT, JOURNAL, TOPIC, PARTITIONS, RATE, MEMBERS, BOOTSTRAP, ...])

The journal says of every record that it was handed over, and what became of it. A partition with many records on their
way waits while the others go on. The last member of the group is closed and opened again every few seconds, so that
partitions change hands and readers start from committed offsets. On the input of the process, `flush` ends the sending
and `end` everything; each is answered with a line when done.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.faults.clients import READERS, SENDERS, Reader, Sender, group_of
from benchmarks.faults.journal import Acked, Failed, Journal, Sent, value_of

_TICK_S: Final = 0.005
_WRITE_S: Final = 0.05
_POLL_S: Final = 0.1
_AFTER_AN_ERROR_S: Final = 0.2
_MOST_UNDER_WAY: Final = 500
_REOPEN_S: Final = 12.0
FLUSH, END, READY = "flush", "end", "ready"
# In place of a member's number, in a journal's line about an error.
SENDER: Final = -1


class Sending(threading.Thread):
    """Sends in turn to each partition. A sender that is broken for good is replaced by one with a new name."""

    def __init__(self, client: str, journal: Journal, bootstrap: Sequence[str], topic: str, partitions: int,
                 rate: float) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self._client = client
        self._journal = journal
        self._servers, self._topic = bootstrap, topic
        self._partitions = partitions
        self._period_s = partitions / rate
        self._is_ending = threading.Event()
        self._incarnation = 0
        self._open()

    def _open(self) -> None:
        self.name = f"{self._client}.{self._incarnation}"
        self._sender: Sender = SENDERS[self._client](self._servers, self._topic)
        self._next = [0] * self._partitions
        self._under_way = [0] * self._partitions

    def run(self) -> None:
        due_s = time.monotonic()
        while not self._is_ending.is_set():
            self._sender.serve()
            if time.monotonic() < due_s:
                time.sleep(_TICK_S)
                continue
            due_s = max(due_s + self._period_s, time.monotonic() - self._period_s)
            for partition in range(self._partitions):
                if self._under_way[partition] < _MOST_UNDER_WAY:
                    self._send(partition)
            if self._sender.is_broken:
                self._close()
                self._incarnation += 1
                self._open()
        self._close()

    def _close(self) -> None:
        """Within a bound. What is not resolved then stays so in the journal, which the judge counts."""
        try:
            self._sender.close()
        except Exception as error:  # noqa: BLE001 - the judge finds what was not resolved; this says why
            self._journal.told(SENDER, f"{self.name} at close: {type(error).__name__}: {error}")

    def _send(self, partition: int) -> None:
        name, number, sent_s, under_way = self.name, self._next[partition], time.monotonic(), self._under_way
        self._next[partition] += 1
        under_way[partition] += 1

        def done(offset: int, error: str) -> None:
            now_s = time.monotonic()
            under_way[partition] -= 1
            if error:
                self._journal.failed(Failed(partition, number, name, sent_s, now_s, error))
            else:
                self._journal.acked(Acked(partition, number, name, offset, sent_s, now_s))

        self._journal.sent(Sent(partition, number, name, sent_s))
        try:
            self._sender.send(partition, value_of(name, partition, number), done)
        except Exception as error:  # noqa: BLE001 - whatever a library raises here is a record that failed
            done(-1, f"{type(error).__name__}: {error}")

    def end(self) -> None:
        self._is_ending.set()
        self.join()


class Reading(threading.Thread):
    """A member of the client's group. Errors are written down, and it goes on."""

    def __init__(self, client: str, member: int, journal: Journal, bootstrap: Sequence[str], topic: str, *,
                 is_reopened: bool) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self._client, self._member = client, member
        self._journal = journal
        self._servers, self._topic = bootstrap, topic
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
            except Exception as error:  # noqa: BLE001 - whatever the library tells is what is written down
                journal.told(member, f"{type(error).__name__}: {error}")
                self._is_ending.wait(_AFTER_AN_ERROR_S)
            if self._is_reopened and reader is not None and time.monotonic() > opened_s + _REOPEN_S:
                self._close(reader)
                reader = None
        if reader is not None:
            self._close(reader)

    def _opened(self) -> Reader:
        journal, member = self._journal, self._member
        return READERS[self._client](
            self._servers, self._topic, group_of(self._client),
            lambda some: journal.assigned(member, some), lambda offsets: journal.committed(member, offsets),
        )  # fmt: skip

    def _close(self, reader: Reader) -> None:
        try:
            reader.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._journal.told(self._member, f"at close: {type(error).__name__}: {error}")

    def end(self) -> None:
        self._is_ending.set()
        self.join()


def main(arguments: Sequence[str]) -> None:
    client, path, topic, partitions, rate, members, *bootstrap = arguments
    journal = Journal(Path(path))
    is_over = threading.Event()

    def keep_writing() -> None:
        while not is_over.wait(_WRITE_S):
            journal.flush()

    writing = threading.Thread(target=keep_writing, daemon=True)
    writing.start()
    sending = Sending(client, journal, bootstrap, topic, int(partitions), float(rate))
    readings = [
        Reading(client, number, journal, bootstrap, topic, is_reopened=0 < number == int(members) - 1)
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
