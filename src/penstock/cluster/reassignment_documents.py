"""The documents by which old tools ask a controller for something, in Kafka's JSON. Pure.

They are written by tools, below /admin, and read by the controller; a partition that is listed twice is an error, as
nobody could tell which was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.cluster import paths
from penstock.cluster.decision import TopicPartition
from penstock.cluster.errors import LayoutError

Document = TypeVar("Document", bound=msgspec.Struct)


class _Move(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]


class _Moves(msgspec.Struct):
    version: int
    partitions: list[_Move]


class _Choice(msgspec.Struct):
    topic: str
    partition: int


class _Choices(msgspec.Struct):
    version: int
    partitions: list[_Choice]


def encode_reassignment(wanted: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    moves = [_Move(topic, index, list(replicas)) for (topic, index), replicas in wanted.items()]
    return msgspec.json.encode(_Moves(1, moves))


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """What /admin/reassign_partitions asks for. LayoutError."""
    path = paths.REASSIGN_PARTITIONS
    document = _decode(path, data, _Moves)
    found = {(move.topic, move.partition): tuple(move.replicas) for move in document.partitions}
    if len(found) < len(document.partitions):
        raise LayoutError(path, "a partition is listed twice")
    return found


def encode_preferred_election(wanted: Iterable[TopicPartition]) -> bytes:
    return msgspec.json.encode(_Choices(1, [_Choice(topic, index) for topic, index in wanted]))


def decode_preferred_election(data: bytes) -> list[TopicPartition]:
    """What /admin/preferred_replica_election asks for. LayoutError."""
    path = paths.PREFERRED_ELECTION
    document = _decode(path, data, _Choices)
    found = [(choice.topic, choice.partition) for choice in document.partitions]
    if len(set(found)) < len(found):
        raise LayoutError(path, "a partition is listed twice")
    return found


def _decode(path: str, data: bytes, kind: type[Document]) -> Document:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(path, str(error)) from error
