"""A shard whose epoch was lost begins a new one, whichever task notices the loss."""

from __future__ import annotations

import asyncio

from tests.mirror.mirrors import RunningMirror, create_topic, produce, settings_of

from penstock.client.admin import AsyncAdmin
from penstock.mirror.state import TOPICS_SHARD
from penstock.mirror.target import ShardTransactions, TargetWriter
from penstock.testing.embedded_broker import EmbeddedBroker


def test_a_shard_that_was_fenced_while_it_had_nothing_to_write_continues(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    settings = settings_of({"live": live.address}, offline.address, name=name, topics=f"{name}.*")

    async def fence() -> None:
        async with AsyncAdmin(offline.address) as admin:
            writer = TargetWriter(admin.cluster)
            await ShardTransactions(writer, f"{settings.state_topic}.{TOPICS_SHARD}").begin_epoch()
            await writer.close()

    create_topic(live.address, f"{name}-1")
    produce(live.address, f"{name}-1", 10)
    with RunningMirror(settings) as running:
        running.caught_up(1)
        asyncio.run(fence())
        create_topic(live.address, f"{name}-2")  # the search for topics, not the shard itself, writes this down
        running.caught_up(2)
