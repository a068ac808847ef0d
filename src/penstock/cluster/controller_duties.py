"""What a controller does without being asked.

Noun: its `Duties`: to read again what is in doubt, to deal with brokers that came and went, to end moves whose replicas
have caught up, to end topics of which nothing is left.

Rule: a duty is done whole or stays due. Whoever calls has the store for itself, and calls again after a Refusal.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from penstock.cluster import parts, paths
from penstock.cluster.broker_news import BrokerNews, decide_all, decide_news, news_of_brokers
from penstock.cluster.controller_store import ControllerStore
from penstock.cluster.decision import Decision, TopicPartition
from penstock.cluster.errors import LayoutError
from penstock.cluster.image import ImageDraft
from penstock.cluster.layout import BrokerRegistration
from penstock.cluster.loading import load_brokers, marked_for_deletion
from penstock.cluster.partition_rules import RulesIn, RulesOf, rules_in
from penstock.cluster.reassignment import complete_reassignments
from penstock.cluster.remains import has_stateless, missing_nodes, remains_of_deletions
from penstock.cluster.topics import delete_topic
from penstock.cluster.tree import Delete, Operation, ensure_path

logger = logging.getLogger(__name__)


class Duties:
    """Of one controller. `deletes_at_once`: nobody is waited for when a topic goes."""

    def __init__(self, store: ControllerStore, rules: RulesIn, *, deletes_at_once: bool) -> None:
        self._store = store
        self._rules = rules
        self._deletes_at_once = deletes_at_once
        self._have_brokers_changed = False
        self._are_moves_due = False
        self._unsettled: set[int] = set()  # brokers that went, and not all that follows from that is stored

    @property
    def are_due(self) -> bool:
        store = self._store
        return bool(
            store.is_in_doubt
            or self._have_brokers_changed
            or self._unsettled
            or self._are_moves_due
            or store.deletions.finished()
        )

    def hear_of_brokers(self) -> None:
        self._have_brokers_changed = True

    def rules(self) -> RulesOf:
        """As the image says now."""
        return rules_in(self._rules, self._store.image)

    async def begin(self) -> None:
        """Take over from whoever was the controller before. Refusal, LayoutError."""
        store = self._store
        with store.reading():
            await ensure_path(store.tree, paths.BROKER_EPOCHS)
        await store.load()
        await self._clear_remains()
        news = await self._news()
        decision = decide_all(news, store.broker_epochs, rules_in(self._rules, news.image))
        with store.reading():
            nodes = await missing_nodes(store.tree, news.image)
        await store.store(decision._replace(operations=(*nodes, *decision.operations)))
        self._dealt_with(news)
        self._are_moves_due = True
        await self.carry_on()

    async def settle(self) -> None:
        """Whatever comes before everything else. Refusal."""
        store = self._store
        store.require()
        if store.is_in_doubt:
            await store.reread()
            await self._clear_remains()
            await self._give_states()
            self._are_moves_due = True
        if self._have_brokers_changed or self._unsettled:
            await self._follow_brokers()

    async def carry_on(self) -> None:
        """Whatever comes after. Refusal."""
        store = self._store
        if self._are_moves_due:
            await store.store(complete_reassignments(store.image, store.hosting.moving(), self.rules()))
            self._are_moves_due = False
        if self._deletes_at_once:
            for name in sorted(store.image.deleting):
                gone = delete_topic(store.image, name)
                await store.store(Decision((*gone.operations, Delete(paths.deletion(name))), gone.image))
        finished: Sequence[str] = store.deletions.finished()
        while finished:
            finished = await self._finish_deletions(finished)

    async def _finish_deletions(self, finished: Sequence[str]) -> Sequence[str]:
        """The end of some of these topics, stored together; the others."""
        store = self._store
        draft = ImageDraft(store.image)
        operations: list[Operation] = []
        ended: list[str] = []
        left = deque(finished)
        while left and len(operations) < parts.TOGETHER:
            name = left.popleft()
            end = store.deletions.finish(draft, name)
            if end is not None:
                operations += end.operations
                ended.append(name)
        await store.store(Decision(tuple(operations), draft.finish()))
        for name in ended:
            logger.info("the topic %s is deleted: nothing of it is left anywhere", name)
        return left

    def isrs_changed(self, partitions: list[TopicPartition]) -> None:
        """Moves of these may have come to their end."""
        image = self._store.image
        found = (image.partition(*key) for key in partitions)
        if any(each is not None and (each.adding or each.removing) for each in found):
            self._are_moves_due = True

    # Brokers.

    async def _follow_brokers(self) -> None:
        store = self._store
        news = await self._news()
        if not news:
            # Where it listens may have changed: not who it is.
            if news.image.brokers != store.image.brokers:
                await store.store(Decision((), news.image))
            return
        _tell(news)
        self._unsettled.update(news.went)
        decision = decide_news(news, store.hosting, store.broker_epochs, rules_in(self._rules, news.image))
        try:
            await store.store(decision)
        except BaseException:
            self._have_brokers_changed = True
            raise
        self._unsettled.clear()
        self._dealt_with(news)
        self._are_moves_due = self._are_moves_due or bool(store.hosting.moving())

    async def _news(self) -> BrokerNews:
        store = self._store
        self._have_brokers_changed = False  # Whatever changes from here on is told again.
        try:
            with store.reading():
                found: dict[int, BrokerRegistration] = await load_brokers(store.tree, _tell_unreadable)
        except BaseException:
            self._have_brokers_changed = True
            raise
        return news_of_brokers(store.image, found, store.broker_epochs, self._unsettled)

    def _dealt_with(self, news: BrokerNews) -> None:
        store = self._store
        store.broker_epochs = {**store.broker_epochs, **{each: news.image.brokers[each].epoch for each in news.came}}

    # What somebody left.

    async def _clear_remains(self) -> None:
        store = self._store
        with store.reading():
            marked = await marked_for_deletion(store.tree)
            remains = await remains_of_deletions(store.tree, store.image, marked)
        await store.store(remains)

    async def _give_states(self) -> None:
        store = self._store
        if not has_stateless(store.image):
            return
        nothing = BrokerNews(store.image, (), (), (), ())
        decision = decide_all(nothing, store.broker_epochs, self.rules())
        with store.reading():
            nodes = await missing_nodes(store.tree, store.image)
        await store.store(decision._replace(operations=(*nodes, *decision.operations)))


def _tell(news: BrokerNews) -> None:
    for broker_id in news.went:
        logger.info("broker %d went", broker_id)
    for broker_id in news.came:
        disks = ", with other disks" if broker_id in news.emptied else ""
        logger.info("broker %d came, under the epoch %d%s", broker_id, news.image.brokers[broker_id].epoch, disks)


def _tell_unreadable(error: LayoutError) -> None:
    logger.error("%s; the broker is taken for one that is not there", error)
