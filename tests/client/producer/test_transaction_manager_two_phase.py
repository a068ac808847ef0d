"""Two-phase commit (KIP-939) on our own broker: a prepared transaction has no time-out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Consumer, PreparedTransaction, Producer
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {
        "transaction.two.phase.commit.enable": "true",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "20",
    }
    with EmbeddedBroker(settings=settings) as embedded:
        yield embedded


def prepare(broker: EmbeddedBroker, name: str, **options: Any) -> PreparedTransaction:
    """A transaction whose time-out is over as soon as it is prepared."""
    with Producer(broker.address, transactional_id=name, transaction_timeout_ms=1, **options) as producer:
        producer.begin_transaction()
        producer.send("views", name.encode()).result(PATIENCE_S)
        return producer.prepare_transaction()


def test_what_is_prepared_in_two_phases_outlives_its_time_out(broker: EmbeddedBroker) -> None:
    broker.create_topic("views", 1)
    with Admin(broker.address) as admin:
        kept = prepare(broker, "kept", transaction_two_phase_commit=True)
        # Begun later, and without two phases; when its time is over, that of the first one would be, too.
        with Producer(broker.address, transactional_id="lost", transaction_timeout_ms=1) as producer:
            producer.begin_transaction()
            producer.send("views", b"lost")
            until(lambda: admin.describe_transaction("lost").state == "CompleteAbort", "it is aborted")
        admin.end_transaction(kept, commit=True)
    with Consumer(
        "views", bootstrap_servers=broker.address, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        assert next(consumer).value == b"kept"
