"""The admin client on asyncio: all calls, each described where it is made."""

from __future__ import annotations

from penstock.client.admin.configs import ConfigCalls
from penstock.client.admin.groups import GroupCalls
from penstock.client.admin.partitions import PartitionCalls
from penstock.client.admin.topics import TopicCalls


class AsyncAdmin(TopicCalls, PartitionCalls, ConfigCalls, GroupCalls):
    """Looks after a cluster.

        async with AsyncAdmin("localhost:9092") as admin:
            await admin.create_topic(TopicSpec("views", partitions=6), exist_ok=True)

    Calls about one thing raise; calls about many answer with a mapping that has a result or an error for each.
    Every call takes `timeout_ms`, and ends by then; the default is request_timeout_ms.
    """
