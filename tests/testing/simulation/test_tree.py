"""The simulated metadata tree: the contract of every tree, and sessions that are lost and found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.testing.simulation.simulation_stories import Stage

from penstock.cluster.errors import (
    BadVersion,
    ConnectionLost,
    EphemeralParent,
    InvalidPath,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
)
from penstock.cluster.tree.embedded import open_embedded_tree
from penstock.cluster.tree.tree import (
    NO_OWNER,
    Check,
    Create,
    Delete,
    Event,
    EventKind,
    SessionEvent,
    Set,
    Tree,
    ensure_path,
)
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.tree import Server, SimulatedTree, TreeService, open_simulated_tree

T = TypeVar("T")
Story = Callable[[Tree], Awaitable[None]]


class TreeStage(Stage):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.service = TreeService(self.network)

    def run(self, story: Awaitable[T]) -> T:
        return self.left.loop.run_until_complete(story, limit_s=self.scheduler.now_s + 100)

    def open(self, timeout_s: float = 6.0) -> SimulatedTree:
        return self.run(open_simulated_tree(self.service, timeout_s))

    def open_right(self) -> SimulatedTree:
        return self.right.loop.run_until_complete(open_simulated_tree(self.service), limit_s=50)


def on_a_simulated_tree(story: Story) -> None:
    stage = TreeStage()
    tree = stage.open()

    async def whole() -> None:
        await story(tree)
        await tree.close()

    stage.run(whole())


def on_an_embedded_tree(story: Story) -> None:
    async def whole() -> None:
        tree = open_embedded_tree(SimulatedFiles(), "/data", InlineWorkers(), SeededRandom(0))
        await story(tree)
        await tree.close()

    asyncio.run(whole())


trees = pytest.mark.parametrize("on_a_tree", [on_a_simulated_tree, on_an_embedded_tree])


@trees
def test_changes_depend_on_the_version_that_was_read(on_a_tree: Callable[[Story], None]) -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a", b"1")
        assert await tree.set("/a", b"2", 0) == 1
        with pytest.raises(BadVersion):
            await tree.set("/a", b"3", 0)
        with pytest.raises(NodeExists):
            await tree.create("/a")
        with pytest.raises(NoNode):
            await tree.create("/no/b")
        with pytest.raises(NoNode):
            await tree.get("/b")
        with pytest.raises(InvalidPath):
            await tree.create("b")
        await ensure_path(tree, "/a/b/c")
        with pytest.raises(NotEmpty):
            await tree.delete("/a")
        assert await tree.children("/a") == ["b"]
        await tree.create("/e", b"", ephemeral=True)
        with pytest.raises(EphemeralParent):
            await tree.create("/e/f")
        assert (await tree.get("/e")).owner == tree.session_id != NO_OWNER
        assert [node and node.data for node in await tree.get_many(["/a", "/z"])] == [b"2", None]

    on_a_tree(story)


@trees
def test_all_of_a_multi_happens_or_none_of_it(on_a_tree: Callable[[Story], None]) -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a")
        with pytest.raises(BadVersion):
            await tree.multi([Create("/b"), Check("/a", 3)])
        assert not await tree.exists("/b")
        await tree.multi([Create("/b"), Check("/a", 0), Set("/a", b"x", 0), Delete("/b")])
        assert (await tree.get("/a")).version == 1
        first = (await tree.get("/a")).created
        await tree.multi([Delete("/a"), Create("/a")])
        assert (await tree.get("/a")).created > first

    on_a_tree(story)


@trees
def test_watchers_hear_of_nodes_and_of_their_children_until_they_cancel(on_a_tree: Callable[[Story], None]) -> None:
    async def story(tree: Tree) -> None:
        heard: list[Event] = []
        cancel = tree.watch("/a", heard.append)
        await tree.create("/a")
        await tree.create("/a/b")
        await tree.set("/a", b"1")
        await asyncio.sleep(0.1)
        assert [event.kind for event in heard] == [EventKind.CREATED, EventKind.CHILDREN, EventKind.CHANGED]
        cancel()
        await tree.set("/a", b"2")
        await asyncio.sleep(0.1)
        assert len(heard) == 3

    on_a_tree(story)


def test_a_closed_tree_answers_nothing_and_its_ephemeral_nodes_are_gone() -> None:
    stage = TreeStage()
    tree, other = stage.open(), stage.open_right()

    async def story() -> None:
        await tree.create("/e", ephemeral=True)
        await tree.close()
        with pytest.raises(SessionExpired):
            await tree.get("/e")

    stage.run(story())
    assert not stage.right.loop.run_until_complete(other.exists("/e"), limit_s=50)


def test_a_host_that_is_cut_off_for_long_loses_its_session_and_hears_of_it_when_it_is_back() -> None:
    stage = TreeStage()
    tree, other = stage.open(), stage.open_right()
    heard: list[SessionEvent] = []
    seen: list[Event] = []
    tree.watch_session(heard.append)
    other.watch("/e", seen.append)
    stage.pass_time(0.1)
    stage.run(tree.create("/e", ephemeral=True))
    paths = [stage.left.address], [stage.service.address]
    stage.network.cut(*paths)
    stage.pass_time(15)
    assert heard == [SessionEvent.SUSPENDED]
    assert [event.kind for event in seen] == [EventKind.CREATED, EventKind.DELETED]
    with pytest.raises(ConnectionLost):
        stage.run(tree.create("/f"))
    stage.network.heal(*paths)
    stage.pass_time(2)
    assert heard == [SessionEvent.SUSPENDED, SessionEvent.EXPIRED]
    with pytest.raises(SessionExpired):
        stage.run(tree.exists("/"))


def test_a_session_that_is_found_again_in_time_is_reported_what_changed_meanwhile() -> None:
    stage = TreeStage()
    tree, other = stage.open(), stage.open_right()
    heard: list[SessionEvent] = []
    seen: list[Event] = []
    tree.watch_session(heard.append)
    tree.watch("/a", seen.append)
    stage.run(tree.create("/e", ephemeral=True))
    # Only answers are lost: the session stays alive by what still arrives.
    stage.network.cut([stage.service.address], [stage.left.address])
    stage.right.loop.run_until_complete(other.create("/a"), limit_s=50)
    stage.pass_time(7)
    assert (heard, seen) == ([SessionEvent.SUSPENDED], [])
    stage.network.heal([stage.service.address], [stage.left.address])
    stage.pass_time(2)
    assert heard == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]
    assert [event.kind for event in seen] == [EventKind.CREATED]
    assert stage.run(tree.exists("/e"))


def test_a_change_whose_answer_is_lost_may_have_happened() -> None:
    stage = TreeStage()
    tree = stage.open()
    stage.network.cut([stage.service.address], [stage.left.address])
    with pytest.raises(ConnectionLost):
        stage.run(tree.create("/a"))
    stage.network.heal_all()
    assert stage.run(tree.exists("/a"))


def test_sessions_outlive_a_service_that_is_down_for_longer_than_their_time_out() -> None:
    stage = TreeStage()
    tree = stage.open()
    stage.run(tree.create("/e", ephemeral=True))
    stage.service.go_down()
    stage.pass_time(60)
    stage.service.come_up()
    assert stage.run(tree.exists("/e"))


def test_a_process_that_died_leaves_its_ephemeral_nodes_until_its_session_times_out() -> None:
    stage = TreeStage()
    tree, other = stage.open(), stage.open_right()
    stage.run(tree.create("/e", ephemeral=True))
    stage.left.kill()
    stage.pass_time(3)
    assert stage.right.loop.run_until_complete(other.exists("/e"), limit_s=50)
    stage.pass_time(7)
    assert not stage.right.loop.run_until_complete(other.exists("/e"), limit_s=50)


# --- servers that lag behind


class LaggingStage(TreeStage):
    """Two sessions, each with a server of its own; the left one's may be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.tree, self.other = self.open(), self.open_right()
        while self.service.server_of(self.right.address) is self.behind:
            self.other = self.open_right()

    @property
    def behind(self) -> Server:
        server = self.service.server_of(self.left.address)
        assert server is not None
        return server

    def elsewhere(self, story: Awaitable[T]) -> T:
        return self.right.loop.run_until_complete(story, limit_s=self.scheduler.now_s + 100)


def test_a_session_reads_what_its_own_server_has_applied_and_hears_of_changes_with_it() -> None:
    stage = LaggingStage()
    stage.elsewhere(stage.other.create("/a", b"old"))
    seen: list[Event] = []
    stage.tree.watch("/a", seen.append)
    stage.pass_time(0.1)
    release = stage.service.hold(stage.behind)
    stage.elsewhere(stage.other.set("/a", b"new"))
    stage.elsewhere(stage.other.create("/b"))
    stage.pass_time(1)
    assert stage.elsewhere(stage.other.get("/a")).data == b"new"
    assert stage.run(stage.tree.get("/a")).data == b"old"
    assert stage.run(stage.tree.children("/")) == ["a"]
    assert stage.run(stage.tree.get_many(["/b"])) == [None]
    assert not seen
    release()
    assert stage.run(stage.tree.get("/a")).data == b"new"
    assert [event.kind for event in seen] == [EventKind.CHANGED]


def test_a_change_made_or_rejected_is_answered_when_the_session_can_see_all_that_was_before_it() -> None:
    stage = LaggingStage()
    stage.elsewhere(stage.other.create("/a", b"old"))
    stage.pass_time(0.1)
    release = stage.service.hold(stage.behind)
    stage.elsewhere(stage.other.set("/a", b"new"))

    async def story() -> bytes:
        with pytest.raises(BadVersion):
            await stage.tree.multi([Check("/a", 0)])
        return (await stage.tree.get("/a")).data

    stage.network.kernel.call_later(1.0, release)
    began_s = stage.scheduler.now_s
    assert stage.run(story()) == b"new"
    assert stage.scheduler.now_s - began_s > 0.9


def test_a_session_that_changes_servers_never_goes_back_to_an_older_state() -> None:
    stage = LaggingStage()
    for server in stage.service.servers:
        if server is not stage.behind:
            stage.service.hold(server)
    stage.run(stage.tree.create("/a"))
    seen: list[SessionEvent] = []
    stage.tree.watch_session(seen.append)
    for _ in range(4):
        stage.network.cut([stage.service.address], [stage.left.address])
        stage.pass_time(5)
        stage.network.heal_all()
        stage.pass_time(5)
        assert stage.run(stage.tree.exists("/a"))
    assert seen.count(SessionEvent.CONNECTED) == 4


def test_a_session_whose_server_hangs_moves_to_another_and_may_not_see_its_own_unanswered_change_yet() -> None:
    stage = LaggingStage()
    for server in stage.service.servers:
        stage.service.hold(server)
    with pytest.raises(ConnectionLost):
        stage.run(stage.tree.create("/a"))
    assert stage.service.state.node("/a") is not None
    assert not stage.run(stage.tree.exists("/a"))
