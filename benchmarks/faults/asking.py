"""Questions to one broker: whether it answers, and what it believes of the cluster.

Each question has a connection of its own and a deadline. A broker that was away answers with what it knew then, so
what is true of the cluster is what all brokers say alike.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.peers.servers import request_frame
from penstock.wire.api_keys import ApiKey
from penstock.wire.errors import WireError
from penstock.wire.frames import FrameDecoder
from penstock.wire.headers import decode_response
from penstock.wire.registry import response_codec
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic

_ANSWER_S: Final = 1.0
_METADATA_VERSION: Final = 9
_VERSIONS_VERSION: Final = 3

Key = tuple[str, int]


class NoAnswer(Exception):
    """Refused, cut off, or late."""


@dataclass(frozen=True)
class PartitionView:
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    insync: frozenset[int]


@dataclass(frozen=True)
class View:
    """The cluster as one broker sees it."""

    brokers: frozenset[int]
    controller: int
    partitions: Mapping[Key, PartitionView]

    def is_whole(self, brokers: int) -> bool:
        """Everybody is there; every partition has a leader, and all its replicas are in sync."""
        return len(self.brokers) == brokers and all(
            one.leader in one.insync and len(one.insync) == len(one.replicas) for one in self.partitions.values()
        )

    def led_by(self, broker: int) -> list[Key]:
        return [key for key, one in self.partitions.items() if one.leader == broker]


def answers(host: str, port: int) -> None:
    """NoAnswer if it does not."""
    _ask(host, port, ApiKey.API_VERSIONS, _VERSIONS_VERSION, ApiVersionsRequest("faults", "1"))


def view_of(host: str, port: int, topics: Sequence[str]) -> View:
    """What the broker at this address says of these topics. NoAnswer; also if it does not know one of them."""
    wanted = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
    )
    answer = _ask(host, port, ApiKey.METADATA, _METADATA_VERSION, wanted)
    for topic in answer.topics:
        if topic.error_code:
            raise NoAnswer(f"topic {topic.name}: error {topic.error_code}")
    return View(
        brokers=frozenset(broker.node_id for broker in answer.brokers),
        controller=answer.controller_id,
        partitions={
            (topic.name, one.partition_index): PartitionView(
                one.leader_id, one.leader_epoch, tuple(one.replica_nodes), frozenset(one.isr_nodes)
            )
            for topic in answer.topics
            for one in topic.partitions
        },
    )


def _ask(host: str, port: int, api: ApiKey, version: int, message: Any) -> Any:
    decoder = FrameDecoder()
    try:
        with socket.create_connection((host, port), _ANSWER_S) as client:
            client.sendall(request_frame(api, version, message))
            while True:
                data = client.recv(65_536)
                if not data:
                    raise NoAnswer("it closed the connection")
                frames = decoder.feed(data)
                if frames:
                    break
        _, position = decode_response(api, version, frames[0])
        return response_codec(api, version).decode(frames[0], position)[0]
    except (OSError, WireError) as error:
        raise NoAnswer(str(error)) from error
