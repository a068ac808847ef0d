"""Quotas as a broker enforces them.

A client over its quota gets the response at once, with `throttle_time_ms`, and the connection's next requests wait that
long (KIP-219): a client that ignores the field is held back all the same. Kafka answers an excessive Fetch without
records; here the records are sent and the wait follows, and a response is limited to what the quota allows in all of
its windows. Brokers are never held back.

`request_percentage` counts the time of the event loop that requests take until their handlers return: 100 is all of it.
What a request took counts for the next response.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker.errors import ApiError
from penstock.security.principal import Session
from penstock.security.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Quotas,
    QuotaTable,
)
from penstock.wire.framing import chunk_size
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.fetch import FetchResponse

if TYPE_CHECKING:
    from penstock.broker.request import Channel, Request, Services
    from penstock.cluster.image import ClusterImage

Key = TypeVar("Key", bound=Hashable)

MUTATIONS_EXCEEDED: Final = ApiError(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    "the quota controller_mutation_rate is exceeded; try again after throttle_time_ms",
)
_PERCENT: Final = 100.0


class Throttling:
    """The quotas of one broker, enforced on its connections."""

    def __init__(self, services: Services, windows: int, window_ms: float) -> None:
        self.quotas = Quotas(windows, window_ms)
        self._services = services
        registry = services.metrics.registry
        self._throttled_seconds = registry.counters(
            "kafka_server_throttle_seconds_total", "Time for which connections were held back by quotas.", "quota"
        )
        self._rejected_connections = registry.counter(
            "kafka_server_connection_rate_rejected_total",
            "Connections beyond the rate of their address.",
        )

    def follow(self, image: ClusterImage) -> None:
        self.quotas.set_table(QuotaTable(image.users, image.clients, image.user_clients, image.ips))

    # --- connections

    def admits(self, address: str) -> bool:
        """Whether a new connection of this address is within its quota."""
        if self.quotas.connected(address, self._now_ms()):
            return True
        self._rejected_connections.add()
        return False

    # --- requests

    def begin(self, request: Request) -> None:
        """Before a request is handled."""
        if request.api_key == ApiKey.FETCH:
            most = self.quotas.max_bytes(CONSUMER_BYTE_RATE, *_who(request.session, request.client_id))
            if most is not None:
                request.message.max_bytes = min(request.message.max_bytes, most)

    def handled(self, request: Request, seconds: float) -> None:
        """The handler has returned. `seconds` is the time that it held the event loop."""
        who = _who(request.session, request.client_id)
        self.quotas.record(REQUEST_PERCENTAGE, *who, seconds * _PERCENT, self._now_ms())

    def answered(self, channel: Channel, client_id: str | None, key: int, size: int, message: Any) -> None:
        """A response is about to be sent, to a request of `size` bytes; None if there is none. It gets its
        throttle_time_ms, and the connection is held back.
        """
        quotas, now_ms = self.quotas, self._now_ms()
        who = _who(channel.session, client_id)
        waits = {REQUEST_PERCENTAGE: quotas.throttle_ms(REQUEST_PERCENTAGE, *who, now_ms)}
        if key == ApiKey.PRODUCE:
            waits[PRODUCER_BYTE_RATE] = quotas.record(PRODUCER_BYTE_RATE, *who, size, now_ms)
        elif key == ApiKey.FETCH and isinstance(message, FetchResponse):
            waits[CONSUMER_BYTE_RATE] = quotas.record(CONSUMER_BYTE_RATE, *who, _fetched(message), now_ms)
        # A handler may have set it already: the controller does so for too many changes.
        waits["controller_mutation_rate"] = getattr(message, "throttle_time_ms", 0)
        reason = max(waits, key=lambda each: waits[each])
        wait_ms = int(waits[reason])
        if wait_ms > 0:
            if hasattr(message, "throttle_time_ms"):
                message.throttle_time_ms = wait_ms
            self._throttled_seconds.labelled(quota=reason).add(wait_ms / 1000)
            self._hold(channel, wait_ms)

    def _hold(self, channel: Channel, wait_ms: int) -> None:
        # Each wait ends by its own timer, whatever else mutes the connection meanwhile; a closed one holds nothing.
        channel.mute()
        self._services.call_later(wait_ms / 1000, channel.unmute)

    # --- changes by the controller

    def over_quota(
        self, request: Request, permits: Mapping[Key, int], first_strict_version: int
    ) -> tuple[frozenset[Key], int]:
        """Which of these changes are over the client's quota, and for how many milliseconds it is to wait.

        Versions before `first_strict_version` do not know the error: their changes are made, and the client waits.
        """
        if not self.quotas.is_active or request.session.is_broker:
            return frozenset(), 0
        now_ms = self._now_ms()
        bucket = self.quotas.mutations(*_who(request.session, request.client_id), now_ms)
        if bucket is None:
            return frozenset(), 0
        is_strict = request.version >= first_strict_version
        rejected = frozenset(
            key for key, count in permits.items() if not bucket.take(count, now_ms, force=not is_strict)
        )
        return rejected, int(bucket.throttle_ms(now_ms))

    def _now_ms(self) -> float:
        return self._services.clock.monotonic_ms()


def _who(session: Session, client_id: str | None) -> tuple[str, str]:
    return session.principal.name, client_id or ""


def _fetched(response: FetchResponse) -> int:
    return sum(
        chunk_size(partition.records)
        for topic in response.responses
        for partition in topic.partitions
        if partition.records is not None
    )
