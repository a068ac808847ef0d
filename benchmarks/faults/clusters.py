"""A cluster of three brokers, of a kind: what all kinds have in common, and the kinds by name.

Noun: a `Cluster` has nodes, one a broker, and keepers, the servers that keep its metadata if those are not the brokers
themselves. `agreed` is what all brokers say alike.

Rule: a kind says how its servers are set up, who is the controller, and who leads its keepers. Everything that is done
to a cluster is done here or on its nodes, the same for every kind.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.faults.asking import NoAnswer, View, view_of
from benchmarks.faults.nodes import Node
from benchmarks.faults.places import Network, Place

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

    def make_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        admin = AdminClient({"bootstrap.servers": ",".join(self.bootstrap), "log_level": 0})
        topic = NewTopic(name, partitions, len(self.nodes), config=dict(configs))
        admin.create_topics([topic])[name].result(_PATIENCE_S)
        until(lambda: self.is_whole([name]), f"topic {name} is there", _PATIENCE_S)

    def delete_topic(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": ",".join(self.bootstrap), "log_level": 0})
        admin.delete_topics([name])[name].result(_PATIENCE_S)


def until(is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
    """NotInTime."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise NotInTime(f"after {timeout_s:.0f} s it is not so that {what}")
        time.sleep(_AGAIN_S)
