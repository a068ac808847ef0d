"""Listeners: where a broker accepts connections, and which addresses it advertises to clients.

    PLAINTEXT://0.0.0.0:9092     name://host:port

Clients connect to the address in the metadata, not to the one they first used. An advertised address that they cannot
reach is the most common reason why "it connects, but nothing works". One that no client can reach is therefore
rejected, and the error says what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.config_def import SettingsError, parse_list, shown

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PORT: Final = 9092

_LISTENER = re.compile(
    r"([^:/]*)://(\[[^\]]*\]|[^:/\[\]]*|(?:[0-9a-fA-F.]*:){2,}[0-9a-zA-Z.%]*):([+-]?[0-9]{1,20})", re.ASCII
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._:%-]{0,255}", re.ASCII)
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::", "0:0:0:0:0:0:0:0"})


class InvalidListeners(SettingsError):
    """Listeners that cannot be bound or advertised; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Listener:
    """`host` is empty for all addresses, `port` is 0 for a free one."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in _WILDCARDS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """{"CLIENTS": "SSL"} for "CLIENTS:SSL"; names are converted to upper case."""
    protocols: dict[str, str] = {}
    for part in parse_list(text):
        name, colon, protocol = part.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or not _NAME.fullmatch(name):
            raise InvalidListeners(f"{shown(part)!r} is not NAME:PROTOCOL")
        if protocol not in PROTOCOLS:
            raise InvalidListeners(f"{shown(part)!r}: the protocol must be one of {', '.join(PROTOCOLS)}")
        if name in protocols:
            raise InvalidListeners(f"{name} occurs twice")
        protocols[name] = protocol
    return protocols


def parse_listeners(text: str, protocols: Mapping[str, str], *, left_out: Collection[str] = ()) -> tuple[Listener, ...]:
    """The listeners of a setting, without those named in `left_out`. InvalidListeners."""
    listeners: list[Listener] = []
    for part in parse_list(text):
        listener = _parse_one(part, protocols, left_out)
        if listener is None:
            continue
        if any(listener.name == other.name for other in listeners):
            raise InvalidListeners(f"two listeners are named {listener.name}; give each its own name")
        listeners.append(listener)
    if not listeners:
        raise InvalidListeners("no listener is given; write for example PLAINTEXT://0.0.0.0:9092")
    return tuple(listeners)


def _parse_one(part: str, protocols: Mapping[str, str], left_out: Collection[str]) -> Listener | None:
    match = _LISTENER.fullmatch(part)
    if match is None:
        raise InvalidListeners(
            f"{shown(part)!r} is not a listener; write NAME://host:port, for example PLAINTEXT://0.0.0.0:9092"
        )
    name, host, port = match[1].upper(), match[2].strip("[]"), int(match[3])
    if not _NAME.fullmatch(name):
        raise InvalidListeners(f"{shown(part)!r}: a listener's name consists of letters, digits, '.', '_' and '-'")
    if name in left_out:
        return None
    if not _HOST.fullmatch(host):
        raise InvalidListeners(f"{shown(part)!r}: {shown(host)!r} is not a host")
    if not 0 <= port <= 65535:
        raise InvalidListeners(f"{shown(part)!r}: a port must be 0 to 65535")
    if name not in protocols:
        raise InvalidListeners(
            f"{shown(part)!r}: {name} has no protocol; add {name}:PLAINTEXT to listener.security.protocol.map"
        )
    return Listener(name, protocols[name], host, port)


def check_bindable(listeners: Iterable[Listener]) -> None:
    """InvalidListeners if two of them cannot be bound at the same time."""
    taken: dict[int, Listener] = {}
    for listener in listeners:
        if listener.port == 0:
            continue
        other = taken.setdefault(listener.port, listener)
        if other is not listener and not _apart(listener, other):
            raise InvalidListeners(f"{other} and {listener} have the same port; give each its own port")


def _apart(one: Listener, other: Listener) -> bool:
    """Whether two listeners can share a port: different addresses, and neither is all addresses."""
    return one.host != other.host and not one.is_wildcard and not other.is_wildcard


def advertised_from(
    listeners: Iterable[Listener], written: Iterable[Listener] | None, host_name: Callable[[], str]
) -> tuple[Listener, ...]:
    """The advertised listeners: those written, or else the listeners, with the host name instead of all addresses.

    A missing host or port (0) is taken from the listener. A port stays 0 if the listener's is 0: it is known only once
    it is bound.
    """
    bound = {listener.name: listener for listener in listeners}
    if written is None:
        return tuple(
            replace(listener, host=host_name()) if listener.is_wildcard else listener for listener in bound.values()
        )
    advertised = []
    for listener in written:
        if listener.name not in bound:
            names = ", ".join(bound)
            raise InvalidListeners(f"{listener} is advertised, but listeners has no {listener.name}, only {names}")
        if listener.host and listener.is_wildcard:
            raise InvalidListeners(
                f"{listener} cannot be advertised: {listener.host} means all addresses, and clients would connect to "
                f"their own machine; write a host name or an address at which clients reach this machine"
            )
        here = bound[listener.name]
        host = listener.host or (host_name() if here.is_wildcard else here.host)
        advertised.append(replace(listener, host=host, port=listener.port or here.port))
    return tuple(advertised)


def with_bound_ports(advertised: Iterable[Listener], ports: Mapping[str, int]) -> tuple[Listener, ...]:
    """The advertised listeners, with the bound ports (by listener name) instead of 0."""
    return tuple(replace(each, port=ports.get(each.name, 0)) if each.port == 0 else each for each in advertised)


def between_brokers(advertised: tuple[Listener, ...], wanted: str | None, protocol: str | None = None) -> Listener:
    """The listener that other brokers connect to: by its name, or by its security protocol."""
    if wanted is not None and protocol is not None:
        raise InvalidListeners("security.inter.broker.protocol is also set; set only one of the two")
    if protocol is not None:
        of_protocol = [each for each in advertised if each.protocol == protocol]
        if not of_protocol:
            raise InvalidListeners(f"security.inter.broker.protocol is {protocol}, but no listener uses it")
        return next((each for each in of_protocol if each.name == protocol), of_protocol[0])
    if wanted is not None:
        for listener in advertised:
            if listener.name == wanted.upper():
                return listener
        names = ", ".join(listener.name for listener in advertised)
        raise InvalidListeners(f"{shown(wanted)!r} is not advertised; it must be one of {names}")
    return next((listener for listener in advertised if listener.name == "PLAINTEXT"), advertised[0])


def check_proxied(names: object, advertised: tuple[Listener, ...], inter_broker: Listener) -> None:
    """InvalidListeners if one of these names is not advertised, or is the listener between brokers."""
    known = {listener.name for listener in advertised}
    for name in names if isinstance(names, tuple) else ():
        if name.upper() not in known:
            raise InvalidListeners(f"{shown(name)!r} is not advertised; it must be one of {', '.join(sorted(known))}")
        if name.upper() == inter_broker.name:
            raise InvalidListeners(
                f"{inter_broker.name} is the listener between brokers, which must reach each other directly; add "
                f"another listener for clients, or set inter.broker.listener.name to another one"
            )


def unreachable_hosts(advertised: Iterable[Listener], resolve: Callable[[str, int], object]) -> list[str]:
    """A warning for each advertised host that has no address here; `resolve` raises OSError then.

    It is not an error: clients may know a name that this machine does not.
    """
    doubts = []
    for listener in advertised:
        try:
            resolve(listener.host, listener.port)
        except (OSError, UnicodeError) as error:
            doubts.append(
                f"clients will connect to {listener.host}, which has no address on this machine ({error}); "
                f"if they cannot reach it either, set advertised.listeners to a name or address that they can reach"
            )
    return doubts
