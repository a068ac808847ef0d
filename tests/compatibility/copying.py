"""A program that reads, processes and writes in transactions, with any of the clients; as a process it can be killed.

python -m tests.compatibility.copying CLIENT ADDRESS SOURCE TARGET GROUP TRANSACTIONAL_ID PAUSE_S
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tests.compatibility.client_interface import Client, Consumer, Producer, Record, Rejected, TransactionFailed
from tests.compatibility.clients import CLIENTS


class Copier:
    """Reads, processes and writes, exactly once: what it has read is committed with what it writes.

    After any failure it starts again with a new producer and a new reader, which continue where the last committed
    transaction ended.
    """

    def __init__(
        self, client: Client, address: str, source: str, target: str, group: str, name: str, pause_s: float = 0
    ) -> None:
        """`pause_s` is how long a transaction waits for its commit."""
        self._client = client
        self._address = address
        self._source = source
        self._target = target
        self._group = group
        self._name = name
        self._pause_s = pause_s
        self.transactions = 0
        self.failures: list[str] = []

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                self._run(is_over)
            except (TransactionFailed, Rejected, Exception) as error:  # noqa: BLE001 - each client has its own
                self.failures.append(repr(error))
                assert len(self.failures) < 200, self.failures[-5:]

    def _run(self, is_over: Callable[[], bool]) -> None:
        # The producer first: the transaction of the former one is over when the offsets are read.
        with (
            self._client.producing(self._address, transactional_id=self._name, linger_ms=0) as producer,
            self._client.consuming(
                self._address, topic=self._source, group=self._group, isolation="read_committed"
            ) as consumer,
        ):
            while not is_over():
                records = consumer.poll()
                if records:
                    self._copy(producer, consumer, records)
                    self.transactions += 1

    def _copy(self, producer: Producer, consumer: Consumer, records: list[Record]) -> None:
        producer.begin()
        for record in records:
            producer.send(self._target, Record(b"copy of " + (record.value or b""), partition=record.partition))
        failed = [sent for sent in producer.settle() if sent.error is not None]
        if failed:
            raise TransactionFailed(str(failed[0]), is_fenced=False)
        offsets: dict[tuple[str, int], int] = {}
        for record in records:
            where = (self._source, record.partition or 0)
            offsets[where] = max(offsets.get(where, 0), record.offset + 1)
        producer.send_offsets(consumer, self._group, offsets)
        time.sleep(self._pause_s)
        producer.commit()


def main(name: str, address: str, source: str, target: str, group: str, transactional_id: str, pause_s: str) -> None:
    client = next(each for each in CLIENTS if each.features.name == name)
    Copier(client, address, source, target, group, transactional_id, float(pause_s)).run(lambda: False)


if __name__ == "__main__":
    main(*sys.argv[1:])
