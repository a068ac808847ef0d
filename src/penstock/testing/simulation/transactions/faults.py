"""Faults of runs with transactions: late requests, and coordinators that are disturbed at the worst moment.

In transaction version 2, requests of producers and markers of coordinators also arrive late over other connections,
a second time or only then, as after a broken connection whose bytes were still on their way. In version 1 only those
do that can do no harm: it has no protection against a late EndTxn (KAFKA-17754), TxnOffsetCommit or marker. A leader
may learn late that a write belongs to a transaction.

A few times in a run a coordinator is disturbed just after it wrote a decision, and before others have it: it is cut
off, paused or stopped, or loses its session; or the decision gets to one other broker only, which takes over and loses
its role to one that does not have it. A new coordinator, too, may lose its role before what it loaded is committed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

from penstock.broker.cluster_services import BrokerLink
from penstock.client.connection import Connection, _flattened
from penstock.client.errors import PenstockError
from penstock.cluster.broker_links import LinkLost
from penstock.coordination.coordinator_record import CoordinatorRecord
from penstock.coordination.coordinator_runtime import Shard
from penstock.coordination.transactions.transaction import DECIDED, TransactionRecord, decode_record
from penstock.coordination.transactions.transaction_shard import TransactionShard
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation import faults as kinds
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.faults import Fault
from penstock.wire.framing import encode_request
from penstock.wire.protocol import ApiKey

LATE_REQUESTS: Final = "late requests"
TROUBLES: Final = "coordinators disturbed after a decision"

_LATE_TIMEOUT_MS: Final = 1_000.0
_DELAYS_S: Final = (0.012, 0.012, 0.15, 0.15, 3.0)
_LATE: Final[dict[int, dict[int, int]]] = {
    1: {ApiKey.PRODUCE: 4, ApiKey.ADD_PARTITIONS_TO_TXN: 30},
    2: {ApiKey.PRODUCE: 10, ApiKey.END_TXN: 3, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.WRITE_TXN_MARKERS: 2},
}
"""Which requests are late in a transaction version, and one of how many is."""


class TransactionFaults:
    """Draws the faults of one run. `is_calm` ends them."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        inject: Callable[[Sequence[Fault]], None],
        hosts: Collection[str],
        forgotten: Callable[[str], None],
        *,
        seed: int,
        version: int,
        until_s: float,
    ) -> None:
        """Requests of `hosts` may be late. Faults of coordinators, up to `until_s`, are scheduled by `inject`.

        `forgotten` is called with each transactional id that expires.
        """
        self.is_calm = False
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._inject = inject
        self._hosts = frozenset(hosts)
        self.forgotten = forgotten
        self._version = version
        self._random: Random = SeededRandom(f"{seed}/faults of transactions")
        self._trouble = sorted(self._random.uniform(0.5, until_s) for _ in range(self._random.below(4)))
        self._takeovers = self._random.below(3)
        if until_s <= 0:
            self._trouble, self._takeovers = [], 0

    # --- coordinators

    def decided(self, broker: str, client: str) -> None:
        """A coordinator has appended a decision to its log, on a transaction of `client`."""
        now_s = self._cluster.scheduler.now_s
        if self.is_calm or not self._trouble or now_s < self._trouble[0]:
            return
        self._trouble.pop(0)
        self.done[TROUBLES] += 1
        others = [node.name for node in self._cluster.nodes if node.name != broker]
        if len(others) > 1 and self._random.below(2):
            self._inject(self._two_successors(now_s, broker, *others[:2]))
        else:
            self._inject(self._isolated(now_s, broker, others))
        if self._random.below(3):
            # It does not send its EndTxn again before the transaction times out.
            self._inject([Fault(now_s, kinds.PAUSE, client, for_s=self._random.uniform(1.0, 2.5))])

    def took_over(self, broker: str) -> None:
        """A coordinator has loaded records that are not committed. It loses its role before others get them from it."""
        if self.is_calm or not self._takeovers:
            return
        self._takeovers -= 1
        self.done[TROUBLES] += 1
        random, now_s = self._random, self._cluster.scheduler.now_s
        stale_s = random.uniform(0.2, 0.8)
        others = [node.name for node in self._cluster.nodes if node.name != broker]
        self._inject([Fault(now_s, kinds.STALE, other, for_s=stale_s) for other in others])
        self._inject([Fault(now_s + random.uniform(0.003, 0.05), kinds.SESSION, broker)])

    def _isolated(self, at_s: float, broker: str, others: Sequence[str]) -> list[Fault]:
        """The coordinator is cut off from the other brokers, or not, and paused, stopped, or loses its session."""
        random = self._random
        faults: list[Fault] = []
        at_s, for_s = at_s + random.uniform(0.0, 0.004), random.uniform(0.1, 2.0)
        if random.below(2):
            faults += [Fault(at_s, kinds.SPLIT, broker, other, for_s) for other in others]
            at_s += random.uniform(0.0, for_s)
        kind = (kinds.PAUSE, kinds.STOP, kinds.SESSION)[random.below(3)]
        return [*faults, Fault(at_s, kind, broker, for_s=0.0 if kind == kinds.SESSION else for_s)]

    def _two_successors(self, at_s: float, broker: str, first: str, second: str) -> list[Fault]:
        """Only one other broker gets the decision. It takes over, and loses its role to one that does not have it."""
        random = self._random
        if random.below(2):
            first, second = second, first
        then_s = at_s + random.uniform(0.002, 0.02)
        kind = (kinds.PAUSE, kinds.STOP, kinds.SESSION)[random.below(3)]
        for_s = 0.0 if kind == kinds.SESSION else random.uniform(0.5, 2.0)
        return [
            Fault(at_s, kinds.SPLIT, broker, second, random.uniform(0.02, 0.1)),
            # It continues with partitions whose leaders stay, and does not learn of the new coordinator.
            Fault(at_s, kinds.STALE, second, for_s=random.uniform(0.3, 1.0)),
            Fault(then_s, kinds.SESSION, broker),
            Fault(then_s + random.uniform(0.02, 0.3), kind, first, for_s=for_s),
        ]

    # --- late requests

    def is_late(self, api_key: int, host: str) -> bool:
        """Whether a request of a process arrives late, again or for the first time."""
        one_in = _LATE[self._version].get(api_key)
        if one_in is None or self.is_calm:
            return False
        is_meant = api_key == ApiKey.WRITE_TXN_MARKERS or host in self._hosts
        return is_meant and not self._random.below(one_in)

    def is_cut_off(self) -> bool:
        """Whether the connection breaks, so that only the copy arrives."""
        return not self._random.below(2)

    def is_answered_late(self, api_key: int, host: str) -> bool:
        """Whether a partition leader learns late that a write belongs to a transaction, perhaps after its end."""
        is_verification = api_key == ApiKey.ADD_PARTITIONS_TO_TXN and host not in self._hosts
        return is_verification and not self.is_calm and not self._random.below(4)

    def link(self, broker: str, address: str) -> BrokerLink | None:
        """A new link from a broker to the one with an address."""
        node = next((node for node in self._cluster.nodes if node.name == broker), None)
        target = next((node for node in self._cluster.nodes if node.bootstrap == address), None)
        services = None if node is None or node.broker is None else node.broker._cluster_services
        return None if services is None or target is None else services.links.to(target.broker_id)

    def delay_s(self) -> float:
        """Mostly short: the request arrives during the end of its transaction, or during the next one."""
        return self._random.uniform(0.0, _DELAYS_S[self._random.below(len(_DELAYS_S))])


class Sent(NamedTuple):
    """A request as it was sent."""

    api_key: int
    message: Any
    version: int


Send = Callable[..., Any]
"""`Connection.send`, as it is."""


class _SlowConnection(asyncio.Protocol):
    """A connection whose bytes are delivered late, for a long time."""

    def __init__(self) -> None:
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.close()


async def _send_late(faults: TransactionFaults, node: str, request: bytes) -> None:
    """The connection is as old as the request, so it does not outlive the broker's process."""
    host, _, port = node.rpartition(":")
    try:
        _, connection = await asyncio.get_running_loop().create_connection(_SlowConnection, host, int(port))
    except OSError:
        return  # it never arrives
    await asyncio.sleep(faults.delay_s())
    connection.transport.write(request)
    faults.done[LATE_REQUESTS] += 1


async def _send_late_as_broker(faults: TransactionFaults, link: BrokerLink, send: Send, request: Sent) -> None:
    """The same between brokers, which take markers only from a connection that has proved to be another broker's."""
    try:
        connection = await link._open()
        await asyncio.sleep(faults.delay_s())
        faults.done[LATE_REQUESTS] += 1
        answer = send(
            connection, request.api_key, request.message, version=request.version, timeout_ms=_LATE_TIMEOUT_MS
        )
        if answer is not None:
            await answer
    except (LinkLost, PenstockError):
        return  # it never arrives
    finally:
        link.close()


def _late(
    faults: TransactionFaults, connection: Connection, host: str, send: Send, request: Sent
) -> Coroutine[Any, Any, None]:
    link = faults.link(host, connection.node) if request.api_key == ApiKey.WRITE_TXN_MARKERS else None
    if link is not None:
        return _send_late_as_broker(faults, link, send, request)
    encoded = encode_request(request.api_key, request.version, 1, connection.client_id, request.message)
    return _send_late(faults, connection.node, b"".join(_flattened(encoded)))


async def _received_late(answer: asyncio.Future[Any], delay_s: float) -> Any:
    response = await answer
    await asyncio.sleep(delay_s)
    return response


@contextmanager
def watched(faults: TransactionFaults) -> Iterator[None]:
    """Patch the real code so that requests are late, and decisions reported."""
    send, write, await_commit = Connection.send, Shard._write, Shard._await_commit
    copies: list[asyncio.Task[None]] = []

    def sending(connection: Connection, api_key: int, message: Any, **named: Any) -> Any:
        loop: Any = asyncio.get_running_loop()
        if faults.is_late(api_key, loop.name):
            version = named.get("version")
            version = connection.version_of(api_key) if version is None else version
            late = Sent(api_key, message, version)
            copies.append(loop.create_task(_late(faults, connection, loop.name, send, late)))
            answer = send(connection, api_key, message, **named)
            if faults.is_cut_off():
                connection.abort("the network broke the connection")
            return answer
        answer = send(connection, api_key, message, **named)
        if answer is not None and faults.is_answered_late(api_key, loop.name):
            return loop.create_task(_received_late(answer, faults.delay_s() / 4))
        return answer

    def writing(shard: Shard[Any], outcome: Any, write_id: int) -> None:
        write(shard, outcome, write_id)
        loop: Any = asyncio.get_running_loop()
        if isinstance(shard.machine, TransactionShard):
            for record in _states(outcome.records):
                if record.value is None:
                    faults.forgotten(record.transactional_id)
                elif record.value.state in DECIDED:
                    faults.decided(loop.name, record.transactional_id.partition("-")[2])

    def replayed(shard: Shard[Any]) -> None:
        await_commit(shard)
        loop: Any = asyncio.get_running_loop()
        log = shard.partition.log
        if isinstance(shard.machine, TransactionShard) and log.high_watermark < log.log_end_offset:
            faults.took_over(loop.name)

    with (
        mock.patch.object(Connection, "send", sending),
        mock.patch.object(Shard, "_write", writing),
        mock.patch.object(Shard, "_await_commit", replayed),
    ):
        yield


def _states(records: Sequence[CoordinatorRecord]) -> Iterator[TransactionRecord]:
    decoded = (decode_record(record.key, record.value) for record in records)
    return (record for record in decoded if record is not None)
