"""Bootstrap addresses, in every form that users write.

    "host", "host:9092", "a:9092,b:9092", "[::1]:9092", ["a:9092", "b:9092"], {"a": 9092}, "PLAINTEXT://a:9092",
    "zookeeper://a:2181,b:2181/chroot"

An address that cannot be parsed raises ConfigError with the wrong part and an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.client.errors import ConfigError

DEFAULT_PORT = 9092
DEFAULT_ZOOKEEPER_PORT = 2181
_ZOOKEEPER = "zookeeper://"
_EXAMPLE = 'Write "host:port", several as "host1:9092,host2:9092" or as a list'
_LISTENER_SCHEMES = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})

Addresses = str | Iterable[str] | Mapping[str, int]


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ZooKeeperAddress(NamedTuple):
    """The ZooKeeper ensemble in which brokers register; `hosts` is "a:2181,b:2181"."""

    hosts: str
    chroot: str

    def __str__(self) -> str:
        return f"{_ZOOKEEPER}{self.hosts}{self.chroot}"


def parse_bootstrap(servers: Addresses) -> tuple[Address, ...] | ZooKeeperAddress:
    """The addresses in the given order, without duplicates; raises ConfigError."""
    if isinstance(servers, str) and servers.strip().lower().startswith(_ZOOKEEPER):
        return _zookeeper(servers.strip()[len(_ZOOKEEPER) :])
    if isinstance(servers, str):
        parts = servers.split(",")
    elif isinstance(servers, Mapping):
        return tuple(dict.fromkeys(_from_pair(host, port) for host, port in servers.items())) or _none()
    else:
        try:
            parts = [part for item in servers for part in _text(item).split(",")]
        except TypeError:
            raise ConfigError(f"bootstrap_servers is {servers!r}", hint=_EXAMPLE) from None
    found = tuple(dict.fromkeys(parse_address(part) for part in parts if part.strip()))
    return found or _none()


def _none() -> tuple[Address, ...]:
    raise ConfigError("bootstrap_servers has no address", hint=_EXAMPLE)


def _text(item: object) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        return str(_from_pair(*item))
    raise ConfigError(f"bootstrap_servers contains {item!r}, which is not text", hint=_EXAMPLE)


def _from_pair(host: object, port: object) -> Address:
    if not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int | str):
        raise ConfigError(f"bootstrap_servers: {host!r}: {port!r} is not a host and a port", hint=_EXAMPLE)
    return Address(_checked_host(host, host), _port(str(port), f"{host}:{port}"))


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """One address; raises ConfigError."""
    whole = text.strip()
    rest = whole
    scheme, found, after = whole.partition("://")
    if found:
        if scheme.upper() not in _LISTENER_SCHEMES:
            raise ConfigError(f"bootstrap address {whole!r} starts with {scheme}://", hint=_EXAMPLE)
        rest = after
    if "/" in rest:
        raise ConfigError(f"bootstrap address {whole!r} has a path", hint=_EXAMPLE)
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ConfigError(f"bootstrap address {whole!r}: the bracket is not closed", hint='Write "[::1]:9092"')
        port = tail[1:]
        has_port = bool(tail)
    elif rest.count(":") > 1:
        raise ConfigError(f"bootstrap address {whole!r} has several colons", hint='IPv6 is written "[::1]:9092"')
    else:
        host, colon, port = rest.partition(":")
        has_port = bool(colon)
    return Address(_checked_host(host, whole), _port(port, whole) if has_port else default_port)


def _checked_host(host: str, whole: str) -> str:
    if not host:
        raise ConfigError(f"bootstrap address {whole!r} has no host", hint=_EXAMPLE)
    if any(character.isspace() for character in host):
        raise ConfigError(f"bootstrap address {whole!r} contains a space", hint="Separate addresses by commas")
    return host


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:9]) < 65536:
        raise ConfigError(f"bootstrap address {whole!r}: port {text!r} is not a number from 1 to 65535", hint=_EXAMPLE)
    return int(text)


def _zookeeper(rest: str) -> ZooKeeperAddress:
    hosts, slash, path = rest.partition("/")
    parsed = [parse_address(part, DEFAULT_ZOOKEEPER_PORT) for part in hosts.split(",") if part.strip()]
    if not parsed:
        raise ConfigError("the zookeeper:// address has no host", hint='Write "zookeeper://host:2181/chroot"')
    chroot = "/" + path.strip("/") if slash and path.strip("/") else ""
    return ZooKeeperAddress(",".join(map(str, parsed)), chroot)
