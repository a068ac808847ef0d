"""The decisions of fetching: positions, sessions, which partitions to fetch from which broker. Pure.

A `Place` is the state of one partition. `position` is the next record to hand out, which is what gets committed;
`fetch_offset` is the next one to fetch and runs ahead by what is buffered. It is fetched while READY. Whatever moves
the position by hand makes a new `version`, and data fetched for an older version is dropped.

    position 100, fetched 100..599, handed out up to 249:  position 250, fetch_offset 600

`FetchSession` is the client's half of a fetch session (KIP-227): a full fetch names every partition, later ones only
what changed; an error of the session or a broken connection makes the next fetch a full one. `PreferredReadReplicas`
follows a leader's redirection to a nearer replica (KIP-392) until it is old, fails, or the leader changes.

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

EARLIEST: Final = -2
LATEST: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1

ResetPolicy = Literal["earliest", "latest", "none"]
RESET_TIMES: Final[dict[str, int]] = {"earliest": EARLIEST, "latest": LATEST}


class FetchState(Enum):
    UNKNOWN = "unknown"  # needs the committed offset
    RESET = "reset"  # needs the offset of `reset_to`
    VALIDATE = "validate"  # the leader changed: was what we read cut off?
    READY = "ready"
    STUCK = "stuck"  # no offset and no policy: the user has to seek


class Truncation(NamedTuple):
    """Records up to `position` were read, but the log agrees with what was read only up to `end_offset`."""

    partition: TopicPartition
    position: int
    end_offset: int


class Place:
    """One assigned partition."""

    __slots__ = (
        "buffered_bytes", "epoch", "fetch_bytes", "fetch_epoch", "fetch_offset", "high_watermark", "last_stable_offset",
        "leader_epoch", "log_start_offset", "not_before_ms", "partition", "paused", "position", "reset_to", "standing",
        "version",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, fetch_bytes: int) -> None:
        self.partition = partition
        self.standing = FetchState.UNKNOWN
        self.version = 0
        self.position = NO_OFFSET
        self.epoch = NO_EPOCH
        """The leader epoch of the last record handed out: goes into commits."""
        self.fetch_offset = NO_OFFSET
        self.fetch_epoch = NO_EPOCH
        self.leader_epoch = NO_EPOCH
        """The current leader's epoch, as metadata says; it fences fetches to brokers that do not lead any more."""
        self.reset_to = LATEST
        self.paused = False
        self.buffered_bytes = 0
        self.fetch_bytes = fetch_bytes
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.not_before_ms = 0.0

    def __repr__(self) -> str:
        return f"<Place {self.partition} at {self.position}, {self.standing.value}>"

    @property
    def has_position(self) -> bool:
        return self.standing in (FetchState.READY, FetchState.VALIDATE)

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from `offset`; what is buffered counts no more. With an epoch, it is validated first."""
        self.version += 1
        self.buffered_bytes = 0
        self.position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.not_before_ms = 0.0
        known = epoch != NO_EPOCH and self.leader_epoch > epoch
        self.standing = FetchState.VALIDATE if known else FetchState.READY

    def seek_to(self, time_ms: int) -> None:
        """Go on from the first record at or after a time, or from one of the ends."""
        self.version += 1
        self.buffered_bytes = 0
        self.reset_to = time_ms
        self.not_before_ms = 0.0
        self.standing = FetchState.RESET

    def retry_at(self, not_before_ms: float) -> None:
        self.not_before_ms = not_before_ms

    def led_by(self, leader_epoch: int) -> None:
        """Metadata knows a newer leader: what was read under the old one may have been cut off."""
        if leader_epoch <= self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        if self.standing is FetchState.READY and NO_EPOCH < self.fetch_epoch < leader_epoch:
            self.standing = FetchState.VALIDATE

    def validated(self, version: int, epoch: int, end_offset: int) -> Truncation | None:
        """The leader's answer to where `fetch_epoch` ended. A truncation if it ended before what was fetched."""
        if version != self.version or self.standing is not FetchState.VALIDATE:
            return None
        if end_offset < 0 or epoch < 0:
            # The leader knows no such epoch: nothing can be said against the position.
            self.standing = FetchState.READY
            return None
        if end_offset >= self.fetch_offset:
            self.standing = FetchState.READY
            return None
        return self.diverged(end_offset)

    def diverged(self, end_offset: int) -> Truncation | None:
        """The log agrees up to `end_offset` only. What was fetched beyond it and not handed out is dropped quietly:
        only what the user has seen is worth an alarm."""
        seen = self.position
        if end_offset >= seen:
            self.seek(seen)
            return None
        self.standing = FetchState.STUCK
        return Truncation(self.partition, seen, end_offset)

    def fetched(self, next_offset: int, epoch: int, buffered_bytes: int) -> None:
        """A response was taken: everything before `next_offset` is buffered, or nobody's business."""
        self.fetch_offset = next_offset
        if epoch != NO_EPOCH:
            self.fetch_epoch = epoch
        self.buffered_bytes += buffered_bytes

    def handed_out(self, version: int, next_offset: int, epoch: int) -> None:
        """The user has everything before `next_offset`; of no effect for what was fetched before a seek."""
        if version == self.version and next_offset > self.position:
            self.position = next_offset
            if epoch != NO_EPOCH:
                self.epoch = epoch

    @property
    def lag(self) -> int | None:
        """Records between the position and the end, as far as the last fetch knew."""
        if not self.has_position or self.high_watermark == NO_OFFSET:
            return None
        return max(0, self.high_watermark - self.position)


def is_offset(value: object) -> bool:
    """Whether a value from the user can be an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def start_of(policy: ResetPolicy) -> int | None:
    """The time that a reset policy asks for; None where it leaves the choice to the user."""
    return RESET_TIMES.get(policy)


_AVOIDED_MS: Final = 10_000.0


class _Redirection(NamedTuple):
    node_id: int
    leader_epoch: int
    until_ms: float


class PreferredReadReplicas:
    __slots__ = ("_avoided_until_ms", "_max_age_ms", "_redirections")

    def __init__(self, max_age_ms: float) -> None:
        self._max_age_ms = max_age_ms
        self._redirections: dict[TopicPartition, _Redirection] = {}
        self._avoided_until_ms: dict[TopicPartition, float] = {}

    def redirected(self, partition: TopicPartition, node_id: int, leader_epoch: int, now_ms: float) -> None:
        """The leader of this epoch said that another replica is nearer."""
        self._redirections[partition] = _Redirection(node_id, leader_epoch, now_ms + self._max_age_ms)

    def source(
        self, partition: TopicPartition, leader: int, leader_epoch: int, brokers: Container[int], now_ms: float
    ) -> int:
        """Whom to ask for the records of a partition."""
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
        """Whether a request for these may name a rack: none of them was let down a moment ago."""
        avoided = self._avoided_until_ms
        if not avoided:
            return True
        for partition in [each for each, until_ms in avoided.items() if now_ms >= until_ms]:
            del avoided[partition]
        return not any(partition in avoided for partition in partitions)

    def ended(self, partition: TopicPartition, node_id: int, now_ms: float) -> bool:
        """A broker refused to serve a partition: whether it was the one that the leader had named."""
        found = self._redirections.get(partition)
        if found is None or found.node_id != node_id:
            return False
        self._avoid(partition, now_ms)
        return True

    def lost(self, node_id: int, now_ms: float) -> None:
        """A broker does not answer."""
        for partition in [each for each, found in self._redirections.items() if found.node_id == node_id]:
            self._avoid(partition, now_ms)

    def _avoid(self, partition: TopicPartition, now_ms: float) -> None:
        del self._redirections[partition]
        self._avoided_until_ms[partition] = now_ms + _AVOIDED_MS


NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1


class PartitionFetch(NamedTuple):
    """How one partition is to be fetched."""

    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1


class SessionRequest(NamedTuple):
    session_id: int
    epoch: int
    named: dict[TopicPartition, PartitionFetch]
    forgotten: list[TopicPartition]


class FetchSession:
    __slots__ = ("_epoch", "_id", "_known", "_pending")

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, PartitionFetch] = {}
        self._pending: dict[TopicPartition, PartitionFetch] = {}

    @property
    def is_open(self) -> bool:
        return self._id != NO_SESSION

    def request(self, wanted: Mapping[TopicPartition, PartitionFetch]) -> SessionRequest:
        self._pending = dict(wanted)
        if not self.is_open:
            return SessionRequest(NO_SESSION, INITIAL_EPOCH, self._pending, [])
        named = {partition: how for partition, how in wanted.items() if self._known.get(partition) != how}
        forgotten = [partition for partition in self._known if partition not in wanted]
        return SessionRequest(self._id, self._epoch, named, forgotten)

    def accepted(self, session_id: int) -> None:
        """The broker answered without an error of the session; id 0 says that it keeps none."""
        if session_id == NO_SESSION:
            self.reset()
            return
        self._epoch = 1 if session_id != self._id or self._epoch >= _LAST_EPOCH else self._epoch + 1
        self._id = session_id
        self._known = self._pending

    def reset(self) -> None:
        """Begin anew: the next fetch names everything."""
        self._id, self._epoch = NO_SESSION, INITIAL_EPOCH
        self._known = {}


class FetchSource(NamedTuple):
    """Whom to ask, and the epoch of who leads: the two differ where a nearer replica is read."""

    node_id: int
    epoch: int


class NodePlan(NamedTuple):
    """One broker's next fetch. `is_partial`: some of its partitions wait for their buffers to empty, or are asked for
    by another request, so the broker should not hold this one long."""

    wanted: dict[TopicPartition, PartitionFetch]
    is_partial: bool


class Budget:
    """The memory that fetched records may take: what is buffered, and what may arrive."""

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
    places: Iterable[Place],
    leaders: Mapping[TopicPartition, FetchSource],
    idle_nodes: frozenset[int] | None,
    now_ms: float,
) -> dict[int, NodePlan]:
    """The fetches to send now, by broker. `idle_nodes`: those without one under way; None means all."""
    plans: dict[int, dict[TopicPartition, PartitionFetch]] = {}
    full: set[int] = set()
    for place in places:
        if place.standing is not FetchState.READY or place.paused or now_ms < place.not_before_ms:
            continue
        leader = leaders.get(place.partition)
        if leader is None or (idle_nodes is not None and leader.node_id not in idle_nodes):
            continue
        if place.buffered_bytes >= place.fetch_bytes:
            full.add(leader.node_id)
            continue
        plans.setdefault(leader.node_id, {})[place.partition] = PartitionFetch(
            place.fetch_offset, place.fetch_bytes, leader.epoch, place.fetch_epoch
        )
    return {node_id: NodePlan(wanted, node_id in full) for node_id, wanted in plans.items()}


class FetchRotation:
    """Whose turn it is: the places in the order in which they should be asked for."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[TopicPartition, Place] = {}

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._places.values()))

    def set(self, places: Iterable[Place]) -> None:
        wanted = {place.partition: place for place in places}
        kept = {partition: wanted[partition] for partition in self._places if partition in wanted}
        self._places = {**kept, **wanted}

    def move_to_end(self, partition: TopicPartition) -> None:
        place = self._places.pop(partition, None)
        if place is not None:
            self._places[partition] = place


_OFFSET_AND_SIZE: Final = Struct(">qi")
_MAGIC_AT: Final = 16

Aborted = tuple[int, int]
"""Producer id and first offset of an aborted transaction."""


class Chunk:
    """Batches of one partition, from `from_offset` on."""

    __slots__ = ("buffer", "epoch", "from_offset", "headers", "next_offset", "place", "size", "version")

    def __init__(
        self, place: Place, buffer: Buffer, headers: list[BatchHeader], from_offset: int, next_offset: int, epoch: int
    ) -> None:
        self.place = place
        self.version = place.version
        self.buffer = buffer
        self.headers = headers
        self.from_offset = from_offset
        self.next_offset = next_offset
        self.epoch = epoch
        self.size = len(buffer)

    @property
    def is_stale(self) -> bool:
        """Fetched before the user went elsewhere, or before the partition went away."""
        return self.version != self.place.version

    def __repr__(self) -> str:
        return f"<Chunk {self.place.partition} {self.from_offset}..{self.next_offset - 1}, {self.size} bytes>"


class AbortedTransactions:
    """Which batches of a fetched run belong to transactions that were aborted."""

    __slots__ = ("_open", "_rest")

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._rest = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, buffer: Buffer, header: BatchHeader) -> bool:
        """To be asked for every batch, in order."""
        while self._rest and self._rest[-1][1] <= header.last_offset:
            self._open.add(self._rest.pop()[0])
        if header.is_control:
            if header.producer_id in self._open:
                marker = decode_marker(buffer, header)
                if marker is not None and not marker.is_commit:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def chunk_of(
    place: Place,
    records: Buffer,
    aborted: Iterable[Aborted] = (),
    *,
    limit: int = DEFAULT_DECOMPRESSED_LIMIT,
    verify: bool = True,
) -> Chunk | None:
    """The chunk, or None where not one whole batch arrived; raises CorruptBatch if the first one is damaged."""
    from_offset = place.fetch_offset
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
    return Chunk(place, buffer, visible, from_offset, next_offset, epoch)


def as_batches(records: Buffer, limit: int) -> Buffer:
    """The same records as batches: unchanged, unless there are message sets of magic 0 or 1 among them."""
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
    """Whether a batch of magic 2 begins here. Too few bytes to tell are the tail of a message set that was cut."""
    return position + _MAGIC_AT < len(view) and view[position + _MAGIC_AT] == 2


def _after(view: memoryview, position: int) -> int:
    if position + _OFFSET_AND_SIZE.size > len(view):
        return len(view)
    size = _OFFSET_AND_SIZE.unpack_from(view, position)[1]
    # A size that makes no sense leads to the end: whoever reads the part says what is wrong.
    return position + _OFFSET_AND_SIZE.size + size if size > 0 else len(view)
