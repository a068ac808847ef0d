"""Requests that old tools write into the tree: /admin/reassign_partitions and /admin/preferred_replica_election."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.controller.controller_stories import Stage, asks_isr, given, only, until

from penstock.cluster.errors import NoNode
from penstock.cluster.tree.layout import (
    PREFERRED_ELECTION,
    REASSIGN_PARTITIONS,
    decode_reassignment,
    encode_reassignment,
)
from penstock.cluster.tree.tree import Tree, ensure_path, find, parent_of

T = ("t", 0)


async def request(tree: Tree, path: str, data: bytes) -> None:
    """What a tool does."""
    await ensure_path(tree, parent_of(path))
    await tree.create(path, data)


def test_requested_move_is_made_and_its_document_shrinks_with_it() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2), (1, 2))])
        wanted = {T: (3, 2), ("t", 1): (2, 1), ("unknown", 0): (1,)}
        tool = await stage.session()
        await request(tool, REASSIGN_PARTITIONS, encode_reassignment(wanted))
        await until(lambda: only(held).adding == (3,))
        # Another order needs no copy, and an unknown topic no move: both are gone from the document.
        while decode_reassignment((await tool.get(REASSIGN_PARTITIONS)).data) != {T: (3, 2)}:
            await asyncio.sleep(0.01)
        assert held.controller.image.topics["t"].partitions[1].replicas == (2, 1)
        await held.controller.alter_isrs([asks_isr(held, (1, 2, 3))])
        await until(lambda: only(held).replicas == (3, 2))
        while await find(tool, REASSIGN_PARTITIONS) is not None:
            await asyncio.sleep(0.01)
        await stage.in_step(held)

    stage.run(story())


def test_cancelled_move_leaves_the_document_and_is_not_started_again() -> None:
    stage = Stage()

    async def story() -> None:
        one, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (1, 2))])
        tool = await stage.session()
        await request(tool, REASSIGN_PARTITIONS, encode_reassignment({T: (3, 2)}))
        await until(lambda: only(held).adding == (3,))
        assert await held.controller.reassign({T: None}) == {T: None}
        while await find(tool, REASSIGN_PARTITIONS) is not None:
            await asyncio.sleep(0.01)
        assert (only(held).adding, set(only(held).replicas)) == ((), {1, 2})

    stage.run(story())


def test_next_controller_continues_a_requested_move() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, _ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 1))])
        tool = await stage.session()
        await request(tool, REASSIGN_PARTITIONS, encode_reassignment({T: (2, 3)}))
        await until(lambda: only(held).adding == (3,))
        stage.die(one)
        later = await stage.controller(two)
        await later.controller.alter_isrs([asks_isr(later, (2, 3))])
        await until(lambda: only(later).replicas == (2, 3))
        while await find(tool, REASSIGN_PARTITIONS) is not None:
            await asyncio.sleep(0.01)

    stage.run(story())


def test_requested_preferred_election_is_made_and_its_document_deleted() -> None:
    stage = Stage()

    async def story() -> None:
        one, two, *_ = await stage.members(1, 2, 3)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 3))])
        stage.die(two)
        await until(lambda: only(held).leader == 3)
        await stage.member(2)
        await until(lambda: 2 in held.controller.image.brokers)
        await held.controller.alter_isrs([asks_isr(held, (2, 3))])
        tool = await stage.session()
        await request(tool, PREFERRED_ELECTION, b'{"version":1,"partitions":[{"topic":"t","partition":0}]}')
        await until(lambda: only(held).leader == 2)
        with pytest.raises(NoNode):
            await tool.get(PREFERRED_ELECTION)

    stage.run(story())


@pytest.mark.parametrize("path", [REASSIGN_PARTITIONS, PREFERRED_ELECTION])
@pytest.mark.parametrize("document", [b"{", b"", b"\xff", b'{"version":1}', b'{"version":1,"partitions":[{}]}'])
def test_unreadable_request_is_logged_and_discarded(
    path: str, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()

    async def story() -> None:
        one, _ = await stage.members(1, 2)
        held = await stage.controller(one)
        await held.controller.create_topics([given("t", (2, 1))])
        tool = await stage.session()
        await request(tool, path, document)
        while await find(tool, path) is not None:
            await asyncio.sleep(0.01)
        assert "admin request discarded" in caplog.text
        assert path in caplog.text
        await stage.in_step(held)

    stage.run(story())


def test_request_without_partitions_is_deleted() -> None:
    stage = Stage()

    async def story() -> None:
        (one,) = await stage.members(1)
        await stage.controller(one)
        tool = await stage.session()
        for path in (REASSIGN_PARTITIONS, PREFERRED_ELECTION):
            await request(tool, path, b'{"version":1,"partitions":[]}')
            while await find(tool, path) is not None:
                await asyncio.sleep(0.01)

    stage.run(story())
