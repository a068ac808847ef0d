"""The controller: decides all changes of a cluster for as long as its claim holds.

`ControllerCore` runs one change at a time, in the order of the requests. Before each change it rereads what is in doubt
and handles brokers that joined or left, several in one decision. Its own tasks are retried until they are done.
Cancelling the caller does not cancel the change. Once the claim or the session is lost, nothing is changed any more and
requests fail with NotController.

`Controller` adds the requests. A response means that the change is stored. Changes of many things are decided one by
one and stored in groups; ISR changes that arrive while something is being stored are stored together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from penstock.cluster.controller import election, failover, transaction
from penstock.cluster.controller.configs import ConfigEdit, ConfigRules, ResourceKind, edit_config, replace_config
from penstock.cluster.controller.election import (
    AlterPartitionError,
    Changes,
    ElectionKind,
    IsrRequest,
    PartitionRules,
    RulesIn,
    put_isr,
    rules_in,
)
from penstock.cluster.controller.failover import ControllerTasks, rules_changed
from penstock.cluster.controller.reassignment import MoveProgress, WantedReplicas, alter_reassignments, progress
from penstock.cluster.controller.store import ControllerClaim, ControllerStore, prepare_nothing
from penstock.cluster.controller.topics import (
    NewTopic,
    Placement,
    TopicDefaults,
    add_partitions,
    create_topic,
    delete_at_once,
    mark_deleted,
)
from penstock.cluster.controller.transaction import Decision, TopicPartition
from penstock.cluster.errors import (
    ApiException,
    BadVersion,
    ConnectionLost,
    ElectionNotNeeded,
    InvalidRequest,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NotController,
    TreeError,
    UnknownTopicId,
)
from penstock.cluster.image import ClusterImage, ImageDraft, PartitionImage, TopicImage
from penstock.cluster.image_propagation import Listener, Preparation
from penstock.cluster.placement import load_of
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import NO_LEADER
from penstock.cluster.tree.tree import Operation, SessionEvent, Tree, find
from penstock.runtime.randomness import Random


class TopicOutcome(NamedTuple):
    """What came of a change of a topic: the topic as it is then, or was before its deletion; or why there is none."""

    name: str
    topic: TopicImage | None = None
    refusal: ApiException | None = None


class NewPartitions(NamedTuple):
    """A topic is to have `total` partitions; `assignments` are the replicas of the new ones."""

    topic: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


class ConfigChange(NamedTuple):
    """Some edits, or a whole new set in `replacement`."""

    kind: ResourceKind
    name: str
    edits: Sequence[ConfigEdit] = ()
    replacement: Mapping[str, str | None] | None = None


class ConfigOutcome(NamedTuple):
    kind: ResourceKind
    name: str
    refusal: ApiException | None = None


class Images(NamedTuple):
    """The image on which a change was decided, and the one after it."""

    before: ClusterImage
    after: ClusterImage


Result = Images | ApiException


def topic_outcome(name: str, result: Result) -> TopicOutcome:
    if isinstance(result, ApiException):
        return TopicOutcome(name, refusal=result)
    return TopicOutcome(name, result.after.topics[name])


def deletion_outcome(wanted: str | bytes, result: Result) -> TopicOutcome:
    if isinstance(result, ApiException):
        return TopicOutcome(wanted if isinstance(wanted, str) else "", refusal=result)
    topic = result.before.topics[wanted] if isinstance(wanted, str) else result.before.topic_by_id(wanted)
    return TopicOutcome("" if topic is None else topic.name, topic)


def config_outcome(change: ConfigChange, result: Result) -> ConfigOutcome:
    return ConfigOutcome(change.kind, change.name, result if isinstance(result, ApiException) else None)


def repeated(keys: Sequence[Hashable]) -> frozenset[Hashable]:
    return frozenset(key for key, count in Counter(keys).items() if count > 1)


def reject_repeated(key: Hashable, twice: frozenset[Hashable]) -> None:
    if key in twice:
        raise InvalidRequest("the request names the same thing twice")


logger = logging.getLogger(__name__)
T = TypeVar("T")

_RETRY_FIRST_MS: Final = 50
_RETRY_MAX_MS: Final = 1000
_PASSING: Final = (ConnectionLost, BadVersion, NodeExists, NoNode)


class _Group(NamedTuple):
    """What came of items that were changed together, and the image then."""

    results: list[Result]
    image: ClusterImage | None


def _decide_group(
    items: Sequence[T], decide: Callable[[ClusterImage, T], Decision], before: ClusterImage, on_draft: bool
) -> tuple[Decision, list[ApiException | None]]:
    """One decision for the first items, and why there is none for some of them.

    It takes one step of the tree, all or nothing, unless it is for one item.
    """
    image: ClusterImage = ImageDraft(before) if on_draft else before
    refusals: list[ApiException | None] = []
    operations: list[Operation] = []
    unclean: list[TopicPartition] = []
    size = transaction.TransactionSize()
    for item in items:
        try:
            decision = decide(image, item)
        except ApiException as refusal:
            refusals.append(refusal)
        else:
            if operations and transaction.TransactionSize().and_that_of(decision).is_large:
                return _decide_group(items[: len(refusals)], decide, before, on_draft)
            image = decision.image
            operations += decision.operations
            size = size.and_that_of(decision)
            unclean += decision.unclean
            refusals.append(None)
        if size.is_enough or len(refusals) >= transaction.GROUPED_OPERATIONS:
            break
    if isinstance(image, ImageDraft):
        image = image.finish()
    return Decision(tuple(operations), image, tuple(unclean)), refusals


class ControllerCore:
    """Of one claim, made by `broker_id`. `start` it, use it, `resign`; the tree is closed by whoever opened it."""

    def __init__(
        self,
        tree: Tree,
        claim: ControllerClaim,
        broker_id: int,
        rules_of: RulesIn,
        on_image: Listener,
        prepare: Preparation,
        on_lost: Callable[[], None],
        *,
        deletes_at_once: bool,
    ) -> None:
        self._tree = tree
        self._claim = claim
        self._on_lost = on_lost
        self._store = ControllerStore(tree, claim, broker_id, on_image, prepare, self._claim_lost)
        self._duties = ControllerTasks(self._store, rules_of, deletes_at_once=deletes_at_once)
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tasks_runner: asyncio.Task[None] | None = None
        self._cancels: list[Callable[[], None]] = []
        self._is_started = False

    @property
    def image(self) -> ClusterImage:
        return self._store.image

    @property
    def epoch(self) -> int:
        return self._claim.epoch

    @property
    def is_active(self) -> bool:
        """Whether it has started, and has not found its claim lost."""
        return self._is_started and self._store.lost is None

    # The start and the end.

    async def start(self) -> ClusterImage:
        """Read the tree, finish what was begun, see to leaders; the image then, which is shown.

        Tried again while the connection to the tree comes and goes. Refusal (NotController), LayoutError.
        """
        self._cancels += (
            self._tree.watch(layout.BROKER_IDS, lambda _: self._hear_of_brokers()),
            self._tree.watch(layout.CONTROLLER, lambda _: self._hear_of_controller()),
            self._tree.watch_session(self._session_event),
        )
        try:
            async with self._changing:
                await self._begin()
                await self._store.show()
        except BaseException:
            self._stop_watching()
            raise
        self._is_started = True
        self._start_tasks()
        return self._store.image

    async def resign(self, *, give_up: bool = False) -> None:
        """Return when the changes under way are done; take no more. `give_up` lets another take over at once."""
        had_it = self._store.lost is None
        if had_it:
            self._store.lost = NotController("this broker has resigned as the controller")
        self._stop_watching()
        tending = self._tasks_runner
        if tending is not None:
            tending.cancel()
            await asyncio.wait([tending])
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        if give_up and had_it:
            await self._store.give_up()

    def lost(self) -> None:
        """Somebody has heard of a later controller."""
        self._store.lose(NotController("another broker is the controller by now"))

    # The way of a change.

    async def _change_each(
        self,
        items: Sequence[T],
        decide: Callable[[ClusterImage, T], Decision],
        validate_only: bool = False,
        *,
        on_draft: bool = False,
    ) -> list[Result]:
        """Decide one after another and store them in groups; what brokers do meanwhile comes before the next group.

        A group that cannot be stored is tried again item by item, so that one of them does not spoil it for the others.
        With `on_draft`, `decide` is given an ImageDraft: it changes only topics and their settings.
        """
        self._require_started()

        async def change_all() -> list[Result]:
            results: list[Result] = []
            supposed: ClusterImage | None = None
            while len(results) < len(items):
                group = items[len(results) :]
                decided = await self._change_group(group, decide, on_draft, supposed, validate_only)
                results += decided.results
                supposed = decided.image if validate_only else None
            return results

        return await asyncio.shield(self._spawn(self._alone(change_all)))

    async def _change_group(
        self,
        items: Sequence[T],
        decide: Callable[[ClusterImage, T], Decision],
        on_draft: bool,
        supposed: ClusterImage | None,
        validate_only: bool,
    ) -> _Group:
        """Of as many items, from the first, as are stored in one step of the tree; at least one."""
        try:
            await self._duties.settle()
        except ApiException as refusal:
            return _Group([refusal], supposed)
        before = self._store.image if supposed is None else supposed
        decision, refusals = _decide_group(items, decide, before, on_draft)
        if validate_only:
            await asyncio.sleep(0)  # others are served between the groups
        else:
            try:
                await self._store.store(decision)
            except ApiException as refusal:
                if len(refusals) > 1 and self._store.lost is None:
                    return await self._change_singly(items[: len(refusals)], decide, on_draft)
                refusals = [each or refusal for each in refusals]
        images = Images(before, decision.image)
        return _Group([images if each is None else each for each in refusals], decision.image)

    async def _change_singly(
        self, items: Sequence[T], decide: Callable[[ClusterImage, T], Decision], on_draft: bool
    ) -> _Group:
        results: list[Result] = []
        for item in items:
            results += (await self._change_group([item], decide, on_draft, None, validate_only=False)).results
        return _Group(results, None)

    async def _change(self, work: Callable[[], Awaitable[T]]) -> T:
        """A task of its own, which whoever waits for it does not take along."""
        self._require_started()

        async def settled() -> T:
            await self._duties.settle()
            return await work()

        return await asyncio.shield(self._spawn(self._alone(settled)))

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._changing:
            try:
                return await work()
            finally:
                self._start_tasks()

    # What happens by itself.

    async def _begin(self) -> None:
        retry_ms = _RETRY_FIRST_MS
        while True:
            try:
                await self._duties.begin()
            except MetadataUnavailable as refusal:
                if self._store.lost is not None or not isinstance(refusal.__cause__, _PASSING):
                    raise
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, _RETRY_MAX_MS)
            else:
                return

    def _require_started(self) -> None:
        if not self._is_started:
            raise NotController("this broker has not begun to be the controller")

    def _start_tasks(self) -> None:
        """See to it that duties are done."""
        if self._tasks_runner is None and self.is_active and self._duties.are_due:
            self._tasks_runner = asyncio.get_running_loop().create_task(self._run_tasks())

    async def _run_tasks(self) -> None:
        retry_ms = _RETRY_FIRST_MS
        try:
            while self.is_active and self._duties.are_due:
                try:
                    async with self._changing:
                        await self._duties.settle()
                        await self._duties.carry_on()
                    retry_ms = _RETRY_FIRST_MS
                except Exception as error:
                    if not isinstance(error, ApiException):
                        logger.exception("the controller failed in what it does by itself, and tries again")
                    await asyncio.sleep(retry_ms / 1000)
                    retry_ms = min(2 * retry_ms, _RETRY_MAX_MS)
        finally:
            self._tasks_runner = None

    def _hear_of_brokers(self) -> None:
        self._duties.hear_of_brokers()
        self._start_tasks()

    def _hear_of_controller(self) -> None:
        if self._store.lost is None:
            self._spawn(self._look_at_claim())

    async def _look_at_claim(self) -> None:
        try:
            node = await find(self._tree, layout.CONTROLLER)
        except TreeError:
            return  # The session says how it goes on.
        if node is None or node.owner != self._tree.session_id:
            self.lost()

    def _session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._store.lose(NotController("the session with the metadata tree is over"))

    def _claim_lost(self) -> None:
        self._stop_watching()
        self._on_lost()

    def _stop_watching(self) -> None:
        while self._cancels:
            self._cancels.pop()()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


IsrAnswer = AlterPartitionError | PartitionImage
Outcomes = dict[TopicPartition, ApiException | None]
"""By partition, why nothing came of it, None where something did."""

IMBALANCE_PERCENT: Final = 10


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
            reject_repeated(topic.name, twice)
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
            reject_repeated(item.topic, twice)
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
            reject_repeated((change.kind, change.name), twice)
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
            chosen = _partitions_to_elect(image, kind) if wanted is None else wanted
            decision, refusals = election.elect_leaders(image, chosen, kind, self._duties.rules())
            await self._store.store(decision)
            outcomes = {key: refusals.get(key) for key in chosen}
            if wanted is None:
                return {key: each for key, each in outcomes.items() if not isinstance(each, ElectionNotNeeded)}
            return outcomes

        return await self._change(elect)

    async def reassign(self, wanted: WantedReplicas) -> Outcomes:
        """Let partitions have other replicas; None takes back what is under way. NotController."""

        async def alter() -> Outcomes:
            decision, refusals = alter_reassignments(self._store.image, wanted, self._duties.rules())
            await self._store.store(decision)
            return {key: refusals.get(key) for key in wanted}

        return await self._change(alter)

    def reassignments(self, partitions: Iterable[TopicPartition] | None = None) -> list[MoveProgress]:
        """The moves that are under way, of these partitions or of all."""
        moving = self._store.partitions_by_broker.moving() if partitions is None else partitions
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

    async def shut_down(self, broker_id: int, broker_epoch: int, force: bool = False) -> tuple[TopicPartition, ...]:
        """Take a broker out of what it leads and of ISRs; the partitions that still need it. StaleBrokerEpoch."""

        async def leave() -> tuple[TopicPartition, ...]:
            decision, remaining = failover.shut_down(
                self._store.partitions_by_broker, broker_id, broker_epoch, self._duties.rules(), force=force
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
        self._start_tasks()

    async def tick(self, imbalance_percent: float = IMBALANCE_PERCENT) -> int:
        """Give brokers back what they should lead, where others lead more than so much of it; how many partitions."""

        async def balance() -> int:
            wanted: list[TopicPartition] = []
            for broker_id in sorted(self._store.image.brokers):
                found = election.preferred_leaders(self._store.partitions_by_broker, broker_id)
                if found.imbalance_percent > imbalance_percent:
                    wanted += found.elsewhere
                await asyncio.sleep(0)  # a large cluster takes a while to look through
            elected = election.elect_leaders(self._store.image, wanted, ElectionKind.PREFERRED, self._duties.rules())
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
                self._start_tasks()

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
            answers.append(AlterPartitionError.UNKNOWN_PARTITION if partition is None else refusal or partition)
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


def _partitions_to_elect(image: ClusterImage, kind: ElectionKind) -> list[TopicPartition]:
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
