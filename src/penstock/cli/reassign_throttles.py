"""Throttles of moves: settings of the brokers and topics that take part, by Kafka's names.

Theory: a broker has two rates, for what it sends as a leader and for what it fetches as a follower, and they count only
for replicas that their topic lists as throttled. For a move, all present replicas may have to send, and those that are
added fetch: the traffic of replicas that are in sync already is left alone.

Rule: a throttle is forgotten easily and hurts for ever, so whoever sets one here can also find and remove it: every
rate and every list that was set while the cluster ran is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.cli.reassign_plans import Move
from penstock.client.admin import Admin, ConfigResource
from penstock.client.errors import PenstockError

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_ALTERED: Final = frozenset({"dynamic broker", "topic"})

Changes = Mapping[ConfigResource, Mapping[str, str | None]]


def throttle_changes(moves: Sequence[Move], bytes_per_s: int) -> Changes:
    """The settings that throttle these moves."""
    changes: dict[ConfigResource, dict[str, str | None]] = {}
    copied = [move for move in moves if move.copies]
    for broker in sorted({broker for move in copied for broker in (*move.before, *move.after)}):
        changes[ConfigResource.broker(broker)] = dict.fromkeys(RATES, str(bytes_per_s))
    leading: dict[str, list[str]] = {}
    following: dict[str, list[str]] = {}
    for move in copied:
        topic, index = move.key
        leading.setdefault(topic, []).extend(f"{index}:{broker}" for broker in move.before)
        following.setdefault(topic, []).extend(f"{index}:{broker}" for broker in move.copies)
    for topic, replicas in leading.items():
        values = (",".join(replicas), ",".join(following[topic]))
        changes[ConfigResource.topic(topic)] = dict(zip(LISTS, values, strict=True))
    return changes


def lifted(changes: Changes) -> Changes:
    """What takes such changes back."""
    return {resource: dict.fromkeys(values) for resource, values in changes.items()}


def find_throttles(admin: Admin, brokers: Iterable[int], topics: Iterable[str]) -> dict[ConfigResource, dict[str, str]]:
    """Those in force, by whom they are set on."""
    wanted = [*map(ConfigResource.broker, brokers), *map(ConfigResource.topic, topics)]
    found: dict[ConfigResource, dict[str, str]] = {}
    for resource, settings in admin.describe_configs(wanted).items():
        if isinstance(settings, PenstockError):
            continue
        own = {
            name: entry.value
            for name in (*RATES, *LISTS)
            if (entry := settings.get(name)) is not None and entry.source in _ALTERED and entry.value
        }
        if own:
            found[resource] = own
    return found


def apply_throttles(admin: Admin, changes: Changes) -> None:
    """Raises what the first broker that refuses says, with all that was set before it taken back."""
    done: dict[ConfigResource, Mapping[str, str | None]] = {}
    for resource, values in changes.items():
        error = admin.alter_configs({resource: values})[resource]
        if error is not None:
            admin.alter_configs(lifted(done))
            raise error
        done[resource] = values


def lift_throttles(admin: Admin, resources: Iterable[ConfigResource]) -> list[PenstockError]:
    """Remove rates and lists; those that could not be removed are answered."""
    changes: dict[ConfigResource, dict[str, str | None]] = {
        resource: dict.fromkeys(RATES if resource.kind == "broker" else LISTS) for resource in resources
    }
    return [error for error in admin.alter_configs(changes).values() if error is not None]
