"""Which replica a consumer reads from best (KIP-392). Pure.

Rule: one in the consumer's rack: the leader itself if it is there, else the follower in sync that has what is asked for
and is furthest. Where there is none, the leader. A rack is told by clients that want this; nobody else is sent away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.cluster.layout import BrokerRegistration
from penstock.replication.leadership import Leadership

THE_LEADER: Final = -1


def nearest_replica(
    leadership: Leadership, rack: str, offset: int, log_start: int, brokers: Mapping[int, BrokerRegistration]
) -> int:
    """The follower to read from, or THE_LEADER. `brokers` are the live ones."""
    leader = brokers.get(leadership.leader)
    if leader is None or leader.rack == rack or not log_start <= offset:
        return THE_LEADER
    found, furthest = THE_LEADER, offset - 1
    for broker in leadership.isr:
        registration = brokers.get(broker)
        if broker == leadership.leader or registration is None or registration.rack != rack:
            continue
        log_end = leadership.log_end_of(broker)
        if log_end > furthest:
            found, furthest = broker, log_end
    return found
