"""A cluster of three brokers: its processes, and what each broker says of it.

A node does not outlive the program that started it, and is up when it answers a request. Each question to a broker has
its own connection and deadline; a broker that was away answers with old knowledge, so the truth is what all brokers
agree on. A kind of cluster defines how servers are set up, which broker is the controller and which metadata server
leads.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.faults.access import CONFLUENT, PLAINTEXT, Access
from benchmarks.faults.namespaces import Network, Place
from benchmarks.peers.logins import ask
from benchmarks.peers.servers import ServerFailed, process_cpu_s, request_frame
from penstock.runtime.process import suspend
from penstock.security.scram import ScramError
from penstock.wire.errors import WireError
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic

BROKERS: Final = 3
OFFSETS_TOPIC: Final = "__consumer_offsets"
_ANSWER_S: Final = 1.0
_METADATA_VERSION: Final = 9
_VERSIONS_VERSION: Final = 3
_START_S: Final = 90.0
_STOP_S: Final = 60.0
_POLL_S: Final = 0.02
_TAIL_CHARACTERS: Final = 2000
_PR_SET_PDEATHSIG: Final = 1
_TIMEOUT_S: Final = 90.0
_RETRY_S: Final = 0.1

# ---------------------------------------------------------------------------------------------- the cluster


class WaitTimedOut(Exception):
    """A condition was not met in time."""


class MetadataServer(Protocol):
    """A server of the ensemble that stores the metadata."""

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
    """A context manager; its servers stop at its end."""

    kind: str

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.nodes: dict[int, Node] = {}
        self.access = PLAINTEXT
        """How the harness reaches it."""

    def admit(self, client: str, topic: str, group: str) -> Access:
        """How a client reaches it, which writes to the topic and reads it in the group."""
        return PLAINTEXT

    @property
    def client(self) -> dict[str, Any]:
        """Settings of confluent-kafka for the harness."""
        return {"bootstrap.servers": ",".join(self.bootstrap), "log_level": 0, **self.access.options(CONFLUENT)}

    @property
    def keepers(self) -> Sequence[MetadataServer]:
        return ()

    @abstractmethod
    def settings(self) -> dict[str, Mapping[str, str]]:
        """Settings that differ from the defaults, by kind of server, without addresses and folders."""

    @abstractmethod
    def controller(self) -> int:
        """The current controller. Raises NoAnswer if it is unknown."""

    def leading_keeper(self) -> MetadataServer:
        """The leader of the metadata servers. Raises NoAnswer."""
        raise NoAnswer(f"{self.kind} has no keepers of its own")

    @abstractmethod
    def launch(self) -> None:
        """Starts all servers without waiting for brokers."""

    def start(self) -> None:
        """Starts all servers and waits until every broker knows all others."""
        self.launch()
        self.wait_until_joined()

    def wait_until_joined(self) -> None:
        """Raises ServerFailed, WaitTimedOut."""
        for node in self.nodes.values():
            node.wait_until_up()
        until(lambda: self.is_whole([]), f"the brokers of {self.kind} know each other", _TIMEOUT_S)

    def stop(self) -> None:
        """Stops all servers, brokers first."""
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
        """CPU time of all servers."""
        return sum(node.cpu_s() for node in self.nodes.values()) + sum(keeper.cpu_s() for keeper in self.keepers)

    # --- state

    def view(self, topics: Sequence[str]) -> View:
        """The view of the first broker that answers. Raises NoAnswer."""
        for node in self.nodes.values():
            if node.is_running and not node.is_paused:
                try:
                    return node.view(topics)
                except NoAnswer:
                    continue
        raise NoAnswer("no broker answers")

    def agreed(self, topics: Sequence[str]) -> View | None:
        """The view that all brokers share; None if one does not answer or they differ."""
        try:
            views = [node.view(topics) for node in self.nodes.values()]
        except NoAnswer:
            return None
        first = views[0]
        alike = all(view.partitions == first.partitions and view.brokers == first.brokers for view in views)
        return first if alike else None

    def is_whole(self, topics: Sequence[str]) -> bool:
        """Whether every broker sees all brokers and all replicas in sync, and every metadata server serves."""
        if not all(keeper.is_serving() for keeper in self.keepers):
            return False
        view = self.agreed(topics)
        return view is not None and view.is_whole(len(self.nodes))

    def make_topic(self, name: str, partitions: int, configs: Mapping[str, str], leader: int | None = None) -> None:
        """Creates a topic with a replica on every broker. With `leader`, that broker leads all partitions."""
        admin = AdminClient(self.client)
        if leader is None:
            topic = NewTopic(name, partitions, len(self.nodes), config=dict(configs))
        else:
            replicas = [leader, *(number for number in self.nodes if number != leader)]
            topic = NewTopic(name, partitions, replica_assignment=[replicas] * partitions, config=dict(configs))
        admin.create_topics([topic])[name].result(_TIMEOUT_S)
        until(lambda: self.is_whole([name]), f"topic {name} is there", _TIMEOUT_S)

    def delete_topic(self, name: str) -> None:
        admin = AdminClient(self.client)
        admin.delete_topics([name])[name].result(_TIMEOUT_S)


def settings_without(settings: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The settings without these names. Raises ServerFailed if one is not set: the list is out of date."""
    missing = [name for name in names if name not in settings]
    if missing:
        raise ServerFailed(f"{', '.join(missing)} is not set: the list of settings that place a server is out of date")
    return {name: value for name, value in settings.items() if name not in names}


def until(is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Waits until a condition is met. Raises WaitTimedOut."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise WaitTimedOut(f"timed out after {timeout_s:.0f} s waiting until {what}")
        time.sleep(_RETRY_S)


# ---------------------------------------------------------------------------------------------- a broker's process


class Node:
    """A broker's process, which can be started, stopped and paused repeatedly. `number` is its broker id.

    Its data is in `disks`, folders of its own; the last of several can fail.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        place: Place,
        port: int,
        folder: Path,
        access: Access = PLAINTEXT,
        disks: Sequence[Path] = (),
    ) -> None:
        self.number = number
        self._access = access
        self.place = place
        self.port = port
        self.folder = folder
        self.is_paused = False
        self.command = command
        self.disks = tuple(disks) or (folder / "data",)
        self._output = folder / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.place.address}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Starts the process without waiting. Only in the main thread: the process ends with that thread."""
        with self.place.enter(), self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder,
                start_new_session=True, preexec_fn=dies_with_parent(),
            )  # fmt: skip

    def wait_until_up(self, timeout_s: float = _START_S) -> None:
        """Waits until the broker answers. Raises ServerFailed with the end of its output."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return answers(self.place.address, self.port, self._access)
            except NoAnswer as error:
                if not self.is_running or time.monotonic() > deadline:
                    raise ServerFailed(f"broker {self.number} is not up ({error}): {self.output_tail()}") from None
                time.sleep(_POLL_S)

    def view(self, topics: Sequence[str], access: Access | None = None) -> View:
        """How the broker sees these topics, by default as the harness may see them. Raises NoAnswer."""
        return view_of(self.place.address, self.port, topics, access or self._access)

    def kill(self) -> None:
        """Kills the process (SIGKILL); the page cache stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> bool:
        """Stops the process (SIGTERM). Returns False if it had to be killed."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Suspends the process until `resume`; its connections stay open."""
        if self._process is not None:
            suspend(self._process)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    # --- disks

    def replica_folder(self, name: str) -> Path:
        """Where the replica of a partition is, or would be."""
        return next((disk / name for disk in self.disks if (disk / name).is_dir()), self.disks[0] / name)

    def on_failing_disk(self, topic: str) -> set[int]:
        """The partitions of a topic on the disk that can fail."""
        return {int(each.name.rpartition("-")[2]) for each in self.disks[-1].glob(f"{topic}-*") if each.is_dir()}

    def fail_disk(self) -> None:
        """Takes the last disk away. The broker finds a file in its place."""
        self.disks[-1].rename(self._pulled)
        self.disks[-1].write_bytes(b"not a folder")

    def replace_disk(self) -> None:
        """Kills the process, and starts it with an empty disk in the place of the one that failed."""
        self.kill()
        self.disks[-1].unlink()
        shutil.rmtree(self._pulled)
        self.launch()

    @property
    def _pulled(self) -> Path:
        return self.disks[-1].with_name(f"{self.disks[-1].name}-pulled")

    def cpu_s(self) -> float:
        """CPU time of all its threads since the start, user and system."""
        if self._process is None:
            raise ServerFailed(f"broker {self.number} does not run")
        return process_cpu_s(self._process.pid)

    def output_tail(self) -> str:
        """The end of its output."""
        if not self._output.exists():
            return "(nothing)"
        return self._output.read_text(errors="replace")[-_TAIL_CHARACTERS:]

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> bool:
        if self._process is None:
            return True
        self._signal(number)
        self.resume()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True


def dies_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: a killed parent takes its children along."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask


# ---------------------------------------------------------------------------------------------- a broker's view


Key = tuple[str, int]


class NoAnswer(Exception):
    """The connection was rejected or cut off, or the answer was late."""


@dataclass(frozen=True)
class PartitionView:
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    insync: frozenset[int]


@dataclass(frozen=True)
class View:
    """The cluster as one broker sees it."""

    brokers: frozenset[int]
    controller: int
    partitions: Mapping[Key, PartitionView]

    def is_whole(self, brokers: int) -> bool:
        """All brokers are up; every partition has a leader, and all its replicas are in sync."""
        return len(self.brokers) == brokers and all(
            one.leader in one.insync and len(one.insync) == len(one.replicas) for one in self.partitions.values()
        )

    def led_by(self, broker: int) -> list[Key]:
        return [key for key, one in self.partitions.items() if one.leader == broker]


def answers(host: str, port: int, access: Access = PLAINTEXT) -> None:
    """Raises NoAnswer if the broker does not answer a request."""
    _ask(access, host, port, ApiKey.API_VERSIONS, _VERSIONS_VERSION, ApiVersionsRequest("faults", "1"))


def view_of(host: str, port: int, topics: Sequence[str], access: Access = PLAINTEXT) -> View:
    """How a broker sees these topics. Raises NoAnswer, also if it does not know one of them."""
    wanted = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
    )
    answer = _ask(access, host, port, ApiKey.METADATA, _METADATA_VERSION, wanted)
    for topic in answer.topics:
        if topic.error_code:
            raise NoAnswer(f"topic {topic.name}: error {topic.error_code}")
    return View(
        brokers=frozenset(broker.node_id for broker in answer.brokers),
        controller=answer.controller_id,
        partitions={
            (topic.name, one.partition_index): PartitionView(
                one.leader_id, one.leader_epoch, tuple(one.replica_nodes), frozenset(one.isr_nodes)
            )
            for topic in answer.topics
            for one in topic.partitions
        },
    )


def _ask(access: Access, host: str, port: int, api: ApiKey, version: int, message: Any) -> Any:
    try:
        with access.connect(host, port, _ANSWER_S) as connection:
            return ask(connection, api, version, request_frame(api, version, message))
    except (OSError, WireError, ServerFailed, ScramError) as error:
        raise NoAnswer(str(error)) from error
