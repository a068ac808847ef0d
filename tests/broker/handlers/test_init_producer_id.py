"""InitProducerId over a socket: ids and epochs of idempotent and transactional producers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.transactional_client import (
    FEW_PARTITIONS,
    Transactional,
    committed_values,
    find_transaction_coordinator,
    init,
    unique_id,
)
from tests.broker.wire_client import WireClient, make_topic
from tests.timeouts import until

from penstock.broker.broker import Broker
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest

MAX_TIMEOUT_MS = 5_000


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {**FEW_PARTITIONS, "transaction.max.timeout.ms": str(MAX_TIMEOUT_MS)}


def started(client: WireClient) -> Transactional:
    return Transactional(client, timeout_ms=1_000).start()


def request_of(producer: Transactional) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=producer.transactional_id,
        transaction_timeout_ms=1_000,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


@pytest.mark.parametrize("version", range(7))
def test_every_version_gives_a_transactional_producer_the_next_epoch(client: WireClient, version: int) -> None:
    name = unique_id()
    find_transaction_coordinator(client, name)
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000)
    first, second = init(client, request, version), init(client, request, version)
    assert (first.error_code, first.producer_epoch, second.error_code, second.producer_epoch) == (0, 0, 0, 1)
    assert first.producer_id == second.producer_id >= 0


@pytest.mark.parametrize("version", range(7))
def test_idempotent_producers_have_different_ids(client: WireClient, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    answers = [init(client, request, version) for _ in range(3)]
    assert [each.error_code for each in answers] == [0, 0, 0]
    assert len({each.producer_id for each in answers}) == 3


@pytest.mark.parametrize("timeout_ms", [-1, 0, MAX_TIMEOUT_MS + 1, 2**31 - 1])
def test_a_timeout_beyond_the_brokers_is_rejected(client: WireClient, timeout_ms: int) -> None:
    name = unique_id()
    find_transaction_coordinator(client, name)
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    assert init(client, request).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    request.transaction_timeout_ms = MAX_TIMEOUT_MS
    assert init(client, request).error_code == 0


def test_an_empty_transactional_id_is_rejected(client: WireClient) -> None:
    request = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1_000)
    assert init(client, request).error_code == ErrorCode.INVALID_REQUEST


def test_a_producer_that_names_its_epoch_continues_and_a_fenced_one_does_not(client: WireClient) -> None:
    """KIP-360."""
    producer = started(client)
    first = request_of(producer)
    answer = init(client, first, 3)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, producer.producer_id, 1)
    repeated = init(client, first, 3)
    assert (repeated.error_code, repeated.producer_epoch) == (0, 1), "its response was lost: the epoch stays"
    Transactional(client, producer.transactional_id, timeout_ms=1_000).start()
    assert init(client, first, 3).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert init(client, first, 4).error_code == ErrorCode.PRODUCER_FENCED
    first.producer_id += 1
    assert init(client, first, 4).error_code == ErrorCode.PRODUCER_FENCED


def test_a_producer_that_starts_again_aborts_what_it_left_open(client: WireClient, broker: Broker) -> None:
    topic = make_topic(broker)
    producer = started(client)
    assert producer.write(topic, b"unfinished") == 0
    answer = init(client, request_of(producer), 5)
    assert answer.error_code == 0
    assert answer.producer_epoch > producer.epoch
    producer.take(answer.producer_id, answer.producer_epoch)
    producer.transact(topic, b"again")
    until(lambda: committed_values(client, topic) == [b"again"], "only what followed")


def test_two_phase_commit_needs_its_setting(client: WireClient) -> None:
    """KIP-939."""
    name = unique_id()
    find_transaction_coordinator(client, name)
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000, enable2_pc=True)
    assert init(client, request, 6).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_prepared_transaction_is_kept_and_only_its_new_producer_ends_it() -> None:
    settings = {**FEW_PARTITIONS, "transaction.two.phase.commit.enable": "true"}
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        name = unique_id()
        find_transaction_coordinator(client, name)
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000, enable2_pc=True)
        answer = init(client, request, 6)
        assert (answer.error_code, answer.ongoing_txn_producer_id) == (0, -1)
        old = Transactional(client, name)
        old.take(answer.producer_id, answer.producer_epoch)
        assert old.write(topic, b"prepared") == 0
        request.keep_prepared_txn = True
        kept = init(client, request, 6)
        assert (kept.error_code, kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == (
            0,
            old.producer_id,
            old.epoch,
        )
        assert old.commit() == ErrorCode.PRODUCER_FENCED
        new = Transactional(client, name)
        new.take(kept.producer_id, kept.producer_epoch)
        assert new.commit() == 0
        until(lambda: committed_values(client, topic) == [b"prepared"], "it is committed")
        new.transact(topic, b"next")
        until(lambda: committed_values(client, topic) == [b"prepared", b"next"], "and so is the next")
