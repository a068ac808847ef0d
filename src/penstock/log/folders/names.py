"""The names in a data folder: partitions, those that wait for removal, and everything else.

    <topic>-<partition>                      a partition's log; a topic may hold dashes, so the last dash parts them
    <topic>-<partition>.<32 hex>-delete      no longer a partition, waiting to be removed
    <topic>-<partition>.<32 hex>-stray       set aside: a partition that the cluster did not know; never removed
    <topic>-<partition>.future               a copy that is being made of a partition in another data folder (`moves`)
    <topic>-<partition>.ready                such a copy, complete, about to take the partition's place

Rule: a name is a partition's only if writing that partition gives the same name again ("t-07" is not), so no two
folders of one data folder stand for the same partition. Whatever is not recognised belongs to somebody else.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import LogError

MAX_TOPIC_LENGTH: Final = 249
MAX_PARTITION: Final = 2**31 - 1

_NAME_BYTES_MAX = 255
_FUTURE = ".future"
_READY = ".ready"
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})", re.DOTALL)
_DOOMED = re.compile(r"[a-zA-Z0-9._-]+-[0-9]{1,10}\.[0-9a-f]{32}-delete")
_STRAY = re.compile(r"[a-zA-Z0-9._-]+-[0-9]{1,10}\.[0-9a-f]{32}-stray")


class InvalidPartitionName(LogError):
    """A topic or partition that can have no folder."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(
            f"{topic[:300]!r} partition {partition} cannot be stored: a topic has 1 to {MAX_TOPIC_LENGTH} of the "
            f"characters a-z A-Z 0-9 . _ - and is neither . nor .., a partition is 0 to {MAX_PARTITION}"
        )
        self.topic = topic
        self.partition = partition


def is_topic(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def folder_name(topic: str, partition: int) -> str:
    """ "clicks-3" for partition 3 of clicks."""
    if not is_topic(topic) or not 0 <= partition <= MAX_PARTITION:
        raise InvalidPartitionName(topic, partition)
    return f"{topic}-{partition}"


def parse_folder_name(name: str) -> TopicPartition | None:
    """ "page-views-3" is partition 3 of page-views; None if it is no partition's name."""
    match = _PARTITION.fullmatch(name)
    if match is None or not is_topic(match[1]) or int(match[2]) > MAX_PARTITION:
        return None
    return match[1], int(match[2])


def doomed_name(topic: str, partition: int, unique: bytes) -> str:
    """The name of a partition's folder from its deletion to its removal; a long topic is cut to fit a file name."""
    return _with_tail(topic, f"-{partition}.{unique.hex()}-delete")


def is_doomed_name(name: str) -> bool:
    return _DOOMED.fullmatch(name) is not None


def stray_name(topic: str, partition: int, unique: bytes) -> str:
    """The name of a folder that was set aside; a long topic is cut to fit a file name."""
    return _with_tail(topic, f"-{partition}.{unique.hex()}-stray")


def is_stray_name(name: str) -> bool:
    return _STRAY.fullmatch(name) is not None


def future_name(topic: str, partition: int) -> str:
    """The name of a copy that is being made. InvalidPartitionName if it would be too long."""
    return _with_suffix(topic, partition, _FUTURE)


def ready_name(topic: str, partition: int) -> str:
    """The name of a copy that is complete."""
    return _with_suffix(topic, partition, _READY)


def parse_future_name(name: str) -> TopicPartition | None:
    return parse_folder_name(name.removesuffix(_FUTURE)) if name.endswith(_FUTURE) else None


def parse_ready_name(name: str) -> TopicPartition | None:
    return parse_folder_name(name.removesuffix(_READY)) if name.endswith(_READY) else None


def _with_suffix(topic: str, partition: int, suffix: str) -> str:
    name = folder_name(topic, partition) + suffix
    if len(name) > _NAME_BYTES_MAX:
        raise InvalidPartitionName(topic, partition)
    return name


def _with_tail(topic: str, tail: str) -> str:
    return topic[: _NAME_BYTES_MAX - len(tail)] + tail
