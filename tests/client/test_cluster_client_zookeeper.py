"""Brokers' registrations in ZooKeeper. That a real one is read is a peer test."""

from __future__ import annotations

import threading

import pytest
from tests.client.scripted import run
from tests.timeouts import PATIENCE_S

from penstock.client.addresses import Address
from penstock.client.cluster_client import ClusterClient, endpoint_of
from penstock.client.errors import BootstrapError, Cause
from penstock.runtime.network import PortReservation

NEW = b"""{"version": 5, "host": null, "port": -1, "endpoints": ["INSIDE://10.0.0.1:9092", "OUTSIDE://b.example:9093"],
"listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "SSL"}}"""


@pytest.mark.parametrize(
    ("document", "with_tls", "address"),
    [
        (b'{"version": 1, "host": "a", "port": 9092}', False, ("a", 9092)),
        (b'{"version": 1, "host": "a", "port": 9092}', True, None),
        (b'{"host": "a", "port": 1, "endpoints": ["PLAINTEXT://[::1]:9092"]}', False, ("::1", 9092)),
        (NEW, False, ("10.0.0.1", 9092)),
        (NEW, True, ("b.example", 9093)),
        (b'{"endpoints": ["PLAINTEXT://:x"], "host": "a", "port": 5}', False, ("a", 5)),
        (b"", False, None),
        (b"\xff", False, None),
        (b"[]", False, None),
        (b'{"host": 5, "port": "x"}', False, None),
    ],
)
def test_the_endpoint_that_fits(document: bytes, with_tls: bool, address: tuple[str, int] | None) -> None:
    expected = None if address is None else Address(*address)
    assert endpoint_of(document, with_tls=with_tls) == expected


def test_no_zookeeper_there_is_an_attempt_with_its_cause() -> None:
    async def story() -> None:
        with pytest.raises(BootstrapError) as caught:
            await ClusterClient(f"zookeeper://127.0.0.1:{reservation.port}/kafka", connect_timeout_ms=300).start()
        (attempt,) = caught.value.attempts
        assert attempt.cause is Cause.ZOOKEEPER
        assert attempt.address == f"zookeeper://127.0.0.1:{reservation.port}/kafka"
        assert "within 300 ms" in attempt.detail

    reservation = PortReservation("127.0.0.1", 0)
    before = set(threading.enumerate())
    run(story())
    reservation.release()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
