"""Committed offsets of consumer groups, carried over to the target so that a group can continue there.

In a topic with the same offsets a position is the same number, at most the end of what is mirrored. Elsewhere it is
translated, never beyond what the group has read. Offsets only move forward, and only while the group has no members in
the target: there the broker rejects commits from outside. Groups of shared topics are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.mirror.mapped import Route
from penstock.mirror.offset_map import OffsetMap
from penstock.mirror.settings import SAME, SHARED, STATE_PREFIX, MirrorSettings
from penstock.mirror.source import LATEST, offsets_of
from penstock.mirror.state import SourcePartition, Values, partition_state, read_state

_log = logging.getLogger(__name__)


class GroupSync:
    """Carries the offsets of matching groups over, once per call of `sync`."""

    def __init__(self, settings: MirrorSettings, sources: Mapping[str, AsyncAdmin], target: AsyncAdmin) -> None:
        self._settings = settings
        self._sources = sources
        self._target = target

    async def sync(self, routes: Mapping[SourcePartition, Route], shards: int) -> int:
        """Returns how many offsets were committed in the target. A group that fails is logged and left for later."""
        own = {key: route for key, route in routes.items() if route.mode != SHARED}
        if not own:
            return 0
        values: Values = {}
        if any(route.mode != SAME for route in own.values()):
            values = await read_state(self._target.cluster, self._settings.state_topic, range(shards))
        ends = await offsets_of(self._target.cluster, dict.fromkeys((route.target for route in own.values()), LATEST))
        count = 0
        for alias, source in self._sources.items():
            for group in sorted({each.group_id for each in await source.list_groups()}):
                if group.startswith(STATE_PREFIX) or not self._settings.groups.match(group):
                    continue
                try:
                    count += await self._carry_over(alias, group, own, values, ends)
                except PenstockError as error:
                    _log.info("offsets not carried over: group=%s source=%s reason=%s", group, alias, error)
        return count

    async def _carry_over(
        self,
        alias: str,
        group: str,
        routes: Mapping[SourcePartition, Route],
        values: Values,
        ends: Mapping[TopicPartition, int],
    ) -> int:
        translated: dict[TopicPartition, int] = {}
        for partition, committed in (await self._sources[alias].group_offsets(group)).items():
            route = routes.get(SourcePartition(alias, *partition))
            if route is None:
                continue
            offset = translate(route, committed.offset, values, ends[route.target])
            if offset is not None:
                translated[route.target] = offset
        if not translated:
            return 0
        present = await self._target.group_offsets(group, translated)
        newer = {
            partition: offset
            for partition, offset in translated.items()
            if partition not in present or present[partition].offset < offset
        }
        if not newer:
            return 0
        outcomes = await self._target.set_group_offsets(
            group, {(to.topic, to.partition): offset for to, offset in newer.items()}
        )
        for partition, error in outcomes.items():
            if error is not None:
                raise PenstockError(f"{partition}: {error}")
        return len(newer)


def translate(route: Route, offset: int, values: Values, end: int) -> int | None:
    """The offset in the target from which a group at this source offset continues; None if it is not known."""
    if route.mode == SAME:
        return min(offset, end)
    state = partition_state(values.get(route.key.key))
    if state.target_id != route.target_id:
        return None
    return OffsetMap(state.runs).translate(offset)
