"""Settings of a topic: its own, and the broker's where it has none.

Rule: a topic's own settings are texts, as they are stored and sent. They are judged before they are stored (the
`check_` functions say why not, in words for the client), and made into values for a log when it is opened or they
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from penstock.broker.settings.broker_settings import BrokerSettings
from penstock.broker.settings.catalogue import TOPIC_DEFINITIONS, family_of, nearest
from penstock.broker.settings.config_def import InvalidSettings, InvalidValue, Problem, Value, parse_value, shown
from penstock.log.settings import LogSettings
from penstock.records import Codec

# A request may name any number of settings; nobody reads on after so many reasons.
_MAX_REASONS: Final = 20
_BEFORE, _AFTER, _DIFFERENCE = (
    "message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "message.timestamp.difference.max.ms",
)  # fmt: skip

_FLUSH_NAMES: Final = ("flush.messages", "flush.ms")

# compression.type: the codec of what is stored.
_CODECS: Final[Mapping[str, Codec | None]] = {
    "producer": None, "uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec},
}  # fmt: skip

# A broker's setting: the topic's that stands for the same.
_TOPIC_NAMES: Final = {
    member: each.name
    for each in TOPIC_DEFINITIONS.values()
    if each.broker_name is not None
    for member, _ in family_of(each.broker_name)
}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a broker needs to know of a topic's settings."""

    log: LogSettings
    compression_type: str
    compression_level: int | None  # of the codec that compression_type names
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    message_downconversion_enable: bool
    leader_throttled_replicas: tuple[str, ...]
    follower_throttled_replicas: tuple[str, ...]


# --- judge


def check_topic_setting(name: str, value: str | None) -> str | None:
    """None if a topic may have this setting, else why not."""
    definition = TOPIC_DEFINITIONS.get(name)
    if definition is None:
        likely = _TOPIC_NAMES.get(name) or nearest(name, TOPIC_DEFINITIONS)
        return f"{shown(name)}: no such setting of a topic" + (f"; did you mean {likely}?" if likely else "")
    if value is None:
        return f"{name}: a value is needed"
    try:
        parse_value(definition, value)
    except InvalidValue as error:
        return f"{name}: {error}"
    return None


def check_topic_settings(broker: BrokerSettings, overrides: Mapping[str, str | None]) -> list[str]:
    """Why a topic may not have these settings of its own: one by one, and together with the broker's."""
    judged = (check_topic_setting(name, value) for name, value in overrides.items())
    reasons = list(islice((reason for reason in judged if reason is not None), _MAX_REASONS))
    if reasons:
        return reasons
    values = _values(broker, {name: value for name, value in overrides.items() if value is not None})
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        reasons.append(f"min.compaction.lag.ms: {least} is more than max.compaction.lag.ms, which is {most}")
    return reasons


def sound_overrides(overrides: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Those of a topic's stored settings that are understood, and why the others are not.

    For a start-up: what some other version stored must not keep a broker from serving the topic.
    """
    reasons = {name: check_topic_setting(name, value) for name, value in overrides.items()}
    sound = {name: value for name, value in overrides.items() if reasons[name] is None}
    return sound, [reason for reason in reasons.values() if reason is not None]


# --- use


def topic_settings(broker: BrokerSettings, overrides: Mapping[str, str]) -> TopicSettings:
    """A topic's settings as values. InvalidSettings."""
    values = _values(broker, overrides)
    kind = values["compression.type"]
    return TopicSettings(
        log=_log_settings(broker, overrides, values),
        compression_type=kind,
        compression_level=values.get(f"compression.{kind}.level"),
        min_insync_replicas=values["min.insync.replicas"],
        unclean_leader_election_enable=values["unclean.leader.election.enable"],
        message_downconversion_enable=values["message.downconversion.enable"],
        leader_throttled_replicas=values["leader.replication.throttled.replicas"],
        follower_throttled_replicas=values["follower.replication.throttled.replicas"],
    )


def log_settings(broker: BrokerSettings, overrides: Mapping[str, str]) -> LogSettings:
    """How the logs of a topic behave. InvalidSettings."""
    return _log_settings(broker, overrides, _values(broker, overrides))


def _has_flush_policy(broker: BrokerSettings, overrides: Mapping[str, str]) -> bool:
    """Whether somebody said when to flush, if only that it be Kafka's default."""
    return any(
        name in overrides or broker.layers.deciding(TOPIC_DEFINITIONS[name].broker_name or name) is not None
        for name in _FLUSH_NAMES
    )


def _log_settings(broker: BrokerSettings, overrides: Mapping[str, str], values: Mapping[str, Any]) -> LogSettings:
    kind = values["compression.type"]
    level = values.get(f"compression.{kind}.level")
    if level is not None and level == TOPIC_DEFINITIONS[f"compression.{kind}.level"].default:
        level = None  # Kafka's default for lz4, 9, is its fast compressor, which is no level at all
    return LogSettings(
        segment_bytes=values["segment.bytes"],
        segment_ms=values["segment.ms"],
        segment_jitter_ms=values["segment.jitter.ms"],
        segment_index_bytes=values["segment.index.bytes"],
        index_interval_bytes=values["index.interval.bytes"],
        flush_messages=values["flush.messages"],
        flush_ms=values["flush.ms"],
        sync_before_ack=not _has_flush_policy(broker, overrides),
        retention_ms=values["retention.ms"],
        retention_bytes=max(-1, values["retention.bytes"]),
        cleanup_policy=frozenset(values["cleanup.policy"]),
        file_delete_delay_ms=values["file.delete.delay.ms"],
        delete_retention_ms=values["delete.retention.ms"],
        min_compaction_lag_ms=values["min.compaction.lag.ms"],
        max_compaction_lag_ms=values["max.compaction.lag.ms"],
        min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
        max_message_bytes=values["max.message.bytes"],
        message_timestamp_append_time=values["message.timestamp.type"] == "LogAppendTime",
        message_timestamp_before_max_ms=values[_BEFORE],
        message_timestamp_after_max_ms=values[_AFTER],
        compression_codec=_CODECS[kind],
        compression_level=level,
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
    )


def effective_value(broker: BrokerSettings, overrides: Mapping[str, str], name: str) -> Value:
    """The value of one of a topic's settings: its own, or the broker's, or the default. InvalidSettings."""
    for own in own_names(name):
        if own in overrides:
            return _parsed(own, overrides[own])
    definition = TOPIC_DEFINITIONS[name]
    if definition.broker_name is None:
        return definition.default
    value = broker.layers.effective(definition.broker_name)
    if name == "retention.ms" and isinstance(value, int):
        return max(-1, value)
    return value


def own_names(name: str) -> tuple[str, ...]:
    """The names by which a topic may set this, the one that counts first."""
    return (name, _DIFFERENCE) if name in (_BEFORE, _AFTER) else (name,)


def _values(broker: BrokerSettings, overrides: Mapping[str, str]) -> dict[str, Any]:
    unknown = [name for name in overrides if name not in TOPIC_DEFINITIONS]
    problems = [Problem("", shown(name), "no such setting of a topic") for name in unknown]
    values: dict[str, Any] = {}
    for name in TOPIC_DEFINITIONS:
        try:
            values[name] = effective_value(broker, overrides, name)
        except InvalidSettings as error:
            problems += error.problems
    if problems:
        raise InvalidSettings(dict.fromkeys(problems))
    return values


def _parsed(name: str, text: str) -> Value:
    try:
        return parse_value(TOPIC_DEFINITIONS[name], text)
    except InvalidValue as error:
        raise InvalidSettings([Problem("", name, str(error))]) from error
