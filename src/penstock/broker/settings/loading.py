"""Settings from a file and from the command line.

Rule: the command line overrides the file. Everything that is wrong is reported at once; what is merely odd (a name that
nobody knows, a value that another overrules) is a notice, and the broker starts.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.broker.settings.broker_settings import BrokerSettings
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, ELSEWHERE, FAMILIES, nearest
from penstock.broker.settings.definitions import ConfigType
from penstock.broker.settings.errors import InvalidSettings, Notice, Problem, shown
from penstock.broker.settings.layers import Given, Layers, Source, admit
from penstock.broker.settings.old_names import OLD_NAMES, TopicPreset, Translation, Written, translate
from penstock.broker.settings.properties_file import ParsedProperties, Property, read_properties

COMMAND: Final = "--set"
# To find the nearest name takes a millisecond; a file full of unknown names is no file of settings.
_HINTS: Final = 50


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
    """Settings of a `server.properties` file and of `name=value`s that override it.

    UnreadableFile; InvalidSettings with all that is wrong.
    """
    parsed = ParsedProperties((), ()) if path is None else read_properties(path)
    command = _parse_assignments(assignments)
    return _load(parsed, command, host_name)


def settings_from(
    values: Mapping[str, str] | None = None, *, host_name: Callable[[], str] = socket.gethostname
) -> BrokerSettings:
    """Settings from names and values, as if they came by the command line, but with no name that is unknown."""
    given = values or {}
    unknown = [name for name in given if name not in BROKER_DEFINITIONS and name not in OLD_NAMES]
    if unknown:
        raise InvalidSettings(Problem("", shown(name), "no such setting of a broker") for name in unknown)
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
    for name, setting in translation.settings.items():
        if name not in BROKER_DEFINITIONS:
            notices.append(_unknown(setting, with_hint=len(notices) < _HINTS))
            continue
        given = admit(name, setting.text, Source.STATIC_BROKER, setting.where, setting.written)
        if isinstance(given, Problem):
            problems.append(given)
            broken |= {name, *(each for each, family in FAMILIES.items() if name in dict(family))}
            continue
        layer[name] = given
        if BROKER_DEFINITIONS[name].type is ConfigType.CLASS and given.value is not None:
            notices.append(Notice(setting.where, name, "names a Java class, which has no effect here"))
    notices += _overruled(layer)
    return MappingProxyType(layer)


def _unknown(setting: Written, *, with_hint: bool) -> Notice:
    """Names only: a value that nobody knows may be a secret."""
    if setting.name.startswith(ELSEWHERE):
        return Notice(setting.where, shown(setting.name), "a setting of Kafka's that has no effect here")
    likely = nearest(setting.name, (*BROKER_DEFINITIONS, *OLD_NAMES)) if with_hint else None
    hint = f"; did you mean {likely}?" if likely else ""
    return Notice(setting.where, shown(setting.name) or "(no name)", f"no such setting, so it is ignored{hint}")


def _overruled(layer: Mapping[str, Given]) -> Iterable[Notice]:
    for name, family in FAMILIES.items():
        present = [member for member, _ in family if member in layer]
        for member in present[1:]:
            # Both numbers of a broker must be equal anyway, and one old name may still decide for another setting.
            if name != "broker.id" and not member.endswith("difference.max.ms"):
                yield Notice(layer[member].where, member, f"is overruled by {present[0]} ({layer[present[0]].where})")


def _merged(old: TopicPreset | None, new: TopicPreset) -> TopicPreset:
    if old is None:
        return new
    partitions = old.partitions if new.partitions is None else new.partitions
    return TopicPreset(partitions, MappingProxyType({**old.settings, **new.settings}))
