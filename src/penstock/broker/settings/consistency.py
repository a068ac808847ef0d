"""Settings that are sound one by one and not together.

Rule: a check names the settings it looks at. Where one of them is broken already the check is left out, so that one
mistake makes one message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from penstock.broker.settings.errors import Problem
from penstock.broker.settings.layers import Layers
from penstock.broker.settings.network_table import QUEUED_BYTES
from penstock.broker.settings.parsing import InvalidValue, parse_list, parse_numbers


@dataclass(frozen=True, slots=True)
class _Check:
    """`holds` is asked with the values of `names`, in that order; `reason` is about the first, {0}."""

    names: tuple[str, ...]
    holds: Callable[..., bool]
    reason: str


def _at_most(*names: str) -> _Check:
    return _Check(
        names, lambda small, large: bool(small <= large), f"{{0}} must not be larger than {names[1]}, which is {{1}}"
    )


def _refused(name: str, accepted: Any, reason: str) -> _Check:
    return _Check((name,), lambda value: value == accepted, reason)


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
        "{0} must not be larger than reserved.broker.max.id while numbers above it are generated; choose a smaller "
        "one, or set broker.id.generation.enable=false",
    ),
    _Check(
        ("broker.id", "zookeeper.connect", "broker.id.generation.enable"),
        lambda number, zookeeper, generates: not (zookeeper and not generates and number < 0),
        "must be set, since broker.id.generation.enable=false",
    ),
    _Check(
        ("log.dirs",),
        lambda text: bool(text) and all(map(_is_usable_folder, parse_list(text))),
        "must name at least one folder, and none with an empty name or with control characters",
    ),
    _Check(
        ("log.dirs",),
        lambda text: len({path.rstrip("/") for path in parse_list(text or "")}) == len(parse_list(text or "")),
        "names a folder twice",
    ),
    _Check(
        ("max.connections.per.ip", "max.connections.per.ip.overrides"),
        lambda most, overrides: not (most == 0 and _no_overrides(overrides)),
        "0 lets nobody in; it is of use only together with max.connections.per.ip.overrides",
    ),
    _Check(
        ("queued.max.request.bytes", "socket.request.max.bytes"),
        # The default need not be raised with the other: a request that is alone is always received.
        lambda queued, largest: queued <= 0 or queued >= largest or queued == QUEUED_BYTES,
        "{0} must not be smaller than socket.request.max.bytes, or the largest requests would wait for ever",
    ),
    _at_most("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    _at_most("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    _at_most("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _at_most("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    _at_most("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    _at_most("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    _at_most("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    _at_most("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    # What would protect somewhere else and does not here is refused: whoever wrote it relies on it.
    _refused("authorizer.class.name", "", "there are no authorizers here, and everybody would be let in; remove it to "
             "run without access control"),
    _refused("security.inter.broker.protocol", "PLAINTEXT", "brokers speak PLAINTEXT among themselves; anything else "
             "is not supported"),
    _refused("zookeeper.set.acl", False, "access lists in ZooKeeper are not supported; remove it to run without them"),
    _refused("zookeeper.ssl.client.enable", False, "encrypted connections to ZooKeeper are not supported; remove it to "
             "run without encryption"),
)  # fmt: skip


def contradictions(layers: Layers, broken: Collection[str] = ()) -> list[Problem]:
    """What does not go together, of the settings that are not broken by themselves."""
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
        problems.append(Problem(layers.where("broker.id"), "broker.id", "differs from node.id; set one of them only"))
    return problems
