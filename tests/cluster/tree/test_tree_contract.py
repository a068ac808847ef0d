"""What every tree promises, whatever keeps it."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.tree.tree_stories import Heard, Trees, live
from tests.timeouts import PATIENCE_S

from penstock.cluster.errors import (
    BadVersion,
    DataTooLarge,
    EphemeralParent,
    InvalidPath,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    TreeError,
)
from penstock.cluster.tree.tree import (
    MAX_DATA_BYTES,
    NO_OWNER,
    Check,
    Create,
    Delete,
    Event,
    EventKind,
    Operation,
    Set,
    Tree,
    ensure_path,
    find,
)


def test_stored_nodes_are_read(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a", b"1")
        assert await tree.set("/a", b"2", 0) == 1
        assert await tree.set("/a", b"3") == 2
        await tree.create("/a/ö b", b"\xff\x00")
        await tree.create("/a/a")
        node = await tree.get("/a")
        assert (node.data, node.version, node.owner) == (b"3", 2, NO_OWNER)
        assert await tree.children("/a") == ["a", "ö b"]
        assert await tree.children("/") == ["a"]
        found = await tree.get_many(["/a/ö b", "/gone", "/a/a"])
        assert [None if each is None else each.data for each in found] == [b"\xff\x00", None, b""]
        assert await tree.exists("/a/a")
        await tree.delete("/a/a", 0)
        assert not await tree.exists("/a/a")
        assert await find(tree, "/a/a") is None

    live(trees, story)


def test_persistent_nodes_outlive_the_session_and_ephemeral_ones_do_not(trees: Trees) -> None:
    async def first(tree: Tree) -> None:
        assert tree.session_id != NO_OWNER
        await tree.create("/lasting", b"1")
        await tree.create("/lasting/passing", b"2", ephemeral=True)
        assert (await tree.get("/lasting/passing")).owner == tree.session_id
        await tree.multi([Create("/also", b"", ephemeral=True)])

    async def second(tree: Tree) -> None:
        assert await tree.children("/") == ["lasting"]
        assert await tree.children("/lasting") == []

    live(trees, first)
    live(trees, second)


def test_recreated_node_has_a_greater_creation_number_even_in_another_session(trees: Trees) -> None:
    numbers: list[int] = []

    async def story(tree: Tree) -> None:
        for _ in range(2):
            await tree.create("/me", ephemeral=True)
            numbers.append((await tree.get("/me")).created)
            await tree.set("/me", b"changed")
            assert (await tree.get("/me")).created == numbers[-1]
            await tree.delete("/me")

    live(trees, story)
    live(trees, story)
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0


@pytest.mark.parametrize(
    ("operation", "error", "path"),
    [
        (Create("/a"), NodeExists, "/a"),
        (Create("/missing/child"), NoNode, "/missing"),
        (Create("/e/child"), EphemeralParent, "/e"),
        (Set("/missing", b""), NoNode, "/missing"),
        (Set("/a", b"", 7), BadVersion, "/a"),
        (Delete("/missing"), NoNode, "/missing"),
        (Delete("/a"), NotEmpty, "/a"),
        (Delete("/a", 7), BadVersion, "/a"),
        (Delete("/"), InvalidPath, "/"),
        (Check("/missing"), NoNode, "/missing"),
        (Check("/a", 7), BadVersion, "/a"),
        (Create("no-slash"), InvalidPath, "no-slash"),
        (Create("/a//b"), InvalidPath, "/a//b"),
        (Set("/a", bytes(MAX_DATA_BYTES + 1)), DataTooLarge, "/a"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Operation) else None,
)
def test_impossible_operation_is_rejected_alone_and_in_a_transaction(
    trees: Trees, operation: Operation, error: type[TreeError], path: str
) -> None:
    async def story(tree: Tree) -> None:
        await tree.multi([Create("/a", b"1"), Create("/a/b"), Create("/e", ephemeral=True)])
        with pytest.raises(error) as caught:
            await tree.multi([Create("/first"), Set("/a", b"2"), Set("/a", b"3"), operation, Create("/last")])
        assert getattr(caught.value, "path", None) == path
        with pytest.raises(error):
            await _alone(tree, operation)
        assert await tree.children("/") == ["a", "e"]
        assert (await tree.get("/a"))[:2] == (b"1", 0)

    live(trees, story)


async def _alone(tree: Tree, operation: Operation) -> None:
    match operation:
        case Create(path, data, ephemeral):
            await tree.create(path, data, ephemeral=ephemeral)
        case Set(path, data, version):
            await tree.set(path, data, version)
        case Delete(path, version):
            await tree.delete(path, version)
        case Check():
            await tree.multi([operation])


def test_bad_version_is_reported_with_the_version_found(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a")
        await tree.set("/a", b"1")
        with pytest.raises(BadVersion) as caught:
            await tree.set("/a", b"2", 5)
        assert (caught.value.path, caught.value.expected, caught.value.found) == ("/a", 5, 1)

    live(trees, story)


def test_list_of_operations_is_done_whole_and_each_sees_those_before_it(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        await tree.multi([])
        await tree.multi([Create("/a"), Create("/a/b"), Set("/a/b", b"x", 0), Check("/a/b", 1), Delete("/a/b", 1)])
        await tree.multi([Check("/a", 0), Delete("/a"), Create("/a", b"new")])
        assert (await tree.get("/a"))[:2] == (b"new", 0)
        assert await tree.children("/a") == []

    live(trees, story)


def test_changes_asked_for_at_once_are_made_in_order(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a")
        answers = await asyncio.gather(*(tree.set("/a", str(n).encode()) for n in range(500)), tree.get("/a"))
        assert answers[:500] == list(range(1, 501))

    live(trees, story)


def test_cancelling_the_caller_does_not_cancel_the_change(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        creation = asyncio.ensure_future(tree.create("/a"))
        await asyncio.sleep(0)
        creation.cancel()
        await tree.create("/b")
        assert await tree.children("/") == ["a", "b"]

    live(trees, story)


def test_watchers_get_events_of_their_node_and_its_children_until_they_cancel(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        heard, others = Heard(), Heard()
        cancel = tree.watch("/a", heard)
        tree.watch("/a", others)
        kinds: list[EventKind] = []
        for operation in (Create("/a"), Create("/a/b", ephemeral=True), Set("/a", b"x"), Delete("/a/b"), Delete("/a")):
            await tree.multi([operation])
            kinds.append(await heard.next())
            assert await others.next() == kinds[-1]
        assert kinds == [
            EventKind.CREATED,
            EventKind.CHILDREN,
            EventKind.CHANGED,
            EventKind.CHILDREN,
            EventKind.DELETED,
        ]
        cancel()
        cancel()
        await tree.create("/a")
        assert await others.next() == EventKind.CREATED
        assert not heard.events

    live(trees, story)


def test_change_of_a_child_is_not_a_change_of_its_parent(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        await ensure_path(tree, "/a/b")
        heard, marker = Heard(), Heard()
        tree.watch("/a", heard)
        tree.watch("/a/b", marker)
        await tree.set("/a/b", b"x")
        assert await marker.next() == EventKind.CHANGED
        await tree.set("/a", b"y")
        assert await heard.next() == EventKind.CHANGED

    live(trees, story)


def test_reading_after_every_event_ends_with_the_last_change(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a")
        changed = asyncio.Event()
        tree.watch("/a", lambda _: changed.set())
        seen = b""

        async def write() -> None:
            for n in range(1, 201):
                await tree.set("/a", b"%d" % n)

        writing = asyncio.ensure_future(write())
        async with asyncio.timeout(PATIENCE_S):
            while seen != b"200":
                await changed.wait()
                changed.clear()
                seen = (await tree.get("/a")).data
        await writing

    live(trees, story)


def test_failing_watcher_does_not_affect_the_others(trees: Trees, caplog: pytest.LogCaptureFixture) -> None:
    async def story(tree: Tree) -> None:
        heard = Heard()

        def fail(event: Event) -> None:
            raise ValueError("no")

        tree.watch("/a", fail)
        tree.watch("/a", heard)
        await tree.create("/a")
        assert await heard.next() == EventKind.CREATED
        assert "watcher failed: path=/a" in caplog.text

    live(trees, story)


def test_closing_tree_answers_earlier_operations_and_no_later_ones(trees: Trees) -> None:
    async def story() -> None:
        tree = await trees.open()
        creations = [asyncio.ensure_future(tree.create(f"/n{n}")) for n in range(200)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(tree.close())
        await asyncio.sleep(0)
        with pytest.raises(SessionExpired):
            await tree.create("/late")
        await asyncio.gather(*creations)
        await closing
        await tree.close()
        with pytest.raises(SessionExpired):
            await tree.get("/n0")
        again = await trees.open()
        assert len(await again.children("/")) == 200
        await again.close()

    trees.run(story())


def test_ensure_path_creates_what_is_missing(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        await ensure_path(tree, "/a/b/c")
        await ensure_path(tree, "/a/b/c")
        await ensure_path(tree, "/")
        assert await tree.exists("/a/b/c")

    live(trees, story)


def test_nodes_watched_once_report_their_next_change(trees: Trees) -> None:
    async def story(tree: Tree) -> None:
        paths = [f"/n{number}" for number in range(250)]
        for path in paths:
            await tree.create(path)
        heard = Heard()
        tree.watch_once(paths, heard)
        # The watches are there when later requests are answered.
        await tree.get_many(paths)
        await tree.create("/n0/child")
        await tree.set("/n7", b"1")
        assert await heard.next() is EventKind.CHANGED
        await tree.set("/n7", b"2")
        await tree.delete("/n249")
        assert await heard.next() is EventKind.DELETED
        tree.watch_once(["/n7"], heard)
        await tree.get("/n7")
        await tree.set("/n7", b"3")
        assert await heard.next() is EventKind.CHANGED

    live(trees, story)
