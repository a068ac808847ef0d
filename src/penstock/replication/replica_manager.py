"""All partitions of this broker, by topic and number, over the data folders that hold their logs.

Which partitions exist and who leads them follows from the difference of two images and from nothing else. A producer
with acks=all is answered when its records are durable on as many replicas as the topic demands. Syncs are shared: a
producer that waits while one runs takes part in the next (group commit). Partitions for which the disk or the open
files did not suffice are retried.

`AlterPartitionManager` compares the ISRs with the followers' progress and requests changes from the controller, all in
one request at a time. A request is pending until the answer or the partition's next state settles it. A rejection is
definite only where the controller knew the very state that was asked about; anything else is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol

from penstock.cluster.controller.election import AlterPartitionError, IsrRequest
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage, diff
from penstock.log.errors import DiskFull, LogError, TooManyOpenFiles
from penstock.log.group_commit import GroupCommit
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.settings import LogSettings
from penstock.replication.follower import Throttle
from penstock.replication.isr import Proposal
from penstock.replication.partition import Done, Partition
from penstock.runtime.clock import Clock

logger = logging.getLogger(__name__)

_EXPIRY_MS: Final = 100
_RETRIED_AT_ONCE: Final = 20  # each is made here and now, with its syncs


class ReplicaSettings(Protocol):
    """What a topic's settings tell of its replicas."""

    @property
    def log(self) -> LogSettings: ...

    @property
    def min_insync_replicas(self) -> int: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


SettingsOf = Callable[[str], ReplicaSettings]
CallLater = Callable[[float, Callable[[], None]], Timer]


@dataclass(slots=True)
class RoleChanges:
    """What an image changed here.

    Followed are also those whose leader is gone: their `leader` is NO_LEADER until there is another. Gone ones are
    deleted, their logs too.
    """

    led: list[Partition] = field(default_factory=list)
    followed: list[Partition] = field(default_factory=list)
    gone: list[tuple[str, int]] = field(default_factory=list)


class _Unmade(NamedTuple):
    """A partition for which there is no room; whether it was new, and what the disk said."""

    is_new: bool
    reason: str


class ReplicaManager:
    """The partitions that this broker holds. `brokers` are the epochs of those that are alive, by id."""

    def __init__(
        self, logs: LogManager, commits: GroupCommit, *, broker_id: int, clock: Clock, call_later: CallLater
    ) -> None:
        self.logs = logs
        self.brokers: Mapping[int, int] = {}
        self.throttle: Throttle | None = None
        """Of what followers copy from here; None where there are none."""
        self._commits = commits
        self._me = broker_id
        self._clock = clock
        self._call_later = call_later
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._unmade: dict[tuple[str, int], _Unmade] = {}  # for want of room
        self._timed: dict[Partition, None] = {}  # where somebody waits for others, and not for ever
        self._timer: Timer | None = None

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self._partitions.get(topic)
        return None if partitions is None else partitions.get(index)

    def __iter__(self) -> Iterator[Partition]:
        return (partition for partitions in self._partitions.values() for partition in partitions.values())

    def led(self) -> Iterator[Partition]:
        return (partition for partition in self if partition.leadership is not None)

    def close(self) -> None:
        """Answer whoever waits, and lead nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in tuple(self):
            partition.resign()

    # --- following the image

    def apply(self, old: ClusterImage, new: ClusterImage, settings_of: SettingsOf) -> RoleChanges:
        """Do what the cluster decided between two images; the logs of new partitions are better made before.

        A partition whose log cannot be had is left out, with a word in the broker's log.
        """
        changed = RoleChanges()
        change = diff(old, new)
        is_new = bool(old.cluster_id)  # before the first image, what is missing may be on a disk that is not there
        if change.brokers_added or change.brokers_removed or change.brokers_changed:
            self.know_brokers(new)
        for topic in (*change.topics_removed.values(), *_marked_now(old, new)):
            self._remove(topic.name, changed)
        for topic in change.topics_added.values():
            self._apply_topic(None, topic, new, settings_of, changed, is_new=is_new)
        for before, after in change.topics_changed.values():
            self._apply_topic(before, after, new, settings_of, changed, is_new=is_new)
        return changed

    def know_brokers(self, image: ClusterImage) -> None:
        """Who is alive, under which epoch."""
        self.brokers = {broker.broker_id: broker.epoch for broker in image.brokers.values()}
        now_ms = self._clock.monotonic_ms()
        for partition in self:
            partition.brokers_changed(self.brokers, now_ms)

    def take_up(self, topic: TopicImage, image: ClusterImage, settings_of: SettingsOf) -> RoleChanges:
        """A topic of the first image: as `apply` from an empty one, but a topic at a time: a start must not stall."""
        changed = RoleChanges()
        self._apply_topic(None, topic, image, settings_of, changed, is_new=False)
        return changed

    def retry(self, image: ClusterImage, settings_of: SettingsOf) -> RoleChanges:
        """Take up what could not be for want of room on the disk, or of open files, if it still is to be here."""
        changed = RoleChanges()
        for (name, index), unmade in list(islice(self._unmade.items(), _RETRIED_AT_ONCE)):
            del self._unmade[name, index]
            topic = image.topics.get(name)
            state = None if topic is None or name in image.deleting else topic.partition(index)
            if topic is None or state is None or self._me not in state.replicas or self.get(name, index) is not None:
                continue
            partition = self._open(topic, index, settings_of(name), is_new=unmade.is_new, again=True)
            if partition is None:
                break  # the others would find as little room
            self._give_role(partition, state, changed)
        made = len(changed.led) + len(changed.followed)
        if made:
            logger.info("%d partitions were created that had found no room; %d are left", made, len(self._unmade))
        return changed

    @property
    def unmade(self) -> Mapping[tuple[str, int], str]:
        """The partitions that this broker is to hold and has no room for, and what the disk said."""
        return {key: unmade.reason for key, unmade in self._unmade.items()}

    def _apply_topic(
        self,
        before: TopicImage | None,
        topic: TopicImage,
        image: ClusterImage,
        settings_of: SettingsOf,
        changed: RoleChanges,
        *,
        is_new: bool,
    ) -> None:
        if topic.name in image.deleting:
            return
        settings: ReplicaSettings | None = None
        for index, state in enumerate(topic.partitions):
            if before is not None and before.partition(index) is state:
                continue
            if self._me not in state.replicas:
                self._remove_one(topic.name, index, changed)
                continue
            partition = self.get(topic.name, index)
            if partition is None:
                settings = settings or settings_of(topic.name)
                partition = self._open(topic, index, settings, is_new=is_new)
            if partition is not None:
                self._give_role(partition, state, changed)

    def _open(
        self, topic: TopicImage, index: int, settings: ReplicaSettings, *, is_new: bool, again: bool = False
    ) -> Partition | None:
        try:
            log = self.logs.get(topic.name, index)
            if log is None:
                now_ms = self._clock.now_ms()
                log = self.logs.create(topic.name, index, topic.topic_id, settings.log, now_ms, is_new=is_new)
            else:
                log.settings = settings.log
        except LogError as error:
            is_passing = isinstance(error, DiskFull | TooManyOpenFiles)
            if not (again and is_passing):
                logger.error("%s-%d cannot be served: %s", topic.name, index, error)
            if is_passing:
                self._unmade[topic.name, index] = _Unmade(is_new, str(error))
            return None
        partition = Partition(
            topic.name, index, log, self._commits, self.logs, self._clock,
            topic_id=topic.topic_id, min_insync_replicas=settings.min_insync_replicas,
        )  # fmt: skip
        self._partitions.setdefault(topic.name, {})[index] = partition
        return partition

    def _give_role(self, partition: Partition, state: PartitionImage, changed: RoleChanges) -> None:
        if state.leader != self._me:
            if partition.follow(state):
                changed.followed.append(partition)
        elif partition.lead(state, self._me, self.brokers, self._clock.monotonic_ms()):
            changed.led.append(partition)

    def _remove(self, topic: str, changed: RoleChanges) -> None:
        self._drop(topic, self._partitions.pop(topic, {}), changed)

    def _remove_one(self, topic: str, index: int, changed: RoleChanges) -> None:
        """It has moved to other brokers."""
        partitions = self._partitions.get(topic, {})
        partition = partitions.pop(index, None)
        if partition is not None:
            if not partitions:
                del self._partitions[topic]
            self._drop(topic, {index: partition}, changed)

    def _drop(self, topic: str, partitions: Mapping[int, Partition], changed: RoleChanges) -> None:
        for partition in partitions.values():
            partition.drop()
        keys = [(topic, index) for index in partitions]
        try:
            self.logs.delete_all(keys, self._clock.now_ms())
        except LogError as error:
            logger.error("partitions of %s are not deleted: %s", topic, error)
        changed.gone += keys

    def update_settings(self, topic: str, settings: ReplicaSettings) -> None:
        """New settings take effect at once."""
        for partition in self._partitions.get(topic, {}).values():
            partition.log.settings = settings.log
            partition.demand_insync(settings.min_insync_replicas)

    # --- waiting

    def when_durable(self, partition: Partition, end_offset: int, done: Done) -> None:
        """Call `done` when everything below `end_offset` is as durable here as the topic demands, or cannot be.

        By default that is a sync; with a flush policy of its own, one only when the policy asks for it.
        """
        log = partition.log
        if log.settings.sync_before_ack or log.flush_count_reached:
            self._commits.when_durable(log, end_offset, done)
        else:
            done(None)

    def when_committed(self, partition: Partition, end_offset: int, timeout_ms: float, done: Done) -> None:
        """Call `done` when everything below `end_offset` is durable here and the high watermark is there.

        NotLeaderError, NotEnoughReplicasAfterAppend, CommitTimedOut, or what the disk says.
        """
        log = partition.log
        if log.settings.sync_before_ack or not log.flush_count_reached:
            self._wait(partition, end_offset, timeout_ms, done)
            return

        def synced(error: LogError | None) -> None:
            if error is not None:
                done(error)
            else:
                self._wait(partition, end_offset, timeout_ms, done)

        self._commits.when_durable(log, end_offset, synced)

    def when_vouched_for(self, partitions: Iterable[Partition], done: Callable[[], None]) -> None:
        """Call `done` when what this broker alone answers for is durable as far as it goes now, or cannot be.

        So who wrote without waiting for the disk finds the end of a log after what he wrote. Where others are in sync
        as well, the end is where they agree, and nobody is waited for.
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

    def _wait(self, partition: Partition, end_offset: int, timeout_ms: float, done: Done) -> None:
        if partition.is_alone:
            partition.when_committed(end_offset, 0, done)
            return
        partition.when_committed(end_offset, self._clock.monotonic_ms() + timeout_ms, done)
        self._limit(partition)

    def when_begun(self, partition: Partition, offset: int, timeout_ms: float, done: Done) -> None:
        """Call `done` when the logs of all live replicas begin at `offset` or later, as this one's does.

        NotLeaderError, CommitTimedOut.
        """
        partition.when_begun(offset, self._clock.monotonic_ms() + timeout_ms, self.brokers, done)
        self._limit(partition)

    def _limit(self, partition: Partition) -> None:
        """See to it that nobody waits for ever."""
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


def _marked_now(old: ClusterImage, new: ClusterImage) -> Iterable[TopicImage]:
    """The topics that are to be deleted from now on; in the image they are until the last replica is gone."""
    return [new.topics[name] for name in sorted(new.deleting - old.deleting) if name in new.topics]


Ask = Callable[[list[IsrRequest]], Awaitable[Sequence[AlterPartitionError | PartitionImage]]]

_DEFINITE: Final = frozenset({AlterPartitionError.INELIGIBLE_REPLICA, AlterPartitionError.INVALID_REQUEST})


class AlterPartitionManager:
    """`tick` it a few times a second; whatever `ask` raises means that nobody knows what came of it."""

    def __init__(
        self,
        replicas: ReplicaManager,
        me: int,
        my_epoch: Callable[[], int],
        brokers: Callable[[], Mapping[int, int]],
        ask: Ask,
        lag_max_ms: Callable[[], float],
        now_ms: Callable[[], float],
    ) -> None:
        """`lag_max_ms` is asked each time, as it may be set anew; `now_ms` is monotonic."""
        self._replicas = replicas
        self._me = me
        self._my_epoch = my_epoch
        self._brokers = brokers
        self._ask = ask
        self._lag_max_ms = lag_max_ms
        self._now_ms = now_ms
        self._looked_at_all_ms = float("-inf")
        self._is_asking = False
        self.shrinks = 0
        self.expansions = 0

    async def tick(self) -> None:
        """Ask for what is due, and note the answers; nothing while a question is not answered."""
        if self._is_asking:
            return
        due = self._due()
        if not due:
            return
        self._is_asking = True
        try:
            answers = await self._ask([self._request(partition, proposal) for partition, proposal in due])
            if len(answers) != len(due):
                raise ValueError(f"{len(answers)} answers to {len(due)} questions")
        except BaseException as error:
            for partition, proposal in due:
                _refused(partition, proposal, for_certain=False)
            if not isinstance(error, Exception):
                raise
            logger.info("%d changes of ISRs were not answered: %s", len(due), error)
            return
        finally:
            self._is_asking = False
        for (partition, proposal), answer in zip(due, answers, strict=True):
            self._note(partition, proposal, answer)

    def _due(self) -> list[tuple[Partition, Proposal]]:
        """Where somebody is missing, at every look; the others twice in the time that one may be behind."""
        now_ms, lag_max_ms, brokers = self._now_ms(), self._lag_max_ms(), self._brokers()
        look_at_all = now_ms - self._looked_at_all_ms >= lag_max_ms / 2
        if look_at_all:
            self._looked_at_all_ms = now_ms
        due: list[tuple[Partition, Proposal]] = []
        for partition in self._replicas:
            leadership = partition.leadership
            if leadership is None or leadership.is_alone or (leadership.is_complete and not look_at_all):
                continue
            proposal = leadership.propose(partition.log.log_end_offset, brokers, lag_max_ms, now_ms)
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

    def _note(self, partition: Partition, proposal: Proposal, answer: AlterPartitionError | PartitionImage) -> None:
        if isinstance(answer, AlterPartitionError):
            logger.info("%s-%d: ISR %s refused: %s", partition.topic, partition.index, proposal.isr, answer.value)
            _refused(partition, proposal, for_certain=answer in _DEFINITE)
            return
        if answer.state_version <= proposal.state_version:
            # An answer with the state that was known says that there was nothing to change.
            _refused(partition, proposal, for_certain=True)
            return
        # It stays pending until the image tells of it: what an ISR means depends on settings, which an image brings
        # in the order in which they were decided.
        before = proposal.isr_before
        self.shrinks += len(answer.isr) < len(before)
        self.expansions += len(answer.isr) > len(before)
        logger.info("%s-%d: ISR %s, was %s", partition.topic, partition.index, answer.isr, before)


def _refused(partition: Partition, proposal: Proposal, *, for_certain: bool) -> None:
    """Unless the partition's next state has settled it meanwhile."""
    leadership = partition.leadership
    if leadership is not None and leadership.pending is proposal:
        leadership.refused(for_certain=for_certain)
        partition.reconsider()  # whoever was to join counts no more, and nobody else may stir
