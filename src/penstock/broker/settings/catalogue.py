"""All settings there are, by name, and which names stand for the same thing.

Rule: where several settings give one value (hours, minutes, milliseconds), they are a family, finest first. Of a family
the strongest layer counts (a change while running, the command line, the file); within a layer, the finest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from penstock.broker.settings import cluster_table, log_table, network_table, topic_table
from penstock.broker.settings.definitions import HOUR_MS, MINUTE_MS, Definition, Scope


def _by_name(definitions: Iterable[Definition]) -> Mapping[str, Definition]:
    return MappingProxyType({each.name: each for each in sorted(definitions, key=lambda each: each.name)})


BROKER_DEFINITIONS: Final = _by_name((*network_table.DEFINITIONS, *log_table.DEFINITIONS, *cluster_table.DEFINITIONS))
TOPIC_DEFINITIONS: Final = _by_name(topic_table.DEFINITIONS)

# Name: its family, each member with the factor that makes its value one of the first.
FAMILIES: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "broker.id": (("broker.id", 1), ("node.id", 1)),
    "log.dirs": (("log.dirs", 1), ("log.dir", 1)),
    "log.roll.ms": (("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    "log.roll.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    "log.flush.interval.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "log.retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ),
    "log.message.timestamp.before.max.ms": (
        ("log.message.timestamp.before.max.ms", 1),
        ("log.message.timestamp.difference.max.ms", 1),
    ),
    "log.message.timestamp.after.max.ms": (
        ("log.message.timestamp.after.max.ms", 1),
        ("log.message.timestamp.difference.max.ms", 1),
    ),
}

# Names of Kafka's that begin like this are known to have no effect here, and are no typing errors.
ELSEWHERE: Final = (
    "ssl.", "sasl.", "listener.name.", "super.users", "allow.everyone.if.no.acl.found", "zookeeper.ssl.",
    "zookeeper.clientCnxnSocket", "zookeeper.metadata.migration.", "delegation.token.", "password.encoder.",
    "security.providers", "remote.", "log.local.retention.", "controller.quorum.", "metadata.", "share.",
    "group.coordinator.", "group.consumer.migration.policy", "kafka.metrics.", "metrics.", "quota.",
    "group.share.", "replication.quota.", "alter.log.dirs.replication.quota.", "controller.quota.", "telemetry.",
    "unstable.", "early.start.listeners", "control.plane.listener.name", "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms", "server.max.startup.", "initial.broker.registration.timeout.ms",
    "eligible.leader.replicas.enable", "unclean.leader.election.interval.ms",
)  # fmt: skip


def family_of(name: str) -> tuple[tuple[str, int], ...]:
    """The names that give this setting its value, the setting itself first."""
    return FAMILIES.get(name, ((name, 1),))


def scope_of(name: str) -> Scope | None:
    """Who has a setting of this name; None if nobody."""
    if name in BROKER_DEFINITIONS:
        return Scope.BOTH if name in TOPIC_DEFINITIONS else Scope.BROKER
    return Scope.TOPIC if name in TOPIC_DEFINITIONS else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is."""
    # Costly to import, and needed only where something is wrong.
    from difflib import get_close_matches

    matches = get_close_matches(name[:100].lower(), list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None
