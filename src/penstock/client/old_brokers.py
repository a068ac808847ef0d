"""Brokers that cannot say what they know.

ApiVersions came with Kafka 0.10. Of older brokers, some pass over what they do not know (0.9.0.1 does, and answers the
next request on the same connection), some close the connection. Which one it is shows in what it answers: 0.9 knows the
groups' APIs, 0.8 only topics and records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas.list_groups import ListGroupsRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.types import Message

Ranges = dict[int, tuple[int, int]]


class Era(NamedTuple):
    """A generation of brokers: how to recognise it, and the versions that it serves."""

    name: str
    probe_key: ApiKey
    probe: Message
    versions: Ranges


_SINCE_0_8: Final[Ranges] = {
    ApiKey.PRODUCE: (0, 0),
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
}

_SINCE_0_9: Final[Ranges] = {
    ApiKey.PRODUCE: (0, 1),
    ApiKey.FETCH: (0, 1),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 2),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
    ApiKey.JOIN_GROUP: (0, 0),
    ApiKey.HEARTBEAT: (0, 0),
    ApiKey.LEAVE_GROUP: (0, 0),
    ApiKey.SYNC_GROUP: (0, 0),
    ApiKey.DESCRIBE_GROUPS: (0, 0),
    ApiKey.LIST_GROUPS: (0, 0),
}

# Newest first; the last one's probe is known to all. A topic name that cannot exist keeps it from asking for all topics
# or making one.
ERAS: Final = (
    Era("0.9", ApiKey.LIST_GROUPS, ListGroupsRequest(), _SINCE_0_9),
    Era("0.8", ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="?")]), _SINCE_0_8),
)
