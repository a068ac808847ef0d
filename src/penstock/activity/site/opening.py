"""Before the first event: a broker that answers, topics, a producer.

Rule: a broker that is away is waited for, however long that takes; one that answers and will never do (it wants TLS, it
is no Kafka) is not. The producer gives nothing up for a day, and numbers what it sends: a broker that goes away and
comes back has every event once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.activity.events import KINDS, TRUTH_TOPIC
from penstock.activity.site.sending import PRODUCER_MEMORY_BYTES
from penstock.client.admin import Admin, TopicSpec
from penstock.client.errors import BootstrapError, PenstockError
from penstock.client.producer import Producer

PARTITIONS: Final = 4
_DAY_MS: Final = 86_400_000
_LINGER_MS: Final = 5
_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 2.0
_TELL_EVERY: Final = 15
T = TypeVar("T")


def waited_for(make: Callable[[], T], stop: threading.Event, told: Callable[[str], None]) -> T | None:
    """What `make` gives once there is a broker; None if it was stopped before. Raises what waiting cannot help."""
    wait_s, tried = _FIRST_WAIT_S, 0
    while not stop.is_set():
        try:
            return make()
        except BootstrapError as error:
            if not error.retriable:
                raise
            if tried % _TELL_EVERY == 0:
                reasons = "; ".join(f"{attempt.address}: {attempt.detail}" for attempt in error.attempts)
                told(f"Waiting for a broker: {reasons}.")
            tried += 1
        stop.wait(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
    return None


def make_topics(admin: Admin) -> list[str]:
    """Make the topics that are not there; their names. Raises what a broker refuses."""
    wanted = [TopicSpec(kind.topic, partitions=PARTITIONS) for kind in KINDS]
    wanted.append(TopicSpec(TRUTH_TOPIC, partitions=1, config={"cleanup.policy": "compact"}))
    made = []
    for name, outcome in admin.create_topics(wanted, exist_ok=True).items():
        if isinstance(outcome, PenstockError):
            raise outcome
        if not outcome.existed:
            made.append(name)
    return made


def producer_for(servers: str, **connecting: Any) -> Producer[Any, Any]:
    """A producer that waits for its broker. Raises BootstrapError where there is none at first."""
    return Producer(
        servers, linger_ms=_LINGER_MS, buffer_memory=PRODUCER_MEMORY_BYTES, max_block_ms=_DAY_MS,
        delivery_timeout_ms=_DAY_MS, **connecting,
    )  # fmt: skip
