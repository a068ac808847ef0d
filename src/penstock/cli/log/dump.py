"""What `penstock log dump` prints.

An entry becomes a table of facts once; text and JSON are two ways to write it. A record stands on the line after its
batch, marked with a bar.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from penstock.cli.output import EXIT_DAMAGE, EXIT_SOUND, JSON, Output, printable
from penstock.log.index import AbortedTransaction
from penstock.log.inspection.dump import (
    BatchEntry,
    DamageEntry,
    Entry,
    OffsetEntry,
    RecordEntry,
    TimeEntry,
    Window,
    dump,
    logs_within,
)
from penstock.log.inspection.log_files import PathKind
from penstock.log.producer_state import ProducerEntry
from penstock.records import Codec
from penstock.runtime.files import Files

Facts = dict[str, object]

_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_CODECS = {codec.value: codec.name.lower() for codec in Codec}


class Dump:
    """One run of the command."""

    def __init__(
        self,
        files: Files,
        output: Output,
        window: Window,
        output_format: str,
        value_format: str,
        max_records: int | None,
    ) -> None:
        self._files = files
        self._output = output
        self._window = window
        self._is_json = output_format == JSON
        self._value_format = value_format
        self._records_left = max_records
        self._is_damaged = False

    def run(self, targets: Iterable[tuple[str, PathKind]]) -> int:
        """Print everything. Returns the exit code."""
        for path, kind in targets:
            if kind is PathKind.PARTITION:
                for log in logs_within(self._files, path, self._window):
                    self._file(log, PathKind.LOG)
            else:
                self._file(path, kind)
        return EXIT_DAMAGE if self._is_damaged else EXIT_SOUND

    def _file(self, path: str, kind: PathKind) -> None:
        if self._records_left == 0:
            return
        if not self._is_json:
            self._output.line(self._output.style(f"Dumping {printable(path)}", bold=True))
        for entry in dump(self._files, path, kind, self._window):
            if isinstance(entry, DamageEntry) or (isinstance(entry, BatchEntry) and entry.problem is not None):
                self._is_damaged = True
            self._entry(path, entry)
            if isinstance(entry, RecordEntry) and self._records_left is not None:
                self._records_left -= 1
                if self._records_left == 0:
                    return

    def _entry(self, path: str, entry: Entry) -> None:
        kind, facts = facts_of(entry, self._value_format)
        if self._is_json:
            self._output.json({"type": kind, "file": path, **facts})
            return
        text = text_of(facts)
        if kind == "record":
            text = self._output.style("| ", dim=True) + text
        elif facts.get("isvalid") is False:
            text = self._output.style(text, "red")
        self._output.line(text)


def facts_of(entry: Entry, value_format: str = "text") -> tuple[str, Facts]:
    """The kind of an entry and its facts by name."""
    if isinstance(entry, BatchEntry):
        return "batch", _batch(entry)
    if isinstance(entry, RecordEntry):
        return "record", _record(entry, value_format)
    if isinstance(entry, DamageEntry):
        return "damage", {
            "position": entry.position,
            "size": entry.size,
            "offset": entry.offset,
            "isvalid": False,
            "reason": entry.problem,
        }
    if isinstance(entry, OffsetEntry):
        return "offsetIndexEntry", {"offset": entry.offset, "position": entry.position}
    if isinstance(entry, TimeEntry):
        return "timeIndexEntry", {"timestamp": entry.timestamp_ms, "offset": entry.offset}
    if isinstance(entry, AbortedTransaction):
        return "abortedTransaction", {
            "producerId": entry.producer_id,
            "firstOffset": entry.first_offset,
            "lastOffset": entry.last_offset,
            "lastStableOffset": entry.last_stable_offset,
        }
    return "producer", _producer(entry)


def _batch(entry: BatchEntry) -> Facts:
    facts: Facts = {
        "baseOffset": entry.base_offset,
        "lastOffset": entry.last_offset,
        "count": entry.record_count,
        "baseSequence": entry.base_sequence,
        "lastSequence": entry.last_sequence,
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "partitionLeaderEpoch": entry.leader_epoch,
        "isTransactional": entry.is_transactional,
        "isControl": entry.is_control,
        "deleteHorizonMs": entry.delete_horizon_ms,
        "position": entry.position,
        "timestampType": _TIMESTAMP_TYPES[entry.timestamp_type],
        "timestamp": entry.timestamp_ms,
        "size": entry.size,
        "magic": entry.magic,
        "codec": _CODECS.get(entry.codec, str(entry.codec)),
        "crc": entry.crc,
        "isvalid": entry.problem is None,
    }
    if entry.problem is not None:
        facts["reason"] = entry.problem
    return facts


def _record(entry: RecordEntry, value_format: str) -> Facts:
    facts: Facts = {
        "offset": entry.offset,
        "timestampType": _TIMESTAMP_TYPES[entry.timestamp_type],
        "timestamp": entry.timestamp_ms,
        "sequence": entry.sequence,
        "keySize": -1 if entry.key is None else len(entry.key),
        "valueSize": -1 if entry.value is None else len(entry.value),
    }
    if entry.marker is not None:
        facts["endTxnMarker"] = "COMMIT" if entry.marker.is_commit else "ABORT"
        facts["coordinatorEpoch"] = entry.marker.coordinator_epoch
        return facts
    if value_format == "none":
        facts["headerKeys"] = [name for name, _ in entry.headers]
        return facts
    facts["headers"] = [(name, shown(value, value_format)) for name, value in entry.headers]
    facts["key"] = shown(entry.key, value_format)
    facts["value"] = shown(entry.value, value_format)
    return facts


def shown(data: bytes | None, value_format: str) -> str | None:
    """Bytes as text."""
    if data is None:
        return None
    if value_format == "hex":
        return data.hex()
    if value_format == "base64":
        return base64.b64encode(data).decode()
    return data.decode("utf-8", "backslashreplace")


def _producer(entry: ProducerEntry) -> Facts:
    return {
        "producerId": entry.producer_id,
        "producerEpoch": entry.epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": entry.transaction_first_offset if entry.in_transaction else None,
        "lastTimestamp": entry.last_timestamp_ms,
        "lastSequence": entry.last_sequence,
        "lastOffset": entry.last_offset,
        "batches": [
            {
                "baseSequence": batch.base_sequence,
                "lastSequence": batch.last_sequence,
                "baseOffset": batch.base_offset,
                "lastOffset": batch.last_offset,
                "timestamp": batch.timestamp_ms,
            }
            for batch in entry.batches
        ],
    }


def text_of(facts: Facts) -> str:
    """The facts on one line, as `name: value name: value`."""
    label = facts.get("timestampType", "timestamp")
    return " ".join(
        [f"{label if name == 'timestamp' else name}: {_text(fact)}" for name, fact in facts.items()
         if name != "timestampType"]
    )  # fmt: skip


def _text(fact: object) -> str:
    if fact is None:
        return "null"
    if fact is True or fact is False:
        return str(fact).lower()
    if isinstance(fact, list):
        return "[" + ", ".join(map(_text, fact)) + "]"
    if isinstance(fact, tuple):
        return "=".join(map(_text, fact))
    if isinstance(fact, dict):
        return "{" + text_of(fact) + "}"
    return printable(str(fact))
