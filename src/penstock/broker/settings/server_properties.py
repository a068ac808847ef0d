"""Names of older Kafka versions in server.properties.

An old name (Kafka 0.7, and those of 0.8 that were removed) is read as the new one and messages say so; if both are
set, the new one applies. Old per-topic settings (`topic.log.file.size=clicks:1048576`) become presets: what such
topics start with unless they set their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from penstock.broker.settings.catalogue import TOPIC_DEFINITIONS
from penstock.broker.settings.listeners import DEFAULT_PORT
from penstock.cluster.topic_names import check_topic_name
from penstock.config_def import (
    HOUR_MS,
    INT_MAX,
    MINUTE_MS,
    InvalidValue,
    Notice,
    Problem,
    parse_numbers,
    parse_value,
    shown,
)
from penstock.properties_file import Property

# Old name: new name, and the factor between their units.
RENAMED: Final[Mapping[str, tuple[str, int]]] = {
    "brokerid": ("broker.id", 1),
    "max.socket.request.bytes": ("socket.request.max.bytes", 1),
    "socket.send.buffer": ("socket.send.buffer.bytes", 1),
    "socket.receive.buffer": ("socket.receive.buffer.bytes", 1),
    "max.message.size": ("message.max.bytes", 1),
    "num.threads": ("num.io.threads", 1),
    "log.file.size": ("log.segment.bytes", 1),
    "log.retention.size": ("log.retention.bytes", 1),
    "log.cleanup.interval.mins": ("log.retention.check.interval.ms", MINUTE_MS),
    "log.flush.interval": ("log.flush.interval.messages", 1),
    "log.default.flush.interval.ms": ("log.flush.interval.ms", 1),
    "log.default.flush.scheduler.interval.ms": ("log.flush.scheduler.interval.ms", 1),
    "log.delete.delay.ms": ("log.segment.delete.delay.ms", 1),
    "zk.connect": ("zookeeper.connect", 1),
    "zk.connectiontimeout.ms": ("zookeeper.connection.timeout.ms", 1),
    "zk.sessiontimeout.ms": ("zookeeper.session.timeout.ms", 1),
    "zk.synctime.ms": ("zookeeper.sync.time.ms", 1),
}

# Old name of a setting for single topics: the topic's setting, and the factor between their units.
_PARTITIONS: Final = ""
PER_TOPIC: Final[Mapping[str, tuple[str, int]]] = {
    "topic.partition.count.map": (_PARTITIONS, 1),
    "topic.log.file.size": ("segment.bytes", 1),
    "topic.log.roll.hours": ("segment.ms", HOUR_MS),
    "topic.log.retention.hours": ("retention.ms", HOUR_MS),
    "topic.log.retention.size": ("retention.bytes", 1),
    "topic.flush.intervals.ms": ("flush.ms", 1),
    "log.segment.bytes.per.topic": ("segment.bytes", 1),
    "log.roll.hours.per.topic": ("segment.ms", HOUR_MS),
    "log.retention.hours.per.topic": ("retention.ms", HOUR_MS),
    "log.retention.bytes.per.topic": ("retention.bytes", 1),
    "log.flush.interval.ms.per.topic": ("flush.ms", 1),
    "log.flush.intervals.ms.per.topic": ("flush.ms", 1),
}

# Before listeners existed, their parts were separate settings.
BIND_HOST, PORT, ADVERTISED_PORT, ENABLE_ZOOKEEPER = "host.name", "port", "advertised.port", "enable.zookeeper"
ADVERTISED_HOSTS: Final = ("advertised.host.name", "hostname")

_NO_EFFECT: Final = "a setting of an older Kafka, without effect in Penstock"
GONE: Final[Mapping[str, str]] = {
    **dict.fromkeys((
        "monitoring.period.secs", "max.topic.name.length", "controller.message.queue.size",
        "log.cleaner.min.cleanable.bytes", "leader.imbalance.per.broker.bytes", "kafka.csv.metrics.reporter.enabled",
    ), _NO_EFFECT),
    "replica.lag.max.messages": "without effect since Kafka 0.9: a follower leaves the ISR by time, not by the number "
    "of records that it lacks; set replica.lag.time.max.ms",
}  # fmt: skip

OLD_NAMES: Final = frozenset({*RENAMED, *PER_TOPIC, BIND_HOST, PORT, ADVERTISED_PORT, ENABLE_ZOOKEEPER,
                              *ADVERTISED_HOSTS, *GONE})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicPreset:
    """What a topic starts with: partitions (None: the default) and settings of its own."""

    partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Written:
    """A setting by its current name, and the older name that was written, if any."""

    name: str
    text: str
    where: str
    written: str = ""


@dataclass(slots=True)
class Translation:
    """One layer's settings by their current names."""

    settings: dict[str, Written] = field(default_factory=dict)
    presets: dict[str, TopicPreset] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


def translate(properties: Iterable[Property]) -> Translation:
    """The settings of a file or a command line by their current names; the last of a repeated name applies."""
    result = Translation()
    given: dict[str, Property] = {}
    for each in properties:
        if each.name in given:
            earlier = given[each.name].where
            result.notices.append(
                Notice(each.where, shown(each.name), f"was set before ({earlier}); this value applies")
            )
        given[each.name] = each
    for name, each in given.items():
        if name not in OLD_NAMES:
            result.settings[name] = Written(name, each.value, each.where)
    for name, each in given.items():
        if name in RENAMED:
            _rename(each, result)
        elif name in PER_TOPIC:
            _preset(each, result)
        elif name in GONE:
            result.notices.append(Notice(each.where, name, GONE[name]))
    _join_listeners(given, result)
    _apply_enable_zookeeper(given.get(ENABLE_ZOOKEEPER), result)
    return result


def _rename(each: Property, result: Translation) -> None:
    name, factor = RENAMED[each.name]
    text = each.value
    if factor != 1:
        try:
            text = str(parse_numbers(f"x:{text.strip()}")["x"] * factor)
        except InvalidValue:
            reason = f"{shown(text)!r} is not an integer"
            result.problems.append(Problem(each.where, f"{each.name} (older name of {name})", reason))
            return
    _set(Written(name, text, each.where, each.name), result)


def _set(setting: Written, result: Translation) -> None:
    other = result.settings.get(setting.name)
    if other is None:
        result.settings[setting.name] = setting
    else:
        text = f"older name of {setting.name}, which is also set ({other.where}) and applies"
        result.notices.append(Notice(setting.where, setting.written, text))


def _join_listeners(given: Mapping[str, Property], result: Translation) -> None:
    """host.name and port become listeners, hostname and advertised.port become advertised.listeners."""
    _set_listener("listeners", given.get(BIND_HOST), given.get(PORT), DEFAULT_PORT, result)
    host = next((given[name] for name in ADVERTISED_HOSTS if name in given), None)
    # Port 0: that of the listener, which another layer may set.
    _set_listener("advertised.listeners", host, given.get(ADVERTISED_PORT), 0, result)


def _set_listener(
    name: str, host: Property | None, port: Property | None, default_port: int, result: Translation
) -> None:
    parts = [part for part in (host, port) if part is not None and part.value.strip()]
    if not parts:
        return
    host_text = host.value.strip() if host is not None else ""
    port_text = port.value.strip() if port is not None else str(default_port)
    bracketed = f"[{host_text}]" if ":" in host_text else host_text
    written = " and ".join(part.name for part in parts)
    _set(Written(name, f"PLAINTEXT://{bracketed}:{port_text}", parts[0].where, written), result)


def _apply_enable_zookeeper(each: Property | None, result: Translation) -> None:
    if each is None:
        return
    enabled = each.value.strip().lower()
    if enabled not in ("true", "false"):
        result.problems.append(Problem(each.where, each.name, f"{shown(each.value)!r} is not true or false"))
    elif enabled == "false":
        result.settings["zookeeper.connect"] = Written("zookeeper.connect", "", each.where, each.name)


def _preset(each: Property, result: Translation) -> None:
    setting, factor = PER_TOPIC[each.name]
    try:
        numbers = parse_numbers(each.value)
    except InvalidValue as error:
        result.problems.append(Problem(each.where, each.name, str(error)))
        return
    for topic, number in numbers.items():
        reason = check_topic_name(topic) or _objection(setting, number * factor)
        if reason is not None:
            result.problems.append(Problem(each.where, each.name, f"{shown(topic)}:{number}: {reason}"))
            continue
        old = result.presets.get(topic, TopicPreset())
        if setting == _PARTITIONS:
            result.presets[topic] = TopicPreset(number, old.settings)
        else:
            settings = {**old.settings, setting: str(number * factor)}
            result.presets[topic] = TopicPreset(old.partitions, MappingProxyType(settings))


def _objection(setting: str, number: int) -> str | None:
    if setting == _PARTITIONS:
        return None if 1 <= number <= INT_MAX else "a topic needs at least 1 partition"
    try:
        parse_value(TOPIC_DEFINITIONS[setting], str(number))
    except InvalidValue as error:
        return f"as {setting}, {error}"
    return None
