"""The decisions of fetching: a partition's position, which partitions to fetch from which broker, what arrived. Pure.

A `PartitionState` is one assigned partition. `position` is the next record to hand out, which is what gets committed;
`fetch_offset` is the next one to fetch and runs ahead by what is buffered. A partition is fetched while READY.
Everything that moves the position by hand starts a new `version`, and data fetched for an older version is dropped.

    position 100, fetched 100..599, handed out up to 249:  position 250, fetch_offset 600

`PreferredReadReplicas` follows a leader's redirection to a nearer replica (KIP-392) until it is old, fails, or the
leader changes.

`chunk_of` reads batch headers only. Control batches and batches of aborted transactions are hidden, message sets are
converted, a batch cut off at the end is left for the next fetch; a damaged one ends the chunk, and is an error if it
is the first.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from struct import Struct
from typing import Final, Literal, NamedTuple

from penstock.client.cluster_metadata import TopicPartition
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, BatchHeader, Buffer, CorruptBatch, scan
from penstock.records.batch import decode_marker
from penstock.records.legacy import upconvert
from penstock.wire.fetch_session import NO_EPOCH, PartitionFetch, records_in
from penstock.wire.schemas.fetch import PartitionData

EARLIEST: Final = -2
LATEST: Final = -1
NO_OFFSET: Final = -1

ResetPolicy = Literal["earliest", "latest", "none"]
_RESET_TIMES: Final[dict[str, int]] = {"earliest": EARLIEST, "latest": LATEST}

# How long a leader is not offered our rack after the replica that it named has failed.
_AVOIDED_MS: Final = 10_000.0

_OFFSET_AND_SIZE: Final = Struct(">qi")
_MAGIC_AT: Final = 16


# --------------------------------------------------------------------------------------------------- positions


class FetchState(Enum):
    UNKNOWN = "unknown"  # needs the committed offset
    RESET = "reset"  # needs the offset of `reset_to`
    VALIDATE = "validate"  # the leader changed: was the log truncated below the position?
    READY = "ready"
    STUCK = "stuck"  # no offset and no policy: the user has to seek


class Truncation(NamedTuple):
    """Records up to `position` were read, but the leader's log matches them only up to `end_offset`."""

    partition: TopicPartition
    position: int
    end_offset: int


class PartitionState:
    """One assigned partition."""

    __slots__ = (
        "buffered_bytes", "epoch", "fetch_bytes", "fetch_epoch", "fetch_offset", "fetch_state", "high_watermark",
        "last_stable_offset", "leader_epoch", "log_start_offset", "not_before_ms", "partition", "paused", "position",
        "reset_to", "start", "version",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, fetch_bytes: int) -> None:
        self.partition = partition
        self.fetch_state = FetchState.UNKNOWN
        self.version = 0
        self.position = NO_OFFSET
        self.epoch = NO_EPOCH
        """The leader epoch of the last record handed out: goes into commits."""
        self.fetch_offset = NO_OFFSET
        self.fetch_epoch = NO_EPOCH
        self.leader_epoch = NO_EPOCH
        """The current leader's epoch according to metadata; it fences fetches to former leaders."""
        self.reset_to = LATEST
        self.start = NO_OFFSET
        """The first position, or the one last sought: where a rewind leads if there is no committed offset."""
        self.paused = False
        self.buffered_bytes = 0
        self.fetch_bytes = fetch_bytes
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.not_before_ms = 0.0

    def __repr__(self) -> str:
        return f"<PartitionState {self.partition} at {self.position}, {self.fetch_state.value}>"

    @property
    def has_position(self) -> bool:
        return self.fetch_state in (FetchState.READY, FetchState.VALIDATE)

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Continue at `offset` and drop what is buffered. With an epoch, the position is validated first."""
        self.version += 1
        self.buffered_bytes = 0
        self.position = self.fetch_offset = offset
        if self.start == NO_OFFSET:
            self.start = offset
        self.epoch = self.fetch_epoch = epoch
        self.not_before_ms = 0.0
        known = epoch != NO_EPOCH and self.leader_epoch > epoch
        self.fetch_state = FetchState.VALIDATE if known else FetchState.READY

    def seek_to(self, time_ms: int) -> None:
        """Continue at the first record at or after a time, or at one of the ends."""
        self.version += 1
        self.buffered_bytes = 0
        self.reset_to = time_ms
        self.not_before_ms = 0.0
        self.fetch_state = FetchState.RESET

    def rewind(self) -> None:
        """Continue at the committed offset, which has to be looked up, or else at `start`."""
        self.version += 1
        self.buffered_bytes = 0
        self.not_before_ms = 0.0
        self.fetch_state = FetchState.UNKNOWN

    def retry_at(self, not_before_ms: float) -> None:
        self.not_before_ms = not_before_ms

    def led_by(self, leader_epoch: int) -> None:
        """Metadata names a newer leader: what was read under the old one may have been truncated."""
        if leader_epoch <= self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        if self.fetch_state is FetchState.READY and NO_EPOCH < self.fetch_epoch < leader_epoch:
            self.fetch_state = FetchState.VALIDATE

    def validated(self, version: int, epoch: int, end_offset: int) -> Truncation | None:
        """The leader says where `fetch_epoch` ended. Returns a truncation if that is before what was handed out."""
        if version != self.version or self.fetch_state is not FetchState.VALIDATE:
            return None
        if end_offset < 0 or epoch < 0:
            # The leader does not know the epoch, so nothing contradicts the position.
            self.fetch_state = FetchState.READY
            return None
        if end_offset >= self.fetch_offset:
            self.fetch_state = FetchState.READY
            return None
        return self.diverged(end_offset)

    def diverged(self, end_offset: int) -> Truncation | None:
        """The log matches only up to `end_offset`. Records beyond it that were fetched but not handed out are dropped
        silently; a truncation below what the application has seen is returned."""
        seen = self.position
        if end_offset >= seen:
            self.seek(seen)
            return None
        self.fetch_state = FetchState.STUCK
        return Truncation(self.partition, seen, end_offset)

    def fetched(self, next_offset: int, epoch: int, buffered_bytes: int) -> None:
        """Everything before `next_offset` is buffered, or not visible to consumers."""
        self.fetch_offset = next_offset
        if epoch != NO_EPOCH:
            self.fetch_epoch = epoch
        self.buffered_bytes += buffered_bytes

    def handed_out(self, version: int, next_offset: int, epoch: int) -> None:
        """The application has everything before `next_offset`. Ignored for data fetched before a seek."""
        if version == self.version and next_offset > self.position:
            self.position = next_offset
            if epoch != NO_EPOCH:
                self.epoch = epoch

    @property
    def lag(self) -> int | None:
        """Records between the position and the end, as of the last fetch."""
        if not self.has_position or self.high_watermark == NO_OFFSET:
            return None
        return max(0, self.high_watermark - self.position)


def is_offset(value: object) -> bool:
    """Whether a value passed by the application can be an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def start_of(policy: ResetPolicy) -> int | None:
    """The time that a reset policy stands for; None if the application has to seek."""
    return _RESET_TIMES.get(policy)


# --------------------------------------------------------------------------------------------------- whom to fetch from


class _Redirection(NamedTuple):
    node_id: int
    leader_epoch: int
    until_ms: float


class PreferredReadReplicas:
    """Which replica to read instead of the leader, by partition."""

    __slots__ = ("_avoided_until_ms", "_max_age_ms", "_redirections")

    def __init__(self, max_age_ms: float) -> None:
        self._max_age_ms = max_age_ms
        self._redirections: dict[TopicPartition, _Redirection] = {}
        self._avoided_until_ms: dict[TopicPartition, float] = {}

    def redirected(self, partition: TopicPartition, node_id: int, leader_epoch: int, now_ms: float) -> None:
        """The leader of this epoch named a nearer replica."""
        self._redirections[partition] = _Redirection(node_id, leader_epoch, now_ms + self._max_age_ms)

    def source(
        self, partition: TopicPartition, leader: int, leader_epoch: int, brokers: Container[int], now_ms: float
    ) -> int:
        """The broker to fetch a partition from."""
        if not self._redirections:
            return leader
        found = self._redirections.get(partition)
        if found is None:
            return leader
        if found.node_id not in brokers:
            self._avoid(partition, now_ms)
            return leader
        if now_ms >= found.until_ms or found.leader_epoch != leader_epoch:
            del self._redirections[partition]
            return leader
        return found.node_id

    def may_redirect(self, partitions: Iterable[TopicPartition], now_ms: float) -> bool:
        """Whether a request for these may name a rack: the preferred replica of none of them has just failed."""
        avoided = self._avoided_until_ms
        if not avoided:
            return True
        for partition in [each for each, until_ms in avoided.items() if now_ms >= until_ms]:
            del avoided[partition]
        return not any(partition in avoided for partition in partitions)

    def ended(self, partition: TopicPartition, node_id: int, now_ms: float) -> bool:
        """A broker answered with an error. Returns whether it was the preferred replica, which is given up then."""
        found = self._redirections.get(partition)
        if found is None or found.node_id != node_id:
            return False
        self._avoid(partition, now_ms)
        return True

    def lost(self, node_id: int, now_ms: float) -> None:
        """A broker cannot be reached: give up all redirections to it."""
        for partition in [each for each, found in self._redirections.items() if found.node_id == node_id]:
            self._avoid(partition, now_ms)

    def _avoid(self, partition: TopicPartition, now_ms: float) -> None:
        del self._redirections[partition]
        self._avoided_until_ms[partition] = now_ms + _AVOIDED_MS


class FetchSource(NamedTuple):
    """The broker to fetch from, which may be a nearer replica, and the leader's epoch."""

    node_id: int
    epoch: int


class NodePlan(NamedTuple):
    """One broker's next fetch. `is_partial`: some of its partitions have full buffers, or are in another request, so
    the broker should not hold this one for long."""

    wanted: dict[TopicPartition, PartitionFetch]
    is_partial: bool


class Budget:
    """The memory for fetched records: what is buffered, and what requests in flight may bring."""

    __slots__ = ("_buffered", "_expected", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffered = 0
        self._expected: dict[Hashable, int] = {}

    @property
    def room(self) -> int:
        return self.limit - self._buffered - sum(self._expected.values())

    @property
    def buffered(self) -> int:
        return self._buffered

    def expect(self, request: Hashable, size: int) -> None:
        self._expected[request] = size

    def arrived(self, request: Hashable) -> None:
        self._expected.pop(request, None)

    def add(self, size: int) -> None:
        self._buffered += size

    def release(self, size: int) -> None:
        self._buffered -= size


def plan_fetches(
    states: Iterable[PartitionState],
    sources: Mapping[TopicPartition, FetchSource],
    now_ms: float,
) -> dict[int, NodePlan]:
    """The fetches to send now, by broker."""
    plans: dict[int, dict[TopicPartition, PartitionFetch]] = {}
    full: set[int] = set()
    for state in states:
        if state.fetch_state is not FetchState.READY or state.paused or now_ms < state.not_before_ms:
            continue
        source = sources.get(state.partition)
        if source is None:
            continue
        if state.buffered_bytes >= state.fetch_bytes:
            full.add(source.node_id)
            continue
        plans.setdefault(source.node_id, {})[state.partition] = PartitionFetch(
            state.fetch_offset, state.fetch_bytes, source.epoch, state.fetch_epoch
        )
    return {node_id: NodePlan(wanted, node_id in full) for node_id, wanted in plans.items()}


class FetchRotation:
    """The assigned partitions in the order in which to fetch them: those that got records go to the end."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(list(self._states.values()))

    def set(self, states: Iterable[PartitionState]) -> None:
        wanted = {state.partition: state for state in states}
        kept = {partition: wanted[partition] for partition in self._states if partition in wanted}
        self._states = {**kept, **wanted}

    def move_to_end(self, partition: TopicPartition) -> None:
        state = self._states.pop(partition, None)
        if state is not None:
            self._states[partition] = state


# --------------------------------------------------------------------------------------------------- what arrived

Aborted = tuple[int, int]
"""Producer id and first offset of an aborted transaction."""


class Chunk:
    """Batches of one partition, from `from_offset` on."""

    __slots__ = ("buffer", "epoch", "from_offset", "headers", "next_offset", "size", "state", "version")

    def __init__(
        self,
        state: PartitionState,
        buffer: Buffer,
        headers: list[BatchHeader],
        from_offset: int,
        next_offset: int,
        epoch: int,
    ) -> None:
        self.state = state
        self.version = state.version
        self.buffer = buffer
        self.headers = headers
        self.from_offset = from_offset
        self.next_offset = next_offset
        self.epoch = epoch
        self.size = len(buffer)

    @property
    def is_stale(self) -> bool:
        """Fetched before the application sought elsewhere, or before the partition was revoked."""
        return self.version != self.state.version

    def __repr__(self) -> str:
        return f"<Chunk {self.state.partition} {self.from_offset}..{self.next_offset - 1}, {self.size} bytes>"


class AbortedTransactions:
    """Which of the fetched batches belong to aborted transactions."""

    __slots__ = ("_open", "_rest")

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._rest = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, buffer: Buffer, header: BatchHeader) -> bool:
        """Whether consumers must not see a batch. Call it for every batch, in order."""
        while self._rest and self._rest[-1][1] <= header.last_offset:
            self._open.add(self._rest.pop()[0])
        if header.is_control:
            if header.producer_id in self._open:
                marker = decode_marker(buffer, header)
                if marker is not None and not marker.is_commit:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def chunk_in(state: PartitionState, data: PartitionData, *, verify: bool = True) -> Chunk | None:
    """The chunk of a response for a partition; see `chunk_of`."""
    records = records_in(data)
    if records is None:
        return None
    aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
    return chunk_of(state, records, aborted, verify=verify)


def chunk_of(
    state: PartitionState,
    records: Buffer,
    aborted: Iterable[Aborted] = (),
    *,
    limit: int = DEFAULT_DECOMPRESSED_LIMIT,
    verify: bool = True,
) -> Chunk | None:
    """The chunk; None if not one whole batch arrived. Raises CorruptBatch if the first one is damaged."""
    from_offset = state.fetch_offset
    buffer = as_batches(records, limit)
    found = scan(buffer, verify=verify)
    if not found.headers:
        if found.problem not in (None, "incomplete"):
            raise CorruptBatch(found.problem, found.end)
        return None
    transactions = AbortedTransactions(aborted)
    visible: list[BatchHeader] = []
    next_offset, epoch = from_offset, NO_EPOCH
    for header in found.headers:
        hidden = transactions.hides(buffer, header)
        if header.next_offset <= from_offset:
            continue
        if not hidden:
            visible.append(header)
        next_offset, epoch = header.next_offset, header.leader_epoch
    return Chunk(state, buffer, visible, from_offset, next_offset, epoch)


def as_batches(records: Buffer, limit: int) -> Buffer:
    """The same records as batches: message sets of magic 0 and 1 are converted."""
    if len(records) <= _MAGIC_AT or records[_MAGIC_AT] == 2:
        return records
    parts: list[Buffer] = []
    position, end = 0, len(records)
    view = memoryview(records)
    while position < end:
        start, is_new = position, _is_batch(view, position)
        while position < end and _is_batch(view, position) == is_new:
            position = _after(view, position)
        part = view[start : min(position, end)]
        parts.append(part if is_new else upconvert(part, limit=limit, keep_offsets=True, allow_partial=True))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_batch(view: memoryview, position: int) -> bool:
    """Whether a batch of magic 2 begins here. Too few bytes to decide are the tail of a message set."""
    return position + _MAGIC_AT < len(view) and view[position + _MAGIC_AT] == 2


def _after(view: memoryview, position: int) -> int:
    if position + _OFFSET_AND_SIZE.size > len(view):
        return len(view)
    size = _OFFSET_AND_SIZE.unpack_from(view, position)[1]
    # An impossible size leads to the end; reading the part then raises the error.
    return position + _OFFSET_AND_SIZE.size + size if size > 0 else len(view)
