"""The verdict on a run: what clients were acknowledged and read, against what the cluster holds in the end.

After Jepsen's checks of logs. Every record handed to a client is acknowledged or fails. An acknowledged record is in
the log, at its offset, once, in the order of sending; a failed one may be there or not. A group reads everything. No
later assignment, and no restarted reader, may start below an acknowledged commit. The log is read back by a client
that took no part, and the replicas' files are compared.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.faults.cluster import Cluster, WaitTimedOut
from benchmarks.faults.load import Acked, Assigned, ClientError, Committed, Event, Failed, Read, Sent, identity_of

_EXAMPLES: Final = 5
_TIMEOUT_S: Final = 60.0
_ANSWER_S: Final = 10.0
_MOST: Final = 10_000

# ---------------------------------------------------------------------------------------------- the verdict


class Stored(NamedTuple):
    offset: int
    sender: str
    number: int


# By partition, in the order of their offsets.
Contents = Mapping[int, Sequence[Stored]]


@dataclass
class Verdict:
    """Findings by kind (`wrong`) with examples, and figures that describe the run.

    `handed_over` is the sum of `acked`, `failed` and `unresolved`, as long as nothing is wrong with the client itself.
    `starts` counts the assignments whose first record was compared with the commits before it. `taken_back` counts the
    commits that are below an earlier one of the same member: librdkafka repeats what was not answered in time, after it
    has committed more.
    """

    handed_over: int = 0
    acked: int = 0
    failed: int = 0
    unresolved: int = 0
    read: int = 0
    read_again: int = 0
    commits: int = 0
    taken_back: int = 0
    starts: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        return not self.wrong

    def add(self, kind: str, example: str) -> None:
        self.wrong[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < _EXAMPLES:
            shown.append(example)


def check_contents(contents: Contents) -> Verdict:
    """Checks the log itself: offsets without gaps, each record once and in the order of sending."""
    verdict = Verdict()
    for partition, records in contents.items():
        last: dict[str, int] = {}
        known: set[tuple[str, int]] = set()
        for place, record in enumerate(records):
            where = f"{record.sender} {record.number} at {partition}/{record.offset}"
            if record.offset != place:
                verdict.add("offset out of line", where)
            if (record.sender, record.number) in known:
                verdict.add("duplicate", where)
            elif record.number < last.get(record.sender, -1):
                verdict.add("out of order", f"{where}, after {last[record.sender]}")
            known.add((record.sender, record.number))
            last[record.sender] = max(record.number, last.get(record.sender, -1))
    return verdict


def check_client(
    events: Sequence[Event],
    contents: Contents,
    committed: Mapping[int, int] | None = None,
    *,
    takes_back: bool = False,
) -> Verdict:
    """Checks what one client saw. `committed` are the final committed offsets of its group.

    With `takes_back`, a member's commit that is acknowledged after a higher one of its own counts: the client has sent
    both, and it is not the brokers' fault which of them it sent last.
    """
    verdict = Verdict()
    _check_sends(verdict, events)
    _check_acknowledgements(verdict, events, contents)
    _check_reads(verdict, events, contents)
    _check_starts(verdict, events, takes_back=takes_back)
    if committed is not None:
        _check_committed(verdict, events, committed, takes_back=takes_back)
    for event in events:
        if isinstance(event, ClientError):
            verdict.errors[event.text] += 1
    return verdict


def _check_sends(verdict: Verdict, events: Sequence[Event]) -> None:
    """Every sent record has exactly one outcome."""
    open_sends: dict[tuple[str, int, int], Sent] = {}
    known: set[tuple[str, int, int]] = set()
    for event in events:
        if isinstance(event, Sent):
            verdict.handed_over += 1
            known.add((event.sender, event.partition, event.number))
            open_sends[event.sender, event.partition, event.number] = event
        elif isinstance(event, Acked | Failed):
            identity = (event.sender, event.partition, event.number)
            if identity not in known:
                verdict.add("resolved, but never sent", _record(event))
            elif open_sends.pop(identity, None) is None:
                verdict.add("resolved twice", _record(event))
    verdict.unresolved = len(open_sends)
    for sent in open_sends.values():
        verdict.add("never resolved", f"{_record(sent)}, sent at {sent.sent_s:.3f} s")


def _record(event: Sent | Acked | Failed) -> str:
    return f"{event.sender} {event.number} for partition {event.partition}"


def _check_acknowledgements(verdict: Verdict, events: Sequence[Event], contents: Contents) -> None:
    places = {
        (partition, record.sender, record.number): record.offset
        for partition, records in contents.items()
        for record in records
    }
    for event in events:
        if isinstance(event, Failed):
            verdict.failed += 1
            verdict.failures[event.text] += 1
        if not isinstance(event, Acked):
            continue
        verdict.acked += 1
        place = places.get((event.partition, event.sender, event.number))
        where = f"{event.sender} {event.number}, acknowledged as {event.partition}/{event.offset}"
        if place is None:
            verdict.add("acknowledged, then lost", where)
        # A broker that already has the record may acknowledge it without its offset.
        elif event.offset >= 0 and place != event.offset:
            verdict.add("acknowledged at another offset", f"{where}, is at {place}")


def _check_reads(verdict: Verdict, events: Sequence[Event], contents: Contents) -> None:
    there = {
        (partition, record.offset): (record.sender, record.number)
        for partition, records in contents.items()
        for record in records
    }
    seen: set[tuple[int, int]] = set()
    positions: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, Assigned):
            for partition in event.partitions:
                positions.pop((event.member, partition), None)
        if not isinstance(event, Read):
            continue
        verdict.read += 1
        at = (event.partition, event.offset)
        verdict.read_again += at in seen
        seen.add(at)
        where = f"{event.sender} {event.number} from {event.partition}/{event.offset}"
        if at not in there:
            verdict.add("read, then gone", where)
        elif there[at] != (event.sender, event.number):
            verdict.add("read, then another one is there", f"{where}, now {there[at]}")
        last = positions.get((event.member, event.partition))
        if last is not None and event.offset <= last:
            verdict.add("read again without a rebalance", f"{where} after {last}")
        elif last is not None and event.offset > last + 1:
            verdict.add("skipped in reading", f"{where} after {last}")
        positions[event.member, event.partition] = event.offset
    for partition, offset in there.keys() - seen:
        verdict.add("never read by the group", f"{partition}/{offset}")


class _Commits:
    """What is committed, as far as it was acknowledged: the highest offset of a partition. With `takes_back`, a member
    may take back its own commits, but no other's.
    """

    def __init__(self, takes_back: bool) -> None:
        self._takes_back = takes_back
        self.last: dict[int, tuple[int, int]] = {}
        """Member and offset, by partition."""

    def add(self, event: Committed) -> bool:
        """Whether it is below an earlier commit of the member."""
        is_back = False
        for partition, offset in event.offsets:
            member, before = self.last.get(partition, (event.member, 0))
            is_back |= member == event.member and offset < before
            if offset >= before or (self._takes_back and member == event.member):
                self.last[partition] = event.member, offset
        return is_back

    def floor(self, partition: int) -> int:
        return self.last.get(partition, (-1, 0))[1]


def _check_starts(verdict: Verdict, events: Sequence[Event], *, takes_back: bool) -> None:
    """The first record after an assignment is not below a commit that was acknowledged before."""
    known = _Commits(takes_back)
    floors: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, Committed):
            verdict.commits += 1
            verdict.taken_back += known.add(event)
        elif isinstance(event, Assigned):
            for partition in event.partitions:
                floors[event.member, partition] = known.floor(partition)
        elif isinstance(event, Read):
            floor = floors.pop((event.member, event.partition), None)
            if floor is None:
                continue
            verdict.starts += 1
            if event.offset < floor:
                verdict.add(
                    "started below an acknowledged commit",
                    f"member {event.member}, partition {event.partition}: at {event.offset}, {floor} was committed",
                )


def _check_committed(
    verdict: Verdict, events: Sequence[Event], committed: Mapping[int, int], *, takes_back: bool
) -> None:
    """The final committed offsets are not below any acknowledged commit."""
    known = _Commits(takes_back)
    for event in events:
        if isinstance(event, Committed):
            known.add(event)
    for partition, (_, offset) in known.last.items():
        if committed.get(partition, -1) < offset:
            found = committed.get(partition)
            now = "nothing is" if found is None else f"{found} is"
            verdict.add("committed, then lost", f"partition {partition}: {offset} was acknowledged, {now} committed")


# ---------------------------------------------------------------------------------------------- what the cluster holds


def ends(client: Mapping[str, Any], topic: str, partitions: int) -> dict[int, int]:
    """The end offset of each partition."""
    consumer = _consumer(client)
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), _ANSWER_S)[1]
            for partition in range(partitions)
        }
    finally:
        consumer.close()


def contents(client: Mapping[str, Any], topic: str, partitions: int) -> dict[int, list[Stored]]:
    """All records by partition. Raises WaitTimedOut."""
    wanted = ends(client, topic, partitions)
    found: dict[int, list[Stored]] = {partition: [] for partition in wanted}
    consumer = _consumer(client)
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in wanted])
        while any(not found[at] or found[at][-1].offset < end - 1 for at, end in wanted.items() if end):
            if time.monotonic() > deadline:
                raise WaitTimedOut(f"timed out reading {topic} to its end")
            for message in consumer.consume(_MOST, 0.2):
                error, partition, offset, value = (
                    message.error(), message.partition(), message.offset(), message.value(),
                )  # fmt: skip
                if error is not None or partition is None or offset is None or not isinstance(value, bytes):
                    raise KafkaException(error)
                sender, written_to, number = identity_of(value)
                stray = "" if written_to == partition else f" (for partition {written_to})"
                found[partition].append(Stored(offset, sender + stray, number))
    finally:
        consumer.close()
    return found


def committed(client: Mapping[str, Any], group: str, topic: str, partitions: int) -> dict[int, int]:
    """The committed offsets of a group by partition, without partitions that have none."""
    consumer = _consumer(client, group)
    try:
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        return {each.partition: each.offset for each in consumer.committed(wanted, _ANSWER_S) if each.offset >= 0}
    finally:
        consumer.close()


def _consumer(client: Mapping[str, Any], group: str = "read-back") -> Consumer:
    return Consumer({**client, "group.id": group, "enable.auto.commit": False})


# ---------------------------------------------------------------------------------------------- the replicas' files


def replica_findings(cluster: Cluster, topic: str, ends: Mapping[int, int], timeout_s: float = 15.0) -> list[str]:
    """Findings in the replicas' files after the last write; `ends` has the end of each partition.

    Every broker of the assignment has a folder for the partition, with a log if there are records, and the logs of a
    partition are identical. Followers have `timeout_s` to fetch the last records.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        view = cluster.agreed([topic])
        if view is None:
            found = [f"{topic}: the brokers do not agree on its replicas"]
        else:
            found = [
                f"{topic}-{partition}: {finding}"
                for partition, end in ends.items()
                for finding in compare_replicas(
                    {
                        number: cluster.nodes[number].replica_folder(f"{topic}-{partition}")
                        for number in view.partitions[topic, partition].replicas
                    },
                    has_records=end > 0,
                )
            ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def compare_replicas(folders: Mapping[int, Path], *, has_records: bool) -> list[str]:
    """Findings in the replicas of one partition."""
    if not folders:
        return ["no replicas"]
    found = []
    for number, folder in folders.items():
        if not folder.is_dir():
            found.append(f"broker {number} has no folder")
        elif has_records and not sum(segment.stat().st_size for segment in segments(folder)):
            found.append(f"broker {number} has no log")
    if not found and len({fingerprint(folder) for folder in folders.values()}) > 1:
        found.append(f"brokers {', '.join(map(str, sorted(folders)))} have different logs")
    return found


def fingerprint(folder: Path) -> str:
    """A digest of the bytes of a partition's log; segment boundaries may differ."""
    digest = hashlib.sha256()
    for segment in segments(folder):
        digest.update(segment.read_bytes())
    return digest.hexdigest()


def segments(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.log"))
