"""From "assigned" to "at an offset": the committed offset, else the reset policy; and validation after a new leader.

Rule: one round at a time. A round takes every place that has no position, asks what there is to ask for all of them at
once, and leaves those that failed for a later one, after a pause. An answer counts only for a place that still waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.client.cluster import ClusterClient
from penstock.client.consumer.errors import NoOffset
from penstock.client.consumer.handover import Handover
from penstock.client.consumer.lookups import OffsetLookup
from penstock.client.consumer.positions import LATEST, NO_EPOCH, Place, Standing, Truncation, start_of
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError
from penstock.client.offset_stores.base import OffsetAndMetadata, OffsetStore
from penstock.runtime.clock import Clock

_log = logging.getLogger(__name__)


class Resolver:
    def __init__(
        self,
        cluster: ClusterClient,
        lookup: OffsetLookup,
        store: OffsetStore,
        handover: Handover,
        settings: ConsumerSettings,
        clock: Clock,
        on_truncation: Callable[[Place, Truncation | None], None],
    ) -> None:
        self._cluster = cluster
        self._lookup = lookup
        self._store = store
        self._handover = handover
        self._settings = settings
        self._clock = clock
        self._on_truncation = on_truncation

    def waiting(self, places: Mapping[TopicPartition, Place], now_ms: float) -> list[Place]:
        """Those that a round would take now."""
        return [
            place
            for place in places.values()
            if place.standing in (Standing.UNKNOWN, Standing.RESET, Standing.VALIDATE) and now_ms >= place.not_before_ms
        ]

    async def round(self, places: list[Place]) -> None:
        await self._begin([place for place in places if place.standing is Standing.UNKNOWN])
        await self._reset([place for place in places if place.standing is Standing.RESET])
        await self._validate([place for place in places if place.standing is Standing.VALIDATE])

    async def _begin(self, places: list[Place]) -> None:
        if not places:
            return
        versions = {place.partition: place.version for place in places}
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if self._settings.group_id is not None:
            try:
                committed = await self._store.load(self._settings.group_id, list(versions))
            except PenstockError as error:
                self._put_off(places, error)
                return
        missing: list[TopicPartition] = []
        for place in places:
            if place.version != versions[place.partition] or place.standing is not Standing.UNKNOWN:
                continue
            stored = committed.get(place.partition)
            reset_to = start_of(self._settings.auto_offset_reset)
            if stored is not None and stored.offset >= 0:
                place.seek(stored.offset, stored.leader_epoch)
            elif reset_to is not None:
                place.seek_to(reset_to)
            else:
                place.standing = Standing.STUCK
                missing.append(place.partition)
        if missing:
            self._handover.fail(NoOffset(missing, self._settings.group_id))

    async def _reset(self, places: list[Place]) -> None:
        if not places:
            return
        asked = {place.partition: (place.version, place.reset_to) for place in places}
        found = await self._lookup.offsets({partition: time_ms for partition, (_, time_ms) in asked.items()})
        for place in places:
            version, time_ms = asked[place.partition]
            if place.version != version or place.standing is not Standing.RESET:
                continue
            one = found[place.partition]
            if isinstance(one, PenstockError):
                self._put_off([place], one)
            elif one.offset < 0 and time_ms >= 0:
                # No record is that young: the next one to arrive is the first.
                place.seek_to(LATEST)
            else:
                place.seek(max(0, one.offset))
                self._handover.look_here()

    async def _validate(self, places: list[Place]) -> None:
        if not places:
            return
        versions = {place.partition: place.version for place in places}
        epochs = {place.partition: place.fetch_epoch for place in places}
        for place in places:
            if place.fetch_epoch == NO_EPOCH:
                place.validated(place.version, NO_EPOCH, -1)
                epochs.pop(place.partition)
        found = await self._lookup.epoch_ends(epochs)
        for place in places:
            one = found.get(place.partition)
            if isinstance(one, PenstockError):
                self._put_off([place], one)
            elif one is not None:
                self._on_truncation(place, place.validated(versions[place.partition], one.epoch, one.end_offset))

    def _put_off(self, places: list[Place], error: PenstockError) -> None:
        not_before_ms = self._clock.monotonic_ms() + self._settings.retry_backoff_ms
        for place in places:
            place.retry_at(not_before_ms)
        if error.retriable:
            _log.info("positions of %d partitions are not known yet, asking again: %s", len(places), error)
            self._cluster.refresh_soon()
            return
        for place in places:
            place.standing = Standing.STUCK
        self._handover.fail(error)
