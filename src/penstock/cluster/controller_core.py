"""The workings of a controller: its claim, the order of changes, and what it does by itself.

Noun: a `ControllerCore`, on which `controller` puts what can be asked for.

Rule: one change at a time, in the order of asking; before each of them, what is in doubt is read again, and brokers
that came or went are dealt with, several that come together in one decision. What the controller does by itself is
tried again until it is done. Cancelling whoever asked for a change does not cancel the change. Once the claim or the
session is lost nothing is changed any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from penstock.cluster import parts, paths
from penstock.cluster.controller_claim import ControllerClaim
from penstock.cluster.controller_duties import Duties
from penstock.cluster.controller_store import ControllerStore
from penstock.cluster.decision import Decision, TopicPartition
from penstock.cluster.errors import (
    BadVersion,
    ConnectionLost,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NotController,
    Refusal,
    TreeError,
)
from penstock.cluster.image import ClusterImage, ImageDraft
from penstock.cluster.image_holder import Listener, Preparation
from penstock.cluster.outcomes import Images, Result
from penstock.cluster.partition_rules import RulesIn
from penstock.cluster.tree import Operation, SessionEvent, Tree, find

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
) -> tuple[Decision, list[Refusal | None]]:
    """One decision for the first items, and why there is none for some of them.

    It takes one step of the tree, all or nothing, unless it is for one item.
    """
    image: ClusterImage = ImageDraft(before) if on_draft else before
    refusals: list[Refusal | None] = []
    operations: list[Operation] = []
    unclean: list[TopicPartition] = []
    size = parts.Size()
    for item in items:
        try:
            decision = decide(image, item)
        except Refusal as refusal:
            refusals.append(refusal)
        else:
            if operations and parts.Size().and_that_of(decision).is_large:
                return _decide_group(items[: len(refusals)], decide, before, on_draft)
            image = decision.image
            operations += decision.operations
            size = size.and_that_of(decision)
            unclean += decision.unclean
            refusals.append(None)
        if size.is_enough or len(refusals) >= parts.TOGETHER:
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
        self._duties = Duties(self._store, rules_of, deletes_at_once=deletes_at_once)
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tending: asyncio.Task[None] | None = None
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
            self._tree.watch(paths.BROKER_IDS, lambda _: self._hear_of_brokers()),
            self._tree.watch(paths.CONTROLLER, lambda _: self._hear_of_controller()),
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
        self._tend()
        return self._store.image

    async def resign(self, *, give_up: bool = False) -> None:
        """Return when the changes under way are done; take no more. `give_up` lets another take over at once."""
        had_it = self._store.lost is None
        if had_it:
            self._store.lost = NotController("this broker has resigned as the controller")
        self._stop_watching()
        tending = self._tending
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
        except Refusal as refusal:
            return _Group([refusal], supposed)
        before = self._store.image if supposed is None else supposed
        decision, refusals = _decide_group(items, decide, before, on_draft)
        if validate_only:
            await asyncio.sleep(0)  # others are served between the groups
        else:
            try:
                await self._store.store(decision)
            except Refusal as refusal:
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
                self._tend()

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

    def _tend(self) -> None:
        """See to it that duties are done."""
        if self._tending is None and self.is_active and self._duties.are_due:
            self._tending = asyncio.get_running_loop().create_task(self._tend_all())

    async def _tend_all(self) -> None:
        retry_ms = _RETRY_FIRST_MS
        try:
            while self.is_active and self._duties.are_due:
                try:
                    async with self._changing:
                        await self._duties.settle()
                        await self._duties.carry_on()
                    retry_ms = _RETRY_FIRST_MS
                except Exception as error:
                    if not isinstance(error, Refusal):
                        logger.exception("the controller failed in what it does by itself, and tries again")
                    await asyncio.sleep(retry_ms / 1000)
                    retry_ms = min(2 * retry_ms, _RETRY_MAX_MS)
        finally:
            self._tending = None

    def _hear_of_brokers(self) -> None:
        self._duties.hear_of_brokers()
        self._tend()

    def _hear_of_controller(self) -> None:
        if self._store.lost is None:
            self._spawn(self._look_at_claim())

    async def _look_at_claim(self) -> None:
        try:
            node = await find(self._tree, paths.CONTROLLER)
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
