"""Transactions against any broker: what a transaction writes is seen as a whole or not at all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.contract.contract import (
    Capabilities,
    MakeTopic,
    fill_all,
    librdkafka_reader,
    new_group,
    new_name,
    partitions_of,
    reader,
    take,
    texts,
    values,
)
from tests.timeouts import PATIENCE_S, until

from penstock import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    GroupMetadata,
    PreparedTransaction,
    Producer,
    TopicPartition,
    errors,
)

FIXTURES = ("has_transactions",)


@pytest.fixture
def has_transactions(capabilities: Capabilities) -> None:
    """Used by all stories: see the end of this file."""
    capabilities.need("transactions")


def transactional(bootstrap: str, name: str | None = None, **options: Any) -> Producer:
    return Producer(bootstrap, transactional_id=name or new_name("tx"), **options)


def committed(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[bytes]:
    """The first committed values of a partition; fewer if there are no more by its end.

    Kafka's brokers answer the end of a transaction before its markers are written.
    """
    with Admin(bootstrap) as admin:
        ending = ["PrepareCommit", "PrepareAbort"]
        until(lambda: not admin.list_transactions(ending), "ended transactions have their markers", PATIENCE_S)
    with reader(bootstrap, isolation_level="read_committed", consumer_timeout_ms=None) as consumer:
        consumer.assign([(topic, partition)])
        found: list[bytes] = []
        (end,) = consumer.end_offsets([(topic, partition)]).values()
        while len(found) < count and consumer.position((topic, partition)) < end:
            for records in consumer.poll(timeout=0.2).values():
                found += values(records)
        return found


# --- commit and abort


def test_a_transaction_is_seen_when_it_is_committed_and_not_before(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    with transactional(bootstrap) as producer:
        producer.begin_transaction()
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=number % 2).result(PATIENCE_S)
        assert committed(bootstrap, topic, 1) == []
        producer.commit_transaction()
        assert committed(bootstrap, topic, 5, 0) == [b"0", b"2", b"4", b"6", b"8"]
        assert committed(bootstrap, topic, 5, 1) == [b"1", b"3", b"5", b"7", b"9"]


def test_an_aborted_transaction_is_never_seen_and_the_next_one_is(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer:
        for number in range(6):
            producer.begin_transaction()
            producer.send_many(topic, [b"%d.%d" % (number, each) for each in range(3)]).result(PATIENCE_S)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    expected = [b"%d.%d" % (number, each) for number in (0, 2, 4) for each in range(3)]
    assert committed(bootstrap, topic, len(expected)) == expected
    confluent = pytest.importorskip("confluent_kafka")
    with librdkafka_reader(bootstrap, capabilities, isolation_level="read_committed") as other:
        other.assign([confluent.TopicPartition(topic, 0, 0)])
        seen: list[bytes] = []
        while len(seen) < len(expected):
            seen += [message.value() for message in other.consume(10, 0.2)]
        assert seen == expected


def test_records_that_were_not_sent_when_a_transaction_is_aborted_fail(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with transactional(bootstrap, linger_ms=60_000) as producer:
        producer.begin_transaction()
        waiting = producer.send(topic, b"never sent")
        producer.abort_transaction()
        with pytest.raises(errors.TransactionAborted) as raised:
            waiting.result(PATIENCE_S)
        assert raised.value.advice is errors.Advice.ABORT
        with producer.transaction():
            producer.send(topic, b"sent")
    assert committed(bootstrap, topic, 1) == [b"sent"]


def test_all_ways_to_send_take_part_in_a_transaction(bootstrap: str, make_topic: MakeTopic) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    topic = make_topic()
    with transactional(bootstrap) as producer:
        for ending in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for number in range(8):  # waiting for one at a time ends in direct sending
                producer.send(topic, b"one %d" % number).result(PATIENCE_S)
            producer.send_many(topic, texts(3))
            producer.send_arrow(topic, pyarrow.table({"value": [b"row 0", b"row 1"]}))
            ending()
    expected = [*(b"one %d" % number for number in range(8)), *texts(3), b"row 0", b"row 1"]
    assert committed(bootstrap, topic, len(expected)) == expected


def test_a_transaction_of_many_large_batches_is_complete(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    with transactional(bootstrap, batch_size=2_000, compression_type="gzip") as producer:
        for first in (0, 5_000):
            with producer.transaction():
                for partition in range(3):
                    producer.send_many(topic, texts(5_000, first), partition=partition)
    for partition in range(3):
        assert committed(bootstrap, topic, 10_000, partition) == texts(10_000)


def test_an_empty_transaction_ends_as_any_other(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer, Admin(bootstrap) as admin:
        for _ in range(2):
            with producer.transaction():
                pass
            producer.begin_transaction()
            producer.abort_transaction()
        producer.begin_transaction()
        nothing = producer.prepare_transaction()
        admin.end_transaction(nothing, commit=True)
        producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"x")
    assert committed(bootstrap, topic, 1) == [b"x"]


def test_a_block_that_raises_aborts_its_transaction(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012 - it is about the block
            producer.send(topic, b"no").result(PATIENCE_S)
            raise ZeroDivisionError
        with producer.transaction() as same:
            assert same is producer
            producer.send(topic, b"yes")
    assert committed(bootstrap, topic, 1) == [b"yes"]


def test_closing_the_producer_aborts_its_open_transaction(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer:
        producer.begin_transaction()
        producer.send(topic, b"half").result(PATIENCE_S)
    with transactional(bootstrap) as other, other.transaction():
        other.send(topic, b"whole")
    assert committed(bootstrap, topic, 1) == [b"whole"]


def test_transactions_of_the_asyncio_producer(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()

    async def story() -> None:
        async with AsyncProducer(bootstrap, transactional_id=new_name("tx")) as producer:
            async with producer.transaction():
                producer.send_nowait(topic, b"1")  # the topic is not known yet
                await producer.send(topic, b"2")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it is about the block
                async with producer.transaction():
                    await producer.send(topic, b"no")
                    raise ZeroDivisionError
            with pytest.raises(errors.InvalidTransactionState):
                await producer.send(topic, b"outside")
            await producer.begin_transaction()
            await producer.send_many(topic, [b"3", b"4"])
            prepared = await producer.prepare_transaction()
        async with AsyncAdmin(bootstrap) as admin:
            await admin.end_transaction(prepared, commit=True)

    asyncio.run(story())
    assert committed(bootstrap, topic, 4) == [b"1", b"2", b"3", b"4"]


# --- what is not allowed


def test_sending_outside_of_a_transaction_is_rejected(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer:
        sends: list[Callable[[], object]] = [
            lambda: producer.send(topic, b"x"),
            lambda: producer.send_many(topic, [b"x"]),
            lambda: producer.send_offsets_to_transaction({(topic, 0): 1}, "group"),
            producer.commit_transaction,
            producer.abort_transaction,
            producer.prepare_transaction,
        ]
        for send in sends:
            with pytest.raises(errors.InvalidTransactionState, match="begin_transaction"):
                send()
        with producer.transaction():
            producer.send(topic, b"in")
            with pytest.raises(errors.InvalidTransactionState, match="begin_transaction"):
                producer.begin_transaction()
        with pytest.raises(errors.InvalidTransactionState, match="between transactions"):
            producer.send(topic, b"x")  # by the fast path, since the topic is known
    assert committed(bootstrap, topic, 1) == [b"in"]


def test_a_producer_without_an_id_has_no_transactions(bootstrap: str) -> None:
    with Producer(bootstrap) as producer, pytest.raises(errors.ConfigError, match="transactional_id"):
        producer.begin_transaction()


def test_a_record_that_fails_makes_the_transaction_fail_and_the_next_one_works(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, small = make_topic(), make_topic(config={"max.message.bytes": "1000"})
    with transactional(bootstrap) as producer:
        for round_number in range(2):
            producer.begin_transaction()
            producer.send(topic, b"lost %d" % round_number).result(PATIENCE_S)
            too_large = producer.send(small, b"x" * 5_000)
            with pytest.raises(errors.RecordTooLarge):
                too_large.result(PATIENCE_S)
            with pytest.raises(errors.AbortableTransactionError, match="abort_transaction") as raised:
                producer.commit_transaction()
            assert isinstance(raised.value.__cause__, errors.RecordTooLarge)
            with pytest.raises(errors.AbortableTransactionError):
                producer.send(topic, b"x")
            producer.abort_transaction()
            with producer.transaction():
                producer.send(topic, b"kept %d" % round_number)
                producer.send(small, b"kept %d" % round_number)
        with pytest.raises(errors.AbortableTransactionError), producer.transaction():
            producer.send(small, b"x" * 5_000)
        with producer.transaction():
            producer.send(topic, b"last")
    assert committed(bootstrap, topic, 3) == [b"kept 0", b"kept 1", b"last"]
    assert committed(bootstrap, small, 2) == [b"kept 0", b"kept 1"]


def test_a_newer_producer_ends_the_transaction_of_the_older_and_fences_it(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, name = make_topic(), new_name("tx")
    with transactional(bootstrap, name) as older, transactional(bootstrap, name) as newer:
        older.begin_transaction()
        older.send(topic, b"older").result(PATIENCE_S)
        with newer.transaction():
            newer.send(topic, b"newer")
        with pytest.raises(errors.ProducerFenced) as raised:
            older.commit_transaction()
        assert raised.value.advice is errors.Advice.STOP
        assert "new one" in raised.value.hint
        for call in (older.begin_transaction, older.abort_transaction, lambda: older.send(topic, b"x")):
            with pytest.raises(errors.ProducerFenced):
                call()
        with newer.transaction():
            newer.send(topic, b"again")
    assert committed(bootstrap, topic, 2) == [b"newer", b"again"]


def test_a_record_of_a_fenced_producer_fails_its_transaction(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, name = make_topic(), new_name("tx")
    with transactional(bootstrap, name) as older, transactional(bootstrap, name) as newer:
        older.begin_transaction()
        older.send(topic, b"older").result(PATIENCE_S)
        with newer.transaction():
            newer.send(topic, b"newer")
        with pytest.raises(errors.PenstockError):
            older.send(topic, b"late").result(PATIENCE_S)
        with pytest.raises((errors.AbortableTransactionError, errors.ProducerFenced)):
            older.commit_transaction()
    assert committed(bootstrap, topic, 1) == [b"newer"]


def test_transactions_that_may_last_too_long_are_rejected_at_the_first_begin(bootstrap: str) -> None:
    with (
        transactional(bootstrap, transaction_timeout_ms=2**31 - 1) as producer,
        pytest.raises(errors.BrokerError, match="transaction_timeout_ms"),
    ):
        producer.begin_transaction()


# --- two phases

_END = """
import sys
from penstock import Admin, PreparedTransaction
bootstrap, prepared, commit = sys.argv[1:]
with Admin(bootstrap) as admin:
    admin.end_transaction(PreparedTransaction.from_json(prepared), commit == "commit")
"""


def end_elsewhere(bootstrap: str, prepared: PreparedTransaction, decision: str) -> None:
    subprocess.run(
        [sys.executable, "-c", _END, bootstrap, prepared.to_json(), decision], check=True, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_a_prepared_transaction_is_ended_by_another_process(
    bootstrap: str, make_topic: MakeTopic, decision: str
) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer:
        producer.begin_transaction()
        producer.send_many(topic, texts(100))
        prepared = producer.prepare_transaction()
        with pytest.raises(errors.InvalidTransactionState, match="prepared"):
            producer.send(topic, b"too late")
    assert committed(bootstrap, topic, 1) == []
    end_elsewhere(bootstrap, prepared, decision)
    end_elsewhere(bootstrap, prepared, decision)  # once more changes nothing
    with transactional(bootstrap) as other, other.transaction():
        other.send(topic, b"end")
    assert committed(bootstrap, topic, 101) == ([*texts(100), b"end"] if decision == "commit" else [b"end"])


def test_a_prepared_transaction_has_one_end_only(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with Admin(bootstrap) as admin:
        for first, error in ((True, errors.TransactionError), (False, errors.TransactionAborted)):
            with transactional(bootstrap) as producer:
                producer.begin_transaction()
                producer.send(topic, b"x")
                prepared = producer.prepare_transaction()
            admin.end_transaction(prepared, commit=first)
            with pytest.raises(error):
                admin.end_transaction(prepared, commit=not first)
            admin.end_transaction(prepared, commit=first)


def test_a_producer_leaves_its_prepared_transaction_to_others_and_begins_the_next(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with Admin(bootstrap) as admin, transactional(bootstrap) as producer:
        for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, value)
            admin.end_transaction(producer.prepare_transaction(), commit=commit)
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"end")
    assert committed(bootstrap, topic, 3) == [b"1", b"3", b"end"]


def test_a_prepared_transaction_is_aborted_by_the_next_producer_with_its_id(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic, name = make_topic(), new_name("tx")
    with transactional(bootstrap, name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"forgotten")
        prepared = producer.prepare_transaction()
    with transactional(bootstrap, name) as successor:
        with successor.transaction():
            successor.send(topic, b"successor")
        with Admin(bootstrap) as admin, pytest.raises(errors.TransactionOutcomeUnknown):
            admin.end_transaction(prepared, commit=True)
    assert committed(bootstrap, topic, 1) == [b"successor"]


def test_the_producer_may_end_what_it_has_prepared(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer:
        for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            assert producer.prepare_transaction() == producer.prepare_transaction()
            end()
    assert committed(bootstrap, topic, 1) == [b"0"]


# --- reading, processing and writing


def processor(bootstrap: str, topic: str, group: str, **options: Any) -> Consumer[bytes, bytes]:
    return reader(bootstrap, topic, group_id=group, exactly_once=True, **options)


def test_offsets_count_if_the_transaction_is_committed(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(), new_group()
    fill_all(bootstrap, topic, 1, 10)
    with (
        transactional(bootstrap) as producer,
        processor(bootstrap, topic, group) as consumer,
        Admin(bootstrap) as admin,
    ):
        take(consumer, 4)
        assert consumer.group_metadata() == GroupMetadata(group, consumer.generation, consumer.member_id)
        for end, offset in ((producer.abort_transaction, None), (producer.commit_transaction, 4)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(consumer.consumed(), consumer.group_metadata())
            end()
            found = consumer.committed((topic, 0)).get(TopicPartition(topic, 0))
            assert (None if found is None else found.offset) == offset
        assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 4


def test_a_transaction_with_a_consumer_handles_every_record_once_whatever_fails(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """Every third transaction raises, and what it has sent and read counts as never sent and never read."""
    source, target, group = make_topic(3), make_topic(), new_group()
    fill_all(bootstrap, source, 3, 60)
    rounds, done = 0, 0
    with transactional(bootstrap) as producer, processor(bootstrap, source, group) as consumer:
        while done < 180:
            rounds += 1
            try:
                with producer.transaction(consumer=consumer):
                    records = [each for found in consumer.poll(timeout=1, max_records=17).values() for each in found]
                    for record in records:
                        producer.send(target, b"%d:%s" % (record.partition, record.value))
                    if rounds % 3 == 0:
                        raise ZeroDivisionError
                done += len(records)
            except ZeroDivisionError:
                continue
        assert consumer.lag() == dict.fromkeys(partitions_of(source, 3), 0)
    expected = Counter(b"%d:%s" % (partition, value) for partition in range(3) for value in texts(60))
    assert Counter(committed(bootstrap, target, 1_000)) == expected


def test_a_transaction_with_a_consumer_that_is_iterated(bootstrap: str, make_topic: MakeTopic) -> None:
    source, target, group = make_topic(), make_topic(), new_group()
    fill_all(bootstrap, source, 1, 10)
    failures = iter([False, True, False, True, True])
    with transactional(bootstrap) as producer, processor(bootstrap, source, group) as consumer:
        for record in consumer:
            try:
                with producer.transaction(consumer=consumer):
                    producer.send(target, record.value)
                    if next(failures, False):
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
            if record.offset == 9:
                break
    assert committed(bootstrap, target, 100) == texts(10)
    with processor(bootstrap, source, group, consumer_timeout_ms=300) as consumer:
        assert list(consumer) == []


def test_a_transaction_without_a_committed_offset_is_read_again_from_where_it_began(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """With auto_offset_reset=latest the end of the log would be the wrong place."""
    source, group = make_topic(), new_group()
    fill_all(bootstrap, source, 1, 5)
    with (
        transactional(bootstrap) as producer,
        processor(bootstrap, source, group, auto_offset_reset="latest") as consumer,
    ):
        consumer.wait_for_assignment(timeout=PATIENCE_S)
        assert consumer.position((source, 0)) == 5
        fill_all(bootstrap, source, 1, 5, first=5)
        with pytest.raises(ZeroDivisionError), producer.transaction(consumer=consumer):  # noqa: PT012
            assert values(take(consumer, 3)) == texts(3, first=5)
            raise ZeroDivisionError
        assert values(take(consumer, 5)) == texts(5, first=5)


def test_a_transaction_before_the_consumer_has_joined_its_group_is_empty(bootstrap: str, make_topic: MakeTopic) -> None:
    source, target, group = make_topic(), make_topic(), new_group()
    fill_all(bootstrap, source, 1, 1)
    with transactional(bootstrap) as producer, processor(bootstrap, source, group) as consumer:
        found: list[Any] = []
        while not found:
            with producer.transaction(consumer=consumer):
                found = [each for records in consumer.poll().values() for each in records]
                for record in found:
                    producer.send(target, record.value)
    assert committed(bootstrap, target, 1) == texts(1)


def test_offsets_of_a_member_that_was_replaced_fail_the_transaction(bootstrap: str, make_topic: MakeTopic) -> None:
    source, target, group = make_topic(), make_topic(), new_group()
    fill_all(bootstrap, source, 1, 5)
    with transactional(bootstrap) as producer:
        with processor(bootstrap, source, group) as consumer:
            offsets = {TopicPartition(source, 0): take(consumer, 1)[0].offset + 1}
            zombie = consumer.group_metadata()
        with processor(bootstrap, source, group) as successor:
            take(successor, 1)
            producer.begin_transaction()
            producer.send(target, b"by a zombie")
            with pytest.raises(errors.AbortableTransactionError) as raised:
                producer.send_offsets_to_transaction(offsets, zombie)
            assert isinstance(raised.value.__cause__, errors.GroupError)
            with pytest.raises(errors.AbortableTransactionError):
                producer.commit_transaction()
            producer.abort_transaction()
            with producer.transaction():
                producer.send(target, b"next")
    assert committed(bootstrap, target, 1) == [b"next"]


def test_a_consumer_that_does_not_fit_transactions_is_rejected(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with transactional(bootstrap) as producer:
        for options in ({"group_id": new_group()}, {"isolation_level": "read_committed"}):
            with (
                reader(bootstrap, topic, **options) as consumer,
                pytest.raises(errors.ConfigError, match="exactly_once"),
                producer.transaction(consumer=consumer),
            ):
                pass
        with reader(bootstrap, topic, group_id=new_group()) as consumer:
            consumer.wait_for_assignment(timeout=PATIENCE_S)
            producer.begin_transaction()
            with pytest.raises(errors.ConfigError, match="enable_auto_commit"):
                producer.send_offsets_to_transaction({(topic, 0): 1}, consumer)
            producer.abort_transaction()
        foreign: Any = AsyncConsumer(topic, bootstrap_servers=bootstrap, group_id="g", exactly_once=True)
        with pytest.raises(errors.ConfigError, match="not a Consumer"), producer.transaction(consumer=foreign):
            pass
        with producer.transaction():
            producer.send(topic, b"x")


def test_a_transaction_with_the_asyncio_consumer(bootstrap: str, make_topic: MakeTopic) -> None:
    source, target, group = make_topic(), make_topic(), new_group()
    fill_all(bootstrap, source, 1, 10)

    async def story() -> None:
        fails = True
        async with (
            AsyncProducer(bootstrap, transactional_id=new_name("tx")) as producer,
            AsyncConsumer(
                source, bootstrap_servers=bootstrap, group_id=group, exactly_once=True, auto_offset_reset="earliest"
            ) as consumer,
        ):
            done = 0
            while done < 10:
                try:
                    async with producer.transaction(consumer=consumer):
                        found = await consumer.poll(timeout=1, max_records=4)
                        records = [each for some in found.values() for each in some]
                        for record in records:
                            await producer.enqueue(target, record.value)
                        fails = not fails
                        if fails:
                            raise ZeroDivisionError
                    done += len(records)
                except ZeroDivisionError:
                    continue

    asyncio.run(story())
    assert committed(bootstrap, target, 100) == texts(10)


def test_a_reader_of_transactions_reaches_the_end_behind_the_last_marker(bootstrap: str, make_topic: MakeTopic) -> None:
    """The last offsets are markers, which no reader gets: waiting for the record before the end would last forever."""
    topic = make_topic()
    with transactional(bootstrap) as producer:
        for end in (producer.commit_transaction, producer.abort_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send(topic, b"x")
            producer.flush(PATIENCE_S)
            end()
    partition = TopicPartition(topic, 0)
    for level, count in (("read_committed", 1), ("read_uncommitted", 3)):
        with reader(bootstrap, isolation_level=level, consumer_timeout_ms=None) as consumer:
            consumer.assign([partition])
            (end_offset,) = consumer.end_offsets([partition]).values()
            seen = 0
            while consumer.position(partition) < end_offset:
                seen += sum(map(len, consumer.poll(timeout=1).values()))
            assert (seen, consumer.position(partition), consumer.lag()) == (count, 6, {partition: 0})
            consumer.seek(partition, end_offset - 1)
            while consumer.position(partition) < end_offset:
                assert consumer.poll(timeout=1) == {}


for _story in [each for name, each in globals().items() if name.startswith("test_")]:
    pytest.mark.usefixtures("has_transactions")(_story)
