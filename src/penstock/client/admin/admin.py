"""`AsyncAdmin`, and `Admin`, its blocking face: the same calls, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, Unpack

from penstock.client.addresses import Addresses
from penstock.client.admin.acls import AclCalls
from penstock.client.admin.configs import ConfigCalls
from penstock.client.admin.groups import GroupCalls
from penstock.client.admin.topics import PartitionCalls, TopicCalls
from penstock.client.admin.transactions import TransactionCalls
from penstock.client.admin.users import UserCalls
from penstock.client.background import Background, blocking
from penstock.client.errors import ClosedError
from penstock.client.settings import ClientOptions

T = TypeVar("T")


class AsyncAdmin(TopicCalls, PartitionCalls, ConfigCalls, GroupCalls, TransactionCalls, UserCalls, AclCalls):
    """Administers a cluster.

        async with AsyncAdmin("localhost:9092") as admin:
            await admin.create_topic(TopicSpec("views", partitions=6), exist_ok=True)

    Calls about one thing raise; calls about several return a mapping with a result or an error for each. Every call
    takes `timeout_ms` and ends by then; the default is request_timeout_ms.
    """


class Admin:
    """Administers a cluster.

        with Admin("localhost:9092") as admin:
            admin.create_topic(TopicSpec("views", partitions=6), exist_ok=True)

    Raises BootstrapError if no broker can be reached. Calls about one thing raise; calls about several return a mapping
    with a result or an error for each. Every call takes `timeout_ms` and ends by then; the default is
    request_timeout_ms. Ctrl-C ends any of them.
    """

    def __init__(self, bootstrap_servers: Addresses, **options: Unpack[ClientOptions]) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._background = Background.acquire()
        try:
            self._async = AsyncAdmin(bootstrap_servers, **options)
            self._background.run(self._opened())
        except BaseException:
            self._closed = True
            self._background.release()
            raise

    async def _opened(self) -> None:
        try:
            await self._async.start()
        except BaseException:
            await self._async.close()
            raise

    def close(self, timeout: float | None = 10.0) -> None:
        """Close all connections; calls that wait in other threads end. Calling it twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._background.run(self._async.close(), timeout)
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
        """The result of a coroutine that uses the asyncio client, run on its loop."""
        return self._run(call(self._async))

    create_topic = blocking(AsyncAdmin.create_topic)
    create_topics = blocking(AsyncAdmin.create_topics)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    delete_topics = blocking(AsyncAdmin.delete_topics)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    describe_topics = blocking(AsyncAdmin.describe_topics)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    delete_records = blocking(AsyncAdmin.delete_records)

    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    alter_partition_reassignments = blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = blocking(AsyncAdmin.list_partition_reassignments)

    describe_config = blocking(AsyncAdmin.describe_config)
    describe_configs = blocking(AsyncAdmin.describe_configs)
    alter_config = blocking(AsyncAdmin.alter_config)
    alter_configs = blocking(AsyncAdmin.alter_configs)

    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)
    alter_replica_log_dirs = blocking(AsyncAdmin.alter_replica_log_dirs)
    list_offsets = blocking(AsyncAdmin.list_offsets)

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    describe_groups = blocking(AsyncAdmin.describe_groups)
    delete_group = blocking(AsyncAdmin.delete_group)
    delete_groups = blocking(AsyncAdmin.delete_groups)
    group_offsets = blocking(AsyncAdmin.group_offsets)
    set_group_offsets = blocking(AsyncAdmin.set_group_offsets)
    delete_group_offsets = blocking(AsyncAdmin.delete_group_offsets)

    describe_users = blocking(AsyncAdmin.describe_users)
    set_password = blocking(AsyncAdmin.set_password)
    delete_user = blocking(AsyncAdmin.delete_user)
    describe_quotas = blocking(AsyncAdmin.describe_quotas)
    alter_quota = blocking(AsyncAdmin.alter_quota)

    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transaction = blocking(AsyncAdmin.describe_transaction)
    describe_transactions = blocking(AsyncAdmin.describe_transactions)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    open_transactions = blocking(AsyncAdmin.open_transactions)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    fence_producers = blocking(AsyncAdmin.fence_producers)
    end_transaction = blocking(AsyncAdmin.end_transaction)

    describe_acls = blocking(AsyncAdmin.describe_acls)
    create_acls = blocking(AsyncAdmin.create_acls)
    delete_acls = blocking(AsyncAdmin.delete_acls)
