"""The controller: the one that decides what a cluster is, for as long as its claim holds.

Noun: a `Controller` over a tree, for one claim to it (`controller_claim`): everything that can be asked of it. What is
decided comes from the pure modules, the order of changes from `controller_core`, the way into the tree from
`controller_store`.

Rule: what is answered is stored. Changes of many things are decided and answered one by one; what leaders ask for their
ISRs is stored together. Whoever asks a controller that has lost its claim is refused, by NotController.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from penstock.cluster import preferred, shutdowns
from penstock.cluster.assignment import load_of
from penstock.cluster.broker_changes import rules_changed
from penstock.cluster.configs import ConfigRules, ResourceKind, edit_config, replace_config
from penstock.cluster.controller_claim import ControllerClaim
from penstock.cluster.controller_core import ControllerCore
from penstock.cluster.controller_store import prepare_nothing
from penstock.cluster.decision import Decision, TopicPartition
from penstock.cluster.deletions import delete_at_once, mark_deleted
from penstock.cluster.errors import (
    BadVersion,
    ConnectionLost,
    ElectionNotNeeded,
    NodeExists,
    NoNode,
    Refusal,
    UnknownTopicId,
)
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.image_holder import Listener, Preparation
from penstock.cluster.isr_changes import IsrRefusal, IsrRequest, put_isr
from penstock.cluster.layout import NO_LEADER
from penstock.cluster.outcomes import (
    ConfigChange,
    ConfigOutcome,
    NewPartitions,
    TopicOutcome,
    config_outcome,
    deletion_outcome,
    refuse_repeated,
    repeated,
    topic_outcome,
)
from penstock.cluster.partition_changes import Changes
from penstock.cluster.partition_rules import PartitionRules, RulesIn, rules_in
from penstock.cluster.preferred import ElectionKind
from penstock.cluster.reassignment import MoveProgress, Wanted, alter_reassignments, progress
from penstock.cluster.topics import NewTopic, Placement, TopicDefaults, add_partitions, create_topic
from penstock.cluster.tree import Tree
from penstock.runtime.randomness import Random

logger = logging.getLogger(__name__)
T = TypeVar("T")
IsrAnswer = IsrRefusal | PartitionImage
Outcomes = dict[TopicPartition, Refusal | None]
"""By partition, why nothing came of it, None where something did."""

IMBALANCE_PERCENT: Final = 10
_RETRY_FIRST_MS: Final = 50
_RETRY_MAX_MS: Final = 1000
_PASSING: Final = (ConnectionLost, BadVersion, NodeExists, NoNode)


class Controller(ControllerCore):
    """Of one claim, made by `broker_id`. `start` it, use it, `resign`; the tree is closed by whoever opened it.

    `rules_of` tells what a topic's settings in an image demand. `on_image` is called with the image before and after
    each change that was stored, and `prepare` awaited before that. `on_lost` is called once, if the claim is found to
    be lost. With `deletes_at_once` a topic is gone when its deletion is answered: for a cluster of one broker, which
    has seen every image before anybody is answered.
    """

    def __init__(
        self,
        tree: Tree,
        claim: ControllerClaim,
        random: Random,
        rules: ConfigRules,
        *,
        broker_id: int,
        rules_of: RulesIn = lambda _, __: PartitionRules(),
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 - immutable
        on_image: Listener = lambda _, __: None,
        prepare: Preparation = prepare_nothing,
        on_lost: Callable[[], None] = lambda: None,
        deletes_at_once: bool = False,
    ) -> None:
        super().__init__(tree, claim, broker_id, rules_of, on_image, prepare, on_lost, deletes_at_once=deletes_at_once)
        self._random = random
        self._rules = rules
        self._rules_of = rules_of
        self._defaults = defaults
        self._deletes_at_once = deletes_at_once
        self._isrs: list[tuple[Sequence[IsrRequest], asyncio.Future[list[IsrAnswer]]]] = []

    # What administrators ask for.

    async def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        twice = repeated([topic.name for topic in wanted])
        placing = _Placing(self._random)

        def decide(image: ClusterImage, topic: NewTopic) -> Decision:
            refuse_repeated(topic.name, twice)
            topic_id = self._random.uuid_bytes()
            return create_topic(image, topic, topic_id, placing.on(image), self._rules, self._defaults)

        results = await self._change_each(wanted, decide, validate_only, on_draft=True)
        return [topic_outcome(topic.name, result) for topic, result in zip(wanted, results, strict=True)]

    async def create_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        twice = repeated([item.topic for item in wanted])
        placing = _Placing(self._random)

        def decide(image: ClusterImage, item: NewPartitions) -> Decision:
            refuse_repeated(item.topic, twice)
            return add_partitions(image, item.topic, item.total, placing.on(image), item.assignments)

        results = await self._change_each(wanted, decide, validate_only, on_draft=True)
        return [topic_outcome(item.topic, result) for item, result in zip(wanted, results, strict=True)]

    async def delete_topics(self, names: Sequence[str | bytes]) -> list[TopicOutcome]:
        """By name or by id; an outcome for each, in order, with the topic that is no more, or is on its way out."""
        delete = delete_at_once if self._deletes_at_once else mark_deleted

        def decide(image: ClusterImage, wanted: str | bytes) -> Decision:
            if isinstance(wanted, str):
                return delete(image, wanted)
            topic = image.topic_by_id(wanted)
            if topic is None:
                raise UnknownTopicId(f"there is no topic with the id {wanted.hex()}")
            return delete(image, topic.name)

        results = await self._change_each(names, decide, on_draft=True)
        return [deletion_outcome(wanted, result) for wanted, result in zip(names, results, strict=True)]

    async def alter_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigOutcome]:
        """An outcome for each, in order."""
        twice = repeated([(change.kind, change.name) for change in changes])

        def decide(image: ClusterImage, change: ConfigChange) -> Decision:
            refuse_repeated((change.kind, change.name), twice)
            if change.replacement is not None:
                decided = replace_config(image, change.kind, change.name, change.replacement, self._rules)
            else:
                decided = edit_config(image, change.kind, change.name, change.edits, self._rules)
            return self._with_rules(image, decided, change)

        results = await self._change_each(changes, decide, validate_only)
        return [config_outcome(change, result) for change, result in zip(changes, results, strict=True)]

    async def elect_leaders(self, kind: ElectionKind, partitions: Iterable[TopicPartition] | None = None) -> Outcomes:
        """For these partitions; or for all that need it, and then only what came of those. NotController."""
        wanted = None if partitions is None else list(partitions)

        async def elect() -> Outcomes:
            image = self._store.image
            chosen = _not_led_as_wanted(image, kind) if wanted is None else wanted
            decision, refusals = preferred.elect_leaders(image, chosen, kind, self._duties.rules())
            await self._store.store(decision)
            outcomes = {key: refusals.get(key) for key in chosen}
            if wanted is None:
                return {key: each for key, each in outcomes.items() if not isinstance(each, ElectionNotNeeded)}
            return outcomes

        return await self._change(elect)

    async def reassign(self, wanted: Wanted) -> Outcomes:
        """Let partitions have other replicas; None takes back what is under way. NotController."""

        async def alter() -> Outcomes:
            decision, refusals = alter_reassignments(self._store.image, wanted, self._duties.rules())
            await self._store.store(decision)
            return {key: refusals.get(key) for key in wanted}

        return await self._change(alter)

    def reassignments(self, partitions: Iterable[TopicPartition] | None = None) -> list[MoveProgress]:
        """The moves that are under way, of these partitions or of all."""
        moving = self._store.hosting.moving() if partitions is None else partitions
        return progress(self._store.image, moving)

    # What brokers ask for.

    async def alter_isrs(self, requests: Sequence[IsrRequest]) -> list[IsrAnswer]:
        """For each, in order, the partition with that ISR, or why it has not. What several leaders ask for while
        something else is being stored is stored together. NotController, MetadataUnavailable.
        """
        self._require_started()
        answer: asyncio.Future[list[IsrAnswer]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_read_error)
        self._isrs.append((requests, answer))
        if len(self._isrs) == 1:
            self._spawn(self._alter_isrs())
        return await asyncio.shield(answer)

    async def shut_down(
        self, broker_id: int, broker_epoch: int, at_any_price: bool = False
    ) -> tuple[TopicPartition, ...]:
        """Take a broker out of what it leads and of ISRs; the partitions that still need it. StaleBrokerEpoch."""

        async def leave() -> tuple[TopicPartition, ...]:
            decision, remaining = shutdowns.shut_down(
                self._store.hosting, broker_id, broker_epoch, self._duties.rules(), at_any_price=at_any_price
            )
            await self._store.store(decision)
            return remaining

        return await self._change(leave)

    def report_removed(self, broker_id: int, topic: str, topic_id: bytes) -> None:
        """A broker has nothing left of a topic that is on its way out."""
        deletions = self._store.deletions
        for index, holder in sorted(deletions.awaited(topic)):
            if holder == broker_id:
                deletions.reported_gone(topic, topic_id, index, broker_id)
        self._tend()

    async def tick(self, imbalance_percent: float = IMBALANCE_PERCENT) -> int:
        """Give brokers back what they should lead, where others lead more than so much of it; how many partitions."""

        async def balance() -> int:
            wanted: list[TopicPartition] = []
            for broker_id in sorted(self._store.image.brokers):
                found = preferred.preference(self._store.hosting, broker_id)
                if found.imbalance_percent > imbalance_percent:
                    wanted += found.elsewhere
                await asyncio.sleep(0)  # a large cluster takes a while to look through
            elected = preferred.elect_leaders(self._store.image, wanted, ElectionKind.PREFERRED, self._duties.rules())
            await self._store.store(elected.decision)
            return len(wanted) - len(elected.refusals)

        return await self._change(balance)

    async def _alter_isrs(self) -> None:
        async with self._changing:
            waiting, self._isrs = self._isrs, []
            try:
                await self._duties.settle()
                answers = iter(await self._store_isrs([request for requests, _ in waiting for request in requests]))
            except Exception as error:  # noqa: BLE001 - told to everybody who waits
                for _, answer in waiting:
                    answer.set_exception(error)
            else:
                for requests, answer in waiting:
                    answer.set_result([next(answers) for _ in requests])
            finally:
                self._tend()

    async def _store_isrs(self, requests: Sequence[IsrRequest]) -> list[IsrAnswer]:
        image = self._store.image
        rules = self._duties.rules()
        changes = Changes(image)
        epochs = {broker_id: registration.epoch for broker_id, registration in image.brokers.items()}
        refusals = [put_isr(changes, request, epochs, rules(request.topic)) for request in requests]
        decision = changes.decision()
        await self._store.store(decision)
        answers: list[IsrAnswer] = []
        for request, refusal in zip(requests, refusals, strict=True):
            partition = decision.image.partition(request.topic, request.partition)
            answers.append(IsrRefusal.UNKNOWN_PARTITION if partition is None else refusal or partition)
        self._duties.isrs_changed(
            [(each.topic, each.partition) for each, refusal in zip(requests, refusals, strict=True) if refusal is None]
        )
        return answers

    def _with_rules(self, before: ClusterImage, decided: Decision, change: ConfigChange) -> Decision:
        """A change of settings, and what it makes of partitions; if that takes several parts, the setting comes last:
        that somebody counts for less than he could is harmless, the contrary is not.
        """
        names = [change.name] if change.kind is ResourceKind.TOPIC else list(decided.image.topics)
        image, rules = decided.image, self._rules_of
        affected = [name for name in names if rules(before, name) != rules(image, name)]
        if not affected:
            return decided
        first = len(decided.operations)
        decision = rules_changed(decided, affected, rules_in(rules, image))
        return decision._replace(operations=(*decision.operations[first:], *decided.operations))


class _Placing:
    """Where the replicas of one request's topics go: what all partitions weigh is counted once."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._placement: Placement | None = None

    def on(self, image: ClusterImage) -> Placement:
        if self._placement is None:
            # Of no interest as long as there is nobody else to carry them.
            alone = len(image.brokers) < 2
            topics = image.topics.values()
            load = None if alone else load_of(each.replicas for topic in topics for each in topic.partitions)
            self._placement = Placement(self._random, load)
        return self._placement


def _not_led_as_wanted(image: ClusterImage, kind: ElectionKind) -> list[TopicPartition]:
    def needs(partition: PartitionImage) -> bool:
        if kind is ElectionKind.PREFERRED:
            return partition.leader != partition.replicas[0]
        return image.live_leader(partition) == NO_LEADER

    return [
        (topic.name, index)
        for topic in image.topics.values()
        if topic.name not in image.deleting
        for index, partition in enumerate(topic.partitions)
        if needs(partition)
    ]


def _read_error(answer: asyncio.Future[Any]) -> None:
    # Whoever asked may have gone meanwhile: an error that nobody reads is no mistake.
    if not answer.cancelled():
        answer.exception()
