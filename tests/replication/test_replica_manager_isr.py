"""ISR changes: requested by the leader, decided by the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from tests.cluster.controller.decision_stories import alter_isr
from tests.replication.replica_stories import LEDGER, TOPIC, TOPIC_ID, Host, TopicRules, cluster

from penstock.cluster.controller.election import IsrAnswer, IsrRequest
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.tree.layout import TopicReplicas
from penstock.log.errors import LogFailed
from penstock.replication.replica_manager import AlterPartitionManager
from penstock.wire.protocol import ErrorCode

LAG_MS = 1000


class Story:
    """A leader with two followers and a controller that can be deaf, dumb or slow."""

    def __init__(self, *, isr: Sequence[int] = (1, 2, 3), minimum: int = 1) -> None:
        self.hosts = [Host(broker, rules=TopicRules(min_insync_replicas=minimum)) for broker in (1, 2, 3)]
        self.image = cluster(1, 5, isr=isr, version=7)
        for host in self.hosts:
            host.take(self.image)
        self.leader, self.second, self.third = self.hosts
        self.asked: list[IsrRequest] = []
        self.is_deaf = self.is_dumb = False
        self.slow: asyncio.Event | None = None
        clock = self.leader.clock
        self.manager = AlterPartitionManager(
            self.leader.replicas, 1, lambda: LEDGER[1], self.leader.replicas.online, self.ask,
            lambda: LAG_MS, clock.monotonic_ms,
        )  # fmt: skip

    async def ask(self, requests: list[IsrRequest]) -> list[IsrAnswer]:
        self.asked += requests
        if self.slow is not None:
            await self.slow.wait()
        if self.is_deaf:
            raise ConnectionError("no controller")
        answers: list[IsrAnswer] = []
        for request in requests:
            decision = alter_isr(self.image, request)
            if isinstance(decision, ErrorCode):
                answers.append(decision)
                continue
            self.image = decision.image
            partition = self.image.partition(TOPIC, 0)
            assert partition is not None
            answers.append(partition)
        if self.is_dumb:
            raise ConnectionError("the answer was lost")
        return answers

    def tick(self) -> None:
        """The manager requests changes, and the leader gets the image with the outcome."""
        asyncio.run(self.manager.tick())
        if not self.is_dumb:
            self.leader.take(self.image)

    def isr(self) -> tuple[int, ...]:
        leadership = self.leader.partition.leadership
        assert leadership is not None
        return leadership.isr

    def stored(self) -> tuple[int, ...]:
        partition = self.image.partition(TOPIC, 0)
        assert partition is not None
        return partition.isr


def rounds(leader: Host, *followers: Host) -> None:
    for _ in range(3):
        for follower in followers:
            follower.fetch_from(leader)


def test_slow_follower_leaves_and_its_producer_is_answered_and_it_returns() -> None:
    story = Story()
    rounds(story.leader, story.second, story.third)
    story.tick()
    waiting = story.leader.append(b"a")
    rounds(story.leader, story.second)
    story.leader.timers.pass_time(600)
    rounds(story.leader, story.second)
    story.tick()
    assert story.isr() == (1, 2, 3), "it is late, but not too late"
    story.leader.clock.advance(600)
    rounds(story.leader, story.second)
    story.tick()
    assert story.isr() == story.stored() == (1, 2)
    assert waiting.is_good
    rounds(story.leader, story.third)
    story.tick()
    assert story.isr() == story.stored() == (1, 2, 3)
    assert (story.manager.shrinks, story.manager.expansions) == (1, 1)


def with_offline(image: ClusterImage, broker: int, partition: int) -> ClusterImage:
    offline = {TOPIC: TopicReplicas(TOPIC_ID, frozenset({partition}))}
    return image.with_broker(replace(image.brokers[broker], offline=offline))


def test_follower_whose_folder_failed_is_not_asked_for_again_although_it_had_everything() -> None:
    story = Story()
    rounds(story.leader, story.second, story.third)
    state = story.image.topics[TOPIC].partitions[0]
    without = replace(state, isr=(1, 2), state_version=state.state_version + 1)
    image = with_offline(story.image.with_topic(TopicImage(TOPIC, TOPIC_ID, (without,))), 3, 0)
    story.image = image
    story.leader.take(image)
    assert set(story.leader.replicas.online(story.leader.partition)) == {1, 2}
    for _ in range(3):
        story.leader.clock.advance(LAG_MS // 2)
        rounds(story.leader, story.second)
        story.tick()
    assert (story.isr(), story.asked) == ((1, 2), [])
    rounds(story.leader, story.third)
    story.tick()
    assert story.asked == [], "a late fetch does not count either"
    story.image = image.with_broker(replace(image.brokers[3], offline={}))
    story.leader.take(story.image)
    rounds(story.leader, story.third)
    story.tick()
    assert story.stored() == (1, 2, 3)


def test_leader_whose_folder_failed_does_not_shrink_the_isr_to_itself() -> None:
    story = Story()
    rounds(story.leader, story.second, story.third)
    story.leader.append(b"a")
    story.leader.partition.log.fail(LogFailed("/data/t-0", "it is broken"))
    story.leader.clock.advance(10 * LAG_MS)
    story.tick()
    assert (story.isr(), story.asked) == ((1, 2, 3), [])


def test_idle_partition_keeps_its_isr_when_it_is_written_to_again() -> None:
    """A follower at the end of a quiet log fetches nothing; that does not count as lag when a record arrives."""
    story = Story()
    rounds(story.leader, story.second, story.third)
    for _ in range(20):
        story.leader.clock.advance(LAG_MS // 2)
        story.tick()
    story.leader.append(b"a")
    story.tick()
    assert story.isr() == (1, 2, 3)
    assert story.asked == []


def test_change_whose_answer_is_lost_counts_until_it_is_asked_again() -> None:
    story = Story(isr=(1, 2))
    story.is_dumb = True
    rounds(story.leader, story.second, story.third)
    story.tick()
    assert (story.stored(), story.isr()) == ((1, 2, 3), (1, 2))
    waiting = story.leader.append(b"a")
    rounds(story.leader, story.second)
    assert not waiting.is_answered, "the third may be in sync by now, and it is"
    story.tick()
    assert story.asked[0] == story.asked[1]
    assert not waiting.is_answered, "rejected, because the state has changed; the image will bring it"
    story.leader.take(story.image)
    assert story.isr() == (1, 2, 3)
    rounds(story.leader, story.third)
    assert waiting.is_good


def test_request_that_never_arrived_is_repeated() -> None:
    story = Story(isr=(1, 2))
    story.is_deaf = True
    rounds(story.leader, story.second, story.third)
    story.tick()
    story.is_deaf = False
    story.tick()
    assert story.isr() == story.stored() == (1, 2, 3)
    assert story.asked[0] == story.asked[1]


def test_who_may_not_join_does_not_hold_up_the_others() -> None:
    story = Story(isr=(1, 2))
    story.image = story.image.with_shutting_down(3)
    rounds(story.leader, story.second, story.third)
    story.tick()
    assert story.isr() == (1, 2)
    waiting = story.leader.append(b"a")
    rounds(story.leader, story.second)
    assert waiting.is_good, "definitely rejected: the third no longer counts"


def test_one_question_at_a_time() -> None:
    async def story_of_two_ticks() -> None:
        story = Story(isr=(1, 2))
        story.slow = asyncio.Event()
        rounds(story.leader, story.second, story.third)
        first = asyncio.create_task(story.manager.tick())
        await asyncio.sleep(0)
        await story.manager.tick()
        assert len(story.asked) == 1
        story.slow.set()
        await first
        assert story.stored() == (1, 2, 3)

    asyncio.run(story_of_two_ticks())


def test_answer_that_comes_after_the_leadership_changes_nothing() -> None:
    async def story_of_a_late_answer() -> None:
        story = Story(isr=(1, 2))
        story.slow = asyncio.Event()
        rounds(story.leader, story.second, story.third)
        question = asyncio.create_task(story.manager.tick())
        await asyncio.sleep(0)
        story.leader.take(cluster(2, 6, isr=(2,), version=8))
        story.slow.set()
        await question
        assert not story.leader.partition.is_leader

    asyncio.run(story_of_a_late_answer())


def test_writes_are_accepted_again_when_a_replica_returns() -> None:
    story = Story(isr=(1,), minimum=2)
    story.leader.append(b"a", acks_all=False)
    assert story.leader.partition.log.high_watermark == 0
    rounds(story.leader, story.second)
    story.tick()
    assert story.isr() == (1, 2)
    assert story.leader.partition.log.high_watermark == 1
