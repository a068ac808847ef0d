"""Changing the settings of topics and brokers. Pure.

Only what was set is stored; defaults are looked up when a setting is used. A change is validated completely before any
of it takes effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from penstock.cluster.controller.transaction import Decision
from penstock.cluster.errors import ApiException, InvalidConfig, InvalidRequest, UnknownTopic
from penstock.cluster.image import ClusterImage, Settings
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import encode_config
from penstock.cluster.tree.tree import Create, Operation, Set

MIN_INSYNC: Final = "min.insync.replicas"
MAX_SETTINGS: Final = 1_000
"""Of one resource, and changed by one request: more than ten times what a broker knows."""

_NONE: Final[Settings] = {}


class ResourceKind(IntEnum):
    """A kind of resource that has settings. The values are those of the protocol."""

    TOPIC = 2
    BROKER = 4


class EditKind(IntEnum):
    """A kind of change to a setting; the last two are for lists. The values are those of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigEdit(NamedTuple):
    name: str
    kind: EditKind
    value: str | None = None


class ConfigRules(Protocol):
    """Which settings exist."""

    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        """Why a setting cannot have this value, None if it can."""

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        """The default of a setting that is a list; None if it is not a list."""


def edit_config(
    image: ClusterImage, kind: ResourceKind, name: str, edits: Sequence[ConfigEdit], rules: ConfigRules
) -> Decision:
    """Change some settings and leave the others. A broker's name is its id, "" for all brokers. ApiException."""
    return _stored(image, kind, name, edited_settings(image, kind, name, edits, rules))


def edited_settings(
    image: ClusterImage, kind: ResourceKind, name: str, edits: Sequence[ConfigEdit], rules: ConfigRules
) -> Settings:
    """The settings of a resource after these edits. ApiException."""
    check_number(kind, len(edits))
    if len({edit.name for edit in edits}) < len(edits):
        raise InvalidRequest("the request changes a setting twice")
    settings = dict(_current(image, kind, name))
    for edit in edits:
        value = _edited(kind, edit, settings, rules)
        if value is None:
            settings.pop(edit.name, None)
        else:
            settings[edit.name] = value
    return _checked(image, kind, name, settings)


def replace_config(
    image: ClusterImage, kind: ResourceKind, name: str, wanted: Mapping[str, str | None], rules: ConfigRules
) -> Decision:
    """Set these and unset all others. ApiException."""
    return _stored(image, kind, name, replaced_settings(image, kind, name, wanted, rules))


def replaced_settings(
    image: ClusterImage, kind: ResourceKind, name: str, wanted: Mapping[str, str | None], rules: ConfigRules
) -> Settings:
    """The settings of a resource that is to have these and no others. ApiException."""
    check_number(kind, len(wanted))
    _current(image, kind, name)
    settings = {setting: _present(setting, value) for setting, value in wanted.items()}
    check_settings(kind, settings, rules)
    return _checked(image, kind, name, settings)


def check_number(kind: ResourceKind, count: int, before: int = 0) -> None:
    """Reject more settings than a resource may have: brokers take names that they do not know. ApiException."""
    if count > max(MAX_SETTINGS, before):
        raise bad_setting(kind, f"{count} settings of one resource are too many; the limit is {MAX_SETTINGS}")


def check_settings(kind: ResourceKind, settings: Settings, rules: ConfigRules) -> None:
    for setting, value in settings.items():
        problem = rules.problem(kind, setting, value)
        if problem is not None:
            raise bad_setting(kind, problem)


def check_insync(settings: Settings, replicas: int, before: Settings = _NONE) -> None:
    """Reject a topic's own min.insync.replicas above its number of replicas.

    Kafka accepts it, and every write with acks=all fails from then on. A value that is already stored stays. The value
    for all brokers is not checked, because it is also for topics with more replicas.
    """
    wanted = settings.get(MIN_INSYNC)
    if wanted is not None and wanted != before.get(MIN_INSYNC) and int(wanted) > replicas:
        raise InvalidConfig(
            f"{MIN_INSYNC}={wanted} needs more than {replicas} replica{'s' if replicas > 1 else ''}: every write with "
            f"acks=all would be rejected. Set it to {replicas} at most, or add replicas first"
        )


def bad_setting(kind: ResourceKind, reason: str) -> ApiException:
    """The error that Kafka returns: INVALID_CONFIG for a topic's setting, INVALID_REQUEST for a broker's."""
    return InvalidConfig(reason) if kind is ResourceKind.TOPIC else InvalidRequest(reason)


def _edited(kind: ResourceKind, edit: ConfigEdit, settings: Settings, rules: ConfigRules) -> str | None:
    if edit.kind is EditKind.DELETE:
        return None
    value = _present(edit.name, edit.value)
    if edit.kind is not EditKind.SET:
        default = rules.list_default(kind, edit.name)
        if default is None:
            raise InvalidConfig(f"{edit.name} is not a list: set it instead of appending or subtracting")
        before, given = _items(settings.get(edit.name, default)), _items(value)
        # Sets, because a list may be as long as a request.
        known, named = set(before), set(given)
        if edit.kind is EditKind.APPEND:
            after = [*before, *(item for item in given if item not in known)]
        else:
            after = [item for item in before if item not in named]
        value = ",".join(after)
    problem = rules.problem(kind, edit.name, value)
    if problem is not None:
        raise bad_setting(kind, problem)
    return value


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _present(name: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequest(f"{name} has no value; delete it to use the default")
    return value


def _current(image: ClusterImage, kind: ResourceKind, name: str) -> Settings:
    if kind is ResourceKind.TOPIC:
        if name not in image.topics:
            raise UnknownTopic(f"topic {name[:300]!r} does not exist")
        return image.topic_config(name)
    if name and not (name.isascii() and name.isdigit() and len(name) <= 10):
        raise InvalidRequest(f"{name[:60]!r} is not a broker id")
    return image.broker_config(_broker_node(name))


def _broker_node(name: str) -> str:
    return str(int(name)) if name else layout.DEFAULT_BROKER


def _checked(image: ClusterImage, kind: ResourceKind, name: str, settings: Settings) -> Settings:
    before = _current(image, kind, name)
    check_number(kind, len(settings), len(before))
    if kind is ResourceKind.TOPIC:
        check_insync(settings, image.topics[name].replication_factor, before)
    return settings


def _stored(image: ClusterImage, kind: ResourceKind, name: str, settings: Settings) -> Decision:
    if kind is ResourceKind.TOPIC:
        path, known = layout.topic_config_path(name), name in image.topic_configs
        after = image.with_topic_config(name, settings)
    else:
        node = _broker_node(name)
        path, known = layout.broker_config_path(node), node in image.broker_configs
        after = image.with_broker_config(node, settings)
    data = encode_config(settings)
    operation: Operation = Set(path, data) if known else Create(path, data)
    return Decision((operation,), after)
