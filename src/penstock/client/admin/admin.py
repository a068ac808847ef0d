"""`AsyncAdmin`, and `Admin`, its blocking face: the same calls, from any thread."""

from __future__ import annotations

import ssl as tls
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from penstock.client.addresses import Addresses
from penstock.client.admin.configs import ConfigCalls, Settings
from penstock.client.admin.groups import GroupCalls
from penstock.client.admin.results import (
    ClusterDescription,
    ConfigResource,
    ConfigValue,
    CreatedTopic,
    ElectionType,
    GroupDescription,
    GroupListing,
    LogDirectory,
    OffsetResult,
    OffsetSpec,
    PartitionReassignment,
    TopicDescription,
    TopicSpec,
)
from penstock.client.admin.topics import PartitionCalls, TopicCalls
from penstock.client.background import Background
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import ClosedError, PenstockError
from penstock.client.offset_stores.base import OffsetAndMetadata


class AsyncAdmin(TopicCalls, PartitionCalls, ConfigCalls, GroupCalls):
    """Looks after a cluster.

        async with AsyncAdmin("localhost:9092") as admin:
            await admin.create_topic(TopicSpec("views", partitions=6), exist_ok=True)

    Calls about one thing raise; calls about many answer with a mapping that has a result or an error for each.
    Every call takes `timeout_ms`, and ends by then; the default is request_timeout_ms.
    """


T = TypeVar("T")


class Admin:
    """Looks after a cluster.

        with Admin("localhost:9092") as admin:
            admin.create_topic(TopicSpec("views", partitions=6), exist_ok=True)

    Raises BootstrapError if there is no cluster. Calls about one thing raise; calls about many answer with a mapping
    that has a result or an error for each. Ctrl-C ends any of them.
    """

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        client_id: str = "penstock-admin",
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._background = Background.acquire()
        try:
            self._admin = AsyncAdmin(
                bootstrap_servers,
                client_id=client_id,
                request_timeout_ms=request_timeout_ms,
                connect_timeout_ms=connect_timeout_ms,
                ssl=ssl,
            )
            self._background.run(self._opened())
        except BaseException:
            self._closed = True
            self._background.release()
            raise

    async def _opened(self) -> None:
        try:
            await self._admin.start()
        except BaseException:
            await self._admin.close()
            raise

    def close(self, timeout: float | None = 10.0) -> None:
        """Close all connections; calls that wait in other threads end. Again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._background.run(self._admin.close(), timeout)
        except ClosedError:
            pass  # The loop has ended before, with all that was on it.
        finally:
            self._background.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            call.close()
            raise ClosedError("the admin client is closed")
        return self._background.run(call)

    def run(self, call: Callable[[AsyncAdmin], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine over the asynchronous client, on the loop of that."""
        return self._run(call(self._admin))

    # ------------------------------------------------------------------------------------------ topics

    def create_topic(
        self,
        topic: TopicSpec | str,
        *,
        exist_ok: bool = False,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> CreatedTopic:
        """Make a topic; raises TopicExists, InvalidTopic, InvalidSetting..."""
        return self._run(
            self._admin.create_topic(topic, exist_ok=exist_ok, validate_only=validate_only, timeout_ms=timeout_ms)
        )

    def create_topics(
        self,
        topics: Iterable[TopicSpec | str],
        *,
        exist_ok: bool = False,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, CreatedTopic | PenstockError]:
        """Create several topics; each has a result or an error."""
        return self._run(
            self._admin.create_topics(topics, exist_ok=exist_ok, validate_only=validate_only, timeout_ms=timeout_ms)
        )

    def delete_topic(self, name: str, *, missing_ok: bool = False, timeout_ms: int | None = None) -> None:
        """Delete a topic and its records; raises UnknownTopic..."""
        self._run(self._admin.delete_topic(name, missing_ok=missing_ok, timeout_ms=timeout_ms))

    def delete_topics(self, names: Iterable[str], *, timeout_ms: int | None = None) -> dict[str, PenstockError | None]:
        """Delete several topics; each has a result or an error."""
        return self._run(self._admin.delete_topics(names, timeout_ms=timeout_ms))

    def list_topics(self, *, include_internal: bool = False, timeout_ms: int | None = None) -> list[str]:
        """The names of all topics, in order."""
        return self._run(self._admin.list_topics(include_internal=include_internal, timeout_ms=timeout_ms))

    def describe_topic(self, name: str, *, timeout_ms: int | None = None) -> TopicDescription:
        """The partitions of a topic, their leaders and replicas; raises UnknownTopic."""
        return self._run(self._admin.describe_topic(name, timeout_ms=timeout_ms))

    def describe_topics(
        self, names: Iterable[str] | None = None, *, include_eligible: bool = False, timeout_ms: int | None = None
    ) -> dict[str, TopicDescription | PenstockError]:
        """These topics, or all: partitions, leaders, replicas, those in sync; with `include_eligible` also those that
        may lead though they are not."""
        return self._run(self._admin.describe_topics(names, include_eligible=include_eligible, timeout_ms=timeout_ms))

    def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Raise a topic's number of partitions to `total`."""
        self._run(
            self._admin.create_partitions(
                topic, total, assignments=assignments, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def delete_records(
        self, before: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int | PenstockError]:
        """Delete what lies before an offset of each partition, -1 for all; answers with where each begins now."""
        return self._run(self._admin.delete_records(before, timeout_ms=timeout_ms))

    # ------------------------------------------------------------------------------------------ partitions

    def elect_leaders(
        self,
        kind: ElectionType,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, PenstockError | None]:
        """Give leadership back to the preferred leaders, or, "unclean", to whoever is alive, at the price of records;
        without partitions, of all that need it."""
        return self._run(self._admin.elect_leaders(kind, partitions, timeout_ms=timeout_ms))

    def alter_partition_reassignments(
        self, wanted: Mapping[tuple[str, int], Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PenstockError | None]:
        """Move partitions to these brokers, the preferred leader first; None takes a move back that is under way."""
        return self._run(self._admin.alter_partition_reassignments(wanted, timeout_ms=timeout_ms))

    def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The moves that are under way, of these partitions or of all."""
        return self._run(self._admin.list_partition_reassignments(partitions, timeout_ms=timeout_ms))

    # ------------------------------------------------------------------------------------------ settings

    def describe_config(
        self, resource: ConfigResource, *, include_synonyms: bool = False, timeout_ms: int | None = None
    ) -> Settings:
        """All settings of a topic or broker, by name."""
        return self._run(
            self._admin.describe_config(resource, include_synonyms=include_synonyms, timeout_ms=timeout_ms)
        )

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_synonyms: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, Settings | PenstockError]:
        """The settings of each; with `include_synonyms`, with the values of all layers under which it may be set."""
        return self._run(
            self._admin.describe_configs(resources, include_synonyms=include_synonyms, timeout_ms=timeout_ms)
        )

    def alter_config(
        self,
        resource: ConfigResource,
        changes: Mapping[str, ConfigValue],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change settings; None gives one back to its default. Raises InvalidSetting..."""
        self._run(self._admin.alter_config(resource, changes, validate_only=validate_only, timeout_ms=timeout_ms))

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigValue]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, PenstockError | None]:
        """Change settings of several resources; each has a result or an error."""
        return self._run(self._admin.alter_configs(changes, validate_only=validate_only, timeout_ms=timeout_ms))

    # ------------------------------------------------------------------------------------------ cluster and offsets

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """The brokers, the controller and the id of the cluster."""
        return self._run(self._admin.describe_cluster(timeout_ms=timeout_ms))

    def describe_log_dirs(
        self, broker_ids: Iterable[int] | None = None, *, timeout_ms: int | None = None
    ) -> dict[int, tuple[LogDirectory, ...] | PenstockError]:
        """The data folders of these brokers, or of all, and what lies in them."""
        return self._run(self._admin.describe_log_dirs(broker_ids, timeout_ms=timeout_ms))

    def alter_replica_log_dirs(
        self, broker_id: int, paths: Mapping[tuple[str, int], str], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PenstockError | None]:
        """Move replicas to other data folders of a broker, while they are used; `describe_log_dirs` tells how far they
        are. Each partition has None, once its move has begun, or an error.
        """
        return self._run(self._admin.alter_replica_log_dirs(broker_id, paths, timeout_ms=timeout_ms))

    def list_offsets(
        self,
        wanted: Mapping[tuple[str, int], OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetResult | PenstockError]:
        """Where partitions begin ("earliest") and end ("latest"), or their first record at or after a time."""
        return self._run(self._admin.list_offsets(wanted, isolation_level=isolation_level, timeout_ms=timeout_ms))

    # ------------------------------------------------------------------------------------------ groups

    def list_groups(self, *, states: Iterable[str] = (), timeout_ms: int | None = None) -> list[GroupListing]:
        """All groups of the cluster, by name; with `states` only those in one of them ("Stable", "Empty"...)."""
        return self._run(self._admin.list_groups(states=states, timeout_ms=timeout_ms))

    def describe_group(
        self, group_id: str, *, with_lag: bool = True, timeout_ms: int | None = None
    ) -> GroupDescription:
        """A group, its members and their partitions, and how far it is behind; raises UnknownGroup."""
        return self._run(self._admin.describe_group(group_id, with_lag=with_lag, timeout_ms=timeout_ms))

    def describe_groups(
        self, group_ids: Iterable[str], *, with_lag: bool = True, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription | PenstockError]:
        """Several groups; each has a description or an error."""
        return self._run(self._admin.describe_groups(group_ids, with_lag=with_lag, timeout_ms=timeout_ms))

    def delete_group(self, group_id: str, *, timeout_ms: int | None = None) -> None:
        """Forget a group without members, and its offsets; raises GroupNotEmpty, UnknownGroup."""
        self._run(self._admin.delete_group(group_id, timeout_ms=timeout_ms))

    def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, PenstockError | None]:
        """Delete several groups; each has a result or an error."""
        return self._run(self._admin.delete_groups(group_ids, timeout_ms=timeout_ms))

    def group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, for these partitions or for all; those without a commit are left out."""
        return self._run(self._admin.group_offsets(group_id, partitions, timeout_ms=timeout_ms))

    def set_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, PenstockError | None]:
        """Commit in the place of a group without members: where it shall go on reading."""
        return self._run(self._admin.set_group_offsets(group_id, offsets, timeout_ms=timeout_ms))

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PenstockError | None]:
        """Forget what a group has committed for partitions that it does not read at the moment."""
        return self._run(self._admin.delete_group_offsets(group_id, partitions, timeout_ms=timeout_ms))
