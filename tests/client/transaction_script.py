"""A scripted broker for transactions: it leads one topic, coordinates everything, and answers as a test tells it.

    async with TransactionScript(version=2) as script:
        script.say(ApiKey.END_TXN, ErrorCode.CONCURRENT_TRANSACTIONS, CUT)     the answers to the next two

What is not scripted is answered with success. It keeps no records, only the requests.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import Any, Final, Self

from tests.client.scripted import Scripted, answer_bytes, next_request

from penstock.records import scan
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.add_offsets_to_txn import AddOffsetsToTxnResponse
from penstock.wire.schemas.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from penstock.wire.schemas.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from penstock.wire.schemas.describe_transactions import DescribeTransactionsResponse, TransactionState
from penstock.wire.schemas.end_txn import EndTxnResponse
from penstock.wire.schemas.find_coordinator import Coordinator, FindCoordinatorResponse
from penstock.wire.schemas.init_producer_id import InitProducerIdResponse
from penstock.wire.schemas.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.schemas.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from penstock.wire.schemas.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.wire.types import Message

TOPIC: Final = "views"
PRODUCER_ID: Final = 7
CUT: Final = "cut"
"""The request is carried out, and the connection ends before its answer."""
SILENCE: Final = "silence"
"""The request is never answered."""
Said = ErrorCode | str

_VERSIONS: Final = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.METADATA: (0, 12),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
}


class TransactionScript:
    def __init__(self, version: int = 2, partitions: int = 2, **versions: tuple[int, int]) -> None:
        self._version = version
        self._partitions = partitions
        self._versions = {**_VERSIONS, **{ApiKey[name]: range_ for name, range_ in versions.items()}}
        self._said: dict[ApiKey, deque[Said]] = defaultdict(deque)
        self.asked: list[tuple[ApiKey, int, Any]] = []
        """API, version and message of all requests about transactions."""
        self.epoch = -1
        self.described = ("Empty", PRODUCER_ID, 0)
        self._server = Scripted(self._handle)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._server.__aexit__(*details)

    @property
    def address(self) -> str:
        return self._server.address

    def say(self, api_key: ApiKey, *answers: Said) -> None:
        """The answers to the next requests of an API; all later ones succeed."""
        self._said[api_key].extend(answers)

    def of(self, api_key: ApiKey) -> list[Any]:
        """The requests of an API so far."""
        return [message for key, _, message in self.asked if key is api_key]

    def names(self) -> list[str]:
        return [key.name for key, _, _ in self.asked]

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header, message = await next_request(reader)
            key = ApiKey(header.api.key)
            if key not in (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR):
                self.asked.append((key, header.api_version, message))
            said = self._said[key].popleft() if self._said[key] else ErrorCode.NONE
            if said == SILENCE:
                continue
            code = said if isinstance(said, ErrorCode) else ErrorCode.NONE
            reply = self._reply(key, header.api_version, message, code)
            if said == CUT:
                return
            writer.write(answer_bytes(header, reply))
            await writer.drain()

    def _reply(self, key: ApiKey, version: int, message: Any, code: ErrorCode) -> Message:
        if key is ApiKey.API_VERSIONS:
            return ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=api, min_version=a, max_version=b) for api, (a, b) in self._versions.items()
                ],
                finalized_features=[
                    FinalizedFeatureKey(
                        name="transaction.version", max_version_level=self._version, min_version_level=self._version
                    )
                ],
                finalized_features_epoch=1,
            )
        if key is ApiKey.METADATA:
            return self._metadata()
        if key is ApiKey.FIND_COORDINATOR:
            return self._coordinator(version, message, code)
        return getattr(self, f"_{key.name.lower()}")(version, message, code)  # type: ignore[no-any-return]

    def _metadata(self) -> MetadataResponse:
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self._server.port)],
            cluster_id="scripted",
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name=TOPIC,
                    partitions=[
                        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                        for index in range(self._partitions)
                    ],
                )
            ],
        )

    def _coordinator(self, version: int, message: Any, code: ErrorCode) -> FindCoordinatorResponse:
        where: dict[str, Any] = {"error_code": code, "node_id": 1, "host": "127.0.0.1", "port": self._server.port}
        if version >= 4:
            return FindCoordinatorResponse(
                coordinators=[Coordinator(key=key, **where) for key in message.coordinator_keys]
            )
        return FindCoordinatorResponse(**where)

    def _init_producer_id(self, version: int, message: Any, code: ErrorCode) -> InitProducerIdResponse:
        if code:
            return InitProducerIdResponse(error_code=code)
        self.epoch += 1
        return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=self.epoch)

    def _produce(self, version: int, message: Any, code: ErrorCode) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=each.index, error_code=code, base_offset=0)
                        for each in topic.partition_data
                    ],
                )
                for topic in message.topic_data
            ]
        )

    def _add_partitions_to_txn(self, version: int, message: Any, code: ErrorCode) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index,
                            # One is the reason; the others are not attempted.
                            partition_error_code=code if place == 0 or not code else ErrorCode.OPERATION_NOT_ATTEMPTED,
                        )
                        for place, index in enumerate(topic.partitions)
                    ],
                )
                for topic in message.v3_and_below_topics
            ]
        )

    def _add_offsets_to_txn(self, version: int, message: Any, code: ErrorCode) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(error_code=code)

    def _txn_offset_commit(self, version: int, message: Any, code: ErrorCode) -> TxnOffsetCommitResponse:
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                        for each in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )

    def _end_txn(self, version: int, message: Any, code: ErrorCode) -> EndTxnResponse:
        if code or version < 5:
            return EndTxnResponse(error_code=code)
        if message.producer_epoch == self.epoch:  # otherwise it is a repetition
            self.epoch += 1
        return EndTxnResponse(producer_id=PRODUCER_ID, producer_epoch=self.epoch)

    def _describe_transactions(self, version: int, message: Any, code: ErrorCode) -> DescribeTransactionsResponse:
        state, producer_id, epoch = self.described
        return DescribeTransactionsResponse(
            transaction_states=[
                TransactionState(
                    error_code=code,
                    transactional_id=message.transactional_ids[0],
                    transaction_state=state,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                )
            ]
        )


def batches_of(request: Any) -> list[tuple[int, int, int, int, bool]]:
    """Partition, producer id, epoch, first sequence and whether it is transactional, of each batch of a Produce."""
    return [
        (each.index, header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional)
        for topic in request.topic_data
        for each in topic.partition_data
        for header in scan(bytes(each.records)).headers
    ]
