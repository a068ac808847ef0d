"""Transactional producers over the wire, for stories that choose every version, epoch and order of requests.

`Transactional` is a producer that does only what the test calls: it never retries, and it does not stop when it is
fenced. Each method returns the error code, so that a story can be a list of them.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from tests.broker.wire_client import WireClient, batch_of, fetch_request, produce_request, records_in
from tests.timeouts import until

from penstock.records import records_of, scan
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.schemas.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.schemas.describe_transactions import DescribeTransactionsRequest, TransactionState
from penstock.wire.schemas.end_txn import EndTxnRequest
from penstock.wire.schemas.fetch import PartitionData
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.schemas.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

FEW_PARTITIONS: Final = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
"""Settings of a broker that need not open a hundred logs for its first transaction."""
READ_COMMITTED: Final = 1
TRANSACTION: Final = 1
"""The key type of FindCoordinator."""


def unique_id() -> str:
    return f"id-{uuid.uuid4().hex[:12]}"


def find_transaction_coordinator(client: WireClient, transactional_id: str) -> None:
    """Look for the coordinator until there is one, and it is loaded."""
    wanted = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
    until(lambda: client.ask(ApiKey.FIND_COORDINATOR, wanted, 3).error_code == ErrorCode.NONE, "there is a coordinator")
    until(
        lambda: (
            describe(client, transactional_id).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            or describe(client, transactional_id).error_code == ErrorCode.NONE
        ),
        "the coordinator is loaded",
    )


def describe(client: WireClient, transactional_id: str) -> TransactionState:
    asked = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    states: list[TransactionState] = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, asked, 0).transaction_states
    return states[0]


def state_of(client: WireClient, transactional_id: str) -> str:
    return describe(client, transactional_id).transaction_state


def init(client: WireClient, request: InitProducerIdRequest, version: int = 5) -> InitProducerIdResponse:
    answer: InitProducerIdResponse = client.ask(ApiKey.INIT_PRODUCER_ID, request, version)
    return answer


class Transactional:
    """A producer with a transactional id. `version` is its transaction version."""

    def __init__(
        self, client: WireClient, transactional_id: str | None = None, *, version: int = 2, timeout_ms: int = 60_000
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id or unique_id()
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def start(self) -> Transactional:
        """Get an id and an epoch; any earlier producer is fenced."""
        find_transaction_coordinator(self.client, self.transactional_id)
        answer = init(
            self.client,
            InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms),
        )
        if answer.error_code:
            raise ValueError(f"{self.transactional_id} not started: error {answer.error_code}")
        self.take(answer.producer_id, answer.producer_epoch)
        return self

    def take(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences.clear()

    def add(self, *partitions: tuple[str, int], version: int = 3) -> int:
        """The worst error code of the partitions."""
        answer = self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, self.add_request(*partitions, version=version), version)
        return max(added_codes(answer).values(), default=0)

    def add_request(self, *partitions: tuple[str, int], version: int = 3) -> AddPartitionsToTxnRequest:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        listed = [AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()]
        if version >= 4:
            return AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=self.transactional_id,
                        producer_id=self.producer_id,
                        producer_epoch=self.epoch,
                        topics=listed,
                    )
                ]
            )
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=listed,
        )

    def batch(self, topic: str, *values: bytes, partition: int = 0) -> bytearray:
        sequence = self.sequences.get((topic, partition), 0)
        return batch_of(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def write(self, topic: str, *values: bytes, partition: int = 0, version: int | None = None, acks: int = -1) -> int:
        """Send one batch."""
        batch = self.batch(topic, *values, partition=partition)
        request = produce_request({(topic, partition): batch}, acks=acks)
        request.transactional_id = self.transactional_id
        chosen = version or (12 if self.version == 2 else 11)
        answer = self.client.ask(ApiKey.PRODUCE, request, chosen)
        code: int = answer.responses[0].partition_responses[0].error_code
        if not code:
            self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + len(values)
        return code

    def add_offsets(self, group: str, version: int = 4) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        code: int = self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, request, version).error_code
        return code

    def commit_offset(self, group: str, topic: str, offset: int, version: int | None = None, **member: Any) -> int:
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
                )
            ],
            **member,
        )
        chosen = (5 if self.version == 2 else 4) if version is None else version
        answer = self.client.ask(ApiKey.TXN_OFFSET_COMMIT, request, chosen)
        code: int = answer.topics[0].partitions[0].error_code
        return code

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def end(self, *, commit: bool, version: int | None = None) -> int:
        chosen = (5 if self.version == 2 else 4) if version is None else version
        answer = self.client.ask(ApiKey.END_TXN, self.end_request(commit=commit), chosen)
        if not answer.error_code and chosen >= 5:
            self.take(answer.producer_id, answer.producer_epoch)
        code: int = answer.error_code
        return code

    def commit(self) -> int:
        return self.end(commit=True)

    def abort(self) -> int:
        return self.end(commit=False)

    def transact(self, topic: str, *values: bytes, commit: bool = True) -> None:
        """A whole transaction with one batch."""
        codes = [] if self.version == 2 else [self.add((topic, 0))]
        codes += [self.write(topic, *values), self.end(commit=commit)]
        if any(codes):
            raise ValueError(f"transaction of {self.transactional_id} failed: {codes}")


def added_codes(answer: Any) -> dict[tuple[str, int], int]:
    """The codes of an AddPartitionsToTxn response of any version, by partition."""
    topics = [topic for result in answer.results_by_transaction for topic in result.topic_results]
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in (*topics, *answer.results_by_topic_v3_and_below)
        for each in topic.results_by_partition
    }


def fetch_committed(client: WireClient, topic: str, offset: int = 0, **limits: int) -> PartitionData:
    return client.fetch(topic, offset, isolation_level=READ_COMMITTED, **limits)


def committed_values(client: WireClient, topic: str, partition: int = 0, *, rack: str = "") -> list[bytes | None]:
    """What a reader of committed records sees, by the rules that every client follows. At a follower it names its rack.

    The records of these stories are old, and their markers are not, so that they are in several segments.
    """
    values: list[bytes | None] = []
    offset = 0
    while True:
        request = fetch_request({(topic, partition): offset}, isolation_level=READ_COMMITTED)
        request.rack_id = rack
        data = client.ask(ApiKey.FETCH, request, 12).responses[0].partitions[0]
        if data.error_code:
            raise ValueError(f"{topic}-{partition} not read: error {data.error_code}")
        headers = scan(bytes(data.records)).headers
        if not headers:
            return values
        values += visible_values(data)
        offset = headers[-1].next_offset


def visible_values(data: PartitionData) -> list[bytes | None]:
    records: Any = data.records
    plain = bytes(records)
    waiting = sorted(((each.first_offset, each.producer_id) for each in data.aborted_transactions or ()), reverse=True)
    aborted: set[int] = set()
    values: list[bytes | None] = []
    for header in scan(plain).headers:
        while waiting and waiting[-1][0] <= header.last_offset:
            aborted.add(waiting.pop()[1])
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            values += [record.value for record in records_of(plain, header)]
    return values


def uncommitted_values(client: WireClient, topic: str) -> list[bytes | None]:
    data = client.fetch(topic)
    records: Any = data.records
    controls = {header.base_offset for header in scan(bytes(records)).headers if header.is_control}
    return [record.value for record in records_in(records) if record.offset not in controls]
