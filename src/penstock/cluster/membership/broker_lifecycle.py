"""A broker's life in a cluster: session, registration, candidacy, images.

    session -> what the tree holds -> (data folders are opened) -> registered -> candidate for controller -> first image

What the broker leads and follows comes from the controller's images and from nowhere else. When a session ends, the
registration and the candidacy end with it; the broker carries on with what it knows, opens a new session and
registers with a new epoch. Because no memory was lost, the previous epoch counts as cleanly ended.

`ActiveController` exists while this broker is the controller: a `Controller` that decides and a `Publisher` that
sends every decision at once, in order, to every broker. It closes when it hears of a later controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.broker.handlers import alter_partition
from penstock.cluster.broker_links import Link, LinkLost, Links
from penstock.cluster.controller.configs import ConfigRules, ResourceKind
from penstock.cluster.controller.controller import ConfigChange, ConfigOutcome, Controller, NewPartitions, TopicOutcome
from penstock.cluster.controller.election import AlterPartitionError, IsrRequest, RulesIn
from penstock.cluster.controller.store import ControllerClaim, claim_controller, load_image
from penstock.cluster.controller.topics import NewTopic, TopicDefaults
from penstock.cluster.errors import ClusterError, NotController, SessionExpired
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.image_propagation import (
    Cancel,
    ImageAck,
    ImageReceiver,
    ImageUpdate,
    IsGone,
    Listener,
    Preparation,
    Publisher,
    ack_of,
    request_of,
)
from penstock.cluster.membership.registration import ProducerIds, initialize_tree, register_broker
from penstock.cluster.membership.shutdown import controlled_shutdown, error_name
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import DEFAULT_BROKER, UNKNOWN_EPOCH, BrokerRegistration
from penstock.cluster.tree.tree import Delete, SessionEvent, Tree, find
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.alter_partition import AlterPartitionResponse
from penstock.wire.schemas.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.wire.schemas.push_image import PushImageResponse
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

_PUSH_TIMEOUT_MS: Final = 5_000
_REACH_POLL_S: Final = 0.005

ApplyUpdate = Callable[[ImageUpdate], Awaitable[ImageAck]]


class ControllerDependencies(NamedTuple):
    """What an office needs, whoever holds it."""

    random: Random
    rules: ConfigRules
    rules_of: RulesIn
    defaults: TopicDefaults
    binding: Mapping[str, str]
    """What holds for all brokers of a cluster for which nobody has said anything yet."""
    links: Links


class ActiveController:
    """Of one claim. `open` it, `close` it; `closed` is set when its claim is found to be lost."""

    def __init__(
        self,
        broker_id: int,
        tree: Tree,
        claim: ControllerClaim,
        dependencies: ControllerDependencies,
        take: ApplyUpdate,
    ) -> None:
        self._broker_id = broker_id
        self._dependencies = dependencies
        self._take = take
        self._links: dict[int, Link] = {}
        self.closed = asyncio.Event()
        self.controller = Controller(
            tree,
            claim,
            dependencies.random,
            dependencies.rules,
            broker_id=broker_id,
            rules_of=dependencies.rules_of,
            defaults=dependencies.defaults,
            on_image=self._on_image,
            on_lost=self.closed.set,
        )
        self.publisher = Publisher(self._send, on_removed=self.controller.report_removed, on_stale=self.controller.lost)

    async def open(self) -> None:
        """ClusterError if the claim is lost before that."""
        image = await self.controller.start()
        logger.info("broker %d is the controller, in epoch %d", self._broker_id, self.controller.epoch)
        if DEFAULT_BROKER not in image.broker_configs:
            change = ConfigChange(ResourceKind.BROKER, "", replacement=dict(self._dependencies.binding))
            (outcome,) = await self.controller.alter_configs([change])
            if outcome.refusal is not None:
                logger.error("what the brokers are to agree on was not stored: %s", outcome.refusal)

    async def close(self, *, give_up: bool = False) -> None:
        """Decide and publish nothing any more. With `give_up` another may take over at once."""
        self.closed.set()
        # First, and without waiting: whoever closes an office may be in a hurry himself, and cancelled in the middle.
        self.publisher.stop()
        try:
            await self.controller.resign(give_up=give_up)
            await self.publisher.close()
        finally:
            for link in self._links.values():
                link.close()
            self._links.clear()

    async def reach_all(self, within_s: float) -> None:
        """Wait until every broker has the latest image, or the time is over: who asked for a change finds it then."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while self.publisher.behind() and loop.time() < deadline_s and not self.closed.is_set():
            await asyncio.sleep(_REACH_POLL_S)

    def _on_image(self, _: ClusterImage, image: ClusterImage) -> None:
        self.publisher.publish(image)
        for broker_id in [each for each in self._links if each not in image.brokers]:
            self._links.pop(broker_id).close()

    async def _send(self, broker_id: int, update: ImageUpdate) -> ImageAck:
        if broker_id == self._broker_id:
            return await self._take(update)
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = self._dependencies.links.to(broker_id)
        try:
            answer = await link.ask(ApiKey.PUSH_IMAGE, 0, request_of(update), _PUSH_TIMEOUT_MS)
        except LinkLost:
            if self._links.get(broker_id) is link:
                del self._links[broker_id]
            link.close()
            raise
        if not isinstance(answer, PushImageResponse):
            raise LinkLost(f"broker {broker_id} answered something else")
        return ack_of(answer)


TreeOpener = Callable[[], Awaitable[Tree]]

_RETRY_S: Final = 0.5
_GONE_S: Final = 0.5
_ASK_TIMEOUT_MS: Final = 10_000
_CREATE_VERSION: Final = 7
_REACH_S: Final = 1.0


class Membership:
    """Of one broker. `open` it, `join`, `leave`, `close`, once each."""

    def __init__(
        self,
        broker_id: int,
        open_tree: TreeOpener,
        dependencies: ControllerDependencies,
        clock: Clock,
        *,
        session_timeout_ms: int,
        is_gone: IsGone,
    ) -> None:
        self._broker_id = broker_id
        self._open_tree = open_tree
        self._dependencies = dependencies
        self._clock = clock
        self._session_timeout_ms = session_timeout_ms
        self._receiver = ImageReceiver(broker_id, is_gone)
        self._found = ClusterImage()
        self._tree: Tree | None = None
        self._expired = asyncio.Event()
        self._tree_unreachable_since_ms: float | None = None  # since when the tree does not answer
        self._displaced = asyncio.Event()
        self._registration: BrokerRegistration | None = None
        self._membership_task: asyncio.Task[None] | None = None
        self._active_controller: ActiveController | None = None
        self._candidacy_backoff_s = 0.0  # before it stands for controller again
        self._producer_ids: ProducerIds | None = None
        self._to_controller: tuple[int, Link] | None = None
        self._first_image = asyncio.Event()
        self._receiver.listen(lambda _, __: self._first_image.set())

    # --- what is known

    @property
    def broker_id(self) -> int:
        return self._broker_id

    @property
    def image(self) -> ClusterImage:
        """The controller's; before the first, what the tree held when it was opened."""
        return self._receiver.image if self._first_image.is_set() else self._found

    @property
    def broker_epoch(self) -> int:
        """Of this life; UNKNOWN_EPOCH while the broker is not registered."""
        return self._receiver.broker_epoch

    @property
    def controller(self) -> Controller | None:
        """Of the cluster, while it is this broker."""
        active_controller = self._active_controller
        return (
            active_controller.controller
            if active_controller is not None and active_controller.controller.is_active
            else None
        )

    def listen(self, listener: Listener) -> Cancel:
        return self._receiver.listen(listener)

    def prepare(self, preparation: Preparation) -> Cancel:
        return self._receiver.prepare(preparation)

    async def take(self, update: ImageUpdate) -> ImageAck:
        """An image from the controller."""
        return await self._receiver.take(update)

    # --- the life of a member

    async def open(self, kept_id: Callable[[Tree], Awaitable[str | None]]) -> ClusterImage:
        """Begin a session; what the tree holds. `kept_id` finds the cluster's id in the data folders, for a new tree.

        ClusterError.
        """
        tree = await self._begin_session()
        await initialize_tree(tree, self._dependencies.random, await kept_id(tree))
        self._found = await load_image(tree)
        if self._producer_ids is not None:
            await self._producer_ids.stock_up()
        return self._found

    async def join(self, registration: BrokerRegistration) -> None:
        """Register, and return when the controller has sent an image. BrokerIdInUse, ClusterError."""
        self._registration = registration
        await self._register()
        self._membership_task = asyncio.get_running_loop().create_task(self._live())
        first = asyncio.get_running_loop().create_task(self._first_image.wait())
        try:
            await asyncio.wait((first, self._membership_task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
        if self._membership_task.done():
            await self._membership_task
            raise ClusterError("the broker's membership ended before it began")

    async def leave(self, within_ms: float) -> bool:
        """Hand over what this broker leads, to whoever is in sync; whether nothing is left that needs it."""
        return await controlled_shutdown(self, self._clock, within_ms)

    def tree_unreachable_ms(self) -> float | None:
        """How long the tree has been out of reach; None if it is not, as far as is known."""
        return (
            None
            if self._tree_unreachable_since_ms is None
            else self._clock.monotonic_ms() - self._tree_unreachable_since_ms
        )

    def note_tree_unreachable(self) -> None:
        """The tree does not answer, whether or not there is a connection."""
        if self._tree_unreachable_since_ms is None:
            self._tree_unreachable_since_ms = self._clock.monotonic_ms()

    async def retire(self) -> None:
        """Be no controller any more, and take no more images."""
        life, self._membership_task = self._membership_task, None
        if life is not None:
            life.cancel()
        if self._tree_unreachable_since_ms is not None:
            # Whoever waits for the tree, to give the office up perhaps, would wait for as long as a session lasts.
            await self._end_session()
        if life is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await life
        await self._receiver.close()
        self._drop_controller_link()

    async def close(self) -> None:
        """End the session: the registration goes with it."""
        await self.retire()
        await self._end_session()

    # --- sessions

    async def _end_session(self) -> None:
        if self._tree is not None:
            tree, self._tree = self._tree, None
            await tree.close()

    async def _begin_session(self) -> Tree:
        tree = await self._open_tree()
        self._tree = tree
        self._expired = expired = asyncio.Event()
        self._tree_unreachable_since_ms = None
        tree.watch_session(self._session_event)
        tree.watch_session(lambda event: expired.set() if event is SessionEvent.EXPIRED else None)
        tree.watch(layout.broker_path(self._broker_id), lambda _: self._displaced.set())
        if self._producer_ids is None:
            self._producer_ids = ProducerIds(tree, self._broker_id)
        self._producer_ids.follow(tree)
        return tree

    def _session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._tree_unreachable_since_ms = None
        else:
            self.note_tree_unreachable()

    async def _register(self) -> None:
        assert self._tree is not None
        assert self._registration is not None
        timeout_ms = self._session_timeout_ms
        epoch = await register_broker(self._tree, self._registration, session_timeout_ms=timeout_ms)
        self._receiver.begin_broker_epoch(epoch)
        logger.info("broker %d is registered, broker epoch %d", self._broker_id, epoch)

    async def _live(self) -> None:
        """Stand for controller while the session lasts; then begin another."""
        loop = asyncio.get_running_loop()
        while True:
            assert self._tree is not None
            tasks = [
                loop.create_task(self._run_for_controller(self._tree)),
                loop.create_task(self._stay_registered(self._tree)),
                loop.create_task(self._expired.wait()),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(outcome, Exception) and not isinstance(outcome, ClusterError):
                        logger.error("broker %d: its membership failed", self._broker_id, exc_info=outcome)
            await self._begin_again()

    async def _stay_registered(self, tree: Tree) -> None:
        """Register again whenever somebody took this broker for dead. Returns when the session is of no use."""
        while True:
            await self._displaced.wait()
            self._displaced.clear()
            try:
                node = await find(tree, layout.broker_path(self._broker_id))
                if node is None:
                    logger.warning("broker %d was taken for dead, and registers again", self._broker_id)
                    self._remember_epoch()
                    self._receiver.begin_broker_epoch(UNKNOWN_EPOCH)
                    # Time for the controller to see that it is gone: so others lead, whoever was right.
                    await asyncio.sleep(_GONE_S)
                    await self._register()
            except SessionExpired:
                return
            except ClusterError as error:
                logger.warning("broker %d cannot register again yet: %s", self._broker_id, error)
                await asyncio.sleep(_RETRY_S)
                self._displaced.set()

    def _remember_epoch(self) -> None:
        """The next registration tells that whoever is in this process has forgotten nothing."""
        assert self._registration is not None
        former = self.broker_epoch
        self._receiver.broker_epoch = UNKNOWN_EPOCH
        if former == UNKNOWN_EPOCH:
            return
        seen = self._receiver.image.brokers.get(self._broker_id)
        # A life of which no controller has taken notice has told nobody that its disk is another one.
        is_emptied = self._registration.is_emptied and (seen is None or seen.epoch != former)
        self._registration = replace(self._registration, clean_epoch=former, is_emptied=is_emptied)

    async def _begin_again(self) -> None:
        logger.warning(
            "the session of broker %d (epoch %d) is over; beginning another", self._broker_id, self.broker_epoch
        )
        self._remember_epoch()
        while True:
            try:
                if self._tree is not None:
                    old, self._tree = self._tree, None
                    await old.close()
                await self._begin_session()
                await self._register()
            except ClusterError as error:
                logger.warning("broker %d cannot register again yet: %s", self._broker_id, error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def declare_dead(self, broker_id: int, epoch: int) -> None:
        """End the registration of another broker's life, and its claim to be the controller."""
        tree = self._tree
        if tree is None:
            return
        try:
            node = await find(tree, layout.broker_path(broker_id))
            if node is None or node.created != epoch:
                return
            operations = [Delete(layout.broker_path(broker_id), node.version)]
            controller = await find(tree, layout.CONTROLLER)
            if controller is not None and controller.owner == node.owner:
                operations.append(Delete(layout.CONTROLLER, controller.version))
            await tree.multi(operations)
        except ClusterError as error:
            logger.info("the registration of broker %d was not ended: %s", broker_id, error)

    # --- the controller

    async def _run_for_controller(self, tree: Tree) -> None:
        """Be the controller whenever nobody else is."""
        changed = asyncio.Event()
        cancel = tree.watch(layout.CONTROLLER, lambda _: changed.set())
        try:
            while True:
                changed.clear()
                try:
                    claim = await claim_controller(tree, self._broker_id, self._clock)
                    if claim is None:
                        await changed.wait()
                        continue
                    await self._hold(ActiveController(self._broker_id, tree, claim, self._dependencies, self.take))
                    rest_s, self._candidacy_backoff_s = self._candidacy_backoff_s, 0.0
                    await asyncio.sleep(rest_s)
                except SessionExpired:
                    return
                except ClusterError as error:
                    logger.warning("broker %d stood for controller in vain: %s", self._broker_id, error)
                    await asyncio.sleep(_RETRY_S)
        finally:
            cancel()

    async def step_down(self, rest_s: float) -> None:
        """Let others be the controller and lead, and do not stand for a while: this broker does not reach them."""
        if self._active_controller is not None:
            self._candidacy_backoff_s = rest_s
            await self.declare_dead(self._broker_id, self.broker_epoch)

    async def _hold(self, active_controller: ActiveController) -> None:
        self._active_controller = active_controller
        try:
            await active_controller.open()
            await active_controller.closed.wait()
        finally:
            self._active_controller = None
            await active_controller.close(give_up=True)

    async def ask_controller(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        """LinkLost if there is none, or it does not answer."""
        controller_id = self.image.controller_id
        if controller_id < 0 or controller_id == self._broker_id:
            raise LinkLost("no other broker is known to be the controller")
        if self._to_controller is not None and self._to_controller[0] != controller_id:
            self._drop_controller_link()
        if self._to_controller is None:
            self._to_controller = (controller_id, self._dependencies.links.to(controller_id))
        link = self._to_controller[1]
        try:
            return await link.ask(api_key, version, message, timeout_ms)
        except LinkLost:
            self._drop_controller_link(link)
            raise

    def _drop_controller_link(self, only: Link | None = None) -> None:
        if self._to_controller is not None and only in (None, self._to_controller[1]):
            self._to_controller[1].close()
            self._to_controller = None

    async def ask_isrs(self, requests: list[IsrRequest]) -> Sequence[AlterPartitionError | PartitionImage]:
        """Of the controller, wherever it is. LinkLost, ClusterError: nobody knows."""
        controller = self.controller
        if controller is not None:
            return await controller.alter_isrs(requests)
        image = self.image
        known = [request for request in requests if request.topic in image.topics]
        question = alter_partition.message_of(self._broker_id, self.broker_epoch, known, image)
        answer = await self.ask_controller(ApiKey.ALTER_PARTITION, alter_partition.VERSION, question, _ASK_TIMEOUT_MS)
        if not isinstance(answer, AlterPartitionResponse) or answer.error_code:
            raise LinkLost(f"the controller refused: {error_name(answer)}")
        return alter_partition.outcomes_of(requests, answer, image)

    # --- what handlers ask of a cluster

    async def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicOutcome]:
        outcomes = await self._require().create_topics(wanted, validate_only=validate_only)
        await self._reach_all(validate_only)
        return outcomes

    async def create_through_controller(self, wanted: Sequence[NewTopic]) -> None:
        """Topics that this broker itself wants, made by the controller, wherever it is; returns when they are in the
        image, or after a while. LinkLost, ClusterError.
        """
        if self.controller is not None:
            await self.create_topics(wanted)
        else:
            await self.ask_controller(
                ApiKey.CREATE_TOPICS, _CREATE_VERSION, _create_topics_request(wanted), _ASK_TIMEOUT_MS
            )
        await self._until_known({topic.name for topic in wanted})

    async def _until_known(self, names: set[str]) -> None:
        known = asyncio.Event()
        cancel = self.listen(lambda _, image: known.set() if names <= image.topics.keys() else None)
        try:
            if not names <= self.image.topics.keys():
                async with asyncio.timeout(_REACH_S):
                    await known.wait()
        except TimeoutError:
            logger.info("topics that were asked for are not there: %s", sorted(names - self.image.topics.keys()))
        finally:
            cancel()

    async def create_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        outcomes = await self._require().create_partitions(wanted, validate_only=validate_only)
        await self._reach_all(validate_only)
        return outcomes

    async def delete_topics(self, names: Sequence[str | bytes]) -> list[TopicOutcome]:
        outcomes = await self._require().delete_topics(names)
        await self._reach_all()
        return outcomes

    async def alter_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigOutcome]:
        outcomes = await self._require().alter_configs(changes, validate_only=validate_only)
        await self._reach_all(validate_only)
        return outcomes

    async def allocate_producer_id(self) -> int:
        if self._producer_ids is None:
            raise NotController("the broker has no session")
        return await self._producer_ids.allocate()

    def _require(self) -> Controller:
        controller = self.controller
        if controller is None:
            raise NotController(f"broker {self._broker_id} is not the controller")
        return controller

    async def _reach_all(self, nothing_changed: bool = False) -> None:
        if not nothing_changed and self._active_controller is not None:
            await self._active_controller.reach_all(_REACH_S)


def _create_topics_request(wanted: Sequence[NewTopic]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
            )
            for topic in wanted
        ],
        timeout_ms=_ASK_TIMEOUT_MS,
    )
