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

_NONE: Final[Settings] = {}


class ResourceKind(IntEnum):
    """What has settings, by its number in the protocol."""

    TOPIC = 2
    BROKER = 4


class EditKind(IntEnum):
    """What is done to a setting, by its number in the protocol; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigEdit(NamedTuple):
    name: str
    kind: EditKind
    value: str | None = None


class ConfigRules(Protocol):
    """Which settings there are."""

    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        """Why a setting may not be given this value, None if it may."""

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        """What a setting that is a list holds unless it is set; None if it is no list."""


def edit_config(
    image: ClusterImage, kind: ResourceKind, name: str, edits: Sequence[ConfigEdit], rules: ConfigRules
) -> Decision:
    """Change some settings and leave the others. A broker's name is its id, "" for all brokers. Refusal."""
    if len({edit.name for edit in edits}) < len(edits):
        raise InvalidRequest("a setting is changed twice in one request")
    settings = dict(_current(image, kind, name))
    for edit in edits:
        value = _edited(kind, edit, settings, rules)
        if value is None:
            settings.pop(edit.name, None)
        else:
            settings[edit.name] = value
    return _stored(image, kind, name, settings)


def replace_config(
    image: ClusterImage, kind: ResourceKind, name: str, wanted: Mapping[str, str | None], rules: ConfigRules
) -> Decision:
    """Set these and unset all others. Refusal."""
    _current(image, kind, name)
    settings = {setting: _present(setting, value) for setting, value in wanted.items()}
    check_settings(kind, settings, rules)
    return _stored(image, kind, name, settings)


def check_settings(kind: ResourceKind, settings: Settings, rules: ConfigRules) -> None:
    for setting, value in settings.items():
        problem = rules.problem(kind, setting, value)
        if problem is not None:
            raise bad_setting(kind, problem)


def check_insync(settings: Settings, replicas: int, before: Settings = _NONE) -> None:
    """Reject min.insync.replicas above the number of replicas, when a topic is given that for itself.

    Kafka accepts it, and every write with acks=all fails from then on. What is stored already stays, and what comes
    from the brokers' settings is accepted: those are for all topics, also for the ones with more replicas.
    """
    wanted = settings.get(MIN_INSYNC)
    if wanted is not None and wanted != before.get(MIN_INSYNC) and int(wanted) > replicas:
        raise InvalidConfig(
            f"{MIN_INSYNC}={wanted} cannot be met by {replicas} replica{'s' if replicas > 1 else ''}: every write with "
            "acks=all would be rejected. Set it to the number of replicas at most, or give the topic more of them first"
        )


def bad_setting(kind: ResourceKind, reason: str) -> ApiException:
    """What Kafka answers: INVALID_CONFIG for a topic's setting, INVALID_REQUEST for a broker's."""
    return InvalidConfig(reason) if kind is ResourceKind.TOPIC else InvalidRequest(reason)


def _edited(kind: ResourceKind, edit: ConfigEdit, settings: Settings, rules: ConfigRules) -> str | None:
    if edit.kind is EditKind.DELETE:
        return None
    value = _present(edit.name, edit.value)
    if edit.kind is not EditKind.SET:
        default = rules.list_default(kind, edit.name)
        if default is None:
            raise InvalidConfig(f"{edit.name} is no list, so nothing can be added to it or taken from it")
        before, given = _items(settings.get(edit.name, default)), _items(value)
        # In sets: what a request lists may be as long as a request.
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
        raise InvalidRequest(f"{name} is set to nothing; delete it to go back to its default")
    return value


def _current(image: ClusterImage, kind: ResourceKind, name: str) -> Settings:
    if kind is ResourceKind.TOPIC:
        if name not in image.topics:
            raise UnknownTopic(f"there is no topic {name[:300]!r}")
        return image.topic_config(name)
    if name and not (name.isascii() and name.isdigit() and len(name) <= 10):
        raise InvalidRequest(f"{name[:60]!r} is no broker's id")
    return image.broker_config(_broker_node(name))


def _broker_node(name: str) -> str:
    return str(int(name)) if name else layout.DEFAULT_BROKER


def _stored(image: ClusterImage, kind: ResourceKind, name: str, settings: Settings) -> Decision:
    if kind is ResourceKind.TOPIC:
        check_insync(settings, image.topics[name].replication_factor, image.topic_config(name))
        path, known = layout.topic_config_path(name), name in image.topic_configs
        after = image.with_topic_config(name, settings)
    else:
        node = _broker_node(name)
        path, known = layout.broker_config_path(node), node in image.broker_configs
        after = image.with_broker_config(node, settings)
    data = encode_config(settings)
    operation: Operation = Set(path, data) if known else Create(path, data)
    return Decision((operation,), after)
