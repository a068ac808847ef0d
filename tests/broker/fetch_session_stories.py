"""Words for stories about fetch sessions: partitions by names such as "news-0", and one round of a fetch at a time."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.broker.fetch_session import FetchContext, FetchSessions
from penstock.runtime.randomness import Random, SeededRandom
from penstock.wire.schemas.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

VERSION = 12
EVICTION_MS = 120_000


def split(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


def wanted(names: Iterable[str], offset: int = 0) -> list[FetchTopic]:
    """One entry for each name, in their order, so that a topic may come several times."""
    return [
        FetchTopic(topic=topic, partitions=[FetchPartition(partition=partition, fetch_offset=offset)])
        for topic, partition in map(split, names)
    ]


def fetch(names: str = "", *, session: int = 0, epoch: int = 0, forget: str = "", offset: int = 0) -> FetchRequest:
    """A request for partitions, by default one that asks for a session."""
    forgotten = [ForgottenTopic(topic=topic, partitions=[partition]) for topic, partition in map(split, forget.split())]
    return FetchRequest(
        session_id=session,
        session_epoch=epoch,
        topics=wanted(names.split(), offset),
        forgotten_topics_data=forgotten,
    )


def result(
    name: str, watermark: int = 10, *, start: int = 0, error: int = 0, records: bytes = b""
) -> tuple[str, PartitionData]:
    topic, partition = split(name)
    data = PartitionData(
        partition_index=partition,
        error_code=error,
        high_watermark=watermark,
        log_start_offset=start,
        records=records,
    )
    return topic, data


def asked(context: FetchContext) -> str:
    """What a fetch reads, in order."""
    return " ".join(f"{topic}-{partition.partition}" for topic, partition in context.partitions)


def reported(response: FetchResponse) -> str:
    """The partitions of a response, in order."""
    return " ".join(
        f"{topic.topic}-{partition.partition_index}" for topic in response.responses for partition in topic.partitions
    )


class Broker:
    """The sessions of a broker and its time. What a round does not say of a partition: watermark 10, no records."""

    def __init__(
        self, *, slots: int = 10, max_partitions: int = 1_000_000, random: Random | None = None, now_ms: int = 0
    ) -> None:
        random = random or SeededRandom("fetch sessions")
        self.sessions = FetchSessions(slots, EVICTION_MS, random, max_partitions=max_partitions)
        self.now_ms = now_ms

    def begin(self, request: FetchRequest, *, privileged: bool = False, version: int = VERSION) -> FetchContext:
        return self.sessions.begin(request, version, self.now_ms, privileged=privileged)

    def round(
        self, request: FetchRequest, *news: tuple[str, PartitionData], privileged: bool = False, version: int = VERSION
    ) -> FetchResponse:
        """A fetch and its answer."""
        context = self.begin(request, privileged=privileged, version=version)
        return context.answer(self.results(context, *news))

    def results(self, context: FetchContext, *news: tuple[str, PartitionData]) -> list[tuple[str, PartitionData]]:
        said = {(topic, data.partition_index): (topic, data) for topic, data in news}
        return [
            said.get((topic, partition.partition), result(f"{topic}-{partition.partition}"))
            for topic, partition in context.partitions
        ]

    def open(self, names: str, *, privileged: bool = False) -> int:
        """The id of a new session for these partitions; 0 if there is none."""
        return self.round(fetch(names), privileged=privileged).session_id

    def lives(self, session: int, *, epoch: int = 1, privileged: bool = False) -> bool:
        """Whether the session is there. Asking is a request of the session, and uses it if the epoch is right."""
        return self.round(fetch(session=session, epoch=epoch), privileged=privileged).error_code != 70
