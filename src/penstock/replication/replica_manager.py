"""All partitions of this broker, by topic and index, over the data folders that hold their logs.

Which partitions exist and which broker leads them follows from the difference of two images and from nothing else.
Logs are created before the image that names them is visible. A topic that is being deleted has no leaders or followers.
After each image `on_leadership_change` is called with what changed, as in Kafka. Partitions for which the disk or the
open files did not suffice are retried.

A producer with acks=all is answered when its records are durable on as many replicas as the topic demands. Syncs are
shared: a producer that waits while one runs takes part in the next (group commit).

`AlterPartitionManager` compares the ISRs with the followers' progress and requests changes from the controller, all in
one request at a time. A request is pending until the answer or the partition's next state settles it. A rejection is
definite only where the controller knew the very state that was asked about; anything else is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol

from penstock.cluster.controller.election import IsrAnswer, IsrRequest
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage, diff
from penstock.cluster.tree.layout import BrokerRegistration, ReplicaSet, TopicReplicas
from penstock.log.errors import DiskFull, LogError, TooManyOpenFiles
from penstock.log.group_commit import GroupCommit
from penstock.log.log_dirs.log_directory import NewLog
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.replication.follower import ReplicaFetcherManager, Throttle
from penstock.replication.isr import Proposal
from penstock.replication.partition import Done, Partition
from penstock.runtime.clock import Clock
from penstock.wire.protocol import ErrorCode

logger = logging.getLogger(__name__)

_EXPIRY_MS: Final = 100
_RETRIES_AT_ONCE: Final = 20  # each creates a log, with its syncs, on the event loop
_DEFINITE: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST})


class ReplicaSettings(Protocol):
    """What a topic's settings say about its replicas."""

    @property
    def log(self) -> LogSettings: ...

    @property
    def min_insync_replicas(self) -> int: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


@dataclass(slots=True)
class LeadershipChanges:
    """What an image changed on this broker.

    `followers` include partitions whose leader is gone: their `leader` is NO_LEADER until another is elected. `removed`
    partitions were deleted or moved away, with their logs. `deleted_topics` are deleted or being deleted.
    """

    image: ClusterImage
    leaders: list[Partition] = field(default_factory=list)
    followers: list[Partition] = field(default_factory=list)
    removed: list[tuple[str, int]] = field(default_factory=list)
    deleted_topics: list[str] = field(default_factory=list)


SettingsIn = Callable[[ClusterImage, str], ReplicaSettings]
"""The settings of a topic as an image has them."""
OnLeadershipChange = Callable[[LeadershipChanges], None]
CallLater = Callable[[float, Callable[[], None]], Timer]
AskController = Callable[[list[IsrRequest]], Awaitable[Sequence[IsrAnswer]]]


class _NotCreated(NamedTuple):
    """A partition for which there is no room; `is_new` if it never had a log."""

    is_new: bool
    reason: str


class ReplicaManager:
    """The partitions of this broker. `brokers` are the epochs of the live brokers, by id."""

    def __init__(
        self,
        logs: LogManager,
        commits: GroupCommit,
        settings_in: SettingsIn,
        *,
        broker_id: int,
        clock: Clock,
        call_later: CallLater,
    ) -> None:
        self.logs = logs
        self.brokers: Mapping[int, int] = {}
        self.fetchers: ReplicaFetcherManager | None = None
        """Of a broker in a cluster."""
        self.throttle: Throttle | None = None
        """Of what followers copy from here; None if nothing limits it."""
        self.on_leadership_change: OnLeadershipChange = lambda _: None
        self._commits = commits
        self._settings_in = settings_in
        self._me = broker_id
        self._clock = clock
        self._call_later = call_later
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._with_failed_folders: Mapping[int, BrokerRegistration] = {}
        self._not_created: dict[tuple[str, int], _NotCreated] = {}
        self._timed: dict[Partition, None] = {}  # with waiters that have a deadline
        self._timer: Timer | None = None

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self._partitions.get(topic)
        return None if partitions is None else partitions.get(index)

    def __iter__(self) -> Iterator[Partition]:
        return (partition for partitions in self._partitions.values() for partition in partitions.values())

    def led(self) -> Iterator[Partition]:
        return (partition for partition in self if partition.leadership is not None)

    def online(self, partition: Partition) -> Mapping[int, int]:
        """The epochs of the live brokers, by id, without those that have this partition in a failed data folder."""
        if not self._with_failed_folders:
            return self.brokers
        failed = [
            broker_id
            for broker_id, broker in self._with_failed_folders.items()
            if broker.is_offline(partition.topic, partition.topic_id, partition.index)
        ]
        return {broker_id: epoch for broker_id, epoch in self.brokers.items() if broker_id not in failed}

    def offline_replicas(self, image: ClusterImage) -> ReplicaSet:
        """The replicas of this broker that are in failed data folders, or may be."""
        found: dict[str, TopicReplicas] = {}
        if not self.logs.offline:
            return found
        for topic in image.topics.values():
            indexes = frozenset(
                index
                for index, state in enumerate(topic.partitions)
                if self._me in state.replicas and self.logs.is_offline(topic.name, index)
            )
            if indexes and topic.name not in image.deleting:
                found[topic.name] = TopicReplicas(topic.topic_id, indexes)
        return found

    def folder_failed(self) -> None:
        """Stop following partitions whose data folder has failed. Those that are led wait for another leader."""
        if self.fetchers is not None and not self.fetchers.is_closed:
            self.fetchers.unfollow([(each.topic, each.index) for each in self if each.log.failure is not None])

    def is_deleted(self, topic: TopicImage) -> bool:
        """Whether no log of the topic is left here."""
        return not any(self.logs.holds(topic.name, index) for index in range(len(topic.partitions)))

    @property
    def not_created(self) -> Mapping[tuple[str, int], str]:
        """The partitions that this broker should serve and has no room for, with the reason."""
        return {key: each.reason for key, each in self._not_created.items()}

    def update_settings(self, topic: str, settings: ReplicaSettings) -> None:
        """New settings take effect at once."""
        for partition in self._partitions.get(topic, {}).values():
            partition.log.settings = settings.log
            partition.set_min_insync_replicas(settings.min_insync_replicas)

    def close(self) -> None:
        """Answer all waiting requests, and lead nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in tuple(self):
            partition.resign()

    # --- following the image

    async def create_logs(self, old: ClusterImage, new: ClusterImage) -> None:
        """Create the logs of partitions that this broker holds from the image `new` on, beside the event loop."""
        change = diff(old, new)
        topics = [*change.topics_added.values(), *(after for _, after in change.topics_changed.values())]
        await self._create_logs(new, topics, is_new=bool(old.cluster_id), before=old)

    async def start(self, image: ClusterImage) -> None:
        """Apply the first image topic by topic, so that other work runs in between."""
        await self._create_logs(image, image.topics.values(), is_new=False)
        self._know_brokers(image)
        for topic in image.topics.values():
            changes = LeadershipChanges(image)
            self._apply_topic(None, topic, changes, is_new=False)
            self._report(changes)
            await asyncio.sleep(0)

    def apply(self, old: ClusterImage, new: ClusterImage) -> LeadershipChanges:
        """Apply what changed between two images; `create_logs` runs before.

        A partition whose log cannot be created or opened is left out and logged.
        """
        changes = LeadershipChanges(new)
        change = diff(old, new)
        # Before the first image, a missing log may be on a disk that is not mounted.
        is_new = bool(old.cluster_id)
        if change.brokers_added or change.brokers_removed or change.brokers_changed:
            self._know_brokers(new)
        marked = sorted(name for name in new.deleting - old.deleting if name in new.topics)
        for name in (*change.topics_removed, *marked):
            self._drop(name, self._partitions.pop(name, {}), changes)
        for topic in change.topics_added.values():
            self._apply_topic(None, topic, changes, is_new=is_new)
        for before, after in change.topics_changed.values():
            self._apply_topic(before, after, changes, is_new=is_new)
        changes.deleted_topics = sorted({*(name for name in change.topics_removed if name not in new.topics), *marked})
        self._delete_unused_logs(new, marked)
        self._report(changes)
        return changes

    def retry(self, image: ClusterImage) -> LeadershipChanges:
        """Create or open partitions for which there was no room on the disk, or no open file; not while the broker
        stops. Logs are opened beside the event loop, for the next retry.
        """
        changes = LeadershipChanges(image)
        if self.fetchers is not None and self.fetchers.is_closed:
            return changes
        retried = list(islice(self._not_created.items(), _RETRIES_AT_ONCE))
        for (name, index), _ in retried:
            if name not in image.topics:
                continue
            self.logs.reopen(name, index, self._settings_in(image, name).log, self._clock.now_ms())
        for (name, index), failed in retried:
            del self._not_created[name, index]
            topic = image.topics.get(name)
            state = None if topic is None or name in image.deleting else topic.partition(index)
            if topic is None or state is None or self._me not in state.replicas or self.get(name, index) is not None:
                continue
            partition = self._open(topic, index, self._settings_in(image, name), is_new=failed.is_new, again=True)
            if partition is None:
                break  # the others would find no room either
            self._give_role(partition, state, changes)
        created = len(changes.leaders) + len(changes.followers)
        if created:
            left = len(self._not_created)
            logger.info("partitions created after a retry: partitions=%d remaining=%d", created, left)
            self._report(changes)
        return changes

    def _report(self, changes: LeadershipChanges) -> None:
        if self.fetchers is not None:
            self.fetchers.unfollow([*changes.removed, *((each.topic, each.index) for each in changes.leaders)])
            self.fetchers.follow(changes.followers)
        self.on_leadership_change(changes)

    def _know_brokers(self, image: ClusterImage) -> None:
        before = self.brokers
        self.brokers = {broker.broker_id: broker.epoch for broker in image.brokers.values()}
        if self.fetchers is not None:
            self.fetchers.reconnect(each for each, epoch in self.brokers.items() if before.get(each, epoch) != epoch)
        self._with_failed_folders = {each: broker for each, broker in image.brokers.items() if broker.offline}
        now_ms = self._clock.monotonic_ms()
        for partition in self:
            partition.brokers_changed(self.online(partition), now_ms)

    def _was_here(self, before: TopicImage | None, index: int) -> bool:
        """Whether this broker was a replica already: its log may be in a failed data folder."""
        known = None if before is None else before.partition(index)
        return known is not None and self._me in known.replicas

    async def _create_logs(
        self, image: ClusterImage, topics: Iterable[TopicImage], *, is_new: bool, before: ClusterImage | None = None
    ) -> None:
        wanted: list[NewLog] = []
        has_offline = bool(self.logs.offline)
        for topic in topics:
            if topic.name in image.deleting:
                continue
            held = self._partitions.get(topic.name, {})
            missing = [
                index
                for index, partition in enumerate(topic.partitions)
                if self._me in partition.replicas and index not in held and not self.logs.holds(topic.name, index)
            ]
            if missing and has_offline and before is not None:
                missing = [index for index in missing if not self._was_here(before.topics.get(topic.name), index)]
            if missing:
                settings = self._settings_in(image, topic.name).log
                wanted += [NewLog((topic.name, index), topic.topic_id, settings) for index in missing]
        if wanted:
            created = asyncio.get_running_loop().create_future()
            self.logs.create_all(wanted, self._clock.now_ms(), lambda: created.set_result(None), is_new=is_new)
            await created

    def _apply_topic(
        self, before: TopicImage | None, topic: TopicImage, changes: LeadershipChanges, *, is_new: bool
    ) -> None:
        if topic.name in changes.image.deleting:
            return
        settings: ReplicaSettings | None = None
        for index, state in enumerate(topic.partitions):
            if before is not None and before.partition(index) is state:
                continue
            if self._me not in state.replicas:
                self._drop_moved(topic.name, index, changes)
                continue
            partition = self.get(topic.name, index)
            if partition is None:
                settings = settings or self._settings_in(changes.image, topic.name)
                is_unseen = is_new and not self._was_here(before, index)
                partition = self._open(topic, index, settings, is_new=is_unseen)
            if partition is not None:
                self._give_role(partition, state, changes)

    def _open(
        self, topic: TopicImage, index: int, settings: ReplicaSettings, *, is_new: bool, again: bool = False
    ) -> Partition | None:
        try:
            log = self._log_of(topic, index)
            if log is None:
                now_ms = self._clock.now_ms()
                log = self.logs.create(topic.name, index, topic.topic_id, settings.log, now_ms, is_new=is_new)
            else:
                log.settings = settings.log
        except LogError as error:
            may_pass = isinstance(error, DiskFull | TooManyOpenFiles)
            if not (again and may_pass):
                logger.error("partition offline: partition=%s-%d error=%s", topic.name, index, error)
            if may_pass:
                self._not_created[topic.name, index] = _NotCreated(is_new, str(error))
            return None
        partition = Partition(
            topic.name, index, log, self._commits, self.logs, self._clock, self._limit,
            topic_id=topic.topic_id, min_insync_replicas=settings.min_insync_replicas,
        )  # fmt: skip
        self._partitions.setdefault(topic.name, {})[index] = partition
        return partition

    def _log_of(self, topic: TopicImage, index: int) -> PartitionLog | None:
        """The log of this topic, or None. One of a deleted topic of the same name goes.

        There is one if the topic was deleted while this broker started, after it had read the tree. Raises LogError.
        """
        hosted = self.logs.find(topic.name, index)
        if hosted is None or hosted.topic_id in {None, topic.topic_id}:
            return None if hosted is None else hosted.log
        logger.warning("log of a deleted topic removed: partition=%s-%d", topic.name, index)
        self.logs.delete(topic.name, index, self._clock.now_ms())
        return None

    def _give_role(self, partition: Partition, state: PartitionImage, changes: LeadershipChanges) -> None:
        if self.fetchers is not None and partition.log.failure is not None:
            # In a cluster the controller gives the leadership to another replica: until a restart this one has no role.
            if partition.is_leader:
                partition.resign()
                changes.followers.append(partition)
        elif state.leader != self._me:
            if partition.follow(state):
                changes.followers.append(partition)
        elif partition.lead(state, self._me, self.online(partition), self._clock.monotonic_ms()):
            changes.leaders.append(partition)

    def _drop_moved(self, topic: str, index: int, changes: LeadershipChanges) -> None:
        """The partition has moved to other brokers."""
        partitions = self._partitions.get(topic, {})
        partition = partitions.pop(index, None)
        if partition is not None:
            if not partitions:
                del self._partitions[topic]
            self._drop(topic, {index: partition}, changes)

    def _drop(self, topic: str, partitions: Mapping[int, Partition], changes: LeadershipChanges) -> None:
        for partition in partitions.values():
            partition.resign()
        keys = [(topic, index) for index in partitions]
        try:
            self.logs.delete_all(keys, self._clock.now_ms())
        except LogError as error:
            logger.error("logs not deleted: topic=%s error=%s", topic, error)
        changes.removed += keys

    def _delete_unused_logs(self, image: ClusterImage, topics: Iterable[str]) -> None:
        """Delete logs of topics that were marked for deletion while this broker was away: they have no partition."""
        unused = [
            (name, index)
            for name in topics
            for index in range(len(image.topics[name].partitions))
            if self.logs.holds(name, index)
        ]
        if unused:
            self.logs.delete_all(unused, self._clock.now_ms())

    # --- waiting

    def when_settled(self, partitions: Iterable[Partition], done: Callable[[], None]) -> None:
        """Call `done` when the current log ends of partitions without other replicas are durable, or cannot be.

        A client that wrote without waiting for the disk then finds the log end after its records. Partitions with other
        replicas are not waited for: their end is the high watermark.
        """
        short = [
            partition
            for partition in partitions
            if partition.is_alone and partition.log.high_watermark < partition.log.log_end_offset
        ]
        left = len(short)
        if not left:
            done()
            return

        def one_done(error: LogError | None) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for partition in short:
            partition.when_committed(partition.log.log_end_offset, 0, one_done)

    def when_deleted(self, partition: Partition, offset: int, timeout_ms: float, done: Done) -> None:
        """Call `done` when the logs of all live replicas start at `offset` or later, as this one's does.

        NotLeaderError, CommitTimedOut.
        """
        partition.when_deleted(offset, self._clock.monotonic_ms() + timeout_ms, self.online(partition), done)
        self._limit(partition)

    def _limit(self, partition: Partition) -> None:
        """Start the timer that ends waiting."""
        self._timed[partition] = None
        if self._timer is None:
            self._timer = self._call_later(_EXPIRY_MS / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        timed, self._timed = self._timed, {}
        for partition in timed:
            if partition.expire(now_ms):
                self._timed[partition] = None
        if self._timed and self._timer is None:
            self._timer = self._call_later(_EXPIRY_MS / 1000, self._expire)


# --- ISR changes


class AlterPartitionManager:
    """`tick` it a few times a second. If `ask` raises, the outcome of a request is unknown."""

    def __init__(
        self,
        replicas: ReplicaManager,
        me: int,
        my_epoch: Callable[[], int],
        online: Callable[[Partition], Mapping[int, int]],
        ask: AskController,
        lag_max_ms: Callable[[], float],
        now_ms: Callable[[], float],
    ) -> None:
        """`online` are the live brokers' epochs for a partition; `lag_max_ms` is a setting that may change; `now_ms` is
        monotonic.
        """
        self._replicas = replicas
        self._me = me
        self._my_epoch = my_epoch
        self._online = online
        self._ask = ask
        self._lag_max_ms = lag_max_ms
        self._now_ms = now_ms
        self._looked_at_all_ms = float("-inf")
        self._is_asking = False
        self.shrinks = 0
        self.expansions = 0

    async def tick(self) -> None:
        """Request the changes that are due and apply the answers, unless a request is in flight."""
        if self._is_asking:
            return
        due = self._due()
        if not due:
            return
        self._is_asking = True
        try:
            answers = await self._ask([self._request(partition, proposal) for partition, proposal in due])
            if len(answers) != len(due):
                raise ValueError(f"{len(answers)} answers to {len(due)} requests")
        except BaseException as error:
            for partition, proposal in due:
                _rejected(partition, proposal, is_definite=False)
            if not isinstance(error, Exception):
                raise
            logger.info("ISR changes not answered: partitions=%d error=%s", len(due), error)
            return
        finally:
            self._is_asking = False
        for (partition, proposal), answer in zip(due, answers, strict=True):
            self._note(partition, proposal, answer)

    def _due(self) -> list[tuple[Partition, Proposal]]:
        """Partitions with replicas out of sync are checked each time, the others twice per replica.lag.time.max.ms."""
        now_ms, lag_max_ms = self._now_ms(), self._lag_max_ms()
        look_at_all = now_ms - self._looked_at_all_ms >= lag_max_ms / 2
        if look_at_all:
            self._looked_at_all_ms = now_ms
        due: list[tuple[Partition, Proposal]] = []
        for partition in self._replicas:
            leadership = partition.leadership
            if leadership is None or leadership.is_alone or (leadership.is_complete and not look_at_all):
                continue
            if partition.log.failure is not None:
                continue  # no follower can fetch from here: the ISR must not shrink to the one replica that has failed
            proposal = leadership.propose(partition.log.log_end_offset, self._online(partition), lag_max_ms, now_ms)
            if proposal is not None:
                due.append((partition, proposal))
        return due

    def _request(self, partition: Partition, proposal: Proposal) -> IsrRequest:
        return IsrRequest(
            partition.topic,
            partition.index,
            self._me,
            self._my_epoch(),
            proposal.leader_epoch,
            proposal.state_version,
            proposal.isr,
            proposal.broker_epochs,
        )

    def _note(self, partition: Partition, proposal: Proposal, answer: IsrAnswer) -> None:
        name = f"{partition.topic}-{partition.index}"
        if isinstance(answer, ErrorCode):
            logger.info("ISR change rejected: partition=%s isr=%s error=%s", name, proposal.isr, answer.name)
            _rejected(partition, proposal, is_definite=answer in _DEFINITE)
            return
        if answer.state_version <= proposal.state_version:
            # The state that was known: nothing had to be changed.
            _rejected(partition, proposal, is_definite=True)
            return
        # It stays pending until the image has it: what an ISR means depends on settings, and images bring both in the
        # order in which they were decided.
        before = proposal.isr_before
        self.shrinks += len(answer.isr) < len(before)
        self.expansions += len(answer.isr) > len(before)
        logger.info("ISR changed: partition=%s isr=%s before=%s", name, answer.isr, before)


def _rejected(partition: Partition, proposal: Proposal, *, is_definite: bool) -> None:
    """Unless the partition's next state has settled it meanwhile."""
    leadership = partition.leadership
    if leadership is not None and leadership.pending is proposal:
        leadership.rejected(is_definite=is_definite)
        partition.advance()  # a replica that was to join no longer holds back the high watermark
