"""What a follower says to its leader, and what all fetchers of a broker have in common.

Noun: a Fetch request of a replica: who asks, in which life (its broker epoch), and what changed in its session.

Rule: built from what the session says and from where the logs end at that moment; nothing is remembered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.log.errors import LogFailed
from penstock.log.flush import GroupCommit
from penstock.replication.fetch_course import Course, Followed
from penstock.replication.fetch_session import Said
from penstock.replication.links import Links
from penstock.replication.throttle import Throttle
from penstock.wire.schemas.fetch import FetchRequest, FetchTopic, ForgottenTopic, ReplicaState

FETCH_VERSION: Final = 17


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Kafka's replica.fetch.* and our own."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    backoff_ms: float = 20.0
    backoff_max_ms: float = 1000.0
    timeout_ms: float = 5000.0
    """How long an answer may take beyond `max_wait_ms`."""
    sync_patience_ms: float = 3.0


class FetchFigures:
    """What all fetchers of a broker have done."""

    __slots__ = ("bytes_in", "damaged", "links_lost", "overtaking", "requests", "throttled_bytes_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.throttled_bytes_in = 0
        self.requests = 0
        self.overtaking = 0  # requests that were sent while another waited
        self.damaged = 0  # answers whose bytes could not be taken as records
        self.links_lost = 0


@dataclass(frozen=True, slots=True)
class Outside:
    """What all fetchers of a broker share. `failed` is told of a partition whose log the disk failed."""

    me: int
    broker_epoch: Callable[[], int]
    links: Links
    commits: GroupCommit
    loop: asyncio.AbstractEventLoop
    settings: FetcherSettings
    throttle: Throttle | None
    figures: FetchFigures
    failed: Callable[[Followed, LogFailed], None]

    def now_ms(self) -> float:
        return self.loop.time() * 1000.0

    def came(self, key: tuple[str, int], size: int) -> None:
        """Count so many bytes of a partition."""
        self.figures.bytes_in += size
        if self.throttle is not None and self.throttle.applies_to(*key):
            self.figures.throttled_bytes_in += size
            self.throttle.came(size, self.now_ms())


def request_of(said: Said[Course], serial: int, max_wait_ms: int, outside: Outside) -> FetchRequest:
    """Request number `serial`: every partition that it names is asked for from where its log ends now."""
    max_bytes = outside.settings.max_bytes
    topics: dict[bytes, FetchTopic] = {}
    for course in said.named:
        topic_id = course.session_key[0]
        topic = topics.get(topic_id)
        if topic is None:
            topics[topic_id] = topic = FetchTopic(topic_id=topic_id)
        topic.partitions.append(course.ask(serial))
        max_bytes = max(max_bytes, course.max_bytes)
    forgotten: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in said.forgotten:
        forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
    return FetchRequest(
        replica_state=ReplicaState(replica_id=outside.me, replica_epoch=outside.broker_epoch()),
        max_wait_ms=max_wait_ms,
        min_bytes=outside.settings.min_bytes,
        max_bytes=max_bytes,
        session_id=said.session_id,
        session_epoch=said.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
    )
