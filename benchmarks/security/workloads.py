"""The workloads, each for at least some seconds of clocked time.

Bulk: portions of records of 1 KB through confluent-kafka, each produced to a topic of its own, consumed and deleted, so
that unused data is not written back to disk. The clocks are those of `benchmarks.peers`.

Connections: some threads open connections in a closed loop, with a full TLS handshake or a SCRAM login, and close them.
The code is the same for both brokers. Clients keep the hash of the password (`benchmarks.peers.logins`).

ACLs: requests with one record, 64 in flight, in short slices to the broker with an authorizer and to the one without in
turns, so that a change of the machine's speed affects both alike.
"""

from __future__ import annotations

import socket
import ssl
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.peers import workloads
from benchmarks.peers.logins import ask, log_in
from benchmarks.peers.servers import HOST, ServerFailed, request_frame
from benchmarks.peers.workloads import ACKS_LEADER, RawFetcher, RawProducer, RawRequests, Transfer
from benchmarks.security.brokers import (
    MECHANISM,
    ONE_RECORD,
    PASSWORD,
    SASL_PLAINTEXT,
    SSL,
    TOPIC,
    USER,
    Listener,
    SecureBroker,
)
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest

VALUE_BYTES: Final = 1000
THREADS: Final = 4
_PATIENCE_S: Final = 30.0
_VERSIONS_VERSION: Final = 3
_VERSIONS: Final = request_frame(ApiKey.API_VERSIONS, _VERSIONS_VERSION, ApiVersionsRequest("bench", "1"))

# ---------------------------------------------------------------------------------------------- bulk


class Volume:
    """The sum of several transfers."""

    def __init__(self) -> None:
        self.seconds = self._mb = self._cpu_s = 0.0

    def add(self, mb: float, transfer: Transfer) -> None:
        self.seconds += mb / transfer.mb_per_s
        self._mb += mb
        self._cpu_s += transfer.cpu_s_per_gb * mb / 1000

    @property
    def transfer(self) -> Transfer:
        return Transfer(self._mb / self.seconds, self._cpu_s / self._mb * 1000)


def bulk(listener: Listener, seconds: float, portion_mb: int) -> tuple[Transfer, Transfer]:
    """Produced and consumed, portion by portion until each has taken as long as wanted."""
    produced, consumed = Volume(), Volume()
    count = portion_mb * 1_000_000 // VALUE_BYTES
    topics = listener.server.topics
    while min(produced.seconds, consumed.seconds) < seconds:
        topic = f"bulk-{uuid.uuid4().hex[:8]}"
        topics.make(topic, {"file.delete.delay.ms": "0"})
        produced.add(portion_mb, workloads.produce(listener, topic, VALUE_BYTES, count))
        while consumed.seconds < produced.seconds:
            consumed.add(portion_mb, workloads.consume(listener, topic, VALUE_BYTES, count))
        topics.delete(topic)
    return produced.transfer, consumed.transfer


# ---------------------------------------------------------------------------------------------- connections


@dataclass(frozen=True)
class Opened:
    """Connections per second, and the broker's CPU for each."""

    per_s: float
    cpu_us: float


def opened(listener: Listener, open_one: Callable[[], object], seconds: float, threads: int = THREADS) -> Opened:
    """Open connections in a closed loop. An exception of one thread ends the run."""
    counts, errors = [0] * threads, list[Exception]()
    deadline = time.perf_counter() + seconds

    def work(number: int) -> None:
        try:
            while time.perf_counter() < deadline and not errors:
                open_one()
                counts[number] += 1
        except Exception as error:  # noqa: BLE001 - raised below, in the main thread
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    cpu_s, began = listener.cpu_s(), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took_s, cpu_s = time.perf_counter() - began, listener.cpu_s() - cpu_s
    if errors:
        raise ServerFailed(f"{listener.name}: a connection failed: {errors[0]!r}") from errors[0]
    return Opened(sum(counts) / took_s, cpu_s / sum(counts) * 1e6)


class Connector:
    """Opens connections to a listener. `suite` is what a TLS handshake agreed on."""

    def __init__(self, broker: SecureBroker, protocol: str) -> None:
        self._listener = broker.listener(protocol)
        self._context: ssl.SSLContext | None = None
        if protocol.endswith(SSL):
            self._context = ssl.create_default_context(cafile=str(broker.certificates.authority))
        self._has_login = protocol.startswith("SASL")
        self.suite = ""

    def __call__(self) -> None:
        """A connection with all that its protocol needs, an ApiVersions request, and its end."""
        with self.connect() as connection:
            answer = ask(connection, ApiKey.API_VERSIONS, _VERSIONS_VERSION, _VERSIONS)
        if answer.error_code:
            raise ServerFailed(f"{self._listener.name}: ApiVersions was answered with error {answer.error_code}")

    def connect(self) -> socket.socket:
        """A connection that is ready for requests."""
        plain = socket.create_connection((HOST, self._listener.port), _PATIENCE_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = plain
        try:
            if self._context is not None:
                wrapped = self._context.wrap_socket(plain, server_hostname=HOST)
                if wrapped.session_reused:
                    raise ServerFailed(f"{self._listener.name}: a handshake was not a full one")
                self.suite = " ".join(map(str, (wrapped.cipher() or ("",))[:2]))
                connection = wrapped
            if self._has_login:
                log_in(connection, MECHANISM, USER, PASSWORD)
        except BaseException:
            connection.close()
            raise
        return connection


# ---------------------------------------------------------------------------------------------- ACLs


def produce_one(broker: SecureBroker) -> RawRequests:
    connection = Connector(broker, SASL_PLAINTEXT).connect()
    return RawProducer(broker.listener(SASL_PLAINTEXT), TOPIC, ACKS_LEADER, connection)


def fetch_one(broker: SecureBroker) -> RawRequests:
    connection = Connector(broker, SASL_PLAINTEXT).connect()
    return RawFetcher(broker.listener(SASL_PLAINTEXT), ONE_RECORD, connection)


def cpu_of_requests(
    brokers: tuple[SecureBroker, SecureBroker],
    make: Callable[[SecureBroker], RawRequests],
    seconds: float,
    slice_requests: int,
) -> tuple[float, float]:
    """The CPU per request of two brokers in µs, in slices that take turns until each was loaded long enough.

    Medians of the slices: the difference is small, and a disturbance of some slices must not decide.
    """
    connections = [make(broker) for broker in brokers]
    try:
        clocked = [0.0, 0.0]
        cpu_us: list[list[float]] = [[], []]
        while min(clocked) < seconds:
            for place in (0, 1) if len(cpu_us[0]) % 2 else (1, 0):
                done = connections[place].pipelined(slice_requests)
                clocked[place] += slice_requests / done.per_s
                cpu_us[place].append(done.cpu_us)
        return statistics.median(cpu_us[0]), statistics.median(cpu_us[1])
    finally:
        for connection in connections:
            connection.close()
