"""Offsets in ZooKeeper, where consumers up to 0.9 kept them: /consumers/<group>/offsets/<topic>/<partition>.

A node holds the offset as decimal text. It has no leader epoch and no metadata, and a member that was replaced is not
fenced. Use it to coexist with old consumers; otherwise prefer the broker.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client.errors import ConfigError
from penstock.client.offset_stores.base import (
    NO_MEMBER,
    Membership,
    OffsetAndMetadata,
    OffsetStoreError,
    P,
)


class ZooKeeperOffsetStore:
    """Offsets under /consumers in ZooKeeper; `hosts` is like "zk1:2181,zk2:2181/chroot".

    `client` is a started KazooClient to use instead of an own one; it is not closed.
    """

    def __init__(self, hosts: str, *, timeout_ms: int = 10_000, client: Any = None) -> None:
        self.hosts = hosts
        self._timeout_s = timeout_ms / 1000
        self._client: Any = client
        self._is_shared = client is not None
        self._lock = threading.Lock()

    async def load(self, group: str, partitions: Iterable[P]) -> dict[P, OffsetAndMetadata]:
        """The stored offsets of a group; partitions without one are left out."""
        wanted = list(partitions)
        return await asyncio.to_thread(self._load, group, wanted)

    async def save(
        self, group: str, offsets: Mapping[P, OffsetAndMetadata], membership: Membership = NO_MEMBER
    ) -> None:
        """Store the offsets of a group, each partition separately."""
        await asyncio.to_thread(self._save, group, dict(offsets))

    async def close(self) -> None:
        """Close the connection to ZooKeeper. It may be called twice."""
        await asyncio.to_thread(self._close)

    def _load(self, group: str, partitions: list[P]) -> dict[P, OffsetAndMetadata]:
        errors = _kazoo("exceptions")
        asked = [(each, offset_path(group, each)) for each in partitions]
        client = self._connected()
        # All requests are sent before the first response is awaited: one round trip, not one per partition.
        answers = [(partition, path, client.get_async(path)) for partition, path in asked]
        loaded: dict[P, OffsetAndMetadata] = {}
        for partition, path, answer in answers:
            try:
                data, _ = self._answer(answer, path)
            except errors.NoNodeError:
                continue
            loaded[partition] = OffsetAndMetadata(parse_offset(data, path))
        return loaded

    def _save(self, group: str, offsets: dict[P, OffsetAndMetadata]) -> None:
        errors = _kazoo("exceptions")
        work = [(offset_path(group, each), str(stored.offset).encode()) for each, stored in offsets.items()]
        client = self._connected()
        answers = [(path, data, client.set_async(path, data)) for path, data in work]
        for path, data, answer in answers:
            try:
                self._answer(answer, path)
            except errors.NoNodeError:
                try:
                    self._answer(client.create_async(path, data, makepath=True), path)
                except errors.NodeExistsError:
                    # Created by another consumer meanwhile; the later commit counts, as for existing nodes.
                    self._answer(client.set_async(path, data), path)

    def _answer(self, answer: Any, path: str) -> Any:
        errors, waiting = _kazoo("exceptions"), _kazoo("handlers.threading")
        try:
            return answer.get(timeout=self._timeout_s)
        except (errors.NoNodeError, errors.NodeExistsError):
            raise
        except (errors.KazooException, waiting.KazooTimeoutError) as error:
            raise OffsetStoreError(
                f"ZooKeeper {self.hosts} did not answer for {path}: {type(error).__name__} {error}",
                hint="Check that ZooKeeper is up, and that this client may read and write there",
                retriable=True,
            ) from error

    def _connected(self) -> Any:
        library, waiting = _kazoo("client"), _kazoo("handlers.threading")
        with self._lock:
            if self._client is None:
                client = library.KazooClient(hosts=self.hosts, timeout=self._timeout_s)
                try:
                    client.start(timeout=self._timeout_s)
                except waiting.KazooTimeoutError as error:
                    client.close()
                    raise OffsetStoreError(
                        f"ZooKeeper {self.hosts} could not be reached within {self._timeout_s:g} s",
                        hint="Check that ZooKeeper is up and the address is right: host:port,host:port/chroot",
                        retriable=True,
                    ) from error
                self._client = client
            return self._client

    def _close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None and not self._is_shared:
            client.stop()
            client.close()


def _kazoo(module: str) -> Any:
    """Imported on first use."""
    return importlib.import_module(f"kazoo.{module}")


def offset_path(group: str, partition: tuple[str, int]) -> str:
    """The node of a partition; raises ConfigError for a name that a node cannot have."""
    for what, name in (("group", group), ("topic", partition[0])):
        if not name or "/" in name or "\0" in name or name in (".", "..", "zookeeper"):
            raise ConfigError(f"{name!r} cannot be the name of a {what} in ZooKeeper", hint="Rename it, without /")
    return f"/consumers/{group}/offsets/{partition[0]}/{partition[1]}"


def parse_offset(data: bytes, path: str) -> int:
    text = data.strip()
    if not text.isdigit() or len(text) > 19:
        raise OffsetStoreError(
            f"{path} contains {data[:40]!r}, which is not an offset", hint="Set it to a number, or delete the node"
        )
    return int(text)
