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
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.cluster.broker_links import Link, LinkLost, Links
from penstock.cluster.controller.configs import ConfigRules, ResourceKind
from penstock.cluster.controller.controller import ConfigChange, Controller
from penstock.cluster.controller.election import (
    ALTER_PARTITION_VERSION,
    IsrAnswer,
    IsrRequest,
    alter_partition_request,
    isr_answers,
)
from penstock.cluster.controller.store import ControllerClaim, claim_controller, load_image
from penstock.cluster.controller.topics import NewTopic, TopicDefaults
from penstock.cluster.entity_configs import Settings
from penstock.cluster.errors import ClusterError, NotController, SessionExpired
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_propagation import (
    ImageAck,
    ImageReceiver,
    ImageUpdate,
    IsDeleted,
    Publisher,
    ack_of,
    request_of,
)
from penstock.cluster.membership.registration import (
    ProducerIds,
    find_cluster_secret,
    initialize_tree,
    register_broker,
    store_initial_users,
    update_registration,
)
from penstock.cluster.membership.shutdown import error_name
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    DEFAULT_BROKER,
    UNKNOWN_EPOCH,
    BrokerRegistration,
    ReplicaSet,
    decode_controller_epoch,
)
from penstock.cluster.tree.tree import Delete, SessionEvent, Tree, find
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.security.broker_proof import ClusterSecret
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.alter_partition import AlterPartitionResponse
from penstock.wire.schemas.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.wire.schemas.push_image import PushImageResponse
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

TreeOpener = Callable[[], Awaitable[Tree]]
ApplyUpdate = Callable[[ImageUpdate], Awaitable[ImageAck]]

_PUSH_TIMEOUT_MS: Final = 5_000
_PUBLISHED_TIMEOUT_S: Final = 1.0
_PUBLISHED_POLL_S: Final = 0.005
_RETRY_S: Final = 0.5
_REGISTER_AGAIN_S: Final = 0.5
_ASK_TIMEOUT_MS: Final = 10_000
_EPOCH_TIMEOUT_S: Final = 0.5
_EPOCH_POLL_S: Final = 0.005
_CREATE_TOPICS_VERSION: Final = 7


# --- the controller of the cluster, while it is this broker


class ControllerDependencies(NamedTuple):
    random: Random
    rules: ConfigRules
    defaults: TopicDefaults
    cluster_wide: Mapping[str, str]
    """The settings for all brokers that the first controller of a cluster stores."""
    links: Links


class ActiveController:
    """The controller of one claim. `open` it, `close` it; `closed` is set when the claim is found to be lost."""

    def __init__(
        self,
        broker_id: int,
        tree: Tree,
        claim: ControllerClaim,
        dependencies: ControllerDependencies,
        apply: ApplyUpdate,
    ) -> None:
        """`apply` applies an update to this broker."""
        self._broker_id = broker_id
        self._dependencies = dependencies
        self._apply = apply
        self._links: dict[int, Link] = {}
        self.closed = asyncio.Event()
        self.controller = Controller(
            tree,
            claim,
            dependencies.random,
            dependencies.rules,
            broker_id=broker_id,
            defaults=dependencies.defaults,
            on_image=self._on_image,
            on_lost=self.closed.set,
            until_published=self._until_published,
        )
        self.publisher = Publisher(self._send, on_removed=self.controller.report_removed, on_stale=self.controller.lost)

    async def open(self) -> None:
        """ClusterError if the claim is lost meanwhile."""
        image = await self.controller.start()
        logger.info("controller started: broker=%d epoch=%d", self._broker_id, self.controller.epoch)
        if DEFAULT_BROKER not in image.broker_configs:
            change = ConfigChange(ResourceKind.BROKER, "", replacement=dict(self._dependencies.cluster_wide))
            (outcome,) = await self.controller.alter_configs([change])
            if outcome.error is not None:
                logger.error("cluster-wide settings not stored: error=%s", outcome.error)

    async def close(self, *, give_up: bool = False) -> None:
        """Decide and publish nothing more. With `give_up` another broker can take over at once."""
        self.closed.set()
        # First, because it does not wait: the caller may be cancelled while the controller resigns.
        self.publisher.stop()
        try:
            await self.controller.resign(give_up=give_up)
            await self.publisher.close()
        finally:
            for link in self._links.values():
                link.close()
            self._links.clear()

    async def _until_published(self) -> None:
        """Wait until every broker has the latest image, at most a second: clients then find their change anywhere."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _PUBLISHED_TIMEOUT_S
        while self.publisher.behind() and loop.time() < deadline_s and not self.closed.is_set():
            await asyncio.sleep(_PUBLISHED_POLL_S)

    def _on_image(self, _: ClusterImage, image: ClusterImage) -> None:
        self.publisher.publish(image)
        for broker_id in [each for each in self._links if each not in image.brokers]:
            self._links.pop(broker_id).close()

    async def _send(self, broker_id: int, update: ImageUpdate) -> ImageAck:
        if broker_id == self._broker_id:
            return await self._apply(update)
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = self._dependencies.links.to(broker_id)
        try:
            response = await link.ask(ApiKey.PUSH_IMAGE, 0, request_of(update), _PUSH_TIMEOUT_MS)
        except LinkLost:
            if self._links.get(broker_id) is link:
                del self._links[broker_id]
            link.close()
            raise
        if not isinstance(response, PushImageResponse):
            raise LinkLost(f"broker {broker_id} sent an unexpected response")
        return ack_of(response)


# --- membership


class Membership:
    """The membership of one broker. `open` it, `join`, `close`, once each. See `Metadata`."""

    def __init__(
        self,
        broker_id: int,
        open_tree: TreeOpener,
        dependencies: ControllerDependencies,
        clock: Clock,
        *,
        session_timeout_ms: int,
        is_deleted: IsDeleted,
        initial_users: Mapping[str, Settings] = MappingProxyType({}),
    ) -> None:
        self.broker_id = broker_id
        self._initial_users = initial_users
        self._open_tree = open_tree
        self._dependencies = dependencies
        self._clock = clock
        self._session_timeout_ms = session_timeout_ms
        self._receiver = ImageReceiver(broker_id, is_deleted, self._stored_controller_epoch)
        self.secret: ClusterSecret
        self._found = ClusterImage()
        self._tree: Tree | None = None
        self._expired = asyncio.Event()
        self._tree_unreachable_since_ms: float | None = None
        self._displaced = asyncio.Event()  # the registration was deleted or replaced
        self._is_registration_outdated = asyncio.Event()
        self._registration: BrokerRegistration | None = None
        self._task: asyncio.Task[None] | None = None
        self._active_controller: ActiveController | None = None
        self._candidacy_backoff_s = 0.0
        self._producer_ids: ProducerIds | None = None
        self._to_controller: tuple[int, Link] | None = None
        self._first_image = asyncio.Event()
        self.listen = self._receiver.listen
        self.prepare = self._receiver.prepare
        self.apply = self._receiver.apply
        self.listen(lambda _, __: self._first_image.set())

    # What is known.

    @property
    def image(self) -> ClusterImage:
        """The controller's; before the first one, what the tree held when it was opened."""
        return self._receiver.image if self._first_image.is_set() else self._found

    @property
    def broker_epoch(self) -> int:
        """UNKNOWN_EPOCH while the broker is not registered."""
        return self._receiver.broker_epoch

    @property
    def controller(self) -> Controller | None:
        """None unless this broker is the controller."""
        active = self._active_controller
        return active.controller if active is not None and active.controller.is_active else None

    def require_controller(self) -> Controller:
        """NotController."""
        controller = self.controller
        if controller is None:
            raise NotController(f"broker {self.broker_id} is not the controller")
        return controller

    def tree_unreachable_ms(self) -> float | None:
        """For how long the tree has been unreachable; None if it is not known to be."""
        since_ms = self._tree_unreachable_since_ms
        return None if since_ms is None else self._clock.monotonic_ms() - since_ms

    def note_tree_unreachable(self) -> None:
        """The tree does not answer, whether or not there is a connection."""
        if self._tree_unreachable_since_ms is None:
            self._tree_unreachable_since_ms = self._clock.monotonic_ms()

    # Start and end.

    async def open(self, find_cluster_id: Callable[[Tree], Awaitable[str | None]]) -> ClusterImage:
        """Open a session; returns what the tree holds. `find_cluster_id` finds the id of the cluster in the data
        folders, for a new tree. ClusterError.
        """
        tree = await self._open_session()
        await initialize_tree(tree, self._dependencies.random, await find_cluster_id(tree))
        self.secret = await find_cluster_secret(tree, self._dependencies.random)
        await store_initial_users(tree, self._initial_users)
        self._found = await load_image(tree)
        self._receiver.last_stored_epoch = self._found.controller_epoch
        if self._producer_ids is not None:
            await self._producer_ids.stock_up()
        return self._found

    async def join(self, registration: BrokerRegistration) -> None:
        """Register, and return when the controller has sent an image. BrokerIdInUse, ClusterError."""
        self._registration = registration
        while True:
            try:
                await self._register()
                break
            except SessionExpired:
                logger.warning("session ended while the logs were opened, opening another: broker=%d", self.broker_id)
                await self._end_session()
                await self._open_session()
        self._task = asyncio.get_running_loop().create_task(self._run())
        first = asyncio.get_running_loop().create_task(self._first_image.wait())
        try:
            await asyncio.wait((first, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
        if self._task.done():
            await self._task
            raise ClusterError(f"the membership of broker {self.broker_id} ended before the first image arrived")

    async def stop(self) -> None:
        """Stop being the controller or a candidate, and stop applying images."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        if self._tree_unreachable_since_ms is not None:
            # The task may be waiting for the tree, for as long as a session lasts.
            await self._end_session()
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._receiver.close()
        self._drop_controller_link()

    async def close(self) -> None:
        """End the session, and the registration with it."""
        await self.stop()
        await self._end_session()

    # Sessions and registration.

    async def _open_session(self) -> Tree:
        tree = await self._open_tree()
        self._tree = tree
        self._expired = expired = asyncio.Event()
        self._tree_unreachable_since_ms = None
        tree.watch_session(self._session_event)
        tree.watch_session(lambda event: expired.set() if event is SessionEvent.EXPIRED else None)
        tree.watch(layout.broker_path(self.broker_id), lambda _: self._displaced.set())
        if self._producer_ids is None:
            self._producer_ids = ProducerIds(tree, self.broker_id)
        self._producer_ids.follow(tree)
        return tree

    async def _end_session(self) -> None:
        if self._tree is not None:
            tree, self._tree = self._tree, None
            await tree.close()

    def _session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._tree_unreachable_since_ms = None
        else:
            self.note_tree_unreachable()

    async def _register(self) -> None:
        assert self._tree is not None
        assert self._registration is not None
        timeout_ms, registration = self._session_timeout_ms, self._registration
        epoch = await register_broker(self._tree, registration, session_timeout_ms=timeout_ms)
        if self._registration is not registration:
            self._is_registration_outdated.set()
        self._receiver.begin_broker_epoch(epoch)
        logger.info("broker registered: broker=%d epoch=%d", self.broker_id, epoch)

    async def _run(self) -> None:
        """Be a candidate for controller while the session lasts; then open another session."""
        loop = asyncio.get_running_loop()
        while True:
            assert self._tree is not None
            tasks = [
                loop.create_task(self._run_for_controller(self._tree)),
                loop.create_task(self._stay_registered(self._tree)),
                loop.create_task(self._report_offline_replicas(self._tree)),
                loop.create_task(self._expired.wait()),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(outcome, Exception) and not isinstance(outcome, ClusterError):
                        logger.error("membership failed: broker=%d", self.broker_id, exc_info=outcome)
            await self._replace_session()

    async def _stay_registered(self, tree: Tree) -> None:
        """Register again whenever another broker declared this one dead. Returns when the session has expired."""
        while True:
            await self._displaced.wait()
            self._displaced.clear()
            try:
                node = await find(tree, layout.broker_path(self.broker_id))
                if node is None:
                    logger.warning("broker was declared dead, registering again: broker=%d", self.broker_id)
                    self._remember_epoch()
                    self._receiver.begin_broker_epoch(UNKNOWN_EPOCH)
                    # Time for the controller to elect other leaders.
                    await asyncio.sleep(_REGISTER_AGAIN_S)
                    await self._register()
            except SessionExpired:
                return
            except ClusterError as error:
                logger.warning("registration failed, retrying: broker=%d error=%s", self.broker_id, error)
                await asyncio.sleep(_RETRY_S)
                self._displaced.set()

    def set_offline_replicas(self, offline: ReplicaSet) -> None:
        """List these replicas as offline in the registration, now and in later ones."""
        before = self._registration
        if before is not None and before.offline != offline:
            self._registration = replace(before, offline=offline)
            self._is_registration_outdated.set()

    async def _report_offline_replicas(self, tree: Tree) -> None:
        """Update the registration whenever the offline replicas change. Returns when the session has expired."""
        while True:
            await self._is_registration_outdated.wait()
            self._is_registration_outdated.clear()
            registration = self._registration
            assert registration is not None
            try:
                # If it is not registered now, the next registration has them.
                if await update_registration(tree, registration):
                    offline = sum(len(each.partitions) for each in registration.offline.values())
                    logger.warning("offline replicas reported: broker=%d offline=%d", self.broker_id, offline)
            except SessionExpired:
                return
            except ClusterError as error:
                logger.warning("offline replicas not reported, retrying: broker=%d error=%s", self.broker_id, error)
                await asyncio.sleep(_RETRY_S)
                self._is_registration_outdated.set()

    async def _replace_session(self) -> None:
        logger.warning("session ended, opening another: broker=%d epoch=%d", self.broker_id, self.broker_epoch)
        self._remember_epoch()
        while True:
            try:
                await self._end_session()
                tree = await self._open_session()
                self.secret = await find_cluster_secret(tree, self._dependencies.random)
                await self._register()
            except ClusterError as error:
                logger.warning("registration failed, retrying: broker=%d error=%s", self.broker_id, error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _remember_epoch(self) -> None:
        """The next registration says that this process lost nothing since the epoch that ends now."""
        assert self._registration is not None
        previous = self.broker_epoch
        self._receiver.broker_epoch = UNKNOWN_EPOCH
        if previous == UNKNOWN_EPOCH:
            return
        seen = self._receiver.image.brokers.get(self.broker_id)
        # If no controller has seen the epoch that ends, none knows yet that a disk was emptied.
        before = self._registration
        is_emptied = before.is_emptied and (seen is None or seen.epoch != previous)
        # The first epoch of this process, not the one before it: a disk may be older than its folders say.
        since = previous if before.clean_since == UNKNOWN_EPOCH else before.clean_since
        self._registration = replace(before, clean_epoch=previous, clean_since=since, is_emptied=is_emptied)

    async def declare_dead(self, broker_id: int, epoch: int) -> None:
        """Delete another broker's registration of this epoch, and its claim to be the controller."""
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
            logger.info("registration not deleted: broker=%d error=%s", broker_id, error)

    # The controller.

    async def _run_for_controller(self, tree: Tree) -> None:
        """Be the controller whenever no other broker is. Returns when the session has expired."""
        changed = asyncio.Event()
        cancel = tree.watch(layout.CONTROLLER, lambda _: changed.set())
        try:
            while True:
                changed.clear()
                try:
                    claim = await claim_controller(tree, self.broker_id, self._clock)
                    if claim is None:
                        await changed.wait()
                        continue
                    await self._be_controller(
                        ActiveController(self.broker_id, tree, claim, self._dependencies, self.apply)
                    )
                    backoff_s, self._candidacy_backoff_s = self._candidacy_backoff_s, 0.0
                    await asyncio.sleep(backoff_s)
                except SessionExpired:
                    return
                except ClusterError as error:
                    logger.warning("controller not started, retrying: broker=%d error=%s", self.broker_id, error)
                    await asyncio.sleep(_RETRY_S)
        finally:
            cancel()

    async def _be_controller(self, active: ActiveController) -> None:
        self._active_controller = active
        try:
            await active.open()
            await active.closed.wait()
        finally:
            self._active_controller = None
            await active.close(give_up=True)

    async def _stored_controller_epoch(self, expected: int) -> int | None:
        """What the tree holds, None if it cannot be read. The server of this session may lag behind: `expected` is
        waited for a little.
        """
        tree, stored = self._tree, None
        try:
            async with asyncio.timeout(_EPOCH_TIMEOUT_S):
                while tree is not None and (stored is None or stored < expected):
                    if stored is not None:
                        await asyncio.sleep(_EPOCH_POLL_S)
                    stored = decode_controller_epoch((await tree.get(layout.CONTROLLER_EPOCH)).data)
        except (ClusterError, TimeoutError):
            pass
        return stored

    async def step_down(self, rest_s: float) -> None:
        """Give up being the controller and a leader, and do not run again for a while: this broker is cut off."""
        if self._active_controller is not None:
            self._candidacy_backoff_s = rest_s
            await self.declare_dead(self.broker_id, self.broker_epoch)

    async def ask_controller(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        """LinkLost if no other broker is the controller, or it does not answer."""
        controller_id = self.image.controller_id
        if controller_id < 0 or controller_id == self.broker_id:
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

    async def alter_isrs(self, requests: list[IsrRequest]) -> Sequence[IsrAnswer]:
        """Ask the controller, wherever it is. LinkLost, ClusterError: the outcome is unknown."""
        if self.controller is not None:
            return await self.controller.alter_isrs(requests)
        image = self.image
        request = alter_partition_request(self.broker_id, self.broker_epoch, requests, image)
        response = await self.ask_controller(ApiKey.ALTER_PARTITION, ALTER_PARTITION_VERSION, request, _ASK_TIMEOUT_MS)
        if not isinstance(response, AlterPartitionResponse) or response.error_code:
            raise LinkLost(f"the controller rejected AlterPartition: {error_name(response)}")
        return isr_answers(requests, response, image)

    async def create_through_controller(self, wanted: Sequence[NewTopic]) -> None:
        """Create topics that this broker itself needs, wherever the controller is. Returns when they are in the image,
        or after a second. LinkLost, ClusterError.
        """
        if self.controller is not None:
            await self.controller.create_topics(wanted)
        else:
            request = _create_topics_request(wanted)
            await self.ask_controller(ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, request, _ASK_TIMEOUT_MS)
        await self._until_known({topic.name for topic in wanted})

    async def _until_known(self, names: set[str]) -> None:
        known = asyncio.Event()
        cancel = self.listen(lambda _, image: known.set() if names <= image.topics.keys() else None)
        try:
            if not names <= self.image.topics.keys():
                async with asyncio.timeout(_PUBLISHED_TIMEOUT_S):
                    await known.wait()
        except TimeoutError:
            logger.info("created topics are not in the image yet: topics=%s", sorted(names - self.image.topics.keys()))
        finally:
            cancel()

    async def allocate_producer_id(self) -> int:
        if self._producer_ids is None:
            raise NotController("the broker has no session")
        return await self._producer_ids.allocate()


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
