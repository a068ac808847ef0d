"""Where on the network a server runs, and how it is cut off.

A `Place` has an address; a process that is started inside it listens there. `Loopback` puts all on 127.0.0.1, where
nothing can be cut. `Namespaces` gives each a network namespace, joined by a bridge: a cut drops packets, as a broken
switch does, and connections stay open and silent. `Hosts` puts the servers with the same number into one namespace: a
broker and a ZooKeeper per host, with the latency and loss of a network. A user namespace is the only privilege needed;
`in_a_namespace` says how to start the program in one, or why it is impossible here.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Final, Protocol

from benchmarks.peers.servers import HOST

_CLONE_NEWNET: Final = 0x4000_0000
_INSIDE: Final = "PENSTOCK_FAULTS_NAMESPACE"
_NEEDED: Final = ("unshare", "ip")
_BRIDGE: Final = "faults"
_SUBNET: Final = "10.77.0"
GATEWAY: Final = f"{_SUBNET}.1"
_FIRST_HOST: Final = 11
_FIRST_PORT: Final = 9092
_COMMAND_S: Final = 10
_LOOPBACK_PORTS: Final = range(12_000, 30_000)


class NoNamespaces(Exception):
    """Network namespaces are not available here; the message says why."""


class Direction(Enum):
    BOTH = "both"
    OUT = "out"


class Place(Protocol):
    @property
    def address(self) -> str: ...

    def ports(self, count: int) -> list[int]:
        """Ports that are free there."""

    def enter(self) -> AbstractContextManager[None]:
        """Processes that are started in the block run there."""


class Network(Protocol):
    can_cut: bool

    def place(self, name: str) -> Place:
        """Creates a place."""

    def cut(self, place: Place, others: Sequence[Place] | None, direction: Direction = Direction.BOTH) -> None:
        """Drops packets between the place and the others (None: all), or only those that it sends."""

    def heal(self) -> None:
        """Undoes all cuts."""


class LoopbackPlace:
    address = HOST

    def __init__(self, given: set[int]) -> None:
        self._given = given

    def ports(self, count: int) -> list[int]:
        found = []
        # Outside of the ephemeral range, so that a restarted server finds its port free.
        for port in random.sample(_LOOPBACK_PORTS, len(_LOOPBACK_PORTS)):
            if port not in self._given and _is_free(port):
                self._given.add(port)
                found.append(port)
                if len(found) == count:
                    return found
        raise OSError("no free port")

    @contextmanager
    def enter(self) -> Iterator[None]:
        yield


class Loopback:
    """All places on one address; nothing can be cut."""

    can_cut = False

    def __init__(self) -> None:
        self._given: set[int] = set()

    def place(self, name: str) -> LoopbackPlace:
        return LoopbackPlace(self._given)

    def cut(self, place: Place, others: Sequence[Place] | None, direction: Direction = Direction.BOTH) -> None:
        raise NoNamespaces("nothing on the loopback can be cut off")

    def heal(self) -> None:
        """Nothing was cut."""


class NamespacePlace:
    """A namespace that lasts as long as this object, held by a file of /proc."""

    def __init__(self, number: int, name: str) -> None:
        self.name = name
        self.address = f"{_SUBNET}.{_FIRST_HOST + number}"
        self.port_of_bridge = f"h{number}"
        self._next_port = _FIRST_PORT
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _call("unshare", _CLONE_NEWNET)
        try:
            self._own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            _call("setns", self._home, _CLONE_NEWNET)
        _ip(f"link add {self.port_of_bridge} type veth peer name eth0 netns /proc/{os.getpid()}/fd/{self._own}")
        _ip(f"link set {self.port_of_bridge} master {_BRIDGE} up")
        with self.enter():
            _ip("link set lo up")
            _ip(f"addr add {self.address}/24 dev eth0")
            _ip("link set eth0 up")

    def ports(self, count: int) -> list[int]:
        self._next_port += count
        return list(range(self._next_port - count, self._next_port))

    @contextmanager
    def enter(self) -> Iterator[None]:
        _call("setns", self._own, _CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", self._home, _CLONE_NEWNET)


class Namespaces:
    """Each place in its own namespace. The program must run as `in_a_namespace` says."""

    can_cut = True

    def __init__(self) -> None:
        self._places: list[NamespacePlace] = []
        self._ports_down: list[NamespacePlace] = []
        self._routes_lost: list[tuple[NamespacePlace, str]] = []
        _ip("link set lo up")
        _ip(f"link add {_BRIDGE} type bridge")
        _ip(f"addr add {GATEWAY}/24 dev {_BRIDGE}")
        _ip(f"link set {_BRIDGE} up")

    def place(self, name: str) -> NamespacePlace:
        made = NamespacePlace(len(self._places), name)
        self._places.append(made)
        return made

    def cut(self, place: Place, others: Sequence[Place] | None, direction: Direction = Direction.BOTH) -> None:
        own = self._own(place)
        if others is None and direction is Direction.BOTH:
            _ip(f"link set {own.port_of_bridge} down")
            self._ports_down.append(own)
            return
        # Several servers may be in one place, also in that of the victim, which still reaches itself.
        chosen = [self._own(other) for other in others] if others is not None else self._others(own)
        for other in {id(each): each for each in chosen if each is not own}.values():
            self._drop(own, other.address)
            if direction is Direction.BOTH:
                self._drop(other, own.address)

    def heal(self) -> None:
        while self._ports_down:
            _ip(f"link set {self._ports_down.pop().port_of_bridge} up")
        while self._routes_lost:
            place, address = self._routes_lost.pop()
            with place.enter():
                _ip(f"route del blackhole {address}/32")

    def _drop(self, place: NamespacePlace, address: str) -> None:
        with place.enter():
            _ip(f"route add blackhole {address}/32")
        self._routes_lost.append((place, address))

    def _others(self, own: NamespacePlace) -> Iterable[NamespacePlace]:
        return [place for place in self._places if place is not own]

    def _own(self, place: Place) -> NamespacePlace:
        return next(each for each in self._places if each is place)


class Hosts(Namespaces):
    """Servers whose names end with the same number, such as zookeeper-2 and penstock-2, are on one host.

    The program itself, and the clients that it starts, are on another.
    """

    def __init__(self, delay_ms: float = 0.0, loss_percent: float = 0.0) -> None:
        """Packets to a host take `delay_ms` longer, and that many are lost, where the kernel can do that."""
        super().__init__()
        self._hosts: dict[str, NamespacePlace] = {}
        self._netem = f"netem delay {delay_ms}ms loss {loss_percent}%" if delay_ms or loss_percent else ""
        self._unshaped = "" if shutil.which("tc") is not None else "`tc` is missing: install iproute2"

    def describe(self) -> str:
        """What is between the hosts, in a sentence."""
        if not self._netem:
            return "Each host is a network namespace, without added latency or loss."
        if self._unshaped:
            return f"Each host is a network namespace, without added latency or loss: {self._unshaped}."
        return f"Each host is a network namespace; packets to it have `tc qdisc ... {self._netem}`."

    def place(self, name: str) -> NamespacePlace:
        number = name.rpartition("-")[2]
        host = self._hosts.get(number)
        if host is None:
            host = self._hosts[number] = super().place(f"host-{number}")
            if self._netem and not self._unshaped:
                added = ["tc", "qdisc", "add", "dev", host.port_of_bridge, "root", *self._netem.split()]
                done = subprocess.run(added, capture_output=True, text=True, timeout=_COMMAND_S)
                if done.returncode:
                    self._unshaped = f"`{' '.join(added[:2])}` failed ({done.stderr.strip()})"
        return host


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def network(with_cuts: bool) -> Network:
    return Namespaces() if with_cuts else Loopback()


def is_in_a_namespace() -> bool:
    return _INSIDE in os.environ


def inside() -> dict[str, str]:
    """The environment for the command of `in_a_namespace`."""
    return {**os.environ, _INSIDE: "yes"}


def in_a_namespace(command: Sequence[str]) -> list[str]:
    """The command that runs another inside a namespace, with the environment of `inside`. Raises NoNamespaces."""
    for program in _NEEDED:
        if shutil.which(program) is None:
            raise NoNamespaces(f"`{program}` is missing: install util-linux and iproute2")
    tried = subprocess.run(
        ["unshare", "-rn", "ip", "link", "add", _BRIDGE, "type", "bridge"],
        capture_output=True, text=True, timeout=_COMMAND_S,
    )  # fmt: skip
    if tried.returncode:
        raise NoNamespaces(f"`unshare -rn` or a bridge in it is not permitted: {tried.stderr.strip()[-200:]}")
    return ["unshare", "-rn", *command]


def _ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, timeout=_COMMAND_S)
    if done.returncode:
        raise NoNamespaces(f"`ip {arguments}` failed: {done.stderr.strip()}")


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise NoNamespaces(f"{name} failed: {os.strerror(ctypes.get_errno())}")
