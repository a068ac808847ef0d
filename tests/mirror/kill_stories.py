"""A mirror under load whose processes and clusters are killed, and what both sides hold in the end.

A story has a source, a target, two processes of a mirror, a producer, and a consumer group that reads and commits at
the source. Everything may be killed by SIGKILL, and is started again. In the end the target has what the source has,
and the group continues in the target where it is at the source.

PENSTOCK_KILLS and PENSTOCK_KILLS_SEED choose how often, and which.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tests.cli.running import Running
from tests.mirror.mirrors import create_topic, is_caught_up, same, stored, wait_for
from tests.ports import free_port
from tests.timeouts import PATIENCE_MS, until

from penstock.client.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.errors import ConfigError, PenstockError
from penstock.client.producer import Producer
from penstock.mirror import MirrorSettings

SEED = int(os.environ.get("PENSTOCK_KILLS_SEED", "1"))
TOPIC, PARTITIONS = "views", 3
GROUP = "readers"
_RECORDS_BETWEEN_KILLS = 600


def kills_wanted(default: int) -> int:
    return int(os.environ.get("PENSTOCK_KILLS", default))


# ------------------------------------------------------------------------------------------------- what is killed


class Victim(Protocol):
    name: str

    def start(self) -> None:
        """Starts it, and waits until it serves."""

    def kill(self) -> None:
        """SIGKILL."""


class Cluster(Victim, Protocol):
    address: str


class Process:
    """A `penstock` process that can be killed and started again."""

    def __init__(self, name: str, *args: str | Path, ready: str, address: str = "") -> None:
        self.name = name
        self.address = address
        self._args = args
        self._ready = ready
        self._running: Running | None = None
        self.last_words: list[str] = []

    def start(self) -> None:
        self._running = Running(*self._args)
        self._running.until(self._ready)

    def kill(self) -> None:
        if self._running is not None:
            self._running.stop(signal.SIGKILL)
            self._running.__exit__(None, None, None)
            self.last_words = self._running.said[-60:]
            self._running = None


def our_broker(name: str, folder: Path, **settings: str | int) -> Process:
    """Names of settings have _ for dots."""
    address = f"127.0.0.1:{free_port()}"
    more = {"group_initial_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 500, **settings}
    return Process(
        name, "server", "start", "--listen", address, "--data-dir", folder / name, "--http-port", "0",
        *(word for each, value in more.items() for word in ("-c", f"{each.replace('_', '.')}={value}")),
        ready="broker started: ", address=address,
    )  # fmt: skip


class ThreeBrokers:
    """A cluster in which each broker may be killed, and others lead its partitions."""

    def __init__(self, name: str, folder: Path, zookeeper: str) -> None:
        self.name = name
        self.members = [
            our_broker(
                f"{name}-{number}", folder, broker_id=number, zookeeper_connect=f"{zookeeper}/{name}",
                zookeeper_session_timeout_ms=4_000, default_replication_factor=3, min_insync_replicas=2,
                offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3,
            )
            for number in range(3)
        ]  # fmt: skip
        self.address = ",".join(each.address for each in self.members)

    def start(self) -> None:
        for each in self.members:
            each.start()
        until(self._is_whole, f"the brokers of {self.name} know each other")

    def _is_whole(self) -> bool:
        with Admin(self.address) as admin:
            return len(admin.describe_cluster().nodes) == len(self.members)

    def kill(self) -> None:
        for each in self.members:
            each.kill()


# ------------------------------------------------------------------------------------------------ work meanwhile


class Work:
    """A thread that works until it is ended, and whose failure is the test's."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._try, daemon=True)
        self._thread.start()

    def _try(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised by the test's thread
            self.failure = error

    def run(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(200)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


class Load(Work):
    """Produces plain records and, if wanted, transactions."""

    def __init__(self, address: str, *, transactions: bool) -> None:
        self._address = address
        self._has_transactions = transactions
        self.sent = 0
        super().__init__()

    def run(self) -> None:
        while not self._is_over.is_set():
            self._plain()
            if self._has_transactions:
                self._transaction()

    def _plain(self) -> None:
        with Producer(self._address, compression_type="lz4", start_timeout_ms=PATIENCE_MS) as producer:
            for _ in range(300):
                producer.send(TOPIC, f"{self.sent:08}".encode() * 10, partition=self.sent % PARTITIONS)
                self.sent += 1

    def _transaction(self) -> None:
        try:
            with Producer(self._address, transactional_id="load", start_timeout_ms=PATIENCE_MS) as producer:
                for outcome in range(2):
                    producer.begin_transaction()
                    for index in range(4):
                        producer.send(TOPIC, b"in a transaction", partition=index % PARTITIONS)
                    if outcome:
                        producer.commit_transaction()
                    else:
                        producer.abort_transaction()
        except PenstockError:
            pass  # a killed broker; what became of it is the same for every reader


class Readers(Work):
    """A consumer of a group at the source, which commits as it reads. It does not keep up: nor do groups in life."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._read()
            except ConfigError:
                raise
            except PenstockError:
                pass  # a killed broker

    def _read(self) -> None:
        with Consumer(
            TOPIC,
            bootstrap_servers=self._address,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
        ) as consumer:
            while not self._is_over.is_set():
                consumer.poll(timeout=0.1, max_records=100)
                consumer.commit()


def committed(address: str) -> dict[int, int]:
    """The group's offset of each partition."""
    with Admin(address) as admin:
        return {key.partition: found.offset for key, found in admin.group_offsets(GROUP).items() if key.topic == TOPIC}


# --------------------------------------------------------------------------------------------------- the stories


class Site:
    """A source, a target, and two processes of a mirror between them."""

    def __init__(
        self, folder: Path, stack: ExitStack, source: Cluster, target: Cluster, more: str = "", session_ms: int = 2_000
    ) -> None:
        self.source, self.target = source, target
        (folder / "mirror.toml").write_text(
            f'name = "site"\nshards = 3\nrefresh.interval.ms = 200\ngroups.interval.ms = 200\n'
            f"session.timeout.ms = {session_ms}\n{more}\n"
            f'[source.live]\nbootstrap.servers = "{source.address}"\nrequest.timeout.ms = 5000\n'
            f'[target]\nbootstrap.servers = "{target.address}"\nrequest.timeout.ms = 5000\n'
        )
        self.settings = MirrorSettings.load(str(folder / "mirror.toml"))
        self.mirrors = [
            Process(f"mirror-{number}", "mirror", "run", "--config", folder / "mirror.toml", ready="mirror joins")
            for number in range(2)
        ]
        self._killed: list[str] = []
        for process in (source, target, *self.mirrors):
            stack.callback(process.kill)

    @property
    def everything(self) -> list[Victim]:
        """What may be killed: mirrors as often as clusters, and of a cluster of several one broker at a time."""
        clusters: list[Victim] = []
        for each in (self.source, self.target):
            clusters += each.members if isinstance(each, ThreeBrokers) else [each]
        return [*clusters, *self.mirrors * (len(clusters) // 2)]

    def run(self, kills: int, victims: list[Victim] | None = None, *, transactions: bool = False) -> None:
        """Kills at random, under load, until as many have been killed as wanted; then waits until all is mirrored."""
        chance = random.Random(SEED)
        chosen = self.everything if victims is None else victims
        self.run_with(
            [chance.choice(chosen) for _ in range(kills)], lambda: chance.random() * 0.3, transactions=transactions
        )

    def run_with(self, victims: list[Victim], away_s: Callable[[], float], *, transactions: bool = False) -> None:
        self.source.start()
        self.target.start()
        create_topic(self.source.address, TOPIC, PARTITIONS)
        load, readers = Load(self.source.address, transactions=transactions), Readers(self.source.address)
        try:
            for mirror in self.mirrors:
                mirror.start()
            for victim in victims:
                before = load.sent
                until(lambda before=before: load.sent >= before + _RECORDS_BETWEEN_KILLS or load.failure, "load")  # type: ignore[misc]
                self._killed.append(victim.name)
                victim.kill()
                time.sleep(away_s())  # not to wait for anything: to vary what the others notice
                victim.start()
        finally:
            load.end()
            readers.end()
        self._wait()

    def _wait(self) -> None:
        """Until everything is mirrored; a failure shows what the processes of the mirror said."""
        try:
            status = wait_for(self.settings, lambda found: is_caught_up(found, PARTITIONS))
            assert not status.stopped, status.stopped
        except AssertionError as error:
            for process in self.mirrors:
                process.kill()
            said = "\n".join(line for process in self.mirrors for line in (process.name, *process.last_words))
            raise AssertionError(f"{error}\nkilled: {self._killed}\n{said}") from None

    # --- what must hold afterwards

    def check_identical(self) -> None:
        """The same offsets, records and batches, and the group at the same offsets."""
        same(self.source.address, self.target.address, TOPIC, PARTITIONS)
        assert sum(len(stored(self.target.address, TOPIC, index).records) for index in range(PARTITIONS)) > 0
        theirs = committed(self.source.address)
        assert sum(theirs.values()) > 0
        until(lambda: committed(self.target.address) == theirs, f"the group is at {theirs} in the target")

    def check_mapped(self) -> None:
        """The same records in order under other offsets, and the group never behind a record that it has not read."""
        theirs = committed(self.source.address)
        assert sum(theirs.values()) > 0
        until(lambda: committed(self.target.address).keys() == theirs.keys(), "the group is in the target")
        ours = committed(self.target.address)
        for index in range(PARTITIONS):
            source, target = (stored(each.address, TOPIC, index).records for each in (self.source, self.target))
            assert [each[1:] for each in target] == [each[1:] for each in source]
            if index in theirs:
                read = sum(each.offset < theirs[index] for each in source)
                assert sum(each.offset < ours[index] for each in target) <= read

    def check_shared(self, target_topic: str) -> None:
        """Every record of the source once, in order of its partition; the header says where it is from."""
        found: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
        for index in range(PARTITIONS):
            for record in stored(self.target.address, target_topic, index).records:
                _, topic, partition, offset = (record.headers[-1][1] or b"").decode().rsplit("/", 3)
                assert topic == TOPIC
                found[int(partition)].append(int(offset))
        for index in range(PARTITIONS):
            expected = [record.offset for record in stored(self.source.address, TOPIC, index).records]
            assert Counter(found[index]) == Counter(expected)
            assert found[index] == expected  # in order
