"""The interface of a Kafka client that the stories of `test_client_contract` use, and what those stories share.

A broker's error is raised as `Rejected`. A feature that a client lacks is listed in its `Features`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.timeouts import until

from penstock.wire.protocol import ErrorCode

END: Final = -1
"""In place of an offset: the end of the partition."""
CODES: Final = {int(code): code for code in ErrorCode}


class Record(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = 0
    offset: int = -1


class Sent(NamedTuple):
    """The outcome of one send."""

    partition: int
    offset: int
    error: ErrorCode | None = None


class Rejected(Exception):
    def __init__(self, code: int) -> None:
        self.code = CODES[code]
        super().__init__(self.code.name)


class TransactionFailed(Exception):
    """A transaction cannot continue. A fenced producer must stop: another one has its transactional id."""

    def __init__(self, reason: str, *, is_fenced: bool) -> None:
        super().__init__(reason)
        self.is_fenced = is_fenced


@dataclass(frozen=True)
class ProducerOptions:
    codec: str = "none"
    acks: str = "all"
    idempotent: bool = False
    batch_records: int | None = None
    request_bytes: int | None = None
    linger_ms: int = 20
    transactional_id: str | None = None
    """The producer is ready for its first transaction; an earlier producer with this id is fenced."""
    transaction_timeout_ms: int = 60_000


@dataclass(frozen=True)
class ConsumerOptions:
    """With `topic` and `group`, of a member of the group. Nothing is committed automatically."""

    topic: str | None = None
    group: str | None = None
    strategy: str | None = None
    instance: str | None = None
    fetch_bytes: int | None = None
    fetch_wait_ms: int | None = None
    isolation: str | None = None


@dataclass(frozen=True)
class Features:
    name: str
    dying_member: str
    """A program that joins a group, prints the number of its partitions, and waits to be killed."""
    strategies: tuple[str | None, ...] = (None,)
    lacks: frozenset[str] = field(default_factory=frozenset)
    """Of: idempotence after an error, static members, resetting settings, deleting groups, broker settings,
    transactions while brokers of a cluster are killed (it finds the new coordinator, and sends nothing more), offsets
    in a transaction while their coordinator is killed (it waits for a broker that it has removed)."""


class Producer(ABC):
    @abstractmethod
    def send(self, topic: str, record: Record) -> None:
        """Queue a record."""

    @abstractmethod
    def settle(self) -> list[Sent]:
        """Wait for the outcomes of the records queued since the last call, in order."""

    # With a transactional id. All raise TransactionFailed.

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def send_offsets(self, consumer: Consumer, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """The offsets of a group that are committed with the transaction."""


class Consumer(ABC):
    @abstractmethod
    def assign(self, topic: str, partition: int, offset: int = 0) -> None: ...

    @abstractmethod
    def poll(self) -> list[Record]: ...

    @abstractmethod
    def assignment(self) -> set[int]: ...

    @abstractmethod
    def group_metadata(self, group: str) -> Any:
        """What the client's own producer wants for `send_offsets`."""

    def leave(self) -> None:  # noqa: B027
        """Leave the group before the consumer is closed, where closing would wait for the other members."""

    @abstractmethod
    def commit(self, offsets: Mapping[tuple[str, int], tuple[int, str]] | None = None) -> None:
        """Commit offsets with their metadata, or what was read."""

    @abstractmethod
    def committed(self, topic: str, partition: int) -> int | None: ...

    @abstractmethod
    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The first and the last offset."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None: ...


class Admin(ABC):
    """Every method raises Rejected if the broker returns an error."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def topics(self) -> set[str]: ...

    @abstractmethod
    def partitions(self, topic: str) -> list[int]: ...

    @abstractmethod
    def add_partitions(self, topic: str, count: int) -> None: ...

    @abstractmethod
    def setting(self, topic: str, name: str) -> Any: ...

    @abstractmethod
    def alter_setting(self, topic: str, name: str, value: str) -> None: ...

    def reset_setting(self, topic: str, name: str) -> None:
        raise NotImplementedError

    def broker_setting(self, name: str) -> Any:
        raise NotImplementedError

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def group_state(self, group: str) -> str: ...

    @abstractmethod
    def group_offset(self, group: str, topic: str, partition: int) -> tuple[int, str]: ...

    def delete_group(self, group: str) -> None:
        raise NotImplementedError

    @abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Returns the new first offset."""


class Client(ABC):
    features: Features

    @abstractmethod
    def producing(self, address: str, **chosen: Any) -> AbstractContextManager[Producer]:
        """`chosen` are fields of ProducerOptions."""

    @abstractmethod
    def consuming(self, address: str, **chosen: Any) -> AbstractContextManager[Consumer]:
        """`chosen` are fields of ConsumerOptions."""

    @abstractmethod
    def administering(self, address: str) -> AbstractContextManager[Admin]: ...


def send_all(client: Client, address: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    with client.producing(address) as producer:
        for value in values:
            producer.send(topic, Record(value, partition=partition))
        assert [sent.error for sent in producer.settle()] == [None] * len(values)


def take(consumer: Consumer, count: int) -> list[Record]:
    """The next `count` records, or more if they come together."""
    records: list[Record] = []

    def has_all() -> bool:
        records.extend(consumer.poll())
        return len(records) >= count

    until(has_all, f"{count} records")
    return records


def read_partition(client: Client, address: str, topic: str, count: int, partition: int = 0) -> list[Record]:
    with client.consuming(address) as consumer:
        consumer.assign(topic, partition)
        return take(consumer, count)


def held(consumer: Consumer) -> set[int]:
    """The partitions of a member, which takes part in its group only while it polls."""
    consumer.poll()
    return consumer.assignment()
