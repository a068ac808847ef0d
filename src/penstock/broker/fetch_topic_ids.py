"""Topics that a fetch names by id (KIP-516), which all else knows by name.

Noun: `TopicIds`, the ids of one fetch or session by name, as the cluster knew them when they were asked for.

Rule: an id is made a name when a request comes, and an answer gets the id back. A topic that is deleted and made again
has its name, but not its id: what was asked of the one is never answered by the other. An id that nobody knows gets a
name that no topic can have.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.wire.schemas.fetch import FetchRequest
from penstock.wire.types import NO_UUID

_UNKNOWN = "\0"


class TopicIds:
    """`names` are all that the cluster knows; the same object as long as no topic comes or goes."""

    __slots__ = ("_ids", "_names")

    def __init__(self, ids: dict[str, bytes], names: Mapping[bytes, str]) -> None:
        self._ids = ids
        self._names = names

    def of(self, name: str) -> bytes:
        return self._ids.get(name, NO_UUID)

    def merge(self, later: TopicIds) -> bool:
        """Take in what a later request of the session names; False if an id means something else by now."""
        if later._names is not self._names:
            known = later._names
            if any(known.get(topic_id) != (None if is_unknown(name) else name) for name, topic_id in self._ids.items()):
                return False
            self._names = known
        self._ids |= later._ids
        return True


def is_unknown(name: str) -> bool:
    return name.startswith(_UNKNOWN)


def name_topics(request: FetchRequest, names: Mapping[bytes, str]) -> TopicIds:
    """Give the topics of a request their names."""
    ids: dict[str, bytes] = {}
    for topic in request.topics:
        topic.topic = _name(topic.topic_id, names)
        ids[topic.topic] = topic.topic_id
    for forgotten in request.forgotten_topics_data:
        forgotten.topic = _name(forgotten.topic_id, names)
    return TopicIds(ids, names)


def _name(topic_id: bytes, names: Mapping[bytes, str]) -> str:
    return names.get(topic_id) or _UNKNOWN + topic_id.hex()
