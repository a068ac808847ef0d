"""Broker settings as typed values, and where each comes from.

    dynamic of this broker > dynamic of all brokers > --set > file > default

A layer holds the values that someone set, already parsed. Nothing is merged away: each value knows its origin, and
removing one uncovers the next. `BrokerSettings` is immutable; a change gives a new object, checked as a whole, or
`InvalidSettings` with every reason. Attributes are Kafka's names with underscores; a family of units is one attribute
in the finest unit. A check that involves a broken setting is skipped, so that one mistake gives one message.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from penstock.broker.settings.catalogue import (
    BROKER_DEFINITIONS,
    ELSEWHERE,
    FAMILIES,
    QUEUED_BYTES,
    ServerSettings,
    family_of,
    nearest,
)
from penstock.broker.settings.listener_security import SECURITY, ListenerSecurity, prefixed_definition
from penstock.broker.settings.listeners import (
    PROTOCOLS,
    InvalidListeners,
    Listener,
    advertised_from,
    between_brokers,
    check_bindable,
    check_proxied,
    parse_listeners,
    parse_protocol_map,
)
from penstock.broker.settings.server_properties import (
    OLD_NAMES,
    TopicPreset,
    Translation,
    Written,
    translate,
)
from penstock.config_def import (
    ConfigType,
    InvalidSettings,
    InvalidValue,
    Notice,
    Problem,
    Value,
    declarations,
    parse_list,
    parse_numbers,
    parse_value,
    shown,
)
from penstock.coordination.groups.group import GroupSettings
from penstock.coordination.transactions.transaction_shard import TransactionSettings
from penstock.properties_file import ParsedProperties, Property, read_properties
from penstock.replication.follower import FetcherSettings

COMMAND: Final = "--set"
DEFAULT_WHERE: Final = "default"
# Finding the nearest name takes a millisecond, and a file full of unknown names is not a settings file.
_MAX_HINTS: Final = 50
# A request may name any number of settings.
_MAX_PROBLEMS: Final = 20
_NO_LISTENER: Final = Listener("", "", "", 0)
_NO_PRESET: Final = TopicPreset()


# --- layers


class Source(IntEnum):
    """Where a value comes from; the numbers are those of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was set, and where. `written` is the name used there, if it is an older one."""

    name: str
    text: str
    value: Value
    source: Source
    where: str
    written: str = ""


Layer = Mapping[str, Given]


@dataclass(frozen=True, slots=True)
class Layers:
    dynamic_broker: Layer = field(default_factory=dict)
    dynamic_default: Layer = field(default_factory=dict)
    command: Layer = field(default_factory=dict)
    file: Layer = field(default_factory=dict)

    def strongest_first(self) -> tuple[Layer, ...]:
        return (self.dynamic_broker, self.dynamic_default, self.command, self.file)

    def given(self, name: str) -> Iterator[Given]:
        """The values set for this very name, the strongest first."""
        for layer in self.strongest_first():
            if name in layer:
                yield layer[name]

    def deciding(self, name: str) -> Given | None:
        """The value that applies to a setting or its family; None is the default."""
        for layer in self.strongest_first():
            for member, _ in family_of(name):
                if member in layer:
                    return layer[member]
        return None

    def effective(self, name: str) -> Value:
        """The value in force: log.retention.ms is 3600000 if only log.retention.hours was set, to 1."""
        factors = dict(family_of(name))
        given = self.deciding(name)
        if given is not None:
            return scaled(given.value, factors[given.name])
        for member, factor in factors.items():
            default = BROKER_DEFINITIONS[member].default
            if default is not None:
                return scaled(default, factor)
        return None

    def where(self, name: str) -> str:
        given = self.deciding(name)
        return DEFAULT_WHERE if given is None else given.where

    def with_dynamic(self, changes: Mapping[str, Given | None], *, cluster_wide: bool) -> Layers:
        """A copy with values set or removed (None) in one of the dynamic layers."""
        layer = dict(self.dynamic_default if cluster_wide else self.dynamic_broker)
        for name, given in changes.items():
            if given is None:
                layer.pop(name, None)
            else:
                layer[name] = given
        frozen = MappingProxyType(layer)
        return replace(self, dynamic_default=frozen) if cluster_wide else replace(self, dynamic_broker=frozen)


def scaled(value: Value, factor: int) -> Value:
    return value * factor if isinstance(value, int) and not isinstance(value, bool) else value


def admit(name: str, text: str, source: Source, where: str, written: str = "") -> Given | Problem:
    """A value for a setting, or why it is invalid. The value of an unknown name is kept as it is."""
    definition = BROKER_DEFINITIONS.get(name) or prefixed_definition(name)
    if definition is None:
        return Given(name, text, text, source, where, written)
    try:
        return Given(name, text, parse_value(definition, text), source, where, written)
    except InvalidValue as error:
        stands_for = f" (older name of {name})" if written else ""
        return Problem(where, f"{written or name}{stands_for}", str(error))


# --- listeners


@dataclass(slots=True)
class ResolvedListeners:
    """Complete only if there are no problems."""

    listeners: tuple[Listener, ...] = ()
    advertised: tuple[Listener, ...] = ()
    inter_broker: Listener = _NO_LISTENER
    problems: list[Problem] = field(default_factory=list)


def resolve_listeners(layers: Layers, host_name: str, broken: Collection[str] = ()) -> ResolvedListeners:
    """A setting is checked only if those that it depends on are valid."""
    result = ResolvedListeners()
    if "listeners" in broken:
        return result
    name = "listener.security.protocol.map"
    try:
        protocols = {each: each for each in PROTOCOLS}
        if layers.deciding(name) is not None:
            protocols = parse_protocol_map(_text(layers, name) or "")
        left_out = {each.upper() for each in parse_list(_text(layers, "controller.listener.names") or "")}
        name = "listeners"
        result.listeners = parse_listeners(_text(layers, name) or "", protocols, left_out=left_out)
        check_bindable(result.listeners)
        name = "advertised.listeners"
        text = _text(layers, name)
        written = None if text is None else parse_listeners(text, protocols, left_out=left_out)
        result.advertised = advertised_from(result.listeners, written, lambda: host_name)
        name = "inter.broker.listener.name"
        protocol = _text(layers, "security.inter.broker.protocol")
        result.inter_broker = between_brokers(result.advertised, _text(layers, name), protocol)
        name = "penstock.proxy.listeners"
        check_proxied(layers.effective(name), result.advertised, result.inter_broker)
    except InvalidListeners as error:
        given = layers.deciding(name)
        written_name = name if given is None or not given.written else f"{given.written} (older names for {name})"
        result.problems.append(Problem(layers.where(name), written_name, str(error)))
    return result


def listener_security(layers: Layers, listener: Listener) -> ListenerSecurity:
    """The security settings of a listener, from its file and command line only.

    Dynamic settings are left out: a client that may change them would choose credentials and URLs for the next start.
    """
    given: dict[str, Value] = {}
    for layer in (layers.file, layers.command):
        for name, each in layer.items():
            if name in _SECURITY_NAMES or prefixed_definition(name) is not None:
                given[name] = each.value
    return ListenerSecurity(listener, MappingProxyType(given))


_SECURITY_NAMES: Final = frozenset(each.name for each in SECURITY)


def _security_problems(layers: Layers, resolved: ResolvedListeners) -> Iterator[Problem]:
    """Each setting that cannot be used once, whatever the number of listeners that share it."""
    found: dict[tuple[str, str], None] = {}
    for listener in resolved.listeners:
        found.update(dict.fromkeys(listener_security(layers, listener).problems()))
    if layers.effective("zookeeper.connect") is not None and resolved.inter_broker is not _NO_LISTENER:
        found.update(dict.fromkeys(listener_security(layers, resolved.inter_broker).inter_broker_problems()))
    for name, reason in found:
        where = next((each.where for each in layers.given(name)), DEFAULT_WHERE)
        yield Problem(where, name, reason)


def _text(layers: Layers, name: str) -> str | None:
    value = layers.effective(name)
    return None if value is None else str(value)


# --- settings that contradict each other


@dataclass(frozen=True, slots=True)
class _Check:
    """`holds` takes the values of `names`; `reason` is about the first, {0}."""

    names: tuple[str, ...]
    holds: Callable[..., bool]
    reason: str


def _at_most(*names: str) -> _Check:
    return _Check(
        names, lambda small, large: bool(small <= large), f"{{0}} must not be larger than {names[1]}, which is {{1}}"
    )


def _no_overrides(text: str) -> bool:
    try:
        return not parse_numbers(text)
    except InvalidValue:
        return False


def _is_usable_folder(path: str) -> bool:
    return bool(path) and path.isprintable()


_CHECKS: Final = (
    _Check(
        ("broker.id", "zookeeper.connect", "broker.id.generation.enable", "reserved.broker.max.id"),
        lambda number, zookeeper, generates, reserved: not (zookeeper and generates and number > reserved),
        "{0} must not be larger than reserved.broker.max.id, because larger ids are generated; choose a smaller id or "
        "set broker.id.generation.enable=false",
    ),
    _Check(
        ("broker.id", "zookeeper.connect", "broker.id.generation.enable"),
        lambda number, zookeeper, generates: not (zookeeper and not generates and number < 0),
        "must be set, because broker.id.generation.enable=false",
    ),
    _Check(
        ("log.dirs",),
        lambda text: bool(text) and all(map(_is_usable_folder, parse_list(text))),
        "must name at least one folder; names must not be empty or contain control characters",
    ),
    _Check(
        ("log.dirs",),
        lambda text: len({path.rstrip("/") for path in parse_list(text or "")}) == len(parse_list(text or "")),
        "names a folder twice",
    ),
    _Check(
        ("max.connections.per.ip", "max.connections.per.ip.overrides"),
        lambda most, overrides: not (most == 0 and _no_overrides(overrides)),
        "0 rejects all connections; use it only with max.connections.per.ip.overrides",
    ),
    _Check(
        ("queued.max.request.bytes", "socket.request.max.bytes"),
        # The default may stay: a single request is always received.
        lambda queued, largest: queued <= 0 or queued >= largest or queued == QUEUED_BYTES,
        "{0} must not be smaller than socket.request.max.bytes, or the largest requests would wait forever",
    ),
    _at_most("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    _at_most("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    _at_most("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _at_most("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    _at_most("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    _at_most("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    _at_most("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    _at_most("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    _Check(
        ("penstock.http.user", "penstock.http.password"),
        lambda user, password: bool(user) == bool(password),
        "needs penstock.http.password; set both or neither",
    ),
)  # fmt: skip


def contradictions(layers: Layers, broken: Collection[str] = ()) -> list[Problem]:
    """Contradictions between settings that are valid by themselves."""
    problems = []
    for check in _CHECKS:
        if broken and not set(broken).isdisjoint(check.names):
            continue
        values = [layers.effective(name) for name in check.names]
        if not check.holds(*values):
            first = check.names[0]
            problems.append(Problem(layers.where(first), first, check.reason.format(*values)))
    numbers = {given.value for name in ("broker.id", "node.id") for given in layers.given(name)}
    if len(numbers) > 1:
        problems.append(Problem(layers.where("broker.id"), "broker.id", "differs from node.id; set only one of them"))
    return problems


# --- settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(ServerSettings):
    """The settings of a broker. Those of topics and their logs are made by `topic_settings`."""

    groups: GroupSettings
    transactions: TransactionSettings
    replication: FetcherSettings
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    inter_broker_listener: Listener

    # where it all comes from
    layers: Layers = field(repr=False)
    presets: Mapping[str, TopicPreset] = field(repr=False)
    host_name: str = field(repr=False)

    # --- make

    @classmethod
    def from_layers(
        cls,
        layers: Layers,
        *,
        presets: Mapping[str, TopicPreset],
        host_name: str,
        problems: Collection[Problem] = (),
        broken: Collection[str] = (),
    ) -> BrokerSettings:
        """`problems` are those already found, with the settings `broken` by them.

        InvalidSettings with these and all others.
        """
        found = list(problems)
        values = _values(ServerSettings, layers, found)
        groups = _values(GroupSettings, layers, found)
        transactions = _values(TransactionSettings, layers, found)
        replication = _values(FetcherSettings, layers, found)
        if values["zookeeper_connection_timeout_ms"] is None:
            values["zookeeper_connection_timeout_ms"] = values["zookeeper_session_timeout_ms"]
        resolved = resolve_listeners(layers, host_name, broken)
        found += resolved.problems
        if not resolved.problems:
            found += _security_problems(layers, resolved)
        found += contradictions(layers, broken)
        if found:
            raise InvalidSettings(found)
        return cls(
            **values,
            groups=GroupSettings(**groups),
            transactions=TransactionSettings(**transactions),
            replication=FetcherSettings(**replication),
            listeners=resolved.listeners,
            advertised_listeners=resolved.advertised,
            inter_broker_listener=resolved.inter_broker,
            layers=layers,
            presets=presets,
            host_name=host_name,
        )

    # --- ask

    @property
    def stands_alone(self) -> bool:
        """Whether there is no ZooKeeper: a single broker, which keeps the metadata itself."""
        return self.zookeeper_connect is None

    def where(self, name: str) -> str:
        """Where the value of a setting comes from: "default", "server.properties:12", "--set", ..."""
        return self.layers.where(name)

    def security(self, listener: Listener) -> ListenerSecurity:
        """The security settings of one of the listeners."""
        return listener_security(self.layers, listener)

    def preset(self, topic: str) -> TopicPreset:
        """The operator's preset for a topic; the topic's own settings override it."""
        return self.presets.get(topic, _NO_PRESET)

    # --- change

    def with_broker_id(self, broker_id: int) -> BrokerSettings:
        """A copy with the id that the broker was given, if its operator set none."""
        return replace(self, broker_id=broker_id)

    def dynamic(self, *, cluster_wide: bool = False) -> dict[str, str]:
        """The dynamic settings: those of all brokers, or of this one."""
        layer = self.layers.dynamic_default if cluster_wide else self.layers.dynamic_broker
        return {name: given.text for name, given in layer.items()}

    def with_changes(self, changes: Mapping[str, str | None], *, cluster_wide: bool = False) -> BrokerSettings:
        """A copy with dynamic settings changed; None removes one. InvalidSettings."""
        source = Source.DYNAMIC_DEFAULT_BROKER if cluster_wide else Source.DYNAMIC_BROKER
        where = "changed for all brokers" if cluster_wide else "changed for this broker"
        admitted: dict[str, Given | None] = {}
        problems: list[Problem] = []
        for name, text in changes.items():
            if len(problems) == _MAX_PROBLEMS:
                break
            reason = check_changeable(name)
            given = None if reason is not None or text is None else admit(name, text, source, where)
            if reason is not None:
                problems.append(Problem("", shown(name), reason))
            elif isinstance(given, Problem):
                problems.append(Problem("", name, given.reason))
            else:
                admitted[name] = given
        if problems:
            raise InvalidSettings(problems)
        layers = self.layers.with_dynamic(admitted, cluster_wide=cluster_wide)
        return BrokerSettings.from_layers(layers, presets=self.presets, host_name=self.host_name)


def check_changeable(name: str) -> str | None:
    """None if a broker's setting can be changed while it runs, else why not.

    An unknown name can be changed: as in Kafka, it may be read by something else.
    """
    definition = BROKER_DEFINITIONS.get(name) or prefixed_definition(name.lower())
    if definition is not None and not definition.dynamic:
        return "cannot be changed while the broker runs; set it in the broker's settings file and restart"
    return None


def _values(section: type[Any], layers: Layers, problems: list[Problem]) -> dict[str, Any]:
    """The values of a class's declared fields."""
    values = {}
    for attribute, declared in declarations(section).items():
        name = declared.definition.name
        try:
            values[attribute] = declared.convert(layers.effective(name))
        except InvalidValue as error:
            problems.append(Problem(layers.where(name), name, str(error)))
    return values


# --- loading


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: BrokerSettings
    notices: tuple[Notice, ...]


def load_settings(
    path: str | Path | None = None,
    assignments: Sequence[str] = (),
    *,
    host_name: Callable[[], str] = socket.gethostname,
) -> LoadedSettings:
    """Settings of a `server.properties` file, overridden by `name=value` assignments.

    UnreadableFile; InvalidSettings with all problems.
    """
    parsed = ParsedProperties((), ()) if path is None else read_properties(path)
    command = _parse_assignments(assignments)
    return _load(parsed, command, host_name)


def settings_from(
    values: Mapping[str, str] | None = None, *, host_name: Callable[[], str] = socket.gethostname
) -> BrokerSettings:
    """Settings from names and values, as from the command line, but without unknown names."""
    given = values or {}
    unknown = [
        name
        for name in given
        if name not in BROKER_DEFINITIONS and name not in OLD_NAMES and prefixed_definition(name.lower()) is None
    ]
    if unknown:
        raise InvalidSettings(Problem("", shown(name), "brokers have no such setting") for name in unknown)
    properties = tuple(Property(name, value, COMMAND) for name, value in given.items())
    return _load(ParsedProperties((), ()), ParsedProperties(properties, ()), host_name).settings


def _parse_assignments(assignments: Iterable[str]) -> ParsedProperties:
    properties = []
    problems = []
    for text in assignments:
        name, equals, value = text.partition("=")
        if equals and name.strip():
            properties.append(Property(name.strip(), value.strip(), COMMAND))
        else:
            problems.append(Problem(COMMAND, "", f"{shown(name)!r} is not name=value"))
    return ParsedProperties(tuple(properties), tuple(problems))


def _load(file: ParsedProperties, command: ParsedProperties, host_name: Callable[[], str]) -> LoadedSettings:
    problems = [*file.problems, *command.problems]
    notices: list[Notice] = []
    broken: set[str] = set()
    layers = []
    presets: dict[str, TopicPreset] = {}
    for parsed in (file, command):
        translation = translate(parsed.properties)
        problems += translation.problems
        notices += translation.notices
        layers.append(_admit_all(translation, problems, notices, broken))
        for topic, preset in translation.presets.items():
            presets[topic] = _merged(presets.get(topic), preset)
    settings = BrokerSettings.from_layers(
        Layers(file=layers[0], command=layers[1]),
        presets=MappingProxyType(presets),
        host_name=host_name(),
        problems=problems,
        broken=broken,
    )
    return LoadedSettings(settings, tuple(notices))


def _admit_all(
    translation: Translation, problems: list[Problem], notices: list[Notice], broken: set[str]
) -> Mapping[str, Given]:
    layer: dict[str, Given] = {}
    for written, setting in translation.settings.items():
        prefixed = prefixed_definition(written.lower())
        if written not in BROKER_DEFINITIONS and prefixed is None:
            notices.append(_unknown(setting, with_hint=len(notices) < _MAX_HINTS))
            continue
        name = written if prefixed is None else written.lower()
        given = admit(name, setting.text, Source.STATIC_BROKER, setting.where, setting.written)
        if isinstance(given, Problem):
            problems.append(given)
            broken |= {name, *(each for each, family in FAMILIES.items() if name in dict(family))}
            continue
        layer[name] = given
        definition = BROKER_DEFINITIONS.get(name)
        is_java = definition is not None and definition.type is ConfigType.CLASS and not definition.has_effect
        if is_java and given.value is not None:
            notices.append(Notice(setting.where, name, "names a Java class, which has no effect in Penstock"))
    notices += _overridden(layer)
    return MappingProxyType(layer)


def _unknown(setting: Written, *, with_hint: bool) -> Notice:
    """Without the value, which may be a secret."""
    if setting.name.startswith(ELSEWHERE):
        return Notice(setting.where, shown(setting.name), "a setting of Kafka without effect in Penstock")
    likely = nearest(setting.name, (*BROKER_DEFINITIONS, *OLD_NAMES)) if with_hint else None
    hint = f"; did you mean {likely}?" if likely else ""
    return Notice(setting.where, shown(setting.name) or "(no name)", f"unknown setting, ignored{hint}")


def _overridden(layer: Mapping[str, Given]) -> Iterable[Notice]:
    for name, family in FAMILIES.items():
        present = [member for member, _ in family if member in layer]
        for member in present[1:]:
            # Both ids must be equal anyway, and an older name may still apply to another setting.
            if name != "broker.id" and not member.endswith("difference.max.ms"):
                yield Notice(layer[member].where, member, f"is overridden by {present[0]} ({layer[present[0]].where})")


def _merged(old: TopicPreset | None, new: TopicPreset) -> TopicPreset:
    if old is None:
        return new
    partitions = old.partitions if new.partitions is None else new.partitions
    return TopicPreset(partitions, MappingProxyType({**old.settings, **new.settings}))
