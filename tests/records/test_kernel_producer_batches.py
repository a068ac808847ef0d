"""Open batches, lanes and tickets: the producer's hot path."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
import tracemalloc
from contextlib import suppress
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.records.outcomes import outcome

from penstock.records import HEADER_SIZE, Codec, TooLarge, UnsupportedCodec, decode_batch, python_kernel
from penstock.records.batch import encode_batch

kafka_hashing = pytest.importorskip("kafka.partitioner.default")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

int64s = st.one_of(st.integers(0, 2 * 10**12), st.integers(-(2**63), INT64_MAX))
blobs = st.one_of(st.none(), st.binary(max_size=12), st.integers(60, 9000).map(bytes))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
appended = st.lists(st.tuples(int64s, blobs, blobs, headers), max_size=12)


def state(builder: Any) -> tuple[Any, ...]:
    return (builder.count, builder.size, builder.base_timestamp, builder.max_timestamp, builder.is_closed)


# --- hash ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_hashes_as_in_java(loops: ModuleType, key: bytes, java: int) -> None:
    assert loops.murmur2(key) == java & INT32_MAX
    assert loops.murmur2(bytearray(key)) == loops.murmur2(memoryview(key)) == java & INT32_MAX


@given(key=st.binary(max_size=40))
@settings(max_examples=150, deadline=None)
def test_a_key_hashes_as_in_kafka_python(loops: ModuleType, key: bytes) -> None:
    assert loops.murmur2(key) == kafka_hashing.murmur2(key) & INT32_MAX


@pytest.mark.parametrize("key", ["text", 5, None])
def test_what_is_not_bytes_has_no_hash(loops: ModuleType, key: Any) -> None:
    with pytest.raises(TypeError, match="a record's key must be bytes"):
        loops.murmur2(key)


# --- the open batch --------------------------------------------------------------------------------------------


@given(items=appended, limit=st.integers(61, 12_000))
@settings(max_examples=120, deadline=None)
def test_both_builders_come_to_the_same_batch(kernel: ModuleType, items: list[Any], limit: int) -> None:
    sides = []
    for loops in (kernel, python_kernel):
        builder = loops.BatchBuilder(limit)
        indexes = [outcome(builder.append, *item) for item in items]
        numbers = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 40, "is_transactional": True}
        sides.append((indexes, state(builder), outcome(builder.build, codec=0, level=None, **numbers), state(builder)))
    assert sides[0] == sides[1]


@given(items=appended.filter(bool), codec=st.sampled_from(Codec))
@settings(max_examples=60, deadline=None)
def test_what_was_appended_is_what_a_reader_finds(loops: ModuleType, items: list[Any], codec: Codec) -> None:
    builder = loops.BatchBuilder(1 << 20)
    assert [builder.append(*item) for item in items] == list(range(len(items)))
    batch = builder.build(codec=codec, level=None, producer_id=9, producer_epoch=1, base_sequence=5)
    assert batch == encode_batch(items, codec=codec, producer_id=9, producer_epoch=1, base_sequence=5)
    found = [(r.timestamp, r.key, r.value, list(r.headers)) for r in decode_batch(batch)]
    assert found == items


def test_a_batch_ends_at_its_limit_but_takes_its_first_record_whatever_its_size(loops: ModuleType) -> None:
    builder = loops.BatchBuilder(61)
    assert builder.append(5, None, b"x" * 500) == 0
    assert builder.append(5, None, None) == -1
    exact = loops.BatchBuilder(61 + 8)
    assert exact.append(5, None, b"x") == 0
    assert exact.size == 69
    assert exact.append(5, None, b"") == -1
    assert (exact.count, exact.size) == (1, 69)


def test_a_batch_that_was_built_takes_nothing_more_and_may_be_built_again(loops: ModuleType) -> None:
    builder = loops.BatchBuilder(1000)
    builder.append(5, b"k", b"v")
    first = builder.build(codec=Codec.ZSTD, level=3, producer_id=1, producer_epoch=0, base_sequence=0)
    assert builder.append(6, b"k", b"w") == -1
    assert builder.append_many(6, [b"w"]) == 0
    again = builder.build(codec=Codec.ZSTD, level=3, producer_id=2, producer_epoch=5, base_sequence=77)
    assert first != again
    assert decode_batch(first) == decode_batch(again)
    [header] = loops.scan(again).headers
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2, 5, 77)
    first[:] = b"?" * len(first)
    assert builder.build(codec=Codec.ZSTD, level=3, producer_id=2, producer_epoch=5, base_sequence=77) == again
    assert decode_batch(builder.build(codec=Codec.GZIP, level=9)) == decode_batch(builder.build())


def test_a_batch_on_its_way_is_not_rewritten_by_a_retry_and_one_that_was_resized_is_not_built(
    loops: ModuleType,
) -> None:
    """The class of CVE-2026-35554: bytes that are being sent change."""
    builder = loops.BatchBuilder(1000)
    builder.append(5, b"k", b"v")
    under_way = builder.build(producer_id=1)
    before = bytes(under_way)
    view = memoryview(under_way)
    retried = builder.build(producer_id=2)
    assert under_way == before != retried
    del under_way, retried
    assert builder.build(producer_id=3) != before
    assert view == before
    view.release()
    assert decode_batch(builder.build(producer_id=4)) == decode_batch(before)
    own = loops.BatchBuilder(1000)
    own.append(5, b"k", b"v")
    stolen = own.build()
    stolen.clear()
    for again in (own.build, own.timestamp_runs, lambda: own.build(codec=Codec.GZIP)):
        with pytest.raises(ValueError, match="resized by its reader"):
            again()
    assert own.append(5, None, None) == -1


@given(stamps=st.lists(st.one_of(st.integers(5, 7), int64s), min_size=1, max_size=80))
@example(stamps=[0])
@example(stamps=[number // 2 for number in range(64)])
@example(stamps=[number // 2 for number in range(66)])
@settings(max_examples=60, deadline=None)
def test_a_built_batch_knows_the_time_of_each_record(loops: ModuleType, stamps: list[int]) -> None:
    builder = loops.BatchBuilder(10_000)
    for stamp in stamps:
        builder.append(stamp, None, b"v")
    with pytest.raises(ValueError, match="still open"):
        builder.timestamp_runs()
    builder.build(codec=Codec.GZIP)
    runs = builder.timestamp_runs()
    ends = [index for index, _ in runs[1:]] + [len(stamps)]
    assert [stamp for (index, stamp), end in zip(runs, ends, strict=True) for _ in range(end - index)] == stamps
    assert all(first[1] != second[1] for first, second in pairwise(runs))


@pytest.mark.parametrize("limit", [-1, 0, 60, INT32_MAX + 1])
def test_a_limit_that_no_batch_can_have_is_rejected(loops: ModuleType, limit: int) -> None:
    with pytest.raises(ValueError, match="must be 61 to"):
        loops.BatchBuilder(limit)


def test_an_empty_batch_is_not_built(loops: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        loops.BatchBuilder(100).build()


def test_a_codec_that_does_not_exist_is_rejected(loops: ModuleType) -> None:
    builder = loops.BatchBuilder(100)
    builder.append(1, None, b"v")
    with pytest.raises(UnsupportedCodec):
        builder.build(codec=9)
    with pytest.raises(OverflowError):
        builder.build(producer_id=2**63)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ((1, "text", b"v"), "a record's key must be bytes or None, not str"),
        ((1, b"k", "text"), "a record's value must be bytes or None, not str"),
        ((1, b"k", 5), "a record's value must be bytes or None, not int"),
        ((1, b"k", b"v", [(b"name", b"x")]), "a header's key must be str, not bytes"),
        ((1, b"k", b"v", [("name", "text")]), "a record's header value must be bytes or None, not str"),
    ],
)
def test_wrong_types_are_named_and_leave_the_batch_as_it_was(loops: ModuleType, record: Any, words: str) -> None:
    builder = loops.BatchBuilder(1000)
    builder.append(1, b"k", b"v")
    before = state(builder)
    with pytest.raises(TypeError, match=words):
        builder.append(*record)
    assert state(builder) == before


def test_what_exceeds_two_gibibytes_is_rejected_without_being_copied(loops: ModuleType) -> None:
    builder = loops.BatchBuilder(INT32_MAX)
    with pytest.raises(TooLarge, match="a record"):
        builder.append(1, None, bytes(INT32_MAX))  # never written to, so it takes no memory
    with pytest.raises(TooLarge, match="a batch"):
        builder.append(1, None, bytes(INT32_MAX - 20))
    assert (builder.count, builder.size) == (0, HEADER_SIZE)


def test_timestamps_outside_of_64_bits_are_rejected(loops: ModuleType) -> None:
    with pytest.raises(OverflowError):
        loops.BatchBuilder(100).append(2**63, None, b"v")


# --- many at once ----------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.one_of(blobs, st.just("text")), max_size=10),
    keys=st.one_of(st.none(), st.lists(st.one_of(blobs, st.just(5)), max_size=10)),
    start=st.integers(-1, 11),
    limit=st.integers(61, 9000),
)
@settings(max_examples=120, deadline=None)
def test_both_take_as_many_of_a_list(
    kernel: ModuleType, values: list[Any], keys: list[Any] | None, start: int, limit: int
) -> None:
    if keys is not None and len(keys) > len(values):
        keys = keys[: len(values)]
    sides = []
    for loops in (kernel, python_kernel):
        builder = loops.BatchBuilder(limit)
        took = outcome(builder.append_many, 9, values, start, keys)
        sides.append((took, state(builder), outcome(builder.build)))
    assert sides[0] == sides[1]


def test_a_list_goes_into_batches_one_after_the_other(loops: ModuleType) -> None:
    values = [b"%d" % i * (i % 30) if i % 7 else None for i in range(500)]
    keys = tuple(b"k%d" % i for i in range(500))
    found, at = [], 0
    while at < len(values):
        builder = loops.BatchBuilder(600)
        at += builder.append_many(5, values, at, keys)
        found += [(record.key, record.value) for record in decode_batch(builder.build())]
    assert found == list(zip(keys, values, strict=True))


def test_a_bad_value_stops_a_list_before_it_and_raises_when_it_comes_first(loops: ModuleType) -> None:
    builder = loops.BatchBuilder(1000)
    values = [b"a", b"b", "text", b"c"]
    assert builder.append_many(5, values) == 2
    with pytest.raises(TypeError, match="a record's value must be bytes or None, not str"):
        builder.append_many(5, values, 2)
    assert builder.append_many(5, values, 3) == 1
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        builder.append_many(5, [b"a", b"b"], 0, [b"k"])
    assert builder.append_many(5, [b"a"], 7) == 0


# --- tickets and lanes -----------------------------------------------------------------------------------------


def ticket_class(loops: ModuleType) -> Any:
    class Delivery(loops.Ticket):  # type: ignore[misc, name-defined]
        __slots__ = ()

        def __init__(self) -> None:
            raise AssertionError("a lane makes its tickets without this")

        @property
        def place(self) -> tuple[Any, int]:
            return (self.batch, self.index)

    return Delivery


def test_a_ticket_names_its_batch_and_index_and_may_be_subclassed(loops: ModuleType) -> None:
    ticket = loops.Ticket("batch", 3)
    assert (ticket.batch, ticket.index) == ("batch", 3)
    assert not hasattr(ticket, "__dict__")
    kind = ticket_class(loops)
    lane = loops.Lane(kind)
    lane.open(loops.BatchBuilder(1000), "batch")
    made = lane.append(b"v")
    assert type(made) is kind
    assert made.place == ("batch", 0)
    assert not hasattr(made, "__dict__")


def test_a_lane_is_shut_before_it_opens_after_it_closes_and_when_full(loops: ModuleType) -> None:
    lane = loops.Lane(loops.Ticket)
    assert lane.append(b"v") is None
    assert lane.close() is None
    builder = loops.BatchBuilder(76)
    lane.open(builder, "first")
    with pytest.raises(ValueError, match="close it first"):
        lane.open(builder, "second")
    assert lane.append(b"v").index == 0
    assert lane.append(b"w" * 40) is None
    assert lane.append(None).index == 1
    assert lane.close() == "first"
    assert lane.append(b"v") is None
    assert builder.count == 2
    lane.open(loops.BatchBuilder(75), "second")
    assert lane.append(b"v").batch == "second"


def test_records_bear_the_moment_of_their_lane_unless_they_bring_a_time(loops: ModuleType) -> None:
    moment = loops.Moment(100)
    lane, other = loops.Lane(loops.Ticket, moment), loops.Lane(loops.Ticket, moment)
    builder = loops.BatchBuilder(1000)
    lane.open(builder, None)
    lane.append(b"a")
    other.now_ms = 170
    lane.append(b"b", timestamp=40)
    lane.append(b"c", b"k", None, [("h", b"x")])
    assert lane.now_ms == moment.now_ms == 170
    records = decode_batch(builder.build())
    assert [record.timestamp for record in records] == [100, 40, 170]
    assert records[2].headers == (("h", b"x"),)
    with pytest.raises(OverflowError):
        moment.now_ms = 2**63


def test_a_lane_rejects_wrong_types_even_when_shut(loops: ModuleType) -> None:
    lane, lanes = loops.Lane(loops.Ticket), loops.TopicLanes(loops.Ticket, 3)
    for way in (lane, lanes):
        with pytest.raises(TypeError, match="a record's value must be bytes, str or None, not int"):
            way.append(5)
        with pytest.raises(TypeError, match="a record's key must be bytes, str or None, not float"):
            way.append(b"v", 1.5)
    with pytest.raises(TypeError, match="a header's key must be str, not bytes"):
        lane.append(b"v", None, None, [(b"h", b"x")])
    with pytest.raises(TypeError, match="a record's header value must be bytes or None, not int"):
        lane.append(b"v", None, None, {"h": 1})
    with pytest.raises(TypeError, match="on_delivery must be callable, not str"):
        lane.append(b"v", on_delivery="me")
    with pytest.raises(TypeError, match="Callbacks are needed, not list"):
        lane.open(loops.BatchBuilder(100), None, [])
    with pytest.raises(TypeError, match="a subclass of Ticket is needed"):
        loops.Lane(int)
    with pytest.raises(TypeError, match="a BatchBuilder is needed, not str"):
        lane.open("builder", None)
    with pytest.raises(TypeError, match="a Moment is needed, not int"):
        loops.Lane(loops.Ticket, 5)


def test_keys_choose_their_partition_and_the_rest_the_sticky_one(loops: ModuleType) -> None:
    lanes = loops.TopicLanes(loops.Ticket, 6, loops.Moment(5))
    builders = [loops.BatchBuilder(10_000) for _ in range(6)]
    for partition, (lane, builder) in enumerate(zip(lanes.lanes, builders, strict=True)):
        lane.open(builder, partition)
    assert lanes.append(b"v") is None
    assert lanes.partition_of(None) == -1
    lanes.sticky = 4
    assert lanes.append(b"v").batch == 4
    for number in range(100):
        key = b"key %d" % number
        ticket = lanes.append(b"v", key)
        assert ticket.batch == lanes.partition_of(key) == kafka_hashing.murmur2(key) % 2**31 % 6
    assert sum(builder.count for builder in builders) == 101
    for wrong in (-2, 6):
        with pytest.raises(ValueError, match="is not one of 6"):
            lanes.sticky = wrong
    for count in (0, -1, 10**6 + 1):
        with pytest.raises(ValueError, match="a topic has 1 to"):
            loops.TopicLanes(loops.Ticket, count)


texts = st.text(max_size=9)
any_content = st.one_of(
    blobs, texts, st.binary(max_size=9).map(bytearray), st.binary(max_size=9).map(lambda data: memoryview(data))
)
header_values = st.one_of(st.none(), st.binary(max_size=9), texts, st.binary(max_size=9).map(bytearray))
any_headers = st.one_of(
    st.none(),
    st.dictionaries(texts, header_values, max_size=3),
    st.lists(st.tuples(texts, header_values), max_size=3),
    st.lists(st.tuples(texts, header_values), max_size=3).map(tuple),
    st.lists(st.tuples(texts, header_values).map(list), max_size=3),
)


def as_stored(content: Any) -> bytes | None:
    return content.encode() if isinstance(content, str) else None if content is None else bytes(content)


@given(records=st.lists(st.tuples(any_content, any_content, any_headers), min_size=1, max_size=8))
@settings(max_examples=80, deadline=None)
def test_text_and_headers_of_every_kind_are_stored_as_utf8(
    loops: ModuleType, records: list[tuple[Any, Any, Any]]
) -> None:
    lane, builder = loops.Lane(loops.Ticket), loops.BatchBuilder(10**6)
    lane.open(builder, None)
    wanted = []
    for number, (value, key, headers) in enumerate(records):
        assert lane.append(value, key, 5, headers).index == number
        pairs = headers.items() if isinstance(headers, dict) else headers or ()
        wanted.append((as_stored(key), as_stored(value), tuple((name, as_stored(each)) for name, each in pairs)))
    found = [(record.key, record.value, record.headers) for record in decode_batch(builder.build())]
    assert found == wanted


def test_text_that_is_not_unicode_is_rejected_and_nothing_is_appended(loops: ModuleType) -> None:
    lane, builder = loops.Lane(loops.Ticket), loops.BatchBuilder(1000)
    lane.open(builder, None)
    for wrong in (
        ("\ud800", None, None),
        (b"v", "\ud800", None),
        (b"v", None, {"\ud800": None}),
        (b"v", None, {"h": "\ud800"}),
    ):
        value, key, headers = wrong
        with pytest.raises(UnicodeEncodeError):
            lane.append(value, key, None, headers)
    assert builder.count == 0


def test_a_named_partition_is_used_whatever_the_key_and_one_that_is_not_there_is_not(loops: ModuleType) -> None:
    lanes = loops.TopicLanes(loops.Ticket, 3)
    for partition, lane in enumerate(lanes.lanes):
        lane.open(loops.BatchBuilder(1000), partition)
    for partition in (0, 1, 2):
        assert lanes.append(b"v", b"key", partition=partition).batch == partition
    for missing in (3, -1, 10**9):
        assert lanes.append(b"v", b"key", partition=missing) is None
    with pytest.raises(TypeError):
        lanes.append(b"v", partition="1")
    assert lanes.partition_of("key") == lanes.partition_of(b"key")


class Sending:
    """A producer's `send` with nothing behind it. `wanted` is what came to the method."""

    def __init__(self, loops: ModuleType, is_compiled: bool) -> None:
        self.lanes = loops.TopicLanes(loops.Ticket, 3, loops.Moment(5))
        self.lanes.sticky = 1
        self.builders = [loops.BatchBuilder(200) for _ in range(3)]
        for partition, lane in enumerate(self.lanes.lanes):
            lane.open(self.builders[partition], partition, loops.Callbacks())
        self._lanes = {"views": self.lanes}
        self.is_compiled = is_compiled
        self.wanted: list[tuple[Any, ...]] = []

    def _plain(
        self, topic: str, value: Any = None, key: Any = None, headers: Any = None, partition: Any = None,
        timestamp_ms: Any = None, on_delivery: Any = None,
    ) -> Any:  # fmt: skip
        """Send."""
        self.wanted.append((topic, value, key, headers, partition, timestamp_ms, on_delivery))
        return "method"


def sender(loops: ModuleType) -> Sending:
    class Sender(Sending):
        send = loops.lanes_first(Sending._plain)

    return Sender(loops, loops is not python_kernel)


def test_send_goes_into_the_lanes_and_to_the_method_only_when_it_has_to(loops: ModuleType) -> None:
    producer: Any = sender(loops)
    started_ms = time.time_ns() // 1_000_000
    good: list[tuple[tuple[Any, ...], dict[str, Any], int]] = [
        (("views",), {}, 1),
        (("views", b"v"), {}, 1),
        (("views", "text", "key"), {}, producer.lanes.partition_of(b"key")),
        (("views", b"v"), {"partition": 2, "key": b"k"}, 2),
        (("views",), {"value": b"v", "headers": [("h", b"x")], "timestamp_ms": 7, "partition": 0}, 0),
        (("views", b"v", None, {"h": "x"}, 0, 8, print), {}, 0),
    ]
    for arguments, named, partition in good:
        ticket = producer.send(*arguments, **named)
        assert ticket == "method" if not producer.is_compiled else ticket.batch == partition
    assert len(producer.wanted) == (0 if producer.is_compiled else len(good))
    if producer.is_compiled:
        assert sum(builder.count for builder in producer.builders) == len(good)
        stamps = [record.timestamp for record in decode_batch(producer.builders[1].build())]
        assert all(started_ms <= stamp <= time.time_ns() // 1_000_000 for stamp in stamps)
        stamps = [record.timestamp for record in decode_batch(producer.builders[0].build())]
        assert stamps[-2:] == [7, 8]


def test_send_gives_the_method_what_the_lanes_do_not_take_and_appends_nothing(loops: ModuleType) -> None:
    producer: Any = sender(loops)
    given = iter([("h", b"x")])
    odd: list[dict[str, Any]] = [
        {"topic": "unknown"}, {"value": 5}, {"key": 1.5}, {"partition": "2"}, {"partition": 9}, {"partition": 2**70},
        {"value": "\ud800"}, {"timestamp_ms": 2**70}, {"timestamp_ms": "now"}, {"on_delivery": 7},
        {"headers": {"h": 1}}, {"headers": given}, {"value": b"v" * 300, "key": b"full"},
    ]  # fmt: skip
    for builder in producer.builders:
        builder.append(5, None, b"first")
    for arguments in odd:
        assert producer.send(**{"topic": "views", **arguments}) == "method"
    names = ("topic", "value", "key", "headers", "partition", "timestamp_ms", "on_delivery")
    assert producer.wanted == [tuple({"topic": "views", **arguments}.get(name) for name in names) for arguments in odd]
    assert next(given) == ("h", b"x")
    assert [builder.count for builder in producer.builders] == [1, 1, 1]


def test_send_looks_like_the_method(loops: ModuleType) -> None:
    send = loops.lanes_first(Sending._plain)
    assert (send.__name__, send.__doc__) == ("_plain", "Send.")
    assert inspect.signature(send) == inspect.signature(Sending._plain)
    producer: Any = sender(loops)
    with pytest.raises(TypeError, match="positional argument"):
        producer.send()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        producer.send("views", colour=1)

    class Louder(type(producer)):  # type: ignore[misc]
        def send(self, topic: str, value: bytes) -> Any:
            return super().send(topic, value + b"!")

    louder: Any = Louder(loops, producer.is_compiled)
    louder.send("views", b"v")
    assert louder.wanted or decode_batch(louder.builders[1].build())[0].value == b"v!"


def test_callbacks_are_kept_in_the_order_of_the_records_and_taken_once(loops: ModuleType) -> None:
    lane, callbacks = loops.Lane(loops.Ticket), loops.Callbacks()
    lane.open(loops.BatchBuilder(90), "batch", callbacks)
    assert lane.append(b"a", on_delivery=print).index == 0
    assert lane.append(b"b").index == 1
    assert lane.append(b"c" * 99, on_delivery=print) is None
    assert lane.append(b"d", on_delivery=repr).index == 2
    assert callbacks.add("argument", len)
    assert callbacks.take() == [0, print, 2, repr, "argument", len]
    assert callbacks.take() == []
    assert not callbacks.add("late", len)
    bare = loops.Lane(loops.Ticket)
    bare.open(loops.BatchBuilder(90), "batch")
    with pytest.raises(ValueError, match="opened without callbacks"):
        bare.append(b"a", on_delivery=print)
    assert bare.builder.count == 0


def test_records_in_a_row_that_share_a_callback_are_kept_as_one(loops: ModuleType) -> None:
    lane, callbacks = loops.Lane(loops.Ticket), loops.Callbacks()
    callbacks.add(0, print)  # of the record that opened the batch
    builder = loops.BatchBuilder(10**6)
    builder.append(5, None, b"v")
    lane.open(builder, "batch", callbacks)
    for _ in range(1000):
        lane.append(b"v", on_delivery=print)
    lane.append(b"v")
    lane.append(b"v", on_delivery=print)
    lane.append(b"v", on_delivery=repr)
    assert callbacks.take() == [range(1001), print, 1002, print, 1003, repr]


arguments_of_callbacks = st.one_of(st.integers(0, 4), st.sampled_from([None, "delivery"]))


@given(added=st.lists(st.tuples(arguments_of_callbacks, st.integers(0, 1)), max_size=12))
@settings(max_examples=200, deadline=None)
def test_both_kernels_keep_the_same_callbacks(kernel: ModuleType, added: list[tuple[Any, int]]) -> None:
    two = (print, repr)
    taken = []
    for loops in (kernel, python_kernel):
        callbacks = loops.Callbacks()
        for argument, which in added:
            assert callbacks.add(argument, two[which])
        taken.append(callbacks.take())
    assert taken[0] == taken[1]
    called: list[tuple[Any, int]] = []
    for argument, callback in zip(taken[0][::2], taken[0][1::2], strict=True):
        called += [(each, two.index(callback)) for each in (argument if isinstance(argument, range) else [argument])]
    assert called == added


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int


class Stamps:
    """Two records for each timestamp."""

    def run_at(self, index: int) -> tuple[int, int, int]:
        return index // 2 * 100, index // 2 * 2, index // 2 * 2 + 2


@pytest.mark.parametrize("stamps", [7, Stamps()])
def test_callbacks_of_stored_records_get_their_metadata(loops: ModuleType, stamps: Any) -> None:
    seen: list[tuple[Any, ...]] = []

    def note(*arguments: Any) -> None:
        seen.append(arguments)

    stored = (Place, "views", 2, 40, stamps)
    loops.run_callbacks([range(3), note, None, note, 3, note, "delivery", note], stored, pytest.fail, pytest.fail)
    stamp = [7] * 4 if stamps == 7 else [0, 0, 100, 100]
    places = [Place("views", 2, 40 + index, stamp[index]) for index in range(4)]
    assert seen == [(None, places[0]), (None, places[1]), (None, places[2]), (), (None, places[3]), ("delivery",)]
    assert {type(arguments[1]) for arguments in seen if len(arguments) == 2} == {Place}


def test_callbacks_of_records_that_are_not_stored_get_what_is_reported(loops: ModuleType) -> None:
    seen: list[tuple[Any, ...]] = []

    def note(*arguments: Any) -> None:
        seen.append(arguments)

    loops.run_callbacks([range(2), note, 5, note], None, lambda index: ("error", index), pytest.fail)
    assert seen == [("error", 0), ("error", 1), ("error", 5)]


def test_what_a_callback_raises_is_reported_and_the_others_run_unless_it_is_an_interrupt(loops: ModuleType) -> None:
    seen: list[Any] = []

    def fail(error: Any, place: Any) -> None:
        seen.append(place.offset)
        raise (ValueError, SystemExit, KeyboardInterrupt)[place.offset]

    def report() -> None:
        seen.append(sys.exc_info()[0])

    def fail_too() -> None:
        raise ValueError

    stored = (Place, "views", 2, 0, 7)
    with pytest.raises(KeyboardInterrupt):
        loops.run_callbacks([None, fail_too, range(4), fail], stored, pytest.fail, report)
    assert seen == [ValueError, 0, ValueError, 1, SystemExit, 2]


@pytest.mark.long
def test_what_threads_add_to_callbacks_is_taken_or_rejected(loops: ModuleType) -> None:
    rounds = [loops.Callbacks(threading.Lock()) for _ in range(200)]
    added: list[list[int]] = [[] for _ in range(3)]

    def add(worker: int) -> None:
        for number, callbacks in enumerate(rounds):
            while callbacks.add(number, print):
                added[worker].append(number)

    threads = [threading.Thread(target=add, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    arguments = [argument for callbacks in rounds for argument in callbacks.take()[::2]]
    for thread in threads:
        thread.join()
    taken = [number for each in arguments for number in (each if isinstance(each, range) else [each])]
    assert sorted(taken) == sorted(number for each in added for number in each)


def test_threads_in_one_lane_lose_and_double_nothing(loops: ModuleType) -> None:
    kind = ticket_class(loops)
    guard = threading.RLock()
    lane, slow, batches = loops.Lane(kind, None, guard), threading.Lock(), []

    def open_next() -> None:
        batch = lane.close()
        if batch is not None:
            batches.append(batch)
        builder = loops.BatchBuilder(700)
        lane.open(builder, builder)

    def send(worker: int, sent: list[tuple[Any, bytes]]) -> None:
        for number in range(400):
            value = b"%d/%d" % (worker, number)
            ticket = lane.append(value)
            while ticket is None:
                with slow:
                    ticket = lane.append(value)
                    if ticket is None:
                        open_next()
            sent.append((ticket, value))

    results: list[list[tuple[Any, bytes]]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=send, args=(i, results[i])) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batches.append(lane.close())
    stored = {id(batch): decode_batch(batch.build()) for batch in batches}
    assert sum(len(records) for records in stored.values()) == 1600
    for sent in results:
        for ticket, value in sent:
            assert stored[id(ticket.batch)][ticket.index].value == value


def test_the_collector_ignores_uncollected_tickets_and_they_leak_nothing(kernel: ModuleType) -> None:
    kind = kernel.uncollected(ticket_class(kernel))
    lane = kernel.Lane(kind)
    lane.open(kernel.BatchBuilder(10**6), batch := object())
    ticket = lane.append(b"v")
    assert type(ticket) is kind
    assert not gc.is_tracked(ticket)
    counted = gc.get_count()[0]
    kept = [lane.append(b"v") for _ in range(300)]
    assert gc.get_count()[0] - counted < 100
    references = sys.getrefcount(batch), sys.getrefcount(kind)
    del kept
    assert (sys.getrefcount(batch), sys.getrefcount(kind)) == (references[0] - 300, references[1] - 300)

    class Further(kind):  # type: ignore[misc, valid-type]
        """With a dictionary."""

    further = kernel.Lane(Further)
    further.open(kernel.BatchBuilder(1000), batch)
    ticket = further.append(b"v")
    ticket.own = ticket
    assert gc.is_tracked(ticket)


def test_only_tickets_without_fields_of_their_own_are_uncollected(loops: ModuleType) -> None:
    class WithField(loops.Ticket):  # type: ignore[misc, name-defined]
        __slots__ = ("extra",)

    class WithDictionary(loops.Ticket):  # type: ignore[misc, name-defined]
        pass

    for wrong in (WithField, WithDictionary):
        with pytest.raises(TypeError, match="has fields of its own"):
            loops.uncollected(wrong)
    with pytest.raises(TypeError, match="a subclass of Ticket is needed"):
        loops.uncollected(int)
    kind = ticket_class(loops)
    assert loops.uncollected(kind) is kind


def test_lanes_and_builders_leak_no_memory(loops: ModuleType) -> None:
    kind = ticket_class(loops)

    def work(times: int) -> None:
        for _ in range(times):
            lanes = loops.TopicLanes(kind, 2)
            for lane in lanes.lanes:
                builder = loops.BatchBuilder(300)
                lane.open(builder, builder, loops.Callbacks())
            for number in range(30):
                lanes.append(b"v" * 20, b"%d" % number, None, [("h", b"x")])
                lanes.append("text ü", "ü", None, {"h": "ü"}, 1, print)
            with suppress(TypeError):
                lanes.append(5)
            for lane in lanes.lanes:
                lane.close().build(codec=Codec.GZIP)

    work(5)
    gc.collect()
    tracemalloc.start()
    grown = []
    try:
        work(5)
        for _ in range(3):
            before = tracemalloc.get_traced_memory()[0]
            work(40)
            gc.collect()
            grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    # A leak grows every time; what else lives in the process may do so once.
    assert min(grown) < 10_000


def test_types_may_name_what_they_hold(loops: ModuleType) -> None:
    for kind in (loops.Lane, loops.TopicLanes):
        assert kind[loops.Ticket].__origin__ is kind
    assert loops.ConsumerRecord[str, bytes].__origin__ is loops.ConsumerRecord
