"""The order in which commits reach the store, and what a rejection means, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import pytest
from tests.timeouts import PATIENCE_S

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.coordinator import Commits
from penstock.client.consumer.membership import Assign, Idle, Membership, Revoke
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.errors import CommitFailed, TimedOut, error_for
from penstock.client.offset_stores.base import NO_MEMBER, OffsetAndMetadata
from penstock.client.offset_stores.base import Membership as Committer
from penstock.runtime.clock import ManualClock
from penstock.wire.protocol import ErrorCode

P = TopicPartition("t", 0)


class SlowStore:
    """Saves when it is let, in the order of the calls."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.rejection: ErrorCode | None = None
        self.committers: list[Committer] = []

    async def load(self, group: str, partitions: Iterable[Any]) -> dict[Any, OffsetAndMetadata]:
        return {P: OffsetAndMetadata(self.saved[-1])} if self.saved else {}

    async def save(
        self, group: str, offsets: Mapping[Any, OffsetAndMetadata], membership: Committer = NO_MEMBER
    ) -> None:
        assert not self.under_way, "two at once"
        self.under_way += 1
        self.committers.append(membership)
        try:
            await self.gate.wait()
            if self.rejection is not None:
                raise error_for(self.rejection)
            self.saved.append(offsets[P].offset)
        finally:
            self.under_way -= 1

    async def close(self) -> None: ...


def story(tell: Callable[[Commits, SlowStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = SlowStore()
        commits = Commits(store, ConsumerSettings(group_id="g"), ManualClock(), lambda: None)
        async with asyncio.timeout(PATIENCE_S):
            await tell(commits, store)

    asyncio.run(run())


def at(offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {P: OffsetAndMetadata(offset)}


def test_a_commit_does_not_overtake_one_that_was_asked_for_in_the_same_turn() -> None:
    async def tell(commits: Commits, store: SlowStore) -> None:
        commits.commit_soon(at(1))
        await commits.commit(at(2), 1_000)
        await commits.drain()
        assert store.saved == [1, 2]

    story(tell)


def test_commits_go_out_one_after_the_other_in_the_order_of_the_calls() -> None:
    async def tell(commits: Commits, store: SlowStore) -> None:
        store.gate.clear()
        heard: list[int] = []
        for offset in range(1, 6):
            commits.commit_soon(at(offset), lambda offsets, _: heard.append(offsets[P].offset))
        last = asyncio.ensure_future(commits.commit(at(6), 1_000))
        await asyncio.sleep(0)
        store.gate.set()
        await last
        assert store.saved == [1, 2, 3, 4, 5, 6]
        assert heard == [1, 2, 3, 4, 5]

    story(tell)


def test_a_commit_that_times_out_while_waiting_leaves_the_others_in_order() -> None:
    async def tell(commits: Commits, store: SlowStore) -> None:
        store.gate.clear()
        commits.commit_soon(at(1))
        with pytest.raises(TimedOut):
            await commits.commit(at(2), 1)
        commits.commit_soon(at(3))
        store.gate.set()
        await commits.commit(at(4), 1_000)
        assert store.saved == [1, 3, 4]

    story(tell)


def test_closing_before_a_commit_began_leaves_the_row_free() -> None:
    async def tell(commits: Commits, store: SlowStore) -> None:
        commits.commit_soon(at(1))
        await commits.close()  # its task has not run yet
        await commits.commit(at(2), 1_000)
        assert store.saved == [2]

    story(tell)


def member() -> Membership:
    """Of a group, in its generation 1, reading what there is."""
    membership = Membership(
        is_cooperative=False, instance_id=None, heartbeat_interval_ms=3_000, max_poll_interval_ms=300_000
    )
    settle(membership, 1)
    return membership


def settle(membership: Membership, generation: int) -> None:
    membership.joined(ErrorCode.NONE, 0, member_id="m", generation=generation, leader="m")
    membership.synced(ErrorCode.NONE, 0, [P])
    assign = membership.next_step(0)
    assert isinstance(assign, Assign)
    membership.assigned(assign, 0)


def test_a_member_whose_generation_is_rejected_has_lost_its_partitions() -> None:
    async def tell(commits: Commits, store: SlowStore) -> None:
        membership = commits.membership = member()
        store.rejection = ErrorCode.ILLEGAL_GENERATION
        with pytest.raises(CommitFailed):
            await commits.commit(at(1), 1_000)
        assert membership.next_step(0) == Revoke(frozenset({P}), lost=True)

    story(tell)


def test_a_rejected_old_generation_does_not_affect_the_current_one() -> None:
    """A commit that was tried again and again until the group had met (seed 8328)."""

    async def tell(commits: Commits, store: SlowStore) -> None:
        membership = commits.membership = member()
        store.gate.clear()
        old = asyncio.ensure_future(commits.commit(at(1), 1_000))
        await asyncio.sleep(0)
        membership.request_rejoin("the group is rebalancing", 0)
        membership.revoked(Revoke(frozenset({P}), lost=False), 0)
        settle(membership, 2)
        store.rejection = ErrorCode.ILLEGAL_GENERATION
        store.gate.set()
        with pytest.raises(CommitFailed):
            await old
        assert (membership.generation, membership.owned) == (2, frozenset({P}))
        assert isinstance(membership.next_step(0), Idle)
        store.rejection = None
        await commits.commit(at(1), 1_000)
        assert [each.generation for each in store.committers] == [1, 2]
        assert store.saved == [1]

    story(tell)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_commits_that_wait_while_the_membership_is_lost_are_not_sent(code: ErrorCode) -> None:
    """Without a generation the coordinator of a group that is empty by now would accept them (seed 3592)."""

    async def tell(commits: Commits, store: SlowStore) -> None:
        membership = commits.membership = member()
        store.gate.clear()
        first = asyncio.ensure_future(commits.commit(at(1), 1_000))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(commits.commit(at(2), 1_000))
        await asyncio.sleep(0)
        store.rejection = code
        store.gate.set()
        outcomes = await asyncio.gather(first, waiting, return_exceptions=True)
        assert [type(each) for each in outcomes] == [CommitFailed, CommitFailed]
        assert [each.generation for each in store.committers] == [1]
        store.rejection = None
        membership.revoked(Revoke(frozenset({P}), lost=True), 0)
        settle(membership, 2)
        await commits.commit(at(3), 1_000)
        assert store.saved == [3]

    story(tell)


@pytest.mark.parametrize(("goes_away", "generations"), [(True, [1, 1, 2]), (False, [1, 2, 2])])
def test_a_commit_that_waited_while_its_partition_went_away_is_sent_as_the_member_that_asked_for_it(
    goes_away: bool, generations: list[int]
) -> None:
    """As a member of the new generation it would take back what the owner in between has committed (seed 30249).

    While the member keeps the partition, a new generation does not cost it the commit.
    """

    async def tell(commits: Commits, store: SlowStore) -> None:
        membership = commits.membership = member()
        store.gate.clear()
        first = asyncio.ensure_future(commits.commit(at(1), 1_000))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(commits.commit(at(2), 1_000))
        await asyncio.sleep(0)
        membership.request_rejoin("the group is rebalancing", 0)
        if goes_away:
            membership.revoked(Revoke(frozenset({P}), lost=True), 0)
            commits.forget(P)
        settle(membership, 2)
        store.gate.set()
        await asyncio.gather(first, waiting)
        await commits.commit(at(3), 1_000)
        assert [each.generation for each in store.committers] == generations

    story(tell)
