"""A real broker inside the test process, on its own thread and event loop.

    with EmbeddedBroker() as broker:
        producer = AnyKafkaClient(broker.address)

Its public name is `penstock.testing.Broker`. It is `penstock.Broker` with two settings for tests: a new group does not
wait for further members, and retention is applied once a day only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from penstock.embedded_broker import EmbeddedBroker as _EmbeddedBroker

_DAY_MS: Final = 86_400_000
_FOR_TESTS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    # Tests write old timestamps; retention would delete their records at a random moment.
    "log.retention.check.interval.ms": str(_DAY_MS),
}


class EmbeddedBroker(_EmbeddedBroker):
    """A broker for tests. `settings` have Kafka's names, as in server.properties."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        http_port: int | None = None,
        http_host: str = "127.0.0.1",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            data_dir,
            port=port,
            http_port=http_port,
            http_host=http_host,
            settings={**_FOR_TESTS, **(settings or {})},
        )
