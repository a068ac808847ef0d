"""Batches that no consumer could read, and batches that would stall the broker: rejected, and nothing is lost.

Sent over a socket, with correct checksums: only a look into the records shows the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.wire_client import (
    BEGIN_MS,
    WireClient,
    batch_of,
    call,
    log_of,
    make_topic,
    produce_request,
    send_and_be_heard,
    values_in,
)
from tests.records.record_bytes import payload_of, record_of, varint

from penstock.broker.broker import Broker
from penstock.log import validation
from penstock.log.settings import LogSettings
from penstock.records import CREATE_TIME, HEADER_SIZE, Codec, TooLarge, encode_batch, scan
from penstock.records.batch import pooled_payload_of
from penstock.records.compression import compress
from penstock.records.kernel import write_header
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest

THREE = payload_of([(BEGIN_MS, b"k", b"value", ())] * 3)


def sealed(payload: bytes, count: int, *, codec: int = Codec.NONE, attributes: int = 0) -> bytearray:
    """A batch of these bytes under a header that says `count`, its checksum right."""
    batch = bytearray(HEADER_SIZE) + (compress(codec, payload) if codec else payload)
    write_header(batch, 0, -1, codec | attributes, count - 1, BEGIN_MS, BEGIN_MS, -1, -1, -1, count)
    return batch


def one(
    *, offset: bytes = varint(0), key: bytes = varint(-1), value: bytes = varint(-1), headers: bytes = varint(0)
) -> bytes:
    return record_of(b"\x00" + varint(0) + offset + key + value + headers)


UNREADABLE = {
    "garbage": (b"garbage, and no record at all", 1),
    "nothing": (b"", 1),
    "fewer records than it says": (THREE, 4),
    "more records than it says": (THREE, 2),
    "bytes after the last record": (THREE + b"\x00", 3),
    "all deltas alike": (payload_of([(BEGIN_MS, b"k", b"v", ())] * 3, [0, 0, 0]), 3),
    "a gap in the deltas": (payload_of([(BEGIN_MS, b"k", b"v", ())] * 2, [0, 2]), 2),
    "deltas from one": (payload_of([(BEGIN_MS, b"k", b"v", ())] * 2, [1, 2]), 2),
    "a record longer than the batch": (record_of(b"\x00" * 6, 1000), 1),
    "a negative length": (record_of(b"\x00" * 6, -5), 1),
    "a key longer than the record": (one(key=varint(100) + b"k"), 1),
    "a length of a value in six bytes": (one(value=b"\x80\x80\x80\x80\x80\x00"), 1),
    "more headers than bytes": (one(headers=varint(2**31 - 1)), 1),
    "a header without a name": (one(headers=varint(1) + varint(-1) + varint(-1)), 1),
    "a header's name that is not text": (one(headers=varint(1) + varint(1) + b"\xff" + varint(-1)), 1),
}


@pytest.mark.parametrize(
    "codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name
)
def test_records_that_no_consumer_can_read_are_rejected(broker: Broker, client: WireClient, codec: Codec) -> None:
    topic = make_topic(broker)
    for what, (payload, count) in UNREADABLE.items():
        outcome = client.produce(topic, sealed(payload, count, codec=codec))
        # What cannot be right by the header alone is taken for damage; that exists for what is not compressed only.
        expected = {ErrorCode.INVALID_RECORD} | ({ErrorCode.CORRUPT_MESSAGE} if codec is Codec.NONE else set())
        assert outcome.error_code in expected, what
        assert (outcome.base_offset, log_of(broker, topic).log_end_offset) == (-1, 0), what
    assert client.produce(topic, sealed(THREE, 3, codec=codec)).error_code == ErrorCode.NONE
    assert values_in(client.fetch(topic).records) == [b"value"] * 3


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name)
def test_payloads_that_cannot_be_decompressed_are_rejected(broker: Broker, client: WireClient, codec: Codec) -> None:
    topic = make_topic(broker)
    packed = compress(codec, THREE * 50)
    for payload in (b"", b"no such thing", packed[: len(packed) // 2], packed[:-1], b"\x00" * 64):
        batch = bytearray(HEADER_SIZE) + payload
        write_header(batch, 0, -1, codec, 149, BEGIN_MS, BEGIN_MS, -1, -1, -1, 150)
        assert client.produce(topic, batch).error_code == ErrorCode.INVALID_RECORD
    assert log_of(broker, topic).log_end_offset == 0


def test_only_the_records_at_fault_are_named(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, configs={"cleanup.policy": "compact"})
    keys = [b"a", None, b"b", None, b"c"]
    outcome = client.produce(topic, encode_batch([(BEGIN_MS, key, b"v", ()) for key in keys], codec=Codec.ZSTD))
    assert outcome.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in outcome.record_errors] == [1, 3]
    assert "key" in str(outcome.record_errors[0].batch_index_error_message)
    assert "record 1" in str(outcome.error_message)
    assert log_of(broker, topic).log_end_offset == 0


def test_a_timestamp_within_a_batch_that_is_out_of_range_is_named(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, configs={"message.timestamp.after.max.ms": "3600000"})
    now_ms = broker.services.clock.now_ms()
    stamps = [now_ms, now_ms + 86_400_000, now_ms]
    outcome = client.produce(topic, encode_batch([(stamp, b"k", b"v", ()) for stamp in stamps]))
    assert outcome.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in outcome.record_errors] == [1]


def test_records_at_fault_are_named_up_to_a_bound(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, partitions=3, configs={"cleanup.policy": "compact"})
    bad = encode_batch([(BEGIN_MS, None, b"v", ())] * 700, codec=Codec.ZSTD)
    answer = client.ask(ApiKey.PRODUCE, produce_request({(topic, index): bad for index in range(3)}), 9)
    named = [len(part.record_errors) for each in answer.responses for part in each.partition_responses]
    assert sum(named) <= validation.RECORD_ERRORS + len(named)
    assert named[0] == 700
    assert min(named) >= 1


def test_a_time_that_only_the_header_claims_does_not_count(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    batch = bytearray(HEADER_SIZE) + THREE
    write_header(batch, 0, -1, 0, 2, BEGIN_MS, BEGIN_MS + 10**9, -1, -1, -1, 3)
    assert client.produce(topic, batch).error_code == ErrorCode.NONE
    data: Any = client.fetch(topic).records
    assert [header.max_timestamp for header in scan(bytes(data)).headers] == [BEGIN_MS]
    assert values_in(data) == [b"value"] * 3, "its checksum is right again"
    assert log_of(broker, topic).active.max_timestamp == BEGIN_MS, "by which retention goes"


def test_transactional_batches_outside_a_transaction_are_rejected(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    pinned = batch_of(b"v", producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)
    assert client.produce(topic, pinned).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert client.produce(topic, batch_of(b"v")).error_code == ErrorCode.NONE
    assert log_of(broker, topic).last_stable_offset == 1


# --- what takes long


class Gate:
    """Workers that do nothing until they are released."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def close(self) -> None:
        pass


@pytest.fixture
def gate(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(broker.services, "validators", gate)
    return gate


def open_gate(broker: Broker, gate: Gate) -> None:
    """Do what waits, as the broker's own workers would: the work on this thread, the rest on the event loop."""
    from penstock.runtime.threads import Outcome

    work, done = gate.waiting.popleft()
    try:
        outcome: Outcome[Any] = Outcome(work())
    except Exception as error:  # noqa: BLE001 - as workers do
        outcome = Outcome(None, error)
    call(broker, lambda: done(outcome))


LARGE = 2 * validation.LOOP_PLAIN_BYTES


def large(value: bytes = b"large", **more: Any) -> bytearray:
    return batch_of(value + bytes(LARGE), codec=Codec.GZIP, **more)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_large_batches_are_decompressed_beside_the_event_loop(
    broker: Broker, client: WireClient, embedded: EmbeddedBroker, gate: Gate, policy: str
) -> None:
    topic = make_topic(broker, configs={"cleanup.policy": policy})
    send_and_be_heard(broker, client, ApiKey.PRODUCE, produce_request({(topic, 0): large()}), 9)
    assert len(gate.waiting) == 1, "it was not decompressed on the loop"
    with WireClient(embedded.port) as other:
        other.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
        assert other.produce(topic, batch_of(b"small")).base_offset == 0, "other producers continue"
    open_gate(broker, gate)
    _, answer = client.receive(ApiKey.PRODUCE, 9)
    assert answer.responses[0].partition_responses[0].base_offset == 1


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_what_is_small_is_validated_at_once(broker: Broker, client: WireClient, gate: Gate, codec: Codec) -> None:
    topic = make_topic(broker)
    assert client.produce(topic, batch_of(bytes(16 * 1024), codec=codec)).base_offset == 0
    assert not gate.waiting


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name)
def test_what_old_clients_send_is_converted_beside_the_event_loop(
    broker: Broker, client: WireClient, gate: Gate, codec: Codec
) -> None:
    topic = make_topic(broker)
    values = [b"%05d" % number * 20 for number in range(1000)]
    messages = [LegacyMessage(i, BEGIN_MS, CREATE_TIME, b"k", value) for i, value in enumerate(values)]
    request = produce_request({(topic, 0): encode_message_set(messages, magic=1, codec=codec)})
    send_and_be_heard(broker, client, ApiKey.PRODUCE, request, 2)
    assert len(gate.waiting) == 1
    open_gate(broker, gate)
    assert client.receive(ApiKey.PRODUCE, 2)[1].responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert values_in(client.fetch(topic).records) == values


def test_a_connections_batches_are_appended_in_the_order_of_sending(
    broker: Broker, client: WireClient, gate: Gate
) -> None:
    topic = make_topic(broker)
    numbers: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
    sent = [large(**numbers, base_sequence=0), batch_of(b"small", **numbers, base_sequence=1)]
    sent += [large(**numbers, base_sequence=2), batch_of(b"last", **numbers, base_sequence=3)]
    for batch in sent:
        send_and_be_heard(broker, client, ApiKey.PRODUCE, produce_request({(topic, 0): batch}), 9)
    assert log_of(broker, topic).log_end_offset == 0
    open_gate(broker, gate)
    assert log_of(broker, topic).log_end_offset == 2, "the large one, the small one behind it, and then another large"
    open_gate(broker, gate)
    outcomes = [client.receive(ApiKey.PRODUCE, 9)[1].responses[0].partition_responses[0] for _ in sent]
    assert [(outcome.error_code, outcome.base_offset) for outcome in outcomes] == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_partitions_of_one_request_are_answered_together_after_the_slowest(
    broker: Broker, client: WireClient, gate: Gate
) -> None:
    topic = make_topic(broker, partitions=4)
    records = {(topic, 0): batch_of(b"a"), (topic, 1): large(), (topic, 2): sealed(THREE, 2), (topic, 3): large()}
    send_and_be_heard(broker, client, ApiKey.PRODUCE, produce_request(records), 9)
    open_gate(broker, gate)
    open_gate(broker, gate)
    _, answer = client.receive(ApiKey.PRODUCE, 9)
    codes = [part.error_code for each in answer.responses for part in each.partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.NONE]


def test_what_a_request_may_decompress_to_is_bounded_in_all(
    broker: Broker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation.Budget, "decompressed_bytes", 3 * LARGE + 1000)
    topic = make_topic(broker, partitions=100, configs={"cleanup.policy": "compact"})
    records = {(topic, index): large() for index in range(100)}
    answer = client.ask(ApiKey.PRODUCE, produce_request(records), 9)
    codes = [part.error_code for each in answer.responses for part in each.partition_responses]
    assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.MESSAGE_TOO_LARGE] * 97


def test_failed_decompression_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a request of batches that are each a little too large would cost as much as it has batches."""
    taken: list[int] = []

    def counted(batches: Any, header: Any, limit: int) -> Any:
        taken.append(limit)
        return pooled_payload_of(batches, header, limit)

    monkeypatch.setattr(validation, "pooled_payload_of", counted)
    budget = validation.Budget()
    budget.decompressed_bytes = LARGE // 2
    for _ in range(10):
        with pytest.raises(TooLarge):
            validation.validate(LogSettings(), large(), BEGIN_MS, budget)
    assert sum(taken) == LARGE // 2


def test_many_small_batches_of_a_request_do_not_add_up_on_the_loop(
    broker: Broker, client: WireClient, gate: Gate
) -> None:
    topic = make_topic(broker, partitions=20)
    value = bytes(validation.LOOP_PLAIN_BYTES - 1000)
    records = {(topic, index): batch_of(value, codec=Codec.ZSTD) for index in range(20)}
    send_and_be_heard(broker, client, ApiKey.PRODUCE, produce_request(records), 9)
    done = 0
    while gate.waiting:
        open_gate(broker, gate)
        done += 1
    assert done >= 15, "a few are small enough, all of them are not"
    _, answer = client.receive(ApiKey.PRODUCE, 9)
    assert {part.error_code for each in answer.responses for part in each.partition_responses} == {ErrorCode.NONE}


def test_a_late_rejection_with_acks_0_closes_the_connection(broker: Broker, client: WireClient, gate: Gate) -> None:
    topic = make_topic(broker)
    bad = sealed(payload_of([(BEGIN_MS, b"k", bytes(LARGE), ())] * 2, [0, 5]), 2, codec=Codec.GZIP)
    send_and_be_heard(broker, client, ApiKey.PRODUCE, produce_request({(topic, 0): bad}, acks=0), 9)
    open_gate(broker, gate)
    assert client.is_ended()
