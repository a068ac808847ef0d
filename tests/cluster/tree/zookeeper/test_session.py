"""A session with a real ZooKeeper: servers that die, networks that break, sessions that end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from socket import create_server

import pytest
from kazoo.protocol.states import KazooState  # type: ignore[import-untyped]
from tests.cluster.cluster_stories import run
from tests.cluster.tree.tree_stories import Heard, HeardSession, Proxy, ZooKeeperTrees, live
from tests.timeouts import PATIENCE_S

from penstock.cluster.errors import ConnectionLost, DataTooLarge, InvalidConnect, SessionExpired, ZooKeeperUnreachable
from penstock.cluster.tree.tree import Create, EventKind, SessionEvent, Set, Tree
from penstock.cluster.tree.zookeeper.tree import MultiRead, open_zookeeper_tree, path_chunks
from penstock.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer


@pytest.mark.long
def test_server_that_comes_back_in_time_finds_the_session_and_its_nodes(own_zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        tree = await open_zookeeper_tree(own_zookeeper.connect, session_timeout_ms=30_000)
        session = HeardSession(tree)
        await tree.create("/me", b"1", ephemeral=True)
        heard = Heard()
        tree.watch("/me", heard)
        await asyncio.to_thread(own_zookeeper.kill)
        await session.until(SessionEvent.SUSPENDED)
        reading = asyncio.ensure_future(tree.get("/me"))
        changing = asyncio.ensure_future(tree.create("/asked-while-away"))
        await asyncio.to_thread(own_zookeeper.start)
        assert (await reading).owner == tree.session_id
        await changing
        await tree.set("/me", b"2")
        assert await heard.next() == EventKind.CHANGED
        assert session.events == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]
        await tree.close()

    run(story())


def test_changes_while_disconnected_are_reported_after_the_reconnect(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        async with Proxy(zookeeper.port) as proxy:
            near = await trees.open()
            far = await open_zookeeper_tree(trees.connect.replace(zookeeper.connect, proxy.connect))
            await near.multi([Create("/changed"), Create("/same"), Create("/gone"), Create("/parent")])
            paths = ("/changed", "/same", "/gone", "/parent", "/new", "/again")
            await near.create("/again")
            heard = {path: Heard() for path in paths}
            for path in paths:
                far.watch(path, heard[path])
            await far.exists("/")
            session = HeardSession(far)
            proxy.cut()
            await session.until(SessionEvent.SUSPENDED)
            await near.set("/changed", b"x")
            await near.delete("/gone")
            await near.create("/parent/child")
            await near.create("/new")
            await near.delete("/again")
            await near.create("/again")
            proxy.heal()
            assert await heard["/changed"].next() == EventKind.CHANGED
            assert await heard["/gone"].next() == EventKind.DELETED
            assert await heard["/parent"].next() == EventKind.CHILDREN
            assert await heard["/new"].next() == EventKind.CREATED
            await far.exists("/")
            assert [event.kind for event in heard["/again"].events] == [EventKind.DELETED, EventKind.CREATED]
            await near.set("/same", b"x")
            assert await heard["/same"].next() == EventKind.CHANGED
            await near.close()
            await far.close()

    run(story())


def test_expired_session_is_reported_once_and_its_nodes_are_gone(
    zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        async with Proxy(zookeeper.port) as proxy:
            near = await trees.open()
            through = trees.connect.replace(zookeeper.connect, proxy.connect)
            far = await open_zookeeper_tree(through, session_timeout_ms=1000)
            session = HeardSession(far)
            await far.create("/me", ephemeral=True)
            heard = Heard()
            near.watch("/me", heard)
            assert await near.exists("/me")
            proxy.cut()
            waiting = asyncio.ensure_future(far.create("/me-too", ephemeral=True))
            assert await heard.next() == EventKind.DELETED
            proxy.heal()
            await session.until(SessionEvent.EXPIRED)
            with pytest.raises((SessionExpired, ConnectionLost)):
                await waiting
            with pytest.raises(SessionExpired):
                await far.exists("/me")
            await far.close()
            # kazoo has begun another session by now, if it is ever to; nothing of ours reaches it.
            assert await near.children("/") == []
            assert session.events == [SessionEvent.SUSPENDED, SessionEvent.EXPIRED]
            await near.close()

    with caplog.at_level(logging.ERROR, "penstock.cluster"):
        run(story())
    assert len([record for record in caplog.records if "ZooKeeper session expired" in record.message]) == 1


def test_nothing_is_sent_once_kazoo_has_noticed_the_end_even_if_the_loop_has_not(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        near, ended = await trees.open(), await trees.open()
        session = HeardSession(ended)
        # What kazoo's thread calls at the end of a session; the loop hears of it with its next turn.
        ended._session._state_changed(KazooState.LOST)
        with pytest.raises(SessionExpired):
            await ended.create("/late", ephemeral=True)
        await session.until(SessionEvent.EXPIRED)
        assert await near.children("/") == []
        await ended.close()
        await near.close()

    run(story())


def test_watcher_of_children_sees_them_all_in_the_end_though_they_come_while_it_looks(
    zookeeper: ZooKeeperServer,
) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        near, far = await trees.open(), await trees.open()
        changed = asyncio.Event()
        far.watch("/", lambda _: changed.set())
        seen = await far.children("/")

        async def write() -> None:
            for n in range(150):
                await near.create(f"/{n}")

        writing = asyncio.ensure_future(write())
        async with asyncio.timeout(PATIENCE_S):
            while len(seen) < 150:
                await changed.wait()
                changed.clear()
                seen = await far.children("/")
        await writing
        await near.close()
        await far.close()

    run(story())


def test_change_whose_answer_is_lost_may_have_happened_and_says_so(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        async with Proxy(zookeeper.port) as proxy:
            near = await trees.open()
            far = await open_zookeeper_tree(trees.connect.replace(zookeeper.connect, proxy.connect))
            heard = Heard()
            near.watch("/a", heard)
            await near.exists("/")
            proxy.swallow_answers()
            creation = asyncio.ensure_future(far.create("/a"))
            reading = asyncio.ensure_future(far.get("/a"))
            assert await heard.next() == EventKind.CREATED
            proxy.cut()
            proxy.heal()
            with pytest.raises(ConnectionLost):
                await creation
            # A read is asked again.
            assert (await reading).data == b""
            await near.close()
            await far.close()

    run(story())


def test_without_a_connection_a_change_waits_as_long_as_a_session_and_closing_does_not(
    zookeeper: ZooKeeperServer,
) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        async with Proxy(zookeeper.port) as proxy:
            far = await open_zookeeper_tree(
                trees.connect.replace(zookeeper.connect, proxy.connect), session_timeout_ms=1000
            )
            session = HeardSession(far)
            proxy.cut()
            await session.until(SessionEvent.SUSPENDED)
            with pytest.raises(ConnectionLost, match=r"no connection to ZooKeeper at .* for 1\.0 s"):
                await far.create("/a")
            asked = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionLost):
                await far.get("/a")
            assert asyncio.get_running_loop().time() - asked >= 0.9
            await far.close()

    run(story())


def test_server_that_is_silent_does_not_cost_the_session_that_others_would_keep(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kazoo.protocol.connection.random.shuffle", lambda hosts: None)
    with closing(create_server(("127.0.0.1", 0))) as silent:
        connect = f"127.0.0.1:{silent.getsockname()[1]},{zookeeper.connect}"

        async def story() -> None:
            start_s = asyncio.get_running_loop().time()
            # It would raise if the other server was not reached long before a session is over.
            tree = await open_zookeeper_tree(connect, session_timeout_ms=12_000, connection_timeout_ms=11_000)
            assert asyncio.get_running_loop().time() - start_s >= 4, "the silent one was tried first"
            await tree.close()

        run(story())


@pytest.mark.long
def test_ensemble_continues_without_its_leader() -> None:
    async def story(ensemble: ZooKeeperEnsemble) -> None:
        tree = await open_zookeeper_tree(f"{ensemble.connect}/kafka", session_timeout_ms=30_000)
        session = HeardSession(tree)
        await tree.create("/me", b"1", ephemeral=True)
        heard = Heard()
        tree.watch("/me", heard)
        leader = await asyncio.to_thread(ensemble.leader)
        await asyncio.to_thread(leader.kill)
        # All connections go with the leader, not only those to it: a follower without one does not serve.
        await session.until(SessionEvent.SUSPENDED)
        node = await tree.get("/me")
        assert node.owner == tree.session_id
        while True:
            try:
                await tree.set("/me", b"2", node.version)
                break
            except ConnectionLost:
                continue
        assert await heard.next() == EventKind.CHANGED
        assert SessionEvent.EXPIRED not in session.events
        assert (await asyncio.to_thread(ensemble.leader)) is not leader
        await tree.close()

    with ZooKeeperEnsemble(3, tick_ms=2000) as ensemble:
        run(story(ensemble))


def test_ten_thousand_topics_with_long_names_are_listed_and_read(zookeeper: ZooKeeperServer) -> None:
    async def story(tree: Tree) -> None:
        names = [f"{n:05d}-{'t' * 180}" for n in range(10_000)]
        for start in range(0, len(names), 1000):
            await tree.multi([Create(f"/{name}", name[:5].encode()) for name in names[start : start + 1000]])
        # 1.9 MB, more than jute.maxbuffer lets pass in a request.
        assert await tree.children("/") == names
        nodes = await tree.get_many([f"/{name}" for name in [*names, "missing"]])
        assert [None if node is None else node.data for node in nodes] == [*(name[:5].encode() for name in names), None]

    live(ZooKeeperTrees(zookeeper.connect, 20_000), story)


def test_nodes_are_read_one_by_one_from_a_server_without_multi_read(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A number that stands for no request is answered as an older server answers this one.
    monkeypatch.setattr(MultiRead, "type", 99)

    async def story(tree: Tree) -> None:
        await tree.create("/a", b"1")
        for _ in range(2):
            nodes = await tree.get_many(["/a", "/missing", "/"])
            assert [None if node is None else node.data for node in nodes] == [b"1", None, b""]

    live(ZooKeeperTrees(zookeeper.connect), story)


def test_many_nodes_are_read_as_one_is(zookeeper: ZooKeeperServer) -> None:
    async def story(tree: Tree) -> None:
        await tree.multi([Create("/a", bytes(1000)), Set("/a", b"1"), Create("/e", b"2", ephemeral=True)])
        assert await tree.get_many(["/a", "/e", "/"]) == [
            await tree.get("/a"),
            await tree.get("/e"),
            await tree.get("/"),
        ]
        assert await tree.get_many([]) == []

    live(ZooKeeperTrees(zookeeper.connect), story)


def test_long_paths_are_parted_into_requests_that_fit() -> None:
    paths = [f"/{n}/{'x' * 20_000}" for n in range(250)]
    lists = list(path_chunks(paths))
    assert [path for each in lists for path in each] == paths
    assert max(len(MultiRead(each).serialize()) for each in lists) < 0xFFFFF
    assert [len(each) for each in path_chunks(["/a"] * 250)] == [100, 100, 50]


def test_transaction_that_is_too_large_for_the_server_is_rejected_before_it_is_sent(zookeeper: ZooKeeperServer) -> None:
    async def story(tree: Tree) -> None:
        with pytest.raises(DataTooLarge):
            await tree.multi([Create(f"/n{n}", bytes(200_000)) for n in range(6)])
        await tree.multi([Create(f"/n{n}", bytes(200_000)) for n in range(5)])

    live(ZooKeeperTrees(zookeeper.connect), story)


def test_refused_connection_is_reported_with_how_to_start_a_server() -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    message = _refused(f"127.0.0.1:{port}/kafka")
    assert message == (
        f"no ZooKeeper session at 127.0.0.1:{port}/kafka: 127.0.0.1:{port} refuses connections, for 300 ms; start it "
        "(`penstock zookeeper start` runs one here), or correct zookeeper.connect"
    )


def test_host_without_an_address_is_named() -> None:
    message = _refused("zookeeper.invalid:2181")
    assert "zookeeper.invalid:2181 has no address" in message
    assert "\n" not in message


def test_another_service_at_the_port_is_recognized() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ZooKeeperUnreachable, match=r"is not a ZooKeeper server .*; correct the port"):
            await open_zookeeper_tree(f"127.0.0.1:{port}", connection_timeout_ms=300)
        server.close()

    run(story())


def _refused(connect: str) -> str:
    with pytest.raises(ZooKeeperUnreachable) as caught:
        run(open_zookeeper_tree(connect, connection_timeout_ms=300))
    return str(caught.value)


@pytest.mark.parametrize(
    ("connect", "reason"),
    [
        ("", "a host is missing"),
        ("a:2181,,b", "a host is missing"),
        ("a:0", "'a:0' has no port from 1 to 65535"),
        ("a:port", "'a:port' has no port from 1 to 65535"),
        ("::1", "write the IPv6 address '::1' in brackets"),
        ("a:1/x//y", "is not a path"),
    ],
)
def test_invalid_connect_string_is_reported_with_the_reason(connect: str, reason: str) -> None:
    with pytest.raises(InvalidConnect) as caught:
        run(open_zookeeper_tree(connect))
    assert reason in str(caught.value)
    assert "as in zk1:2181,zk2:2181/kafka" in str(caught.value)


def test_sessions_of_different_trees_do_not_see_one_another(zookeeper: ZooKeeperServer) -> None:
    async def write(tree: Tree) -> None:
        await tree.create("/a")

    async def look(tree: Tree) -> None:
        assert await tree.children("/") == []

    live(ZooKeeperTrees(zookeeper.connect), write)
    live(ZooKeeperTrees(zookeeper.connect), look)
