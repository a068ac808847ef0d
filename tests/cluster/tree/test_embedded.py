"""The metadata tree of a single broker, in its file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import struct
from pathlib import Path

import crc32c
import msgspec
import pytest
from tests.cluster.cluster_stories import JOURNAL, open_tree, run, with_tree

from penstock.cluster.errors import (
    BadVersion,
    DamagedTree,
    NodeExists,
    NoNode,
    SessionExpired,
    TreeBusy,
    TreeDiskFull,
    TreeFailed,
    TreeInUse,
)
from penstock.cluster.tree.embedded import EmbeddedTree, open_embedded_tree
from penstock.cluster.tree.tree import Create, Delete, Event, EventKind, SessionEvent, Set, Tree, ensure_path, find
from penstock.runtime.files import PosixFiles
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import ManualWorkers, ThreadWorkers
from penstock.testing.simulated_files import SimulatedFiles


def test_stored_nodes_survive_a_restart() -> None:
    files = SimulatedFiles()

    async def first(tree: Tree) -> None:
        await tree.create("/a", b"1")
        assert await tree.set("/a", b"2", 0) == 1
        await tree.create("/a/b", b"\xff")
        await tree.create("/gone")
        await tree.delete("/gone", 0)

    async def second(tree: Tree) -> None:
        assert (await tree.get("/a"))[:2] == (b"2", 1)
        found, gone = await tree.get_many(["/a/b", "/gone"])
        assert found is not None
        assert (found.data, found.version, gone) == (b"\xff", 0, None)
        assert await tree.children("/") == ["a"]
        assert not await tree.exists("/gone")

    run(with_tree(files, first))
    run(with_tree(files, second))
    run(with_tree(files, second))


def test_ephemeral_nodes_vanish_with_the_process_and_never_reach_the_disk() -> None:
    files = SimulatedFiles()

    async def first(tree: Tree) -> None:
        await tree.create("/ids")
        size = files.size_of(JOURNAL)
        await tree.create("/ids/0", b"me", ephemeral=True)
        await tree.set("/ids/0", b"still me")
        assert (await tree.get("/ids/0"))[:2] == (b"still me", 1)
        assert files.size_of(JOURNAL) == size

    async def second(tree: Tree) -> None:
        assert await tree.children("/ids") == []
        await tree.create("/ids/0", b"again", ephemeral=True)

    run(with_tree(files, first))
    run(with_tree(files, second))


def test_number_a_node_is_created_with_never_comes_again_not_even_that_of_an_ephemeral_one() -> None:
    files = SimulatedFiles()
    numbers: list[int] = []

    async def life(tree: Tree) -> None:
        for _ in range(3):
            await tree.create("/me", ephemeral=True)
            numbers.append((await tree.get("/me")).created)
            await tree.set("/me", b"changed")
            assert (await tree.get("/me")).created == numbers[-1]
            await tree.delete("/me")
        await ensure_path(tree, "/lasting")
        for n in range(60):
            await tree.set("/lasting", b"%d" % n * 50)

    # The second process rewrites the journal, which must keep the creation numbers.
    run(with_tree(files, life))
    run(with_tree(files, life, rewrite_bytes=1024))
    run(with_tree(files, life))
    assert files.operations.counts["rename"] > 2
    assert numbers == sorted(set(numbers))


def test_node_keeps_the_number_it_was_created_with_over_restarts() -> None:
    files = SimulatedFiles()

    async def made(tree: Tree) -> int:
        await ensure_path(tree, "/a")
        return (await tree.get("/a")).created

    first = run(with_tree(files, made))
    assert first > 0
    assert run(with_tree(files, made)) == first


def test_first_ephemeral_node_of_a_process_is_answered_when_its_number_is_durable() -> None:
    async def story() -> None:
        files = SimulatedFiles()
        workers = ManualWorkers()
        tree = open_tree(files, workers)
        creation = asyncio.ensure_future(tree.create("/me", ephemeral=True))
        await asyncio.sleep(0)
        assert not await tree.exists("/me")
        workers.run_all()
        await creation
        assert await tree.exists("/me")

    run(story())


def test_journal_of_the_first_format_is_read() -> None:
    files = SimulatedFiles()
    salt = bytes(16)
    payload = msgspec.msgpack.encode([["/", b"", 0], ["/a", b"old", 3]])
    covered = crc32c.crc32c(payload, crc32c.crc32c(salt + struct.pack(">IQ", len(payload), 0)))
    record = struct.pack(">4sIQI", b"\xf1\x0e\xd5\x1a", len(payload), 0, covered) + payload
    head = struct.pack(">8sH16sQ", b"PENSTREE", 1, salt, 38 + len(record))
    files.make_folder("/data")
    files.make_folder("/data/metadata")
    with contextlib.closing(files.open(JOURNAL, create=True)) as file:
        file.write_at(0, head + struct.pack(">I", crc32c.crc32c(head)) + record)

    async def story(tree: Tree) -> None:
        assert (await tree.get("/a"))[:2] == (b"old", 3)
        await tree.create("/b")
        assert (await tree.get("/b")).created > (await tree.get("/a")).created

    run(with_tree(files, story))


def test_persistent_node_recreated_as_ephemeral_is_gone_after_a_restart() -> None:
    files = SimulatedFiles()

    async def first(tree: Tree) -> None:
        await tree.create("/a", b"lasting")
        await tree.multi([Delete("/a"), Create("/a", b"passing", ephemeral=True)])
        assert (await tree.get("/a")).data == b"passing"

    async def second(tree: Tree) -> None:
        assert await find(tree, "/a") is None

    run(with_tree(files, first))
    run(with_tree(files, second))


def test_list_of_operations_is_done_whole_or_not_at_all() -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a", b"1")
        with pytest.raises(BadVersion) as caught:
            await tree.multi([Create("/b"), Set("/a", b"2", 5)])
        assert (caught.value.expected, caught.value.found) == (5, 0)
        assert not await tree.exists("/b")
        await tree.multi([Create("/b"), Set("/a", b"2", 0)])
        assert (await tree.get("/a"))[:2] == (b"2", 1)

    run(with_tree(SimulatedFiles(), story))


def test_ensure_path_creates_what_is_missing() -> None:
    async def story(tree: Tree) -> None:
        await ensure_path(tree, "/a/b/c")
        await ensure_path(tree, "/a/b/c")
        await ensure_path(tree, "/")
        assert await tree.exists("/a/b/c")

    run(with_tree(SimulatedFiles(), story))


def test_nothing_is_seen_before_it_is_durable() -> None:
    async def story() -> None:
        workers = ManualWorkers()
        tree = open_tree(SimulatedFiles(), workers)
        seen: list[Event] = []
        tree.watch("/a", seen.append)
        creation = asyncio.ensure_future(tree.create("/a"))
        await asyncio.sleep(0)
        assert workers.waiting == 1
        assert not await tree.exists("/a")
        assert not seen
        assert not creation.done()
        workers.run_all()
        await creation
        assert await tree.exists("/a")
        await asyncio.sleep(0)
        assert seen == [Event(EventKind.CREATED, "/a")]

    run(story())


def test_changes_are_made_in_the_order_of_asking_though_asked_at_once() -> None:
    async def story(tree: Tree) -> None:
        await tree.create("/a")
        answers = await asyncio.gather(*(tree.set("/a", str(n).encode()) for n in range(2000)))
        assert answers == list(range(1, 2001))
        assert (await tree.get("/a"))[:2] == (b"1999", 2000)

    run(with_tree(SimulatedFiles(), story))


def test_cancelling_the_caller_does_not_cancel_the_change() -> None:
    async def story() -> None:
        workers = ManualWorkers()
        tree = open_tree(SimulatedFiles(), workers)
        first = asyncio.ensure_future(tree.create("/a"))
        second = asyncio.ensure_future(tree.create("/b"))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        while not second.done():
            workers.run_all()
            await asyncio.sleep(0)
        assert await tree.children("/") == ["a", "b"]

    run(story())


def test_too_many_waiting_changes_are_rejected() -> None:
    async def story() -> None:
        workers = ManualWorkers()
        tree = open_tree(SimulatedFiles(), workers)
        waiting = [asyncio.ensure_future(tree.create(f"/n{n}")) for n in range(10_001)]
        await asyncio.sleep(0)
        with pytest.raises(TreeBusy):
            await tree.create("/one-more")
        for task in waiting:
            task.cancel()

    run(story())


def test_watchers_get_events_of_their_node_and_its_children_until_they_cancel() -> None:
    async def story(tree: Tree) -> None:
        seen: list[Event] = []
        cancel = tree.watch("/a", seen.append)
        await tree.create("/a")
        await tree.create("/a/b", ephemeral=True)
        await tree.set("/a", b"x")
        await tree.set("/a/b", b"not theirs")
        await tree.delete("/a/b")
        await tree.delete("/a")
        await asyncio.sleep(0)
        assert [event.kind for event in seen] == [
            EventKind.CREATED,
            EventKind.CHILDREN,
            EventKind.CHANGED,
            EventKind.CHILDREN,
            EventKind.DELETED,
        ]
        cancel()
        cancel()
        await tree.create("/a")
        await asyncio.sleep(0)
        assert len(seen) == 5

    run(with_tree(SimulatedFiles(), story))


def test_failing_watcher_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def story(tree: Tree) -> None:
        seen: list[Event] = []

        def fail(event: Event) -> None:
            raise ValueError("no")

        tree.watch("/a", fail)
        tree.watch("/a", seen.append)
        await tree.create("/a")
        await asyncio.sleep(0)
        assert len(seen) == 1
        assert "watcher failed: path=/a" in caplog.text

    run(with_tree(SimulatedFiles(), story))


def test_closing_tree_answers_earlier_operations_and_no_later_ones() -> None:
    async def story() -> None:
        files = SimulatedFiles()
        workers = ManualWorkers()
        tree = open_tree(files, workers)
        creation = asyncio.ensure_future(tree.create("/a"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(tree.close())
        await asyncio.sleep(0)
        with pytest.raises(SessionExpired):
            await tree.create("/b")
        workers.run_all()
        await creation
        await closing
        await tree.close()
        with pytest.raises(SessionExpired):
            await tree.get("/a")
        assert await open_tree(files).exists("/a")

    run(story())


def test_second_process_is_rejected_with_the_holder_of_the_lock() -> None:
    files = SimulatedFiles()
    tree = open_tree(files)
    with pytest.raises(TreeInUse):
        open_tree(files)
    run(tree.close())
    run(open_tree(files).close())


def test_journal_is_rewritten_when_changes_outweigh_the_snapshot() -> None:
    files = SimulatedFiles()

    async def story(tree: Tree) -> None:
        await tree.create("/a")
        await tree.create("/e", ephemeral=True)
        for n in range(300):
            await tree.set("/a", b"%d" % n * 20)
            assert files.size_of(JOURNAL) < 4096 + 200
        assert files.operations.counts["rename"] > 3
        assert (await tree.get("/a"))[:2] == (b"299" * 20, 300)
        assert await tree.exists("/e")

    async def later(tree: Tree) -> None:
        assert (await tree.get("/a"))[:2] == (b"299" * 20, 300)
        assert not await tree.exists("/e")

    run(with_tree(files, story, rewrite_bytes=4096))
    run(with_tree(files, later, rewrite_bytes=4096))


def test_large_tree_is_rewritten_when_it_has_grown_as_much_again_not_all_the_time() -> None:
    files = SimulatedFiles()

    async def story(tree: Tree) -> None:
        for n in range(60):
            await tree.create(f"/n{n}", bytes(1000))
        assert files.operations.counts["rename"] <= 5

    run(with_tree(files, story, rewrite_bytes=4096))


def test_change_on_a_full_disk_fails_and_succeeds_once_there_is_space() -> None:
    files = SimulatedFiles()

    async def story(tree: Tree) -> None:
        await tree.create("/a", b"1")
        size = files.size_of(JOURNAL)
        files.operations.fail("write", errno.ENOSPC, applied_bytes=10)
        with pytest.raises(TreeDiskFull):
            await tree.set("/a", b"2")
        assert files.size_of(JOURNAL) == size
        assert (await tree.get("/a"))[:2] == (b"1", 0)
        await tree.set("/a", b"3")

    async def later(tree: Tree) -> None:
        assert (await tree.get("/a"))[:2] == (b"3", 1)

    run(with_tree(files, story))
    run(with_tree(files, later))


def test_full_disk_only_delays_the_rewrite(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()

    async def story(tree: Tree) -> None:
        await tree.create("/a")
        files.operations.fail("create", errno.ENOSPC, path_ending=".tmp")
        for _ in range(40):
            await tree.set("/a", bytes(100))
        assert "journal not rewritten" in caplog.text
        for _ in range(60):
            await tree.set("/a", bytes(100))
        assert files.size_of(JOURNAL) < 4096 + 200
        assert not files.exists(JOURNAL + ".tmp")

    run(with_tree(files, story, rewrite_bytes=4096))


@pytest.mark.parametrize(("kind", "error_number"), [("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC)])
def test_disk_that_fails_ends_the_session(kind: str, error_number: int) -> None:
    files = SimulatedFiles()

    async def story() -> None:
        tree = open_tree(files)
        events: list[SessionEvent] = []
        tree.watch_session(events.append)
        await tree.create("/a")
        files.operations.fail(kind, error_number)
        answers = await asyncio.gather(tree.create("/b"), tree.create("/c"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [TreeFailed, TreeFailed]
        with pytest.raises(TreeFailed):
            await tree.get("/a")
        await asyncio.sleep(0)
        assert events == [SessionEvent.EXPIRED]
        await tree.close()
        assert await open_tree(files).exists("/a")

    run(story())


def test_new_journal_whose_name_may_not_be_durable_ends_the_session() -> None:
    files = SimulatedFiles()

    async def story(tree: Tree) -> None:
        await tree.create("/a")
        files.operations.fail("sync_folder", errno.EIO)
        changes = [tree.set("/a", bytes(100)) for _ in range(60)]
        answers = await asyncio.gather(*changes, return_exceptions=True)
        assert isinstance(answers[-1], TreeFailed)

    run(with_tree(files, story, rewrite_bytes=4096))


def test_disk_that_cannot_be_used_at_all_is_a_failed_tree() -> None:
    files = SimulatedFiles()
    files.operations.fail("create", errno.EACCES)
    with pytest.raises(TreeFailed):
        open_tree(files)


async def _three_changes(tree: Tree) -> None:
    for n in range(3):
        await tree.create(f"/n{n}", b"value")


def _names(files: SimulatedFiles) -> list[str]:
    return run(with_tree(files, lambda tree: tree.children("/")))


def test_torn_record_at_the_end_is_removed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    run(with_tree(files, _three_changes))
    size = files.size_of(JOURNAL)
    files.open(JOURNAL).truncate(size - 1)
    with caplog.at_level(logging.WARNING):
        assert _names(files) == ["n0", "n1"]
    assert "torn record removed" in caplog.text
    caplog.clear()
    assert _names(files) == ["n0", "n1"]
    assert not caplog.text


def test_journal_cut_at_any_byte_is_a_prefix_or_damage() -> None:
    files = SimulatedFiles()
    run(with_tree(files, lambda tree: tree.create("/first")))
    run(with_tree(files, _three_changes))
    size = files.size_of(JOURNAL)
    for cut in range(size):
        copy = files.fork(SeededRandom(0))
        copy.open(JOURNAL).truncate(cut)
        try:
            names = _names(copy)
        except DamagedTree:
            continue
        assert names == ["first", "n0", "n1", "n2"][: len(names)]


def test_flipped_bit_before_the_last_change_is_damage_and_nothing_is_touched() -> None:
    files = SimulatedFiles()
    run(with_tree(files, _three_changes))
    content = files.open(JOURNAL).read_at(0, 1 << 20)
    last = content.rindex(b"\xf1\x0e\xd5\x1a")
    for position in range(last):
        copy = files.fork(SeededRandom(0))
        copy.open(JOURNAL).write_at(position, bytes([content[position] ^ 0x10]))
        with pytest.raises(DamagedTree):
            open_tree(copy)
        assert copy.size_of(JOURNAL) == len(content)


def test_damage_in_the_snapshot_does_not_pass_for_a_torn_record() -> None:
    files = SimulatedFiles()
    run(with_tree(files, _three_changes))
    run(with_tree(files, lambda tree: tree.set("/n0", bytes(300)), rewrite_bytes=1))
    content = files.open(JOURNAL).read_at(0, 1 << 20)
    assert content.count(b"\xf1\x0e\xd5\x1a") == 1
    for position in range(len(content)):
        copy = files.fork(SeededRandom(0))
        copy.open(JOURNAL).write_at(position, bytes([content[position] ^ 0x10]))
        with pytest.raises(DamagedTree):
            open_tree(copy)
        copy = files.fork(SeededRandom(0))
        copy.open(JOURNAL).truncate(position)
        with pytest.raises(DamagedTree):
            open_tree(copy)


def test_value_that_looks_like_a_record_does_not_pass_for_one() -> None:
    files = SimulatedFiles()
    run(with_tree(files, _three_changes))
    other = SimulatedFiles()
    run(with_tree(other, _three_changes, seed=1))
    record = other.open(JOURNAL).read_at(0, 1 << 20)
    run(with_tree(files, lambda tree: tree.create("/evil", record)))
    content = files.open(JOURNAL).read_at(0, 1 << 20)
    start = content.rindex(b"/evil")
    files.open(JOURNAL).write_at(start, b"?")
    assert _names(files) == ["n0", "n1", "n2"]


def test_hostile_lengths_take_no_memory() -> None:
    files = SimulatedFiles()
    run(with_tree(files, _three_changes))
    size = files.size_of(JOURNAL)
    files.open(JOURNAL).write_at(size, b"\xf1\x0e\xd5\x1a" + b"\xff" * 20)
    assert _names(files) == ["n0", "n1", "n2"]


def test_file_of_another_kind_is_damage() -> None:
    files = SimulatedFiles()
    files.make_folder("/data/metadata")
    files.open(JOURNAL, create=True).write_at(0, bytes(200))
    with pytest.raises(DamagedTree):
        open_tree(files)


def test_unfinished_journal_of_a_crash_is_removed() -> None:
    files = SimulatedFiles()
    run(with_tree(files, _three_changes))
    files.open(JOURNAL + ".tmp", create=True).write_at(0, b"half")
    assert _names(files) == ["n0", "n1", "n2"]
    assert not files.exists(JOURNAL + ".tmp")


def test_it_works_on_a_real_disk_with_threads(tmp_path: Path) -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 2)
        folder = str(tmp_path / "deep" / "metadata")
        tree: EmbeddedTree = open_embedded_tree(PosixFiles(), folder, workers, SeededRandom(0), rewrite_bytes=4096)
        await tree.create("/a")
        await asyncio.gather(*(tree.set("/a", str(n).encode()) for n in range(200)))
        with pytest.raises(NodeExists):
            await tree.create("/a")
        with pytest.raises(NoNode):
            await tree.get("/b")
        await tree.close()
        tree = open_embedded_tree(PosixFiles(), folder, workers, SeededRandom(0))
        assert (await tree.get("/a"))[:2] == (b"199", 200)
        await tree.close()
        workers.close()

    run(story())
