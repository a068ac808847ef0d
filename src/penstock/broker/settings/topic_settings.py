"""Settings of a topic: its own, and the broker's where it has none.

A topic's own settings are strings, as they are stored and sent. They are validated before they are stored (the `check_`
functions return the reason for the client), and become values when a log is opened or they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from penstock.broker.settings.broker_settings import BrokerSettings
from penstock.broker.settings.catalogue import TOPIC_DEFINITIONS, TopicSettings, family_of, nearest, own_names
from penstock.config_def import (
    InvalidSettings,
    InvalidValue,
    Problem,
    Value,
    declarations,
    parse_value,
    shown,
)
from penstock.log.settings import LogSettings
from penstock.records import Codec

# A request may name any number of settings.
_MAX_REASONS: Final = 20
_SCHEMA_VALIDATION: Final = ("confluent.key.schema.validation", "confluent.value.schema.validation")
_FLUSH_NAMES: Final = ("flush.messages", "flush.ms")

# By compression.type, the codec of what is stored.
_CODECS: Final[Mapping[str, Codec | None]] = {
    "producer": None, "uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec},
}  # fmt: skip

# By a broker's setting, the topic's that overrides it.
_TOPIC_NAMES: Final = {
    member: each.name
    for each in TOPIC_DEFINITIONS.values()
    if each.broker_name is not None
    for member, _ in family_of(each.broker_name)
}


# --- validation


def check_topic_setting(name: str, value: str | None) -> str | None:
    """None if a topic can have this setting, else why not."""
    definition = TOPIC_DEFINITIONS.get(name)
    if definition is None:
        likely = _TOPIC_NAMES.get(name) or nearest(name, TOPIC_DEFINITIONS)
        return f"{shown(name)}: topics have no such setting" + (f"; did you mean {likely}?" if likely else "")
    if value is None:
        return f"{name}: a value is missing"
    try:
        parse_value(definition, value)
    except InvalidValue as error:
        return f"{name}: {error}"
    return None


def check_topic_settings(broker: BrokerSettings, overrides: Mapping[str, str | None]) -> list[str]:
    """Why a topic cannot have these settings: one by one, and together with the broker's."""
    judged = (check_topic_setting(name, value) for name, value in overrides.items())
    reasons = list(islice((reason for reason in judged if reason is not None), _MAX_REASONS))
    if reasons:
        return reasons
    values = _values(broker, {name: value for name, value in overrides.items() if value is not None})
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        reasons.append(f"min.compaction.lag.ms: {least} must not be larger than max.compaction.lag.ms, which is {most}")
    if broker.confluent_schema_registry_url is None:
        reasons += [
            f"{name}: needs confluent.schema.registry.url, which this broker does not have"
            for name in _SCHEMA_VALIDATION
            if values[name]
        ]
    return reasons


def sound_overrides(overrides: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The valid ones of a topic's stored settings, and why the others are not.

    A setting that another version stored must not keep a broker from serving the topic.
    """
    reasons = {name: check_topic_setting(name, value) for name, value in overrides.items()}
    sound = {name: value for name, value in overrides.items() if reasons[name] is None}
    return sound, [reason for reason in reasons.values() if reason is not None]


# --- values


def topic_settings(broker: BrokerSettings, overrides: Mapping[str, str]) -> TopicSettings:
    """A topic's settings as values. InvalidSettings."""
    values = _values(broker, overrides)
    return TopicSettings(log=_log_settings(broker, overrides, values), **_fields(TopicSettings, broker, values))


def log_settings(broker: BrokerSettings, overrides: Mapping[str, str]) -> LogSettings:
    """The settings of a topic's logs. InvalidSettings."""
    return _log_settings(broker, overrides, _values(broker, overrides))


def _log_settings(broker: BrokerSettings, overrides: Mapping[str, str], values: Mapping[str, Any]) -> LogSettings:
    kind = values["compression.type"]
    level = values.get(f"compression.{kind}.level")
    if level is not None and level == TOPIC_DEFINITIONS[f"compression.{kind}.level"].default:
        level = None  # Kafka's default for lz4, 9, is its fast compressor, which has no levels
    return LogSettings(
        **_fields(LogSettings, broker, values),
        sync_before_ack=not _has_flush_policy(broker, overrides),
        compression_codec=_CODECS[kind],
        compression_level=level,
    )


def _fields(section: type[Any], broker: BrokerSettings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The declared fields of a class; those that topics do not have come from the broker."""
    return {
        attribute: declared.convert(
            values[declared.topic] if declared.topic is not None else broker.layers.effective(declared.definition.name)
        )
        for attribute, declared in declarations(section).items()
    }


def _has_flush_policy(broker: BrokerSettings, overrides: Mapping[str, str]) -> bool:
    """Whether a flush interval was set, even to Kafka's default."""
    return any(
        name in overrides or broker.layers.deciding(TOPIC_DEFINITIONS[name].broker_name or name) is not None
        for name in _FLUSH_NAMES
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
        return max(-1, value)  # a broker may have other negative values for "forever"
    return value


def _values(broker: BrokerSettings, overrides: Mapping[str, str]) -> dict[str, Any]:
    unknown = [name for name in overrides if name not in TOPIC_DEFINITIONS]
    problems = [Problem("", shown(name), "topics have no such setting") for name in unknown]
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
