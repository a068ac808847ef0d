"""Changes of settings on their way from AlterConfigs and IncrementalAlterConfigs to the cluster's metadata.

Rule: settings are judged together, as they would be after the change: each may be right and all of them a
contradiction. A broker's settings are changed through that broker, which alone knows what else it was given; in a
cluster through the controller, which judges those of another broker one by one: what contradicts the rest is not put in
force there, and that broker says so. What all brokers of a cluster must agree on is set for all of them, and refused
for one: it would be stored and never be in force. What is stored can be shown: a value fits into every version of
DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.cluster_rules import BINDING
from penstock.broker.config_rules import SettingsRules
from penstock.broker.refusals import ALL_WELL, NAMED_TWICE, Explanation, explain, repeated
from penstock.broker.settings import InvalidSettings, check_changeable, check_topic_settings, sound_overrides
from penstock.cluster import paths
from penstock.cluster.configs import ResourceKind, edit_config, replace_config
from penstock.cluster.errors import InvalidConfig, InvalidRequest, Refusal
from penstock.cluster.image import Settings
from penstock.cluster.service import ConfigChange

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_MAX_VALUE_BYTES: Final = 2**15 - 1


class Resource(NamedTuple):
    """What has settings, as a client names it: the type may be any number."""

    type: int
    name: str


class Asked(NamedTuple):
    """A resource, and the change that is wanted of it; `change` raises Refusal if it makes no sense."""

    resource: Resource
    change: Callable[[ResourceKind], ConfigChange]


Explained = dict[Resource, Explanation]


def kind_of(broker: Broker, resource: Resource, *, of_any_broker: bool = False) -> ResourceKind:
    """The kind of a resource that has settings here, or with `of_any_broker` at another broker. InvalidRequest."""
    if resource.type == ResourceKind.TOPIC:
        return ResourceKind.TOPIC
    if resource.type != ResourceKind.BROKER:
        raise InvalidRequest(f"resources of type {resource.type} have no settings here; topics (2) and brokers (4) do")
    if of_any_broker and _is_any_id(resource.name):
        return ResourceKind.BROKER
    if resource.name and not _is_id(resource.name, broker.node_id):
        raise InvalidRequest(
            f"this is broker {broker.node_id}: it tells and changes its own settings and those of all brokers "
            f"(with an empty name), not those of {resource.name[:60]!r}"
        )
    return ResourceKind.BROKER


def change_configs(
    broker: Broker, asked: Sequence[Asked], done: Callable[[Explained], None], *, validate_only: bool
) -> None:
    """Make the changes, and call `done` with what came of each, once for a resource that is named twice."""
    twice = repeated(item.resource for item in asked)
    explained: Explained = {item.resource: ALL_WELL for item in asked}

    is_controller = broker.membership_or_none is not None

    async def make() -> None:
        changes: dict[Resource, ConfigChange] = {}
        for item in asked:
            if item.resource in twice:
                explained[item.resource] = NAMED_TWICE
                continue
            try:
                change = item.change(kind_of(broker, item.resource, of_any_broker=is_controller))
                _judge(broker, change)
            except Refusal as refusal:
                explained[item.resource] = explain(refusal)
            else:
                changes[item.resource] = change
        outcomes = await broker.cluster.alter_configs(list(changes.values()), validate_only=validate_only)
        for resource, outcome in zip(changes, outcomes, strict=True):
            explained[resource] = explain(outcome.refusal)
        done(explained)

    def fail(error: BaseException) -> None:
        reason = explain(error)
        done(dict.fromkeys(explained, reason))

    broker.spawn(make(), fail)


def _judge(broker: Broker, change: ConfigChange) -> None:
    """Refuse what would contradict the other settings."""
    image, rules = broker.cluster.image, SettingsRules()
    if change.replacement is not None:
        after = replace_config(image, change.kind, change.name, change.replacement, rules).image
    else:
        after = edit_config(image, change.kind, change.name, change.edits, rules).image
    if change.kind is ResourceKind.BROKER and change.name and broker.membership_or_none is not None:
        node = str(int(change.name))
        _refuse_for_one(image.broker_config(node), after.broker_config(node))
    if change.kind is ResourceKind.TOPIC:
        _judge_topic(broker, after.topic_config(change.name))
    elif not change.name or _is_id(change.name, broker.node_id):
        node = str(broker.node_id) if change.name else paths.DEFAULT_BROKER
        _judge_broker(broker, after.broker_config(node), cluster_wide=not change.name)
    else:
        _check_sizes(after.broker_config(str(int(change.name))))


def _refuse_for_one(before: Settings, after: Settings) -> None:
    """What an earlier version stored may stay, or go."""
    for name in BINDING:
        if name in after and after[name] != before.get(name):
            raise InvalidConfig(
                f"{name} is the same for all brokers of a cluster, and cannot be set for one: set it for all brokers "
                "(a broker resource with an empty name; penstock configs alter --all-brokers), or for a topic"
            )


def _judge_topic(broker: Broker, after: Settings) -> None:
    _check_sizes(after)
    # What another version stored is no reason to refuse a change of something else.
    sound, _ = sound_overrides(after)
    reasons = check_topic_settings(broker.settings, dict(sound))
    if reasons:
        raise InvalidConfig("\n".join(reasons))


def _judge_broker(broker: Broker, after: Settings, *, cluster_wide: bool) -> None:
    _check_sizes(after)
    changes: dict[str, str | None] = dict.fromkeys(broker.settings.dynamic(cluster_wide=cluster_wide))
    changes.update((name, value) for name, value in after.items() if check_changeable(name) is None)
    try:
        broker.settings.with_changes(changes, cluster_wide=cluster_wide)
    except InvalidSettings as error:
        raise InvalidRequest(str(error)) from error


def _check_sizes(settings: Settings) -> None:
    """Lists can grow by one request after another."""
    for name, value in settings.items():
        size = len(value.encode())
        if size > _MAX_VALUE_BYTES:
            raise InvalidConfig(f"{name}: a value of {size} bytes is too long; at most {_MAX_VALUE_BYTES}")


def _is_any_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _is_id(text: str, node_id: int) -> bool:
    return _is_any_id(text) and int(text) == node_id
