"""The listeners that follow from the settings, or all that is wrong with them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.settings.errors import Problem
from penstock.broker.settings.layers import Layers
from penstock.broker.settings.listeners import (
    PROTOCOLS,
    InvalidListeners,
    Listener,
    advertised_from,
    between_brokers,
    check_bindable,
    parse_listeners,
    parse_protocol_map,
)
from penstock.broker.settings.parsing import parse_list

_NONE: Final = Listener("", "", "", 0)


@dataclass(slots=True)
class ResolvedListeners:
    """Of use only where there are no problems."""

    listeners: tuple[Listener, ...] = ()
    advertised: tuple[Listener, ...] = ()
    inter_broker: Listener = _NONE
    problems: list[Problem] = field(default_factory=list)


def resolve_listeners(layers: Layers, host_name: str, broken: Collection[str] = ()) -> ResolvedListeners:
    """Each setting is looked at as far as those that it builds on are sound."""
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
        result.inter_broker = between_brokers(result.advertised, _text(layers, name))
    except InvalidListeners as error:
        given = layers.deciding(name)
        written_name = name if given is None or not given.written else f"{given.written} (older names for {name})"
        result.problems.append(Problem(layers.where(name), written_name, str(error)))
    return result


def _text(layers: Layers, name: str) -> str | None:
    value = layers.effective(name)
    return None if value is None else str(value)
