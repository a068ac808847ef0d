"""Groups of consumers that keep their members and offsets in ZooKeeper, as Kafka's did up to 0.9: read, never written.

    /consumers/<group>/ids, owners, offsets

A connection is opened by the first visit to their page. Requests are sent side by side, their number and time are
bounded, and a node that is damaged or that goes away meanwhile costs only itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.client.addresses import ZooKeeperAddress
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.zookeeper_registry import (
    CONSUMERS,
    GroupPaths,
    RegistryError,
    Subscription,
    check_node_name,
    decode_registration,
)
from penstock.client.errors import BootstrapError
from penstock.client.offset_stores.base import OffsetStoreError
from penstock.client.offset_stores.zookeeper import offset_path, parse_offset
from penstock.client.zookeeper import kazoo, new_client, start_client

MOST_PARTITIONS: Final = 2_000
_MOST_MEMBERS: Final = 500
_TIMEOUT_S: Final = 5.0
_FAILED_S: Final = 5.0
"""A ZooKeeper that was not reached is not tried again for a while: each try holds up all visitors of the page."""


class GroupSummary(NamedTuple):
    """A group in a list."""

    name: str
    members: int
    topics: tuple[str, ...]


class GroupPartition(NamedTuple):
    """What a group has of a partition: the next offset, and the thread that reads it."""

    partition: TopicPartition
    offset: int | None
    owner: str
    problem: str = ""


class ZooKeeperGroup(NamedTuple):
    name: str
    members: Mapping[str, Subscription | str]
    """What each member subscribes to, or why that is not known."""
    partitions: tuple[GroupPartition, ...]
    is_cut: bool
    """Whether it has more partitions than are shown."""


class ZooKeeperGroups:
    """The groups of one ensemble. Every method blocks; OffsetStoreError if ZooKeeper does not answer."""

    def __init__(self, where: ZooKeeperAddress) -> None:
        self.where = where
        self._client: Any = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._failed_at = float("-inf")

    def names(self) -> list[str]:
        found = self._children([CONSUMERS])[CONSUMERS]
        return sorted(found or ())

    def summaries(self, names: Iterable[str]) -> list[GroupSummary]:
        paths = {name: (GroupPaths(name).ids, _offsets(name)) for name in names}
        found = self._children([path for pair in paths.values() for path in pair])
        return [
            GroupSummary(name, len(found[ids] or ()), tuple(sorted(found[offsets] or ())))
            for name, (ids, offsets) in paths.items()
        ]

    def group(self, name: str) -> ZooKeeperGroup | None:
        """A group; None if there is none with this name."""
        check_node_name("group", name)
        paths = GroupPaths(name)
        owners_of = f"{CONSUMERS}/{name}/owners"
        listed = self._children([f"{CONSUMERS}/{name}", paths.ids, _offsets(name), owners_of])
        if listed[f"{CONSUMERS}/{name}"] is None:
            return None
        topics = sorted({*(listed[_offsets(name)] or ()), *(listed[owners_of] or ())})[:MOST_PARTITIONS]
        numbered = self._children(
            [path for topic in topics for path in (f"{_offsets(name)}/{topic}", paths.owners(topic))]
        )
        keys = [
            TopicPartition(topic, number)
            for topic in topics
            for number in _numbers(numbered[f"{_offsets(name)}/{topic}"], numbered[paths.owners(topic)])
        ]
        shown = keys[:MOST_PARTITIONS]
        ids = sorted(listed[paths.ids] or ())[:_MOST_MEMBERS]
        data = self._data(
            [path for key in shown for path in (offset_path(name, key), paths.owner(key))]
            + [paths.consumer(each) for each in ids]
        )
        return ZooKeeperGroup(
            name,
            {each: _subscription(data[paths.consumer(each)]) for each in ids},
            tuple(_partition(key, data, offset_path(name, key), paths.owner(key)) for key in shown),
            len(keys) > len(shown),
        )

    def close(self) -> None:
        """It may be called twice."""
        with self._lock:
            self._is_closed = True
            client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    # ------------------------------------------------------------------------------------------ requests

    def _children(self, paths: list[str]) -> dict[str, list[str] | None]:
        return self._answers(paths, lambda client, path: client.get_children_async(path))

    def _data(self, paths: list[str]) -> dict[str, bytes | None]:
        found = self._answers(paths, lambda client, path: client.get_async(path))
        return {path: None if answer is None else answer[0] for path, answer in found.items()}

    def _answers(self, paths: list[str], ask: Any) -> dict[str, Any]:
        """The answer for each node; None if it does not exist."""
        errors, waiting = kazoo("exceptions"), kazoo("handlers.threading")
        client = self._connected()
        deadline = time.monotonic() + _TIMEOUT_S
        asked = [(path, ask(client, path)) for path in paths]
        found: dict[str, Any] = {}
        for path, answer in asked:
            try:
                found[path] = answer.get(timeout=max(0.01, deadline - time.monotonic()))
            except errors.NoNodeError:
                found[path] = None
            except (errors.KazooException, waiting.KazooTimeoutError) as error:
                raise OffsetStoreError(
                    f"{self.where} did not answer for {path}: {type(error).__name__} {error}".rstrip(),
                    hint="Check that ZooKeeper is up, and that everybody may read there",
                    retriable=True,
                ) from error
        return found

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None and not self._is_closed:
                if time.monotonic() - self._failed_at < _FAILED_S:
                    raise self._unreachable()
                client = new_client(self.where)
                try:
                    start_client(client, self.where, _TIMEOUT_S * 1000)
                except BootstrapError as error:
                    self._failed_at = time.monotonic()
                    raise self._unreachable() from error
                self._client = client
            if self._client is None:
                raise OffsetStoreError("the console is stopping", retriable=True)
            return self._client

    def _unreachable(self) -> OffsetStoreError:
        return OffsetStoreError(
            f"{self.where} cannot be reached within {_TIMEOUT_S:.0f} s",
            hint="Check --zookeeper-groups: HOST:PORT,HOST:PORT/CHROOT", retriable=True,
        )  # fmt: skip


def _offsets(group: str) -> str:
    return f"{CONSUMERS}/{group}/offsets"


def _numbers(*names: list[str] | None) -> list[int]:
    """The partitions among the names of nodes; others are nobody's."""
    return sorted({int(each) for some in names for each in some or () if each.isdigit() and len(each) < 10})


def _partition(key: TopicPartition, data: Mapping[str, bytes | None], offset: str, owner: str) -> GroupPartition:
    who = (data[owner] or b"").decode("utf-8", "replace")
    stored = data[offset]
    if stored is None:
        return GroupPartition(key, None, who)
    try:
        return GroupPartition(key, parse_offset(stored, offset), who)
    except (OffsetStoreError, UnicodeDecodeError) as error:
        return GroupPartition(key, None, who, str(error))


def _subscription(data: bytes | None) -> Subscription | str:
    if data is None:
        return "has left"
    try:
        return decode_registration(data)
    except RegistryError as error:
        return f"cannot be read: {error}"
