"""A broker that is killed under load, again and again: what it acknowledged is there afterwards.

The moment is random, from a seed that a failure names: after some acknowledgements, with more requests in flight.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pytest
from tests.broker.group_client import COMMIT_VERSION, commit_request, committed, find_coordinator
from tests.broker.wire_client import MIB, WireClient, batch_of, produce_request, records_in

from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic

ROUNDS = 20
IN_FLIGHT = 12
TOPIC = "ledger"
GROUP = "readers"
PROGRAM = """
import signal, sys
from penstock.testing.embedded_broker import EmbeddedBroker
broker = EmbeddedBroker(sys.argv[1], settings={"offsets.topic.num.partitions": "2", "log.segment.bytes": "65536"})
broker.start()
print(broker.port, flush=True)
signal.pause()
"""


class BrokerProcess:
    """A broker in a process of its own, which ends in no other way than by SIGKILL."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if self._process.stdout is None:
            raise ValueError("the process has no output")
        with self._process.stdout as output:
            self.port = int(output.readline())

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Ledger:
    """What was acknowledged: values by offset, and the last offset that was committed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.values: dict[int, bytes] = {}
        self.committed = -1
        self.tried = -1
        self._number = 0

    def load(self, process: BrokerProcess) -> None:
        """Write until the process is killed, at some moment of its own."""
        with WireClient(process.port) as client:
            prepare(client)
            under_way = [self._send(client) for _ in range(IN_FLIGHT)]
            for _ in range(self.chance.randint(5, 120)):
                self._receive(client, under_way.pop(0))
                under_way.append(self._send(client))
            # Somewhere within the next few requests, wherever the broker happens to be with them.
            time.sleep(self.chance.random() * 0.005)
            process.kill()
            # What it answered before it died counts.
            try:
                while under_way:
                    self._receive(client, under_way.pop(0))
            except OSError:
                pass

    def _send(self, client: WireClient) -> list[bytes] | int:
        if self.chance.random() < 0.2:
            self.tried += 1
            client.send(ApiKey.OFFSET_COMMIT, commit_request(GROUP, TOPIC, self.tried), COMMIT_VERSION)
            return self.tried
        values = [b"%d " % (self._number + i) + bytes(self.chance.randint(0, 2000)) for i in range(3)]
        self._number += len(values)
        client.send(ApiKey.PRODUCE, produce_request({(TOPIC, 0): batch_of(*values)}), 9)
        return values

    def _receive(self, client: WireClient, sent: list[bytes] | int) -> None:
        if isinstance(sent, int):
            _, answer = client.receive(ApiKey.OFFSET_COMMIT, COMMIT_VERSION)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
            self.committed = sent
            return
        _, answer = client.receive(ApiKey.PRODUCE, 9)
        outcome = answer.responses[0].partition_responses[0]
        assert outcome.error_code == ErrorCode.NONE
        for i, value in enumerate(sent):
            assert outcome.base_offset + i not in self.values, "an offset was given twice"
            self.values[outcome.base_offset + i] = value

    def check(self, process: BrokerProcess) -> None:
        with WireClient(process.port) as client:
            prepare(client)
            stored = read_all(client)
            assert sorted(stored) == list(range(len(stored))), "no gaps"
            lost = {offset for offset, value in self.values.items() if stored.get(offset) != value}
            assert not lost, f"{len(lost)} of {len(self.values)} acknowledged records are lost, from {min(lost)}"
            assert self.committed <= committed(client, GROUP, TOPIC) <= self.tried


def prepare(client: WireClient) -> None:
    client.ask(ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 9)
    find_coordinator(client, GROUP)


def read_all(client: WireClient) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    while True:
        data = client.fetch(TOPIC, len(found), partition_max_bytes=4 * MIB)
        assert data.error_code == ErrorCode.NONE
        records = records_in(data.records)
        if not records:
            return found
        found.update((record.offset, record.value) for record in records)


@pytest.mark.parametrize("seed", [1])
def test_what_was_acknowledged_survives_every_kill(tmp_path: Path, seed: int) -> None:
    ledger = Ledger(seed)
    for _ in range(ROUNDS):
        with BrokerProcess(tmp_path) as process:
            ledger.check(process)
            ledger.load(process)
    assert len(ledger.values) > 100
    assert ledger.committed >= 0
    with BrokerProcess(tmp_path) as process:
        ledger.check(process)
