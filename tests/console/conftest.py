"""A broker with topics and groups, and a console for it, once for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.visitor import Visitor, console

from penstock.client.admin import Admin
from penstock.client.producer import Producer
from penstock.testing import Broker

SCRIPT = b'<script>alert("x")</script>'


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0) as found:
        with Admin(found.address) as admin, Producer(found.address) as producer:
            admin.create_topic("views", exist_ok=True)
            found.create_topic("orders", 3)
            found.create_topic("empty")
            for number in range(300):
                value = b'{"user": {"id": "u%d"}, "n": %d}' % (number, number)
                producer.send("orders", value, key=b"k%d" % number, partition=number % 3)
            producer.send(
                "views", SCRIPT, key=b'"><img src=x onerror=alert(1)>', headers=[("<b>name</b>", b"<i>header</i>")]
            )
            producer.flush()
            admin.set_group_offsets("billing", {("orders", 0): 40, ("orders", 1): 100})
            admin.set_group_offsets("<img src=x onerror=alert(2)>/..?&#", {("orders", 0): 1})
        yield found


@pytest.fixture(scope="session")
def shared_visitor(broker: Broker) -> Iterator[Visitor]:
    with console(broker.address, http_urls=(f"http://127.0.0.1:{broker.http_port}",)) as found:
        yield found


@pytest.fixture
def visitor(shared_visitor: Visitor) -> Visitor:
    """A new browser at the console."""
    return Visitor(shared_visitor.port)
