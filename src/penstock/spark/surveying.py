"""What there is to read: the driver's questions to the brokers.

Noun: a `Surveyor`, which knows the partitions it saw last time. Rule: metadata and both ends are asked for at the same
time, since a micro-batch waits for the answers; only what turns out to be new is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from penstock.client.cluster_view import ClusterView
from penstock.client.consumer.lookups import Found, OffsetLookup
from penstock.client.consumer.types import OffsetAndTimestamp, TopicPartition
from penstock.client.errors import PenstockError, UnknownTopic, error_for
from penstock.client.metadata import ask_metadata
from penstock.spark.clusters import shared_cluster
from penstock.spark.errors import in_one_line
from penstock.spark.offsets import Survey
from penstock.spark.options import SourceOptions
from penstock.spark.positions import EARLIEST, LATEST, Bounds, Position, questions, resolve
from penstock.wire.error_codes import ErrorCode


class Surveyor:
    """Blocking; for one query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics = options.topics
        self._cluster = shared_cluster(options.bootstrap, options.reader)
        self._client = self._cluster.client
        self._timeout_ms = options.reader.request_timeout_ms
        self._lookup = OffsetLookup(
            self._client, isolation_level=int(options.isolation == "read_committed"), timeout_ms=self._timeout_ms
        )
        self._known: list[TopicPartition] = []
        self._ids: dict[str, str] = {}

    def survey(self) -> Survey:
        """All partitions that are to be read, with their ends."""
        try:
            return self._cluster.run(self._survey())
        except PenstockError as error:
            raise in_one_line(error) from None

    def existing(self) -> Survey:
        """The same, for a query that begins: topics that are not there are an error."""
        survey = self.survey()
        if survey.missing:
            try:
                raise self._cluster.run(self._explained(survey.missing))
            except PenstockError as error:
                raise in_one_line(error) from None
        return survey

    def resolve(self, position: Position, survey: Survey) -> dict[TopicPartition, int]:
        """A position of the user's as offsets."""
        times_ms = questions(position, survey.bounds)
        try:
            found = self._cluster.run(self._lookup.all_offsets(times_ms, self._timeout_ms)) if times_ms else {}
        except PenstockError as error:
            raise in_one_line(error) from None
        return resolve(
            position,
            survey.bounds,
            {partition: one.offset for partition, one in found.items()},
            fail_on_data_loss=self._options.reader.fail_on_data_loss,
        )

    # ------------------------------------------------------------------------------------------ on the loop

    async def _survey(self) -> Survey:
        known = list(self._known)
        view, first, last = await asyncio.gather(
            self._refreshed(), self._ends(known, EARLIEST), self._ends(known, LATEST)
        )
        partitions = self._chosen(view)
        ids = {
            topic: found.topic_id.hex()
            for topic in {one.topic for one in partitions}
            if (found := view.topic(topic)) is not None and found.topic_id is not None
        }
        if ids != {topic: self._ids[topic] for topic in ids if topic in self._ids}:
            first, last = {}, {}  # The answers may be of the topic that was there before.
        earliest, latest = await asyncio.gather(
            self._completed(partitions, first, EARLIEST), self._completed(partitions, last, LATEST)
        )
        self._known, self._ids = partitions, ids
        missing = frozenset(name for name in self._topics.wanted if view.topic(name) is None)
        return Survey({one: Bounds(earliest[one], max(earliest[one], latest[one])) for one in partitions}, ids, missing)

    async def _refreshed(self) -> ClusterView:
        if self._topics.pattern is not None:
            self._client.follow_all()
            return await self._client.refresh()
        self._client.follow(self._topics.wanted)
        return await self._client.refresh(self._topics.wanted)

    async def _ends(self, partitions: Iterable[TopicPartition], end: int) -> Found:
        wanted = dict.fromkeys(partitions, end)
        return await self._lookup.offsets(wanted) if wanted else {}

    async def _completed(self, partitions: list[TopicPartition], found: Found, end: int) -> dict[TopicPartition, int]:
        """An answer for each, asked again for those that have none."""
        good = {one: answer.offset for one, answer in found.items() if isinstance(answer, OffsetAndTimestamp)}
        again = {one: end for one in partitions if one not in good}
        if again:
            asked: Mapping[TopicPartition, OffsetAndTimestamp] = await self._lookup.all_offsets(again, self._timeout_ms)
            good.update({one: answer.offset for one, answer in asked.items()})
        return good

    def _chosen(self, view: ClusterView) -> list[TopicPartition]:
        topics = self._topics
        if topics.partitions:
            self._check_assigned(view)
            return sorted(one for one in topics.partitions if view.leader_of(*one) is not None)
        names = topics.names
        if topics.pattern is not None:
            names = tuple(n for n, found in view.topics.items() if not found.is_internal and topics.takes(n))
        found = [view.topic(name) for name in names]
        return sorted(TopicPartition(one.name, part.index) for one in found if one for part in one.partitions)

    def _check_assigned(self, view: ClusterView) -> None:
        for one in sorted(self._topics.partitions):
            topic = view.topic(one.topic)
            if topic is not None and view.leader_of(*one) is None and one not in self._known:
                count = len(topic.partitions)
                raise error_for(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    where=f"assign: {one}",
                    detail=f"the topic has {count} partition{'' if count == 1 else 's'}",
                    hint="",
                )

    async def _explained(self, missing: frozenset[str]) -> UnknownTopic:
        """Why nothing can be read, with the name that was probably meant."""
        name = min(missing)
        hint = "Create it first, or look for a typing mistake"
        response = await ask_metadata(await self._client.to_any(), None, timeout_ms=self._timeout_ms)
        near = get_close_matches(name, [one.name for one in response.topics if one.name and one.partitions], n=1)
        if near:
            hint = f"Did you mean {near[0]}?"
        return UnknownTopic(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            where=f"topic {name}",
            detail=f"it does not exist at {self._options.bootstrap}",
            hint=hint,
        )
