"""What `penstock topics` shows.

Noun: the picture of a topic: its partitions, their offsets and sizes, the settings of its own.

Rule: what a broker does not say, because it is old or a folder is offline, is shown as "-"; it does not keep the rest
from being shown.
"""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cli.cluster import Refused
from penstock.cli.output import JSON, Output, counted, human_bytes, printable
from penstock.cli.tables import show_table
from penstock.client.admin import (
    Admin,
    ConfigResource,
    CreatedTopic,
    OffsetResult,
    PartitionDescription,
    TopicDescription,
)
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError


@dataclass(frozen=True, slots=True)
class Picture:
    """A topic with what several questions about it answered."""

    topic: TopicDescription
    begins: Mapping[int, int]
    ends: Mapping[int, int]
    sizes: Mapping[int, int]
    config: Mapping[str, str | None]


def collect(admin: Admin, topics: Sequence[TopicDescription]) -> list[Picture]:
    """Ask for the offsets, sizes and settings of these topics."""
    led = [TopicPartition(topic.name, part.index) for topic in topics for part in topic.partitions if part.leader]
    begins = _offsets(admin, led, "earliest")
    ends = _offsets(admin, led, "latest")
    sizes = _sizes(admin) if topics else {}
    settings = admin.describe_configs(ConfigResource.topic(topic.name) for topic in topics)
    pictures = []
    for topic in topics:
        found = settings[ConfigResource.topic(topic.name)]
        own = {} if isinstance(found, PenstockError) else found
        pictures.append(
            Picture(
                topic,
                _of(topic, begins),
                _of(topic, ends),
                _of(topic, sizes),
                {name: entry.value for name, entry in sorted(own.items()) if entry.source == "topic"},
            )
        )
    return pictures


def _of(topic: TopicDescription, figures: Mapping[TopicPartition, int]) -> dict[int, int]:
    keys = ((part.index, TopicPartition(topic.name, part.index)) for part in topic.partitions)
    return {index: figures[key] for index, key in keys if key in figures}


def _offsets(admin: Admin, partitions: Iterable[TopicPartition], end: Any) -> dict[TopicPartition, int]:
    answers = admin.list_offsets(dict.fromkeys(partitions, end))
    return {key: answer.offset for key, answer in answers.items() if isinstance(answer, OffsetResult)}


def _sizes(admin: Admin) -> dict[TopicPartition, int]:
    """The largest replica of each partition."""
    sizes: dict[TopicPartition, int] = {}
    for folders in admin.describe_log_dirs().values():
        if isinstance(folders, PenstockError):
            continue
        for folder in folders:
            for partition, size in folder.sizes.items():
                sizes[partition] = max(size, sizes.get(partition, 0))
    return sizes


def unknown_settings(admin: Admin, config: Mapping[str, str]) -> Refused | None:
    """Of the settings that a broker refused, the one that it does not know, if that was it."""
    from penstock.cli.configs import check_names

    known = admin.list_topics(include_internal=True)
    if not known:
        return None
    resource = ConfigResource.topic(known[0])
    try:
        check_names(admin.describe_config(resource), config, "a topic")
    except Refused as error:
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
            "failed": {name: str(error) for name, error in answers.items() if isinstance(error, PenstockError)},
        }
        output.json(document, indent=2)
    else:
        for topic in made:
            numbers = f" with {counted(topic.partitions, 'partition')}" if topic.partitions > 0 else ""
            if topic.existed:
                output.line(f"{topic.name} is there already.")
            elif dry_run:
                output.line(f"{topic.name} could be made{numbers} (dry run).")
            else:
                output.line(f"Made {topic.name}{numbers}.")
    output.flush()


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None


def id_text(topic_id: bytes | None) -> str | None:
    """As Kafka writes it: 22 characters of base 64."""
    return None if topic_id is None else urlsafe_b64encode(uuid.UUID(bytes=topic_id).bytes).decode().rstrip("=")


def topic_summary(topic: TopicDescription) -> dict[str, object]:
    return {
        "name": topic.name,
        "id": id_text(topic.topic_id),
        "internal": is_internal(topic),
        "partitions": len(topic.partitions),
        "replicationFactor": topic.replication_factor,
    }


def show_described(output: Output, output_format: str, pictures: Sequence[Picture], *, troubled: bool) -> None:
    if output_format == JSON:
        output.json({"topics": [_document(picture, troubled) for picture in pictures]}, indent=2)
        output.flush()
        return
    shown = [picture for picture in pictures if not troubled or any(map(is_troubled, picture.topic.partitions))]
    for number, picture in enumerate(shown):
        if number:
            output.line()
        _show(output, picture, troubled)
    output.flush()


def is_internal(topic: TopicDescription) -> bool:
    """Brokers before 0.10 do not say so; there it is known by name."""
    return topic.is_internal or topic.name in ("__consumer_offsets", "__transaction_state")


def is_troubled(part: PartitionDescription) -> bool:
    return part.leader is None or set(part.isr) != set(part.replicas)


def _show(output: Output, picture: Picture, troubled: bool) -> None:
    topic = picture.topic
    facts = [
        counted(len(topic.partitions), "partition"),
        f"replication factor {topic.replication_factor}",
        human_bytes(sum(picture.sizes.values())) if picture.sizes else "",
        "internal" if is_internal(topic) else "",
        f"id {id_text(topic.topic_id)}" if topic.topic_id else "",
    ]
    output.line(f"{output.style(printable(topic.name), 'cyan', bold=True)}: {', '.join(filter(None, facts))}")
    for name, value in picture.config.items():
        output.line(f"  {printable(f'{name} = {value}')}")
    rows = [
        (
            part.index,
            part.leader.id if part.leader else "none",
            part.replicas,
            part.isr,
            picture.begins.get(part.index),
            picture.ends.get(part.index),
            human_bytes(picture.sizes[part.index]) if part.index in picture.sizes else None,
        )
        for part in topic.partitions
        if not troubled or is_troubled(part)
    ]
    show_table(output, ("PARTITION", "LEADER", "REPLICAS", "ISR", "BEGIN", "END", "SIZE"), rows, "  ")


def _document(picture: Picture, troubled: bool) -> dict[str, object]:
    return {
        **topic_summary(picture.topic),
        "config": dict(picture.config),
        "partitions": [
            {
                "partition": part.index,
                "leader": part.leader.id if part.leader else None,
                "leaderEpoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "offline": list(part.offline),
                "beginOffset": picture.begins.get(part.index),
                "endOffset": picture.ends.get(part.index),
                "bytes": picture.sizes.get(part.index),
            }
            for part in picture.topic.partitions
            if not troubled or is_troubled(part)
        ],
    }
