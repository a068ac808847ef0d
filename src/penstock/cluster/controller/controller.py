"""The controller: decides all changes of a cluster for as long as its claim holds.

`ControllerCore` runs one change at a time, in the order of the requests. Before each change it rereads what is in doubt
and handles brokers that joined or left, several in one decision. Its own tasks are retried until they are done.
Cancelling the caller does not cancel the change. Once the claim or the session is lost, nothing is changed any more and
requests fail with NotController.

`Controller` adds the requests. A response means that the change is stored; administrators' changes of topics and
settings also wait, for a bounded time, until brokers have the new image. Changes of many things are decided one by one
and stored in groups; ISR changes that arrive while something is being stored are stored together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from penstock.cluster.controller import acls, election, entity_configs, failover
from penstock.cluster.controller.acls import AclDeletion
from penstock.cluster.controller.configs import ConfigEdit, ConfigRules, ResourceKind, edit_config, replace_config
from penstock.cluster.controller.election import (
    RULE_SETTINGS,
    Changes,
    ElectionKind,
    IsrAnswer,
    IsrRequest,
    alter_isr,
    partition_rules,
    with_elections,
)
from penstock.cluster.controller.entity_configs import EntityChange
from penstock.cluster.controller.failover import ControllerTasks
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
from penstock.cluster.controller.transaction import GROUPED_OPERATIONS, Decision, TopicPartition, TransactionSize
from penstock.cluster.controller.tree_requests import TreeRequests
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
from penstock.runtime.backoff import backoff_ms
from penstock.runtime.randomness import Random
from penstock.security.acls import AclBinding, AclFilter
from penstock.wire.protocol import ErrorCode

logger = logging.getLogger(__name__)
T = TypeVar("T")
Outcome = TypeVar("Outcome")

IMBALANCE_PERCENT: Final = 10
_RETRY_MS: Final = (50, 1000)
_COMPARED_AT_ONCE: Final = 5_000
_ELECTED_AT_ONCE: Final = 500
"""Partitions of one decision that an administrator asks for."""
_TRANSIENT: Final = (ConnectionLost, BadVersion, NodeExists, NoNode)


# --- requests and outcomes


class TopicOutcome(NamedTuple):
    """The topic after its change, or before its deletion; or the error."""

    name: str
    topic: TopicImage | None = None
    error: ApiException | None = None


class NewPartitions(NamedTuple):
    """Grow a topic to `total` partitions; `assignments` are the replicas of the new ones."""

    topic: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


class ConfigChange(NamedTuple):
    """Some edits, or a complete new set in `replacement`."""

    kind: ResourceKind
    name: str
    edits: Sequence[ConfigEdit] = ()
    replacement: Mapping[str, str | None] | None = None


class ConfigOutcome(NamedTuple):
    kind: ResourceKind
    name: str
    error: ApiException | None = None


class Images(NamedTuple):
    """The image on which a change was decided, and the one after it."""

    before: ClusterImage
    after: ClusterImage


Result = Images | ApiException
Outcomes = dict[TopicPartition, ApiException | None]
"""The error of each partition, None where the change was made."""


def topic_outcome(item: NewTopic | NewPartitions, result: Result) -> TopicOutcome:
    name = item.topic if isinstance(item, NewPartitions) else item.name
    if isinstance(result, ApiException):
        return TopicOutcome(name, error=result)
    return TopicOutcome(name, result.after.topics[name])


def deletion_outcome(wanted: str | bytes, result: Result) -> TopicOutcome:
    if isinstance(result, ApiException):
        return TopicOutcome(wanted if isinstance(wanted, str) else "", error=result)
    topic = result.before.topics[wanted] if isinstance(wanted, str) else result.before.topic_by_id(wanted)
    return TopicOutcome("" if topic is None else topic.name, topic)


def config_outcome(change: ConfigChange, result: Result) -> ConfigOutcome:
    return ConfigOutcome(change.kind, change.name, result if isinstance(result, ApiException) else None)


async def in_slices(items: Iterable[T], size: int = GROUPED_OPERATIONS) -> AsyncIterator[list[T]]:
    """The items, in groups. Other requests are served in between."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
        if len(some) < size:
            return
        await asyncio.sleep(0)


async def repeated(keys: Iterable[Hashable]) -> frozenset[Hashable]:
    known: set[Hashable] = set()
    twice: set[Hashable] = set()
    async for some in in_slices(keys, _COMPARED_AT_ONCE):
        twice |= known.intersection(some)
        known.update(some)
        if len(set(some)) < len(some):
            twice.update(key for key, count in Counter(some).items() if count > 1)
    return frozenset(twice)


def reject_repeated(key: Hashable, twice: frozenset[Hashable]) -> None:
    if key in twice:
        raise InvalidRequest("the request names the same resource twice")


# --- one change at a time


class _Group(NamedTuple):
    """The results of items that were changed together, and the image after them."""

    results: list[Result]
    image: ClusterImage | None


def _decide_group(
    items: Sequence[T], decide: Callable[[ClusterImage, T], Decision], before: ClusterImage
) -> tuple[Decision, list[ApiException | None]]:
    """One decision for the first items, and the error of each, None for those in the decision.

    It fits into one transaction, unless it is for one item.
    """
    image: ClusterImage = ImageDraft(before)
    errors: list[ApiException | None] = []
    operations: list[Operation] = []
    unclean: list[TopicPartition] = []
    size = TransactionSize()
    for item in items:
        try:
            decision = decide(image, item)
        except ApiException as error:
            # With their frames, errors of very many items would take the garbage collector long.
            errors.append(error.with_traceback(None))
        else:
            if operations and TransactionSize().plus(decision).is_large:
                return _decide_group(items[: len(errors)], decide, before)
            image = decision.image
            operations += decision.operations
            size = size.plus(decision)
            unclean += decision.unclean
            errors.append(None)
        if size.is_full or len(errors) >= GROUPED_OPERATIONS:
            break
    if isinstance(image, ImageDraft):
        image = image.finish()
    return Decision(tuple(operations), image, tuple(unclean)), errors


async def _published_at_once() -> None:
    """Returns at once: a cluster of one broker has the image when the change is stored."""


class ControllerCore:
    """The controller of one claim: start and end, and how a change is made."""

    def __init__(
        self,
        tree: Tree,
        claim: ControllerClaim,
        broker_id: int,
        random: Random,
        on_image: Listener,
        prepare: Preparation,
        on_lost: Callable[[], None],
        until_published: Callable[[], Awaitable[None]],
        *,
        deletes_at_once: bool,
        deletes_topics: bool,
    ) -> None:
        self._tree = tree
        self._claim = claim
        self._on_lost = on_lost
        self._until_published = until_published
        self._store = ControllerStore(tree, claim, broker_id, on_image, prepare, self._claim_lost)
        requests = TreeRequests(
            self._store,
            random.uuid_bytes,
            self._start_tasks,
            follows_topics=not deletes_at_once,
            deletes_topics=deletes_topics,
        )
        self._tasks = ControllerTasks(self._store, requests, deletes_at_once=deletes_at_once)
        self._changing = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
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
        """Whether it has started and its claim is not known to be lost."""
        return self._is_started and self._store.lost is None

    # Start and end.

    async def start(self) -> ClusterImage:
        """Read the tree, finish unfinished changes, elect leaders; returns the image, which is reported.

        Retried while the connection to the tree breaks. ApiException (NotController), LayoutError.
        """
        watch = self._tree.watch
        self._cancels += (
            watch(layout.BROKER_IDS, lambda _: self._due(self._tasks.brokers_changed)),
            watch(layout.LOG_DIR_EVENTS, lambda _: self._due(self._tasks.log_dirs_changed)),
            *self._tasks.requests.watch(self._tree),
            *(watch(path, lambda _: self._due(self._tasks.acls_changed)) for path in layout.ACL_CHANGES),
            watch(layout.CONTROLLER, lambda _: self._controller_changed()),
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
        """Accept no further changes, and return when those under way are done. With `give_up` the claim is deleted."""
        had_claim = self._store.lost is None
        if had_claim:
            self._store.lost = NotController("this broker has resigned as controller")
        self._stop_watching()
        runner = self._tasks_runner
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])
        while self._running:
            await asyncio.wait(list(self._running))
        if give_up and had_claim:
            await self._store.give_up()

    def lost(self) -> None:
        """A broker has an image of a later controller."""
        self._store.lose(NotController("another broker is the controller"))

    # Changes.

    async def _change_each(
        self,
        items: Sequence[T],
        decide: Callable[[ClusterImage, T], Decision],
        outcome: Callable[[T, Result], Outcome],
        *,
        validate_only: bool = False,
    ) -> list[Outcome]:
        """Decide one after another and store in groups; membership changes are handled before each group, and other
        requests are served.

        A group that cannot be stored is retried item by item, so that one item does not fail the others.
        `decide` is given an ImageDraft: it changes only topics and settings.
        """
        self._require_started()

        async def change_all() -> list[Outcome]:
            outcomes: list[Outcome] = []
            supposed: ClusterImage | None = None
            while len(outcomes) < len(items):
                group = items[len(outcomes) : len(outcomes) + GROUPED_OPERATIONS]
                decided = await self._change_group(group, decide, supposed, validate_only)
                outcomes += map(outcome, group, decided.results)
                supposed = decided.image if validate_only else None
                if len(outcomes) < len(items):
                    await asyncio.sleep(0)
            return outcomes

        outcomes = await asyncio.shield(self._spawn(self._alone(change_all)))
        if not validate_only:
            await self._until_published()
        return outcomes

    async def _change_group(
        self,
        items: Sequence[T],
        decide: Callable[[ClusterImage, T], Decision],
        supposed: ClusterImage | None,
        validate_only: bool,
    ) -> _Group:
        """Change as many items, from the first, as fit into one transaction; at least one."""
        try:
            await self._tasks.settle()
        except ApiException as error:
            return _Group([error], supposed)
        before = self._store.image if supposed is None else supposed
        decision, errors = _decide_group(items, decide, before)
        if not validate_only:
            try:
                await self._store.store(decision)
            except ApiException as error:
                if len(errors) > 1 and self._store.lost is None:
                    return await self._change_singly(items[: len(errors)], decide)
                errors = [each or error for each in errors]
        images = Images(before, decision.image)
        return _Group([images if each is None else each for each in errors], decision.image)

    async def _change_singly(self, items: Sequence[T], decide: Callable[[ClusterImage, T], Decision]) -> _Group:
        results: list[Result] = []
        for item in items:
            results += (await self._change_group([item], decide, None, validate_only=False)).results
        return _Group(results, None)

    async def _change(self, work: Callable[[], Awaitable[T]]) -> T:
        """In a task of its own, which is not cancelled with the caller."""
        self._require_started()

        async def settled() -> T:
            await self._tasks.settle()
            return await work()

        return await asyncio.shield(self._spawn(self._alone(settled)))

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._changing:
            try:
                return await work()
            finally:
                self._start_tasks()

    # Tasks.

    async def _begin(self) -> None:
        failures = 0
        while True:
            try:
                await self._tasks.begin()
            except MetadataUnavailable as error:
                if self._store.lost is not None or not isinstance(error.__cause__, _TRANSIENT):
                    raise
                failures += 1
                await asyncio.sleep(backoff_ms(failures, *_RETRY_MS) / 1000)
            else:
                return

    def _require_started(self) -> None:
        if not self._is_started:
            raise NotController("this broker has not started as controller")

    def _due(self, note: Callable[[], None]) -> None:
        note()
        self._start_tasks()

    def _start_tasks(self) -> None:
        """Run the tasks that are due, unless they are running."""
        if self._tasks_runner is None and self.is_active and self._tasks.are_due:
            self._tasks_runner = asyncio.get_running_loop().create_task(self._run_tasks())

    async def _run_tasks(self) -> None:
        failures = 0
        try:
            while self.is_active and self._tasks.are_due:
                try:
                    async with self._changing:
                        await self._tasks.settle()
                        await self._tasks.carry_on()
                    failures = 0
                except Exception as error:
                    if not isinstance(error, ApiException):
                        logger.exception("controller task failed, retrying")
                    failures += 1
                    await asyncio.sleep(backoff_ms(failures, *_RETRY_MS) / 1000)
        finally:
            self._tasks_runner = None

    def _controller_changed(self) -> None:
        if self._store.lost is None:
            self._spawn(self._check_claim())

    async def _check_claim(self) -> None:
        try:
            node = await find(self._tree, layout.CONTROLLER)
        except TreeError:
            return  # the end of the session is reported by itself
        if node is None or node.owner != self._tree.session_id:
            self.lost()

    def _session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._store.lose(NotController("the metadata tree session has expired"))

    def _claim_lost(self) -> None:
        self._stop_watching()
        self._on_lost()

    def _stop_watching(self) -> None:
        while self._cancels:
            self._cancels.pop()()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


# --- requests


class Controller(ControllerCore):
    """The controller of one claim, made by `broker_id`. `start` it, use it, `resign`; the caller closes the tree.

    `on_image` is called with the image before and after each stored change, and `prepare` is awaited before that.
    `on_lost` is called once, if the claim is found to be lost. `until_published` is awaited before administrators'
    requests are answered. With `deletes_at_once` a topic is deleted when the request is answered: for a cluster of one
    broker, which has applied every image by then.
    """

    def __init__(
        self,
        tree: Tree,
        claim: ControllerClaim,
        random: Random,
        rules: ConfigRules,
        *,
        broker_id: int,
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 - immutable
        on_image: Listener = lambda _, __: None,
        prepare: Preparation = prepare_nothing,
        on_lost: Callable[[], None] = lambda: None,
        until_published: Callable[[], Awaitable[None]] = _published_at_once,
        deletes_at_once: bool = False,
    ) -> None:
        super().__init__(
            tree, claim, broker_id, random, on_image, prepare, on_lost, until_published,
            deletes_at_once=deletes_at_once, deletes_topics=defaults.deletion_enabled,
        )  # fmt: skip
        self._random = random
        self._rules = rules
        self._defaults = defaults
        self._deletes_at_once = deletes_at_once
        self._isrs: list[tuple[Sequence[IsrRequest], asyncio.Future[list[IsrAnswer]]]] = []

    # Requests of administrators.

    async def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        twice = await repeated(topic.name for topic in wanted)
        placing = _Placing(self._random)

        def decide(image: ClusterImage, topic: NewTopic) -> Decision:
            reject_repeated(topic.name, twice)
            topic_id = self._random.uuid_bytes()
            return create_topic(image, topic, topic_id, placing.on(image), self._rules, self._defaults)

        return await self._change_each(wanted, decide, topic_outcome, validate_only=validate_only)

    async def create_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        twice = await repeated(item.topic for item in wanted)
        placing = _Placing(self._random)

        def decide(image: ClusterImage, item: NewPartitions) -> Decision:
            reject_repeated(item.topic, twice)
            return add_partitions(image, item.topic, item.total, placing.on(image), item.assignments)

        return await self._change_each(wanted, decide, topic_outcome, validate_only=validate_only)

    async def delete_topics(self, names: Sequence[str | bytes]) -> list[TopicOutcome]:
        """By name or id; an outcome for each, in order, with the topic as it was before."""
        delete = delete_at_once if self._deletes_at_once else mark_deleted

        def decide(image: ClusterImage, wanted: str | bytes) -> Decision:
            if isinstance(wanted, str):
                return delete(image, wanted)
            topic = image.topic_by_id(wanted)
            if topic is None:
                raise UnknownTopicId(f"no topic has the id {wanted.hex()}")
            return delete(image, topic.name)

        return await self._change_each(names, decide, deletion_outcome)

    async def alter_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigOutcome]:
        """An outcome for each, in order."""
        twice = await repeated((change.kind, change.name) for change in changes)

        def decide(image: ClusterImage, change: ConfigChange) -> Decision:
            reject_repeated((change.kind, change.name), twice)
            # Before the change, because a draft is changed in place.
            rules = {name: partition_rules(image, name) for name in _topics_concerned(image, change)}
            if change.replacement is not None:
                decided = replace_config(image, change.kind, change.name, change.replacement, self._rules)
            else:
                decided = edit_config(image, change.kind, change.name, change.edits, self._rules)
            affected = [name for name, rule in rules.items() if rule != partition_rules(decided.image, name)]
            return with_elections(decided, affected) if affected else decided

        return await self._change_each(changes, decide, config_outcome, validate_only=validate_only)

    async def create_acls(self, wanted: Sequence[AclBinding]) -> list[ApiException | None]:
        """The error of each, in order. NotController, MetadataUnavailable."""
        errors = await self._change(lambda: acls.create_acls(self._store, wanted))
        await self._until_published()
        return errors

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclDeletion]:
        """Delete ACLs; returns what each filter deleted, in order. NotController, MetadataUnavailable."""
        deleted = await self._change(lambda: acls.delete_acls(self._store, filters))
        await self._until_published()
        return deleted

    async def alter_entities(
        self, changes: Sequence[EntityChange], *, validate_only: bool = False
    ) -> list[ApiException | None]:
        """Change the settings of users, client ids and addresses; the error of each, in order. NotController,
        MetadataUnavailable.
        """
        errors = await self._change(
            lambda: entity_configs.alter_entities(self._store, changes, validate_only=validate_only)
        )
        if not validate_only:
            await self._until_published()
        return errors

    async def elect_leaders(self, kind: ElectionKind, partitions: Iterable[TopicPartition] | None = None) -> Outcomes:
        """Elect leaders for these partitions, or for all that need one. NotController."""

        async def elect() -> Outcomes:
            chosen = _partitions_to_elect(self._store.image, kind) if partitions is None else partitions
            outcomes: Outcomes = {}
            async for some in in_slices(chosen, _ELECTED_AT_ONCE):
                decision, errors = election.elect_leaders(self._store.image, some, kind)
                await self._store.store(decision)
                outcomes.update((key, errors.get(key)) for key in some)
            if partitions is None:
                return {key: each for key, each in outcomes.items() if not isinstance(each, ElectionNotNeeded)}
            return outcomes

        return await self._change(elect)

    async def reassign(self, wanted: WantedReplicas) -> Outcomes:
        """Move partitions to other replicas; None cancels a move. NotController."""

        async def alter() -> Outcomes:
            outcomes: Outcomes = {}
            async for some in in_slices(wanted.items(), _ELECTED_AT_ONCE):
                decision, errors = alter_reassignments(self._store.image, dict(some))
                await self._store.store(decision)
                self._tasks.moves_changed()
                outcomes.update((key, errors.get(key)) for key, _ in some)
            return outcomes

        return await self._change(alter)

    def reassignments(self, partitions: Iterable[TopicPartition] | None = None) -> list[MoveProgress]:
        """The moves that are under way, of these partitions or of all."""
        moving = self._store.partitions_by_broker.moving() if partitions is None else partitions
        return progress(self._store.image, moving)

    # Requests of brokers.

    async def alter_isrs(self, requests: Sequence[IsrRequest]) -> list[IsrAnswer]:
        """An answer for each, in order. Requests of several leaders that arrive while something else is being stored
        are stored together. NotController, MetadataUnavailable.
        """
        self._require_started()
        answer: asyncio.Future[list[IsrAnswer]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_read_error)
        self._isrs.append((requests, answer))
        if len(self._isrs) == 1:
            self._spawn(self._alter_isrs())
        return await asyncio.shield(answer)

    async def shut_down(self, broker_id: int, broker_epoch: int, force: bool = False) -> tuple[TopicPartition, ...]:
        """Controlled shutdown: move a broker's leaderships, and remove it from ISRs; returns the partitions that still
        need it. StaleBrokerEpoch.
        """

        async def move_leaders() -> tuple[TopicPartition, ...]:
            partitions = self._store.partitions_by_broker
            decision, remaining = failover.shut_down(partitions, broker_id, broker_epoch, force=force)
            await self._store.store(decision)
            return remaining

        return await self._change(move_leaders)

    def report_removed(self, broker_id: int, topic: str, topic_id: bytes) -> None:
        """A broker has deleted its replicas of a topic that is being deleted."""
        deletions = self._store.deletions
        for index, holder in sorted(deletions.awaited(topic)):
            if holder == broker_id:
                deletions.reported_gone(topic, topic_id, index, broker_id)
        self._start_tasks()

    async def balance_leaders(self, imbalance_percent: float = IMBALANCE_PERCENT) -> int:
        """Elect the preferred leaders of brokers whose imbalance is larger; returns the number of elections."""

        async def balance() -> int:
            wanted: list[TopicPartition] = []
            for broker_id in sorted(self._store.image.brokers):
                found = election.preferred_leaders(self._store.partitions_by_broker, broker_id)
                if found.imbalance_percent > imbalance_percent:
                    wanted += found.elsewhere
                await asyncio.sleep(0)  # a large cluster takes a while
            elected = election.elect_leaders(self._store.image, wanted, ElectionKind.PREFERRED)
            await self._store.store(elected.decision)
            return len(wanted) - len(elected.errors)

        return await self._change(balance)

    async def _alter_isrs(self) -> None:
        async with self._changing:
            waiting, self._isrs = self._isrs, []
            try:
                await self._tasks.settle()
                answers = iter(await self._store_isrs([request for requests, _ in waiting for request in requests]))
            except Exception as error:  # noqa: BLE001 - handed to all callers
                for _, answer in waiting:
                    answer.set_exception(error)
            else:
                for requests, answer in waiting:
                    answer.set_result([next(answers) for _ in requests])
            finally:
                self._start_tasks()

    async def _store_isrs(self, requests: Sequence[IsrRequest]) -> list[IsrAnswer]:
        image = self._store.image
        changes = Changes(image)
        errors = [alter_isr(changes, request) for request in requests]
        decision = changes.decision()
        await self._store.store(decision)
        answers: list[IsrAnswer] = []
        for request, error in zip(requests, errors, strict=True):
            partition = decision.image.partition(request.topic, request.partition)
            answers.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else error or partition)
        self._tasks.isrs_changed(
            (each.topic, each.partition) for each, error in zip(requests, errors, strict=True) if error is None
        )
        return answers


def _topics_concerned(image: ClusterImage, change: ConfigChange) -> Iterable[str]:
    """The topics whose elections may follow other rules after a change of settings."""
    if change.replacement is None and not any(edit.name in RULE_SETTINGS for edit in change.edits):
        return ()
    if change.kind is ResourceKind.TOPIC:
        return (change.name,)
    # Elections know no settings of single brokers.
    return () if change.name else image.topics


class _Placing:
    """Replica placement for the topics of one request: the load of the cluster is counted once."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._placement: Placement | None = None

    def on(self, image: ClusterImage) -> Placement:
        if self._placement is None:
            topics = image.topics.values() if len(image.brokers) > 1 else ()
            load = load_of(each.replicas for topic in topics for each in topic.partitions)
            self._placement = Placement(self._random, load)
        return self._placement


def _partitions_to_elect(image: ClusterImage, kind: ElectionKind) -> Iterator[TopicPartition]:
    def needs(partition: PartitionImage) -> bool:
        if kind is ElectionKind.PREFERRED:
            return partition.leader != partition.replicas[0]
        return image.live_leader(partition) == NO_LEADER

    return (
        (topic.name, index)
        for topic in image.topics.values()
        if topic.name not in image.deleting
        for index, partition in enumerate(topic.partitions)
        if needs(partition)
    )


def _read_error(answer: asyncio.Future[Any]) -> None:
    # The caller may have been cancelled: asyncio must not complain about an error that is never read.
    if not answer.cancelled():
        answer.exception()
