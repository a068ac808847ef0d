"""Partitions of a Kafka 0.7 broker into topics, each message once, however often the import is stopped and repeated.

Every record has a header that says which message it is: its byte position in the old log, its place in a compressed
set, and the source. The target itself is therefore the only state: a repeated import looks for the last of its records
in a partition and continues after it. Records are written in transactions of one transactional id, so that a killed
import leaves nothing half done, and the next one ends what the killed one may still have under way before it looks.

Nothing is written to a partition that has records, but none of this source, unless the operator says so: they may be
other data, or those of an earlier import under another name, or what is left of one after retention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.cli.output import CommandError
from penstock.cli.records.log_folder_0_7 import Damage, Entry, OldPartition
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer

HEADER: Final = "import-0.7"
_RECORDS_AT_ONCE: Final = 5_000
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
_LOOK_BACK: Final = 1_000
_POLL_S: Final = 1.0


class Place(NamedTuple):
    """Where a message was: the byte position of its log entry, and its number in a compressed set, else 0."""

    position: int
    number: int

    def header(self, source: str) -> bytes:
        return f"{self.position} {self.number} {source}".encode()


def parse_header(value: bytes | None) -> tuple[Place, str] | None:
    """Place and source of a record; None if this is not a header of an import."""
    position, _, rest = (value or b"").decode("utf-8", "replace").partition(" ")
    number, _, source = rest.partition(" ")
    if not (position.isdecimal() and number.isdecimal() and source):
        return None
    return Place(int(position), int(number)), source


@dataclass(slots=True)
class Outcome:
    """What became of a partition."""

    old: OldPartition
    target: TopicPartition
    imported: int = 0
    is_continued: bool = False
    """Whether an earlier run had imported some of it."""
    next_position: int = 0
    damages: list[Damage] = field(default_factory=list)


class _Last(NamedTuple):
    place: Place
    value: bytes | None


class _Record(NamedTuple):
    value: bytes
    place: Place
    timestamp_ms: int | None


class Importer:
    """Imports partitions one by one. `source` names the old broker, the same in each run."""

    def __init__(
        self,
        producer: Producer[Any, Any],
        consumer: Consumer[bytes, bytes],
        source: str,
        *,
        append: bool = False,
        use_file_times: bool = False,
        on_progress: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """The producer is transactional, and the consumer reads committed records."""
        self._producer = producer
        self._consumer = consumer
        self._source = source
        self._append = append
        self._use_file_times = use_file_times
        self._on_progress = on_progress
        producer.init_transactions()  # nothing of an earlier run can arrive any more

    def run(self, old: OldPartition, target: TopicPartition) -> Outcome:
        """Import a partition, from where an earlier run stopped. CommandError, PenstockError."""
        outcome = Outcome(old, target, next_position=old.first_position)
        last = self._last_imported(target)
        if last is not None:
            self._check_same(old, last)
            outcome.is_continued = True
        for chunk in _chunks(self._records(old, last, outcome)):
            with self._producer.transaction():
                for record in chunk:
                    self._producer.send(
                        target.topic,
                        record.value,
                        headers=[(HEADER, record.place.header(self._source))],
                        partition=target.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
            outcome.imported += len(chunk)
            self._on_progress(outcome)
        return outcome

    def _records(self, old: OldPartition, last: _Last | None, outcome: Outcome) -> Iterator[_Record]:
        for found in old.read(None if last is None else last.place.position):
            if isinstance(found, Damage):
                outcome.damages.append(found)
                continue
            time_ms = found.file_ms if self._use_file_times else None
            for number, value in enumerate(found.payloads):
                place = Place(found.position, number)
                if last is None or place > last.place:
                    yield _Record(value, place, time_ms)
            outcome.next_position = found.next_position

    def _check_same(self, old: OldPartition, last: _Last) -> None:
        """The last record that was imported must be in the folder, unless Kafka 0.7 has deleted its file since."""
        place, is_same = last.place, False
        if place.position < old.first_position:
            return
        for found in old.read(place.position):
            if isinstance(found, Entry) and found.position == place.position:
                is_same = found.payloads[place.number : place.number + 1] == [last.value]
            break
        if not is_same:
            raise CommandError(
                f"{old.folder} is not what was imported before: its message at position {place.position} is missing or "
                "different.",
                "Import it under another name (--source) to other partitions (--partition-base).",
            )

    # --- the target

    def _last_imported(self, target: TopicPartition) -> _Last | None:
        """The last record of this source in the target. CommandError if there are only others."""
        self._consumer.assign([target])
        begin = self._consumer.beginning_offsets([target])[target]
        end = upto = self._consumer.end_offsets([target])[target]
        size, seen, others = _LOOK_BACK, 0, set[str]()
        while upto > begin:
            first = max(begin, upto - size)
            last, count = self._scan(target, first, upto, others)
            if last is not None:
                return last
            seen += count
            upto, size = first, size * 2
        # An aborted transaction takes up offsets, too.
        is_unused = begin == 0 and seen == 0
        if not is_unused and not self._append and end:
            raise self._occupied(target, others)
        return None

    def _scan(self, target: TopicPartition, first: int, upto: int, others: set[str]) -> tuple[_Last | None, int]:
        """The last record of this source from `first` to `upto`, and the number of all."""
        last, count = None, 0
        self._consumer.seek(target, first)
        while self._consumer.position(target) < upto:
            for record in self._consumer.poll(timeout=_POLL_S).get(target, ()):
                if record.offset >= upto:
                    continue
                count += 1
                found = parse_header(dict(record.headers).get(HEADER))
                if found is not None and found[1] == self._source:
                    last = _Last(found[0], record.value)
                elif found is not None:
                    others.add(found[1])
        return last, count

    def _occupied(self, target: TopicPartition, others: set[str]) -> CommandError:
        name = f"{target.topic}-{target.partition}"
        if others:
            known = ", ".join(sorted(others)[:5])
            return CommandError(
                f"Partition {name} has records of another import: {known}.",
                f"To continue that import, use --source {sorted(others)[0]}. To add to it, use --append, or "
                "--partition-base for other partitions.",
            )
        return CommandError(
            f"Partition {name} has, or had, records that no import from {self._source} has written.",
            "Use --append to import after them, --rename for another topic, or --partition-base for other partitions.",
        )


def _chunks(records: Iterator[_Record]) -> Iterator[list[_Record]]:
    """Records for one transaction each."""
    chunk: list[_Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.value)
        if len(chunk) >= _RECORDS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
