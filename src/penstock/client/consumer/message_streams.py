"""N iterators for N threads, like Kafka's original high-level consumer.

    with MessageStreams("views", streams=4, bootstrap_servers=address, group_id="feed") as streams:
        threads = [Thread(target=work, args=(stream,)) for stream in streams]

Each stream is a group member of its own, so partitions are spread over the streams of all processes. One thread
iterates a stream; `commit` and `close` may come from any thread, and closing ends all iterations after the record in
hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, Unpack, overload

from penstock.client.addresses import Addresses
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.core import Pattern
from penstock.client.consumer.reader import K, V
from penstock.client.consumer.settings import ConsumerOptions
from penstock.client.errors import ConfigError
from penstock.client.serializers.base import AnyDecoder
from penstock.records.kernel import ConsumerRecord

_CLOSE_TIMEOUT_S = 10.0


class MessageStream(Generic[K, V]):
    """Records for one thread."""

    def __init__(self, consumer: Consumer[K, V]) -> None:
        self.consumer = consumer

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        return iter(self.consumer)

    def __next__(self) -> ConsumerRecord[K, V]:
        return next(self.consumer)


class MessageStreams(Generic[K, V]):
    """`streams` iterators over topics given by name, or by `pattern` and `exclude`.

    `streams` may be a number for each topic: stream n then reads the topics that have more than n.
    `timeout_ms` ends an iteration that waits longer than that for a record; None waits on.
    """

    @overload
    def __init__(
        self: MessageStreams[bytes, bytes],
        *topics: str,
        streams: int | Mapping[str, int] = ...,
        timeout_ms: int | None = ...,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: MessageStreams[bytes, V],
        *topics: str,
        streams: int | Mapping[str, int] = ...,
        timeout_ms: int | None = ...,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        value: AnyDecoder[V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *topics: str,
        streams: int | Mapping[str, int] = ...,
        timeout_ms: int | None = ...,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        key: AnyDecoder[K] | None = ...,
        value: AnyDecoder[V] | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        *topics: str,
        streams: int | Mapping[str, int] = 1,
        timeout_ms: int | None = None,
        bootstrap_servers: Addresses = "127.0.0.1:9092",
        pattern: Pattern | None = None,
        exclude: Pattern | None = None,
        key: AnyDecoder[Any] | None = None,
        value: AnyDecoder[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """The other options are those of `Consumer`; `group_id` is required."""
        if not options.get("group_id"):
            raise ConfigError("MessageStreams needs a group_id", hint="The streams share the partitions of a group")
        has_filter = pattern is not None or exclude is not None
        by_stream = _topics_by_stream(topics, streams, has_filter=has_filter)
        instance = options.get("group_instance_id")
        options["consumer_timeout_ms"] = timeout_ms
        self._streams: list[MessageStream[K, V]] = []
        try:
            for number, names in enumerate(by_stream):
                if instance is not None:
                    options["group_instance_id"] = f"{instance}-{number}"
                consumer: Consumer[K, V] = Consumer(
                    *names,
                    bootstrap_servers=bootstrap_servers,
                    pattern=pattern,
                    exclude=exclude,
                    key=key,
                    value=value,
                    **options,
                )
                self._streams.append(MessageStream(consumer))
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[MessageStream[K, V]]:
        return iter(self._streams)

    def __getitem__(self, number: int) -> MessageStream[K, V]:
        return self._streams[number]

    def __len__(self) -> int:
        return len(self._streams)

    def commit(self) -> None:
        """Commit what all streams have handed out so far, including the records in hand."""
        for stream in self._streams:
            stream.consumer.commit()

    def close(self, timeout: float = _CLOSE_TIMEOUT_S, *, autocommit: bool = True) -> None:
        """End all iterations, commit (if enable_auto_commit), leave the group."""
        for stream in self._streams:
            stream.consumer.close(timeout, autocommit=autocommit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(autocommit=kind is None)


def _topics_by_stream(
    topics: Sequence[str], streams: int | Mapping[str, int], *, has_filter: bool
) -> list[Sequence[str]]:
    """The topics that each stream subscribes to by name; raises ConfigError."""
    counts = streams.values() if isinstance(streams, Mapping) else [streams]
    for count in counts:
        if count < 1:
            raise ConfigError(f"streams is {count}; it must be 1 or more")
    if not isinstance(streams, Mapping):
        return [topics] * streams
    if topics or has_filter:
        raise ConfigError("streams names the topics already", hint="Give topics, a filter, or streams by topic")
    if not streams:
        raise ConfigError("streams names no topic")
    return [[topic for topic, count in streams.items() if count > number] for number in range(max(counts))]
