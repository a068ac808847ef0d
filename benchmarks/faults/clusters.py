"""A cluster of three brokers: what ours and Apache Kafka's have in common.

A `Cluster` has nodes, one per broker, and keepers, the servers that keep its metadata if those are not the brokers
themselves. A kind of cluster defines how its servers are set up, which broker is the controller and which keeper
leads. Everything that is done to a cluster is done here or on its nodes, the same way for every kind.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.faults.asking import NoAnswer, View, view_of
from benchmarks.faults.nodes import Node
from benchmarks.faults.places import Network, Place
from benchmarks.peers.servers import ServerFailed

BROKERS: Final = 3
OFFSETS_TOPIC: Final = "__consumer_offsets"
_PATIENCE_S: Final = 90.0
_AGAIN_S: Final = 0.1


class NotInTime(Exception):
    """What was waited for did not come."""


class Keeper(Protocol):
    """A server of the ensemble that keeps the metadata."""

    @property
    def place(self) -> Place: ...

    @property
    def name(self) -> str: ...

    def launch(self) -> None: ...

    def is_serving(self) -> bool: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cpu_s(self) -> float: ...


class Cluster(ABC):
    """Used as a block; its servers end with it."""

    kind: str

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.nodes: dict[int, Node] = {}

    @property
    def keepers(self) -> Sequence[Keeper]:
        return ()

    @abstractmethod
    def settings(self) -> dict[str, Mapping[str, str]]:
        """What differs from what is shipped, by kind of server; without what only gives each server its place."""

    @abstractmethod
    def controller(self) -> int:
        """The broker that is the controller now. NoAnswer if that cannot be told at the moment."""

    def leading_keeper(self) -> Keeper:
        """NoAnswer."""
        raise NoAnswer(f"{self.kind} has no keepers of its own")

    @abstractmethod
    def launch(self) -> None:
        """Begin all servers; brokers need not be up yet."""

    def start(self) -> None:
        """Begin all servers, and wait until every broker knows all the others."""
        self.launch()
        self.wait_until_joined()

    def wait_until_joined(self) -> None:
        """ServerFailed, NotInTime."""
        for node in self.nodes.values():
            node.wait_until_up()
        until(lambda: self.is_whole([]), f"the brokers of {self.kind} know each other", _PATIENCE_S)

    def stop(self) -> None:
        """End everything, brokers first."""
        self.network.heal()
        for node in self.nodes.values():
            node.kill()
        for keeper in self.keepers:
            keeper.kill()

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            stack.callback(self.stop)
            self.start()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def cpu_s(self) -> float:
        """Of all that has to run for it."""
        return sum(node.cpu_s() for node in self.nodes.values()) + sum(keeper.cpu_s() for keeper in self.keepers)

    # --- what is known of it

    def view(self, topics: Sequence[str]) -> View:
        """As the first broker sees it that answers. NoAnswer."""
        for node in self.nodes.values():
            if node.is_running and not node.is_paused:
                try:
                    return view_of(node.place.address, node.port, topics)
                except NoAnswer:
                    continue
        raise NoAnswer("no broker answers")

    def agreed(self, topics: Sequence[str]) -> View | None:
        """What all brokers say alike of these topics; None if one does not answer, or they differ."""
        try:
            views = [view_of(node.place.address, node.port, topics) for node in self.nodes.values()]
        except NoAnswer:
            return None
        first = views[0]
        alike = all(view.partitions == first.partitions and view.brokers == first.brokers for view in views)
        return first if alike else None

    def is_whole(self, topics: Sequence[str]) -> bool:
        """Every broker says that all are there and all replicas in sync, and every keeper serves."""
        if not all(keeper.is_serving() for keeper in self.keepers):
            return False
        view = self.agreed(topics)
        return view is not None and view.is_whole(len(self.nodes))

    def make_topic(self, name: str, partitions: int, configs: Mapping[str, str], leader: int | None = None) -> None:
        """A replica on every broker. With `leader`, that broker leads all partitions."""
        admin = AdminClient({"bootstrap.servers": ",".join(self.bootstrap), "log_level": 0})
        if leader is None:
            topic = NewTopic(name, partitions, len(self.nodes), config=dict(configs))
        else:
            replicas = [leader, *(number for number in self.nodes if number != leader)]
            topic = NewTopic(name, partitions, replica_assignment=[replicas] * partitions, config=dict(configs))
        admin.create_topics([topic])[name].result(_PATIENCE_S)
        until(lambda: self.is_whole([name]), f"topic {name} is there", _PATIENCE_S)

    def delete_topic(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": ",".join(self.bootstrap), "log_level": 0})
        admin.delete_topics([name])[name].result(_PATIENCE_S)


def apart_from(settings: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Without these. ServerFailed if one of them is not set at all: then the list of names is out of date."""
    missing = [name for name in names if name not in settings]
    if missing:
        raise ServerFailed(f"{', '.join(missing)} is not set, so the list of what gives a server its place is wrong")
    return {name: value for name, value in settings.items() if name not in names}


def until(is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
    """NotInTime."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise NotInTime(f"after {timeout_s:.0f} s it is not so that {what}")
        time.sleep(_AGAIN_S)
