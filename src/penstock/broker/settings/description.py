"""Settings as DescribeConfigs shows them: value, source and synonyms.

Synonyms are the values that exist, the effective one first: topic, dynamic of this broker, dynamic of all brokers,
static, default. As in Kafka they start at the setting's own name: values of other family members before that are not
listed. Secrets and values of unknown names are never shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from penstock.broker.settings.broker_settings import BrokerSettings, Layer, Source
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, TOPIC_DEFINITIONS, family_of, own_names
from penstock.broker.settings.topic_settings import effective_value
from penstock.config_def import ConfigType, Definition, Value, format_value


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of a broker or topic."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str

    @property
    def is_default(self) -> bool:
        return self.source is Source.DEFAULT


def describe_topic(
    broker: BrokerSettings, overrides: Mapping[str, str], names: Collection[str] | None = None
) -> list[Row]:
    """All settings of a topic with these overrides, or those of `names` that exist. InvalidSettings."""
    rows = []
    for definition in _wanted(TOPIC_DEFINITIONS, names):
        value = effective_value(broker, overrides, definition.name)
        own = [name for name in own_names(definition.name) if name in overrides]
        synonyms = [
            Synonym(name, format_value(TOPIC_DEFINITIONS[name], effective_value(broker, overrides, name)), Source.TOPIC)
            for name in own
        ]
        given = list(_broker_values(broker, definition.broker_name)) if definition.broker_name else []
        listed = [*synonyms, *_from_own_name(given, definition.broker_name or "")]
        source = next((each.source for each in (*synonyms, *given)), Source.DEFAULT)
        rows.append(_row(definition, value, source, listed, read_only=False))
    return rows


def describe_broker(broker: BrokerSettings, names: Collection[str] | None = None) -> list[Row]:
    """All settings of a broker, or those of `names` that exist."""
    rows = []
    for definition in _wanted(BROKER_DEFINITIONS, names):
        given = next(broker.layers.given(definition.name), None)
        value = definition.default if given is None else given.value
        if definition.name in ("broker.id", "node.id"):
            value = broker.broker_id
        listed = list(_from_own_name(_broker_values(broker, definition.name), definition.name))
        source = listed[0].source if listed else Source.DEFAULT
        rows.append(_row(definition, value, source, listed, read_only=not definition.dynamic))
    layers = broker.layers
    return rows + _unknown([layers.dynamic_broker, layers.dynamic_default], names)


def describe_all_brokers(broker: BrokerSettings, names: Collection[str] | None = None) -> list[Row]:
    """The settings changed for all brokers: what the broker resource without a name shows."""
    rows = []
    for definition in _wanted(BROKER_DEFINITIONS, names):
        given = broker.layers.dynamic_default.get(definition.name)
        if given is not None:
            synonym = Synonym(definition.name, format_value(definition, given.value), given.source)
            rows.append(_row(definition, given.value, given.source, [synonym], read_only=False))
    return rows + _unknown([broker.layers.dynamic_default], names)


def _wanted(definitions: Mapping[str, Definition], names: Collection[str] | None) -> Iterator[Definition]:
    wanted = None if names is None else set(names)
    return (each for each in definitions.values() if wanted is None or each.name in wanted)


def _broker_values(broker: BrokerSettings, name: str) -> Iterator[Synonym]:
    """The values set for a setting or its family, the strongest first, then the defaults."""
    family = [member for member, _ in family_of(name)]
    for layer in broker.layers.strongest_first():
        for member in family:
            if member in layer:
                given = layer[member]
                yield Synonym(member, format_value(BROKER_DEFINITIONS[member], given.value), given.source)
    for member in family:
        definition = BROKER_DEFINITIONS[member]
        if definition.default is not None:
            yield Synonym(member, format_value(definition, definition.default), Source.DEFAULT)


def _from_own_name(values: Iterable[Synonym], name: str) -> Iterator[Synonym]:
    return dropwhile(lambda each: each.name != name, values)


def _unknown(layers: Sequence[Layer], names: Collection[str] | None) -> list[Row]:
    """Values of names that this version does not know: they may be secrets."""
    found = {name for layer in layers for name in layer if name not in BROKER_DEFINITIONS}
    return [
        Row(
            name=name,
            value=None,
            source=synonyms[0].source,
            read_only=True,
            is_sensitive=True,
            synonyms=synonyms,
            type=ConfigType.UNKNOWN,
            documentation="",
        )
        for name in sorted(found)
        if names is None or name in names
        for synonyms in (tuple(Synonym(name, None, layer[name].source) for layer in layers if name in layer),)
    ]


def _row(definition: Definition, value: Value, source: Source, synonyms: Iterable[Synonym], *, read_only: bool) -> Row:
    return Row(
        name=definition.name,
        value=format_value(definition, value),
        source=source,
        read_only=read_only,
        is_sensitive=definition.is_sensitive,
        synonyms=tuple(synonyms),
        type=definition.type,
        documentation=definition.documentation,
    )
