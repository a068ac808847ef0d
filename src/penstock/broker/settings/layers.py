"""Who said what: the values that were given, in layers, and which of them counts.

    change of this broker > change of all brokers > --set > file > default

Rule: a layer holds the settings that somebody gave, already parsed. Nothing is ever merged away, so each value can tell
where it comes from, and taking one layer's value back uncovers the next one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, family_of
from penstock.broker.settings.definitions import Value
from penstock.broker.settings.errors import Problem
from penstock.broker.settings.parsing import InvalidValue, parse_value


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
    """A value that somebody gave to a setting, and where. `written` is the name in use there, if an older one."""

    name: str
    text: str
    value: Value
    source: Source
    where: str
    written: str = ""


Layer = Mapping[str, Given]
DEFAULT_WHERE: Final = "default"


@dataclass(frozen=True, slots=True)
class Layers:
    dynamic_broker: Layer = field(default_factory=dict)
    dynamic_default: Layer = field(default_factory=dict)
    command: Layer = field(default_factory=dict)
    file: Layer = field(default_factory=dict)

    def strongest_first(self) -> tuple[Layer, ...]:
        return (self.dynamic_broker, self.dynamic_default, self.command, self.file)

    def given(self, name: str) -> Iterator[Given]:
        """What was given to this very name, the strongest first."""
        for layer in self.strongest_first():
            if name in layer:
                yield layer[name]

    def deciding(self, name: str) -> Given | None:
        """What decides the value of a setting, given to its name or to another of its family; None: the default."""
        for layer in self.strongest_first():
            for member, _ in family_of(name):
                if member in layer:
                    return layer[member]
        return None

    def effective(self, name: str) -> Value:
        """The value that counts: log.retention.ms is 3600000 if log.retention.hours was set to 1, and nothing else."""
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
        """With values set, or taken back (None), in one of the layers of changes."""
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
    """A text given to a setting, or why it cannot be. What is given to a name that is not known is kept as it is."""
    definition = BROKER_DEFINITIONS.get(name)
    if definition is None:
        return Given(name, text, text, source, where, written)
    try:
        return Given(name, text, parse_value(definition, text), source, where, written)
    except InvalidValue as error:
        stands_for = f" (an older name of {name})" if written else ""
        return Problem(where, f"{written or name}{stands_for}", str(error))
