"""Brokers' partitions without sockets: real logs on a simulated disk, a manual clock and timers.

Followers here ask by a method call what a follower asks by Fetch, and do with the answer what `following` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import BrokerRegistration, Endpoint
from penstock.log.errors import LogError
from penstock.log.group_commit import GroupCommit
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.settings import LogSettings
from penstock.records import encode_batch, records_of, scan
from penstock.replication.fetch_state import (
    Append,
    Hold,
    Step,
    Truncate,
    TruncateFully,
    next_step,
    position_of,
)
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers, Outcome, T
from penstock.testing.simulated_disk import PowerLoss
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.fetch import EpochEndOffset, PartitionData

TOPIC = "t"
TOPIC_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000
LEDGER: dict[int, int] = {1: 101, 2: 102, 3: 103}


class HeldWorkers:
    """Work that is done when the test says so; at once unless it is held."""

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: list[Callable[[], None]] = []
        self._inline = InlineWorkers()

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        if self.is_held:
            self._waiting.append(lambda: self._inline.run(work, done))
        else:
            self._inline.run(work, done)

    def release(self) -> None:
        """Do what waits, and hold nothing any more."""
        self.is_held = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()

    def close(self) -> None:
        self._waiting.clear()


class Timers:
    """What is to be called later, when the clock is moved."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._waiting: list[_Timer] = []

    def __call__(self, delay_s: float, work: Callable[[], None]) -> _Timer:
        timer = _Timer(self._clock.monotonic_ms() + delay_s * 1000, work)
        self._waiting.append(timer)
        return timer

    def pass_time(self, ms: int) -> None:
        self._clock.advance(ms)
        due = [timer for timer in self._waiting if timer.due_ms <= self._clock.monotonic_ms()]
        self._waiting = [timer for timer in self._waiting if timer not in due]
        for timer in due:
            if not timer.is_cancelled:
                timer.work()


@dataclass(slots=True, eq=False)
class _Timer:
    due_ms: float
    work: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(frozen=True, slots=True)
class TopicRules:
    log: LogSettings = field(default_factory=LogSettings)
    min_insync_replicas: int = 1


class Host:
    """One broker's replicas. `take` gives it an image; a second Host on the same files is its next life."""

    def __init__(self, broker_id: int, *, files: SimulatedFiles | None = None, rules: TopicRules | None = None) -> None:
        self.id = broker_id
        self.files = files or SimulatedFiles()
        self.clock = ManualClock(NOW_MS)
        self.timers = Timers(self.clock)
        self.workers = HeldWorkers()
        self.rules = rules or TopicRules()
        commits = GroupCommit(self.workers)
        self.logs = LogManager.open(
            self.files, ["/data"], node_id=broker_id, cluster_id="c", random=SeededRandom(broker_id),
            workers=self.workers, commits=commits,
        )  # fmt: skip
        self.logs.load(lambda topic: self.rules.log, NOW_MS)
        self.replicas = ReplicaManager(
            self.logs, commits, lambda _, __: self.rules, broker_id=broker_id, clock=self.clock, call_later=self.timers
        )
        self.image = ClusterImage()

    def take(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        self.changed = self.replicas.apply(before, image)

    @property
    def partition(self) -> Partition:
        partition = self.replicas.get(TOPIC, 0)
        assert partition is not None
        return partition

    def append(self, *values: bytes, acks_all: bool = True) -> Committed:
        """Append, and wait for the commit."""
        committed = Committed()
        batch = encode_batch([(NOW_MS, None, value, ()) for value in values])
        if acks_all:
            self.partition.append(batch, NOW_MS, done=committed, timeout_ms=1000)
        else:
            appended = self.partition.append(batch, NOW_MS, acks=1)
            self.partition.when_committed(appended.last_offset + 1, 1000, committed)
        return committed

    def values(self, *, committed_only: bool = False) -> list[bytes]:
        log = self.partition.log
        found: list[bytes] = []
        offset, upper = log.log_start_offset, log.high_watermark if committed_only else log.log_end_offset
        while (region := log.read(offset, 1 << 20, upper_offset=upper)) is not None:
            data = region.read()
            for header in scan(data).headers:
                found += [record.value or b"" for record in records_of(data, header)]
                offset = header.next_offset
        return found

    def fetch_from(self, leader: Host, *, broker_epoch: int | None = None) -> Step:
        """One round of a follower: ask, and do what the answer says."""
        mine, theirs = self.partition, leader.partition
        epochs = mine.log.epochs
        position = position_of(mine.log.log_end_offset, mine.log.log_start_offset, epochs)
        error, parted = theirs.check_epoch(mine.leader_epoch), None
        if error == ErrorCode.NONE:
            epoch = LEDGER[self.id] if broker_epoch is None else broker_epoch
            error, parted = theirs.fetched_by(
                self.id, epoch, position, leader.replicas.online(theirs), leader.clock.monotonic_ms()
            )
        records = b""
        if error == ErrorCode.NONE and parted is None:
            region = theirs.log.read(position.offset, 1 << 20)
            records = b"" if region is None else region.read()
        answer = PartitionData(
            error_code=error,
            high_watermark=theirs.log.high_watermark,
            log_start_offset=theirs.log.log_start_offset,
            records=records,
        )
        if parted is not None:
            answer.diverging_epoch = EpochEndOffset(epoch=parted.epoch, end_offset=parted.end_offset)
        step = next_step(answer, mine.log.log_end_offset, epochs)
        self._do(step, records)
        return step

    def _do(self, step: Step, records: bytes) -> None:
        mine = self.partition
        if isinstance(step, Append):
            if records:
                mine.append_as_follower(records)
                if mine.log.settings.sync_before_ack:
                    mine.log.flush()
            mine.followed(step.high_watermark, step.log_start)
        elif isinstance(step, Truncate):
            mine.truncate_to(step.offset)
        elif isinstance(step, TruncateFully):
            mine.truncate_fully_and_start_at(step.offset)
        else:
            assert isinstance(step, Hold)

    def restart(self, loss: PowerLoss | None = None) -> Host:
        """The process is killed, or the power fails; the next life on what is left."""
        if loss is None:
            self.files.kill()
        else:
            self.files.crash(loss)
        return Host(self.id, files=self.files, rules=self.rules)


class Committed:
    """A producer that waits for a commit."""

    def __init__(self) -> None:
        self.answers: list[LogError | None] = []

    def __call__(self, error: LogError | None) -> None:
        self.answers.append(error)

    @property
    def is_answered(self) -> bool:
        return bool(self.answers)

    @property
    def is_good(self) -> bool:
        return self.answers == [None]


def cluster(
    leader: int, epoch: int, *, isr: Sequence[int] = (1, 2, 3), replicas: Sequence[int] = (1, 2, 3), version: int = 0
) -> ClusterImage:
    """Three brokers and one topic of one partition."""
    brokers = {
        broker: BrokerRegistration(
            broker,
            (Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker}", 9092),),
            epoch=LEDGER[broker],
            rack=f"r{broker}",
        )
        for broker in LEDGER
    }
    state = PartitionImage(tuple(replicas), leader, epoch, tuple(isr), state_version=version)
    image = ClusterImage(cluster_id="c", brokers=brokers)
    return image.with_topic(TopicImage(TOPIC, TOPIC_ID, (state,)))


def with_epoch(image: ClusterImage, broker: int, epoch: int) -> ClusterImage:
    return image.with_broker(replace(image.brokers[broker], epoch=epoch))
