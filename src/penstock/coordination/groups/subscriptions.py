"""What a group of consumers reads: the topics in the bytes that its members bring along.

Those bytes are between the members; the coordinator looks into them only to know which offsets are still of use. The
fields of version 0 begin every version, so that is what is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.wire.compiler import codec_for
from penstock.wire.errors import WireError
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL: Final = "consumer"
_VERSION_BYTES: Final = 2


def subscribed_topics(protocol_type: str | None, subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics together; None where that cannot be told."""
    if protocol_type != CONSUMER_PROTOCOL:
        return None
    codec = codec_for(ConsumerProtocolSubscription, 0)
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(codec.decode(subscription, _VERSION_BYTES)[0].topics)
    except WireError:
        return None
    return frozenset(topics)
