"""Which topics are mirrored, and how: the owner of shard 0 creates them in the target and keeps them up to date.

A topic of the mirror's own is created by it, or was empty when it was first seen. What was decided is recorded with the
topic ids of both sides, so that a topic that was deleted and created again is noticed on either side. A topic whose
records come from the target cluster, by whatever chain of mirrors, is not mirrored back to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.client.admin import AsyncAdmin, ConfigResource, TopicSpec
from penstock.client.cluster_metadata import ClusterView, TopicPartition, TopicView
from penstock.client.errors import PenstockError, UnsupportedVersion
from penstock.mirror.errors import FOREIGN, LOOP, MISSING, RECREATED, MirrorStopped
from penstock.mirror.mapped import Route
from penstock.mirror.settings import MAPPED, OWN, SAME, SHARED, STATE_PREFIX, MirrorSettings, SourceSettings
from penstock.mirror.shard import Shard
from penstock.mirror.source import LATEST, offsets_of
from penstock.mirror.state import TOPICS_SHARD, SourcePartition, TopicState, as_value, read_state, topics_in

_log = logging.getLogger(__name__)
_NOT_OURS: Final = "-"
_FORCED: Final = {"message.timestamp.type": "CreateTime", "compression.type": "producer"}
_LEFT_ALONE: Final = frozenset(
    {
        *_FORCED,
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "message.format.version",
        "message.downconversion.enable",
        "remote.storage.enable",
        "local.retention.ms",
        "local.retention.bytes",
        # The target's registry, if it has one, need not know the ids of the source's.
        "confluent.key.schema.validation",
        "confluent.value.schema.validation",
    }
)

States = dict[tuple[str, str], TopicState]


def id_text(view: TopicView | None) -> str:
    """A topic id as it is kept in the state; empty if there is none."""
    return "" if view is None or view.topic_id is None else view.topic_id.hex()


def cluster_name(view: ClusterView, alias: str) -> str:
    """The cluster id, or the alias where brokers have none."""
    return view.cluster_id or alias


class TopicManager:
    """Decides about topics. `refresh` returns the routes of all partitions that can be mirrored now."""

    def __init__(self, settings: MirrorSettings, sources: Mapping[str, AsyncAdmin], target: AsyncAdmin) -> None:
        self._settings = settings
        self._sources = sources
        self._target = target

    async def refresh(self, shard: Shard | None) -> dict[SourcePartition, Route]:
        """Ask all clusters for their topics. `shard` is shard 0 if this process owns it: then topics are created and
        changed, too."""
        await self._target.cluster.refresh()
        for source in self._sources.values():
            await source.cluster.refresh()
        if shard is not None and shard.is_ready.is_set():
            states = topics_in(shard.values)
            states = await self._keep_up(shard, states)
        else:
            cluster = self._target.cluster
            states = topics_in(await read_state(cluster, self._settings.state_topic, [TOPICS_SHARD]))
        return self._routes(states)

    def wanted(self, source: SourceSettings) -> list[TopicView]:
        """The topics of a source that match its patterns."""
        view = self._sources[source.alias].cluster.view
        return [
            topic
            for name, topic in sorted(view.topics.items())
            if topic.partitions
            and not topic.is_internal
            and not name.startswith(("__", STATE_PREFIX))
            and source.topics.match(name)
        ]

    def _routes(self, states: States) -> dict[SourcePartition, Route]:
        routes: dict[SourcePartition, Route] = {}
        target_view = self._target.cluster.view
        target_cluster = cluster_name(target_view, "target")
        for (alias, topic), state in states.items():
            if alias not in self._sources or state.stopped:
                continue
            theirs = self._sources[alias].cluster.view.topic(topic)
            ours = target_view.topic(state.target)
            if theirs is None or ours is None or (id_text(theirs), id_text(ours)) != (state.source_id, state.target_id):
                continue  # the owner of shard 0 finds out why
            for index in range(len(theirs.partitions)):
                to = state.target_partition(index)
                if to < len(ours.partitions):
                    key = SourcePartition(alias, topic, index)
                    routes[key] = Route(
                        key,
                        TopicPartition(state.target, to),
                        state.mode,
                        state.source_id,
                        state.target_id,
                        state.source_cluster,
                        target_cluster,
                    )
        return routes

    # --- by the owner of shard 0

    async def _keep_up(self, shard: Shard, states: States) -> States:
        origins: dict[str, dict[str, tuple[str, ...]]] = {}
        for source in self._settings.sources:
            found = {topic.name: topic for topic in self.wanted(source)}
            gone = [topic for alias, topic in states if alias == source.alias and topic not in found]
            for name in gone:
                await self._record(shard, states, self._missing(states[source.alias, name]))
            for name, view in found.items():
                before = states.get((source.alias, name))
                if self._is_settled(before, view):
                    continue
                if source.alias not in origins:
                    origins[source.alias] = await self._origins(source.alias)
                try:
                    state = await self._decided(source, view, before, states, origins[source.alias].get(name, ()))
                except MirrorStopped as stopped:
                    state = self._stopped(source, view, before, stopped)
                except PenstockError as error:
                    _log.warning("topic waits: topic=%s:%s reason=%s", source.alias, name, error)
                    continue
                await self._record(shard, states, state)
            active = [
                state
                for (alias, name), state in states.items()
                if alias == source.alias and name in found and not state.stopped and state.mode != SHARED
            ]
            await self._keep_partitions_up(active, found)
            await self._keep_settings_up(shard, states, source.alias, active)
        return states

    async def _record(self, shard: Shard, states: States, state: TopicState) -> None:
        if states.get((state.alias, state.topic)) == state:
            return
        if state.stopped:
            _log.error(
                "topic stopped: topic=%s:%s reason=%s: %s", state.alias, state.topic, state.reason, state.stopped
            )
        else:
            _log.info(
                "topic mirrored: topic=%s:%s target=%s mode=%s", state.alias, state.topic, state.target, state.mode
            )
        await shard.write({state.key: as_value(state)})
        states[state.alias, state.topic] = state

    def _is_settled(self, state: TopicState | None, view: TopicView) -> bool:
        if state is None or state.stopped:
            return False
        ours = self._target.cluster.view.topic(state.target)
        return ours is not None and (id_text(view), id_text(ours)) == (state.source_id, state.target_id)

    async def _origins(self, alias: str) -> dict[str, tuple[str, ...]]:
        """The clusters from which topics of a source come, by what mirrors into that source have recorded."""
        cluster = self._sources[alias].cluster
        found: dict[str, tuple[str, ...]] = {}
        for name in [each for each in cluster.view.topics if each.startswith(STATE_PREFIX)]:
            for state in topics_in(await read_state(cluster, name, [TOPICS_SHARD])).values():
                if state.target_id != _NOT_OURS:
                    found[state.target] = (*found.get(state.target, ()), *state.origins)
        return found

    async def _decided(
        self,
        source: SourceSettings,
        view: TopicView,
        before: TopicState | None,
        states: States,
        origins: tuple[str, ...],
    ) -> TopicState:
        """A new decision about a topic; raises MirrorStopped."""
        settings = self._settings
        target_view = self._target.cluster.view
        source_cluster = cluster_name(self._sources[source.alias].cluster.view, source.alias)
        target = settings.target_topic_of(source.alias, view.name)
        ours = target_view.topic(target)
        if before is not None and ours is not None and before.target_id == id_text(ours):
            if before.source_id != id_text(view):
                raise _recreated(source.alias, view.name, target)
            return msgspec.structs.replace(before, stopped="", reason="")
        is_shared = settings.mode == SHARED
        _check_loop(view.name, target, source_cluster, cluster_name(target_view, "target"), origins, is_shared)
        if not is_shared:
            for other in states.values():
                if other.target == target and (other.alias, other.topic) != (source.alias, view.name):
                    raise MirrorStopped(
                        FOREIGN,
                        f"{other.alias}:{other.topic} and {source.alias}:{view.name} have one target topic {target}",
                        "Set rename={source}.{topic}, or mode=shared",
                    )
            if ours is not None:
                await self._check_empty(target, ours)
        mode = await self._mode(source.alias, view.name)
        if ours is None:
            ours = await self._create(target, len(view.partitions))
        return TopicState(
            alias=source.alias,
            topic=view.name,
            target=target,
            mode=mode,
            source_cluster=source_cluster,
            source_id=id_text(view),
            target_id=id_text(ours),
            origins=tuple(dict.fromkeys((source_cluster, *origins))),
            partitions=len(ours.partitions) if is_shared else 0,
        )

    async def _mode(self, alias: str, topic: str) -> str:
        """A compacted topic has gaps without end: its offsets are mapped, unless the settings say otherwise."""
        if self._settings.mode != OWN:
            return self._settings.mode
        try:
            configs = await self._sources[alias].describe_config(ConfigResource.topic(topic))
        except UnsupportedVersion:
            return SAME  # before Kafka 0.11 a client cannot ask
        policy = configs["cleanup.policy"].value if "cleanup.policy" in configs else None
        return MAPPED if "compact" in (policy or "") else SAME

    async def _check_empty(self, target: str, view: TopicView) -> None:
        ends = await offsets_of(
            self._target.cluster, {TopicPartition(target, each.index): LATEST for each in view.partitions}
        )
        if any(ends.values()):
            raise MirrorStopped(
                FOREIGN,
                f"topic {target} exists in the target and has records, and this mirror did not create it",
                "Delete it, give another name by rename, or use mode=shared",
            )

    async def _create(self, target: str, partitions: int) -> TopicView:
        replication = self._settings.number("replication.factor")
        spec = TopicSpec(
            target,
            partitions=partitions,
            replication_factor=replication,
            config=dict(_FORCED),
        )
        await self._target.create_topic(spec, exist_ok=True)
        cluster = self._target.cluster
        return await cluster.wait_for_topic(target, timeout_ms=cluster.request_timeout_ms, create=False)

    async def _keep_partitions_up(self, active: Iterable[TopicState], found: Mapping[str, TopicView]) -> None:
        """The target has as many partitions as the source."""
        has_changed = False
        for state in active:
            ours, wanted = self._target.cluster.view.topic(state.target), len(found[state.topic].partitions)
            if ours is None or len(ours.partitions) >= wanted:
                continue
            try:
                await self._target.create_partitions(state.target, wanted)
                has_changed = True
            except PenstockError as error:
                _log.warning("partitions not added: topic=%s reason=%s", state.target, error)
        if has_changed:
            await self._target.cluster.refresh()

    async def _keep_settings_up(self, shard: Shard, states: States, alias: str, active: list[TopicState]) -> None:
        """The settings that the source's topics have of their own, in the target. One request to each side."""
        theirs = await self._sources[alias].describe_configs(ConfigResource.topic(state.topic) for state in active)
        ours = await self._target.describe_configs(ConfigResource.topic(state.target) for state in active)
        for state in active:
            wanted, present = theirs[ConfigResource.topic(state.topic)], ours[ConfigResource.topic(state.target)]
            if isinstance(wanted, UnsupportedVersion):
                continue  # before Kafka 0.11 a client cannot ask
            if isinstance(wanted, PenstockError) or isinstance(present, PenstockError):
                _log.warning("settings unknown: topic=%s:%s", alias, state.topic)
                continue
            goal = {
                name: entry.value
                for name, entry in wanted.items()
                if entry.source == "topic" and name not in _LEFT_ALONE and name in present
            } | _FORCED
            changes: dict[str, str | None] = {
                name: value for name, value in goal.items() if name in present and present[name].value != value
            }
            changes |= {name: None for name in state.configs if name not in goal}
            try:
                if changes:
                    _log.info("settings change: topic=%s changes=%s", state.target, changes)
                    await self._target.alter_config(ConfigResource.topic(state.target), changes)
            except PenstockError as error:
                _log.warning("settings not changed: topic=%s reason=%s", state.target, error)
            else:
                await self._record(shard, states, msgspec.structs.replace(state, configs=tuple(sorted(goal))))

    def _stopped(
        self, source: SourceSettings, view: TopicView, before: TopicState | None, stopped: MirrorStopped
    ) -> TopicState:
        text = f"{stopped.message}. {stopped.hint}"
        if before is not None:
            return msgspec.structs.replace(before, stopped=text, reason=stopped.reason)
        return TopicState(
            alias=source.alias,
            topic=view.name,
            target=self._settings.target_topic_of(source.alias, view.name),
            mode=self._settings.mode,
            source_cluster=cluster_name(self._sources[source.alias].cluster.view, source.alias),
            source_id=id_text(view),
            target_id=_NOT_OURS,
            stopped=text,
            reason=stopped.reason,
        )

    def _missing(self, state: TopicState) -> TopicState:
        text = f"topic {state.topic} is gone from the source {state.alias}, or no longer matches. {state.target} stays"
        return msgspec.structs.replace(state, stopped=text, reason=MISSING)


def _check_loop(
    topic: str, target: str, source_cluster: str, target_cluster: str, origins: Iterable[str], is_shared: bool
) -> None:
    if source_cluster == target_cluster and topic == target:
        raise MirrorStopped(LOOP, f"topic {topic} would be mirrored into itself", "Set rename")
    if not is_shared and target_cluster in origins:
        raise MirrorStopped(
            LOOP,
            f"topic {topic} of the source is itself a mirror of the target cluster {target_cluster}",
            "Leave it out by exclude.topics",
        )


def _recreated(alias: str, topic: str, target: str) -> MirrorStopped:
    return MirrorStopped(
        RECREATED,
        f"topic {topic} was deleted and created again at the source {alias}; {target} mirrors the former one",
        f"To mirror the new one, delete {target} in the target",
    )
