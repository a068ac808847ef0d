"""What `penstock topics` prints: topics with their partitions, offsets, sizes and own settings.

What a broker does not report, because it is old or a folder is offline, is shown as "-"; the rest is still shown.
"""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.connection import Rejected, error_document
from penstock.cli.output import JSON, Output, printable, show_table
from penstock.cli.topics.partitions import DETAILS_TIMEOUT_MS
from penstock.client.admin import (
    Admin,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    OffsetResult,
    PartitionDescription,
    PartitionReassignment,
    TopicDescription,
)
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.diagnosis import is_troubled
from penstock.client.errors import PenstockError
from penstock.runtime.quantities import counted, human_bytes
from penstock.wire.protocol import INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic with its offsets, sizes, settings and reassignments."""

    topic: TopicDescription
    begins: Mapping[int, int]
    ends: Mapping[int, int]
    sizes: Mapping[int, int]
    config: Mapping[str, str | None]
    min_insync: int | None
    moves: Mapping[int, PartitionReassignment]


Filter = Callable[[TopicState, PartitionDescription], bool]

_OPTIONAL: Final = frozenset({"ELR", "OFFLINE", "ADDING", "REMOVING"})


def collect(admin: Admin, topics: Sequence[TopicDescription]) -> list[TopicState]:
    """Request the offsets, sizes and settings of these topics."""
    led = [TopicPartition(topic.name, part.index) for topic in topics for part in topic.partitions if part.leader]
    begins = _offsets(admin, led, "earliest")
    ends = _offsets(admin, led, "latest")
    sizes = _sizes(admin) if topics else {}
    settings = admin.describe_configs(ConfigResource.topic(topic.name) for topic in topics)
    moves = _moves(admin) if topics else {}
    states = []
    for topic in topics:
        found = settings[ConfigResource.topic(topic.name)]
        own = {} if isinstance(found, PenstockError) else found
        states.append(
            TopicState(
                topic,
                _of(topic, begins),
                _of(topic, ends),
                _of(topic, sizes),
                {name: entry.value for name, entry in sorted(own.items()) if entry.source == "topic"},
                _number(own.get("min.insync.replicas")),
                {key.partition: move for key, move in moves.items() if key.topic == topic.name},
            )
        )
    return states


def _of(topic: TopicDescription, figures: Mapping[TopicPartition, int]) -> dict[int, int]:
    keys = ((part.index, TopicPartition(topic.name, part.index)) for part in topic.partitions)
    return {index: figures[key] for index, key in keys if key in figures}


def _offsets(admin: Admin, partitions: Iterable[TopicPartition], end: Any) -> dict[TopicPartition, int]:
    answers = admin.list_offsets(dict.fromkeys(partitions, end))
    return {key: answer.offset for key, answer in answers.items() if isinstance(answer, OffsetResult)}


def _sizes(admin: Admin) -> dict[TopicPartition, int]:
    """The largest replica of each partition."""
    sizes: dict[TopicPartition, int] = {}
    for folders in admin.describe_log_dirs(timeout_ms=DETAILS_TIMEOUT_MS).values():
        if isinstance(folders, PenstockError):
            continue
        for folder in folders:
            for partition, size in folder.sizes.items():
                sizes[partition] = max(size, sizes.get(partition, 0))
    return sizes


def _moves(admin: Admin) -> dict[TopicPartition, PartitionReassignment]:
    """Reassignments in progress; empty if the brokers are too old to list them."""
    try:
        return admin.list_partition_reassignments()
    except PenstockError:
        return {}


def _number(entry: ConfigEntry | None) -> int | None:
    return int(entry.value) if entry is not None and entry.value and entry.value.isdigit() else None


def unknown_settings(admin: Admin, config: Mapping[str, str]) -> Rejected | None:
    """The error for a setting that a topic does not have, if there is one among `config`."""
    from penstock.cli.topics.configs import check_names

    known = admin.list_topics(include_internal=True)
    if not known:
        return None
    resource = ConfigResource.topic(known[0])
    try:
        check_names(admin.describe_config(resource), config, "a topic")
    except Rejected as error:
        return error
    except PenstockError:
        pass
    return None


# --- showing


def show_created(
    output: Output, output_format: str, answers: Mapping[str, CreatedTopic | PenstockError], *, dry_run: bool
) -> None:
    made = [answer for answer in answers.values() if isinstance(answer, CreatedTopic)]
    if output_format == JSON:
        document = {
            "dryRun": dry_run,
            "topics": [
                {
                    "name": topic.name,
                    "existed": topic.existed,
                    "partitions": _or_none(topic.partitions),
                    "replicationFactor": _or_none(topic.replication_factor),
                    "id": id_text(topic.topic_id),
                }
                for topic in made
            ],
            "failed": {
                name: error_document(error) for name, error in answers.items() if isinstance(error, PenstockError)
            },
        }
        output.json(document, indent=2)
    else:
        for topic in made:
            numbers = f" with {counted(topic.partitions, 'partition')}" if topic.partitions > 0 else ""
            if topic.existed:
                output.line(f"{topic.name} already exists.")
            elif dry_run:
                output.line(f"{topic.name} would be created{numbers} (dry run).")
            else:
                output.line(f"Created {topic.name}{numbers}.")
    output.flush()


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None


def id_text(topic_id: bytes | None) -> str | None:
    """In Kafka's notation: 22 characters of base 64."""
    return None if topic_id is None else urlsafe_b64encode(uuid.UUID(bytes=topic_id).bytes).decode().rstrip("=")


def topic_summary(topic: TopicDescription) -> dict[str, object]:
    return {
        "name": topic.name,
        "id": id_text(topic.topic_id),
        "internal": is_internal(topic),
        "partitions": len(topic.partitions),
        "replicationFactor": topic.replication_factor,
    }


def show_described(output: Output, output_format: str, states: Sequence[TopicState], wanted: Filter | None) -> None:
    shown = [state for state in states if wanted is None or _chosen(state, wanted)]
    if output_format == JSON:
        output.json({"topics": [_document(state, _chosen(state, wanted)) for state in shown]}, indent=2)
        output.flush()
        return
    for number, state in enumerate(shown):
        if number:
            output.line()
        _show(output, state, _chosen(state, wanted))
    if not shown and wanted is not None:
        looked_at = counted(sum(len(each.topic.partitions) for each in states), "partition")
        output.nothing(f"None of {looked_at} matches.")
    output.flush()


# --- choosing


def filter_of(chosen: Mapping[str, bool]) -> Filter | None:
    """Selects partitions for which one of the chosen options holds. None selects all."""
    tests = [_FILTERS[name] for name, is_given in chosen.items() if is_given]
    return (lambda state, part: any(test(state, part) for test in tests)) if tests else None


def is_under_replicated(state: TopicState, part: PartitionDescription) -> bool:
    move = state.moves.get(part.index)
    # A replica being added was never in sync, and one being removed need not be.
    counting = part.replicas if move is None else [each for each in move.replicas if each not in move.adding]
    return not set(counting) <= set(part.isr)


def is_under_min_isr(state: TopicState, part: PartitionDescription) -> bool:
    return part.leader is None or (state.min_insync is not None and len(part.isr) < state.min_insync)


_FILTERS: Final[Mapping[str, Filter]] = {
    "troubled": lambda _, part: is_troubled(part),
    "under_replicated": is_under_replicated,
    "unavailable": lambda _, part: part.leader is None,
    "under_min_isr": is_under_min_isr,
}


def _chosen(state: TopicState, wanted: Filter | None) -> list[PartitionDescription]:
    return [part for part in state.topic.partitions if wanted is None or wanted(state, part)]


# --- a topic


def is_internal(topic: TopicDescription) -> bool:
    """Brokers before 0.10 do not report it; the name tells."""
    return topic.is_internal or topic.name in INTERNAL_TOPICS


def _show(output: Output, state: TopicState, parts: Sequence[PartitionDescription]) -> None:
    topic = state.topic
    facts = [
        counted(len(topic.partitions), "partition"),
        f"replication factor {topic.replication_factor}",
        human_bytes(sum(state.sizes.values())) if state.sizes else "",
        "internal" if is_internal(topic) else "",
        f"id {id_text(topic.topic_id)}" if topic.topic_id else "",
    ]
    output.line(f"{output.style(printable(topic.name), 'cyan', bold=True)}: {', '.join(filter(None, facts))}")
    for name, value in state.config.items():
        output.line(f"  {printable(f'{name} = {value}')}")
    columns = {title: list(map(cell, parts)) for title, cell in _columns(state).items()}
    # These columns are usually empty.
    titles = [title for title, cells in columns.items() if title not in _OPTIONAL or any(cells)]
    show_table(output, titles, list(zip(*(columns[title] for title in titles), strict=True)), "  ")


def _columns(state: TopicState) -> dict[str, Callable[[PartitionDescription], object]]:
    def size(part: PartitionDescription) -> str | None:
        return human_bytes(state.sizes[part.index]) if part.index in state.sizes else None

    def moved(part: PartitionDescription, which: str) -> tuple[int, ...]:
        move = state.moves.get(part.index)
        return () if move is None else getattr(move, which)

    return {
        "PARTITION": lambda part: part.index,
        "LEADER": lambda part: part.leader.id if part.leader else "none",
        "REPLICAS": lambda part: part.replicas,
        "ISR": lambda part: part.isr,
        "ELR": lambda part: part.eligible,
        "OFFLINE": lambda part: part.offline,
        "ADDING": lambda part: moved(part, "adding"),
        "REMOVING": lambda part: moved(part, "removing"),
        "BEGIN": lambda part: state.begins.get(part.index),
        "END": lambda part: state.ends.get(part.index),
        "SIZE": size,
    }


def _document(state: TopicState, parts: Sequence[PartitionDescription]) -> dict[str, object]:
    return {
        **topic_summary(state.topic),
        "config": dict(state.config),
        "minInsyncReplicas": state.min_insync,
        "partitions": [
            {
                "partition": part.index,
                "leader": part.leader.id if part.leader else None,
                "leaderEpoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "elr": None if part.eligible is None else list(part.eligible),
                "lastKnownElr": None if part.last_known_eligible is None else list(part.last_known_eligible),
                "offline": list(part.offline),
                **_move_document(state.moves.get(part.index)),
                "beginOffset": state.begins.get(part.index),
                "endOffset": state.ends.get(part.index),
                "bytes": state.sizes.get(part.index),
            }
            for part in parts
        ],
    }


def _move_document(move: PartitionReassignment | None) -> dict[str, list[int]]:
    return {} if move is None else {"adding": list(move.adding), "removing": list(move.removing)}
