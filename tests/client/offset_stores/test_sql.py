"""Offsets in SQL: stored with the results or not at all, and never by a member that was replaced."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.client.offset_stores.databases import DATABASES, Connect
from tests.timeouts import PATIENCE_S

from penstock.client.errors import ConfigError
from penstock.client.offset_stores import AlreadyStored, OffsetAndMetadata, OffsetStoreError, SqlOffsetStore, StaleOwner
from penstock.client.offset_stores.sql import STYLES, Statement

P0, P1 = ("views", 0), ("views", 1)


@pytest.fixture(scope="module", params=DATABASES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    with DATABASES[request.param](tmp_path_factory.mktemp(request.param)) as connect:
        yield connect


@pytest.fixture
def connect(server: Connect) -> Connect:
    with closing(server()) as connection:
        for table in ("penstock_offsets", "results"):
            connection.cursor().execute(f"DROP TABLE IF EXISTS {table}")
        connection.cursor().execute("CREATE TABLE results (value INTEGER)")
        SqlOffsetStore().create_table(connection)
        SqlOffsetStore().create_table(connection)  # one that is there is left alone
        connection.commit()
    return server


def results(connect: Connect) -> list[int]:
    with closing(connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT value FROM results ORDER BY value")
        return [row[0] for row in cursor.fetchall()]


def stored(connect: Connect, group: str = "feed") -> dict[tuple[str, int], OffsetAndMetadata]:
    with closing(connect()) as connection:
        return SqlOffsetStore().read_in(connection, group, [P0, P1])


def owner(connect: Connect, group: str = "feed") -> SqlOffsetStore:
    store = SqlOffsetStore(connect)
    asyncio.run(store.load(group, [P0, P1]))
    return store


def test_what_was_saved_is_loaded(connect: Connect) -> None:
    asyncio.run(owner(connect).save("feed", {P0: OffsetAndMetadata(2**40, 3, "ünï"), P1: OffsetAndMetadata(0)}))
    loaded = asyncio.run(SqlOffsetStore(connect).load("feed", [P0, P1, ("views", 2)]))
    assert loaded == {P0: OffsetAndMetadata(2**40, 3, "ünï"), P1: OffsetAndMetadata(0)}


def test_groups_do_not_see_each_other(connect: Connect) -> None:
    asyncio.run(owner(connect).save("feed", {P0: OffsetAndMetadata(5)}))
    assert asyncio.run(SqlOffsetStore(connect).load("other", [P0])) == {}


def test_results_and_offset_are_seen_together_or_not_at_all(connect: Connect) -> None:
    store = owner(connect)
    with closing(connect()) as connection:
        connection.cursor().execute("INSERT INTO results VALUES (1)")
        store.save_in(connection, "feed", {P0: 1})
        assert (results(connect), stored(connect)) == ([], {}), "nothing is committed by the store itself"
        connection.rollback()
        assert (results(connect), stored(connect)) == ([], {})
        connection.cursor().execute("INSERT INTO results VALUES (1)")
        store.save_in(connection, "feed", {P0: 1})
        connection.commit()
    assert (results(connect), stored(connect)) == ([1], {P0: OffsetAndMetadata(1)})


def test_a_cursor_of_the_callers_is_used_and_left_open(connect: Connect) -> None:
    store = owner(connect)
    with closing(connect()) as connection:
        cursor = connection.cursor()
        store.save_in(cursor, "feed", {P0: 9})
        cursor.execute("INSERT INTO results VALUES (7)")
        connection.commit()
    assert stored(connect) == {P0: OffsetAndMetadata(9)}


def test_a_member_that_was_replaced_cannot_overwrite_its_successor(connect: Connect) -> None:
    zombie = owner(connect)
    asyncio.run(zombie.save("feed", {P0: OffsetAndMetadata(40)}))
    successor = SqlOffsetStore(connect)
    assert asyncio.run(successor.load("feed", [P0])) == {P0: OffsetAndMetadata(40)}
    with closing(connect()) as connection:
        connection.cursor().execute("INSERT INTO results VALUES (40)")
        with pytest.raises(StaleOwner, match="views-0 of group feed"):
            zombie.save_in(connection, "feed", {P0: 41})
        connection.rollback()
    asyncio.run(successor.save("feed", {P0: OffsetAndMetadata(50)}))
    with pytest.raises(StaleOwner):
        asyncio.run(zombie.save("feed", {P0: OffsetAndMetadata(60)}))
    assert (results(connect), stored(connect)) == ([], {P0: OffsetAndMetadata(50)})


def test_one_lost_partition_stores_none_of_the_others_once_rolled_back(connect: Connect) -> None:
    store = owner(connect)
    asyncio.run(SqlOffsetStore(connect).load("feed", [P1]))
    with pytest.raises(StaleOwner, match="views-1"):
        asyncio.run(store.save("feed", {P0: OffsetAndMetadata(5), P1: OffsetAndMetadata(5)}))
    assert stored(connect) == {}


def test_onlookers_do_not_become_owners(connect: Connect) -> None:
    store = owner(connect)
    with closing(connect()) as connection:
        SqlOffsetStore().read_in(connection, "feed", [P0])
        connection.commit()
    asyncio.run(store.save("feed", {P0: OffsetAndMetadata(1)}))


def test_an_owner_may_look_while_its_own_transaction_is_open(connect: Connect) -> None:
    store = owner(connect)
    asyncio.run(store.save("feed", {P0: OffsetAndMetadata(1)}))
    with closing(connect()) as connection:
        store.save_in(connection, "feed", {P0: 2})
        assert asyncio.run(store.load("feed", [P0])) == {P0: OffsetAndMetadata(1)}
        connection.commit()
    assert asyncio.run(store.load("feed", [P0])) == {P0: OffsetAndMetadata(2)}


def test_a_partition_that_comes_back_is_owned_again(connect: Connect) -> None:
    first, second = owner(connect), owner(connect)
    asyncio.run(second.save("feed", {P0: OffsetAndMetadata(5)}))
    assert asyncio.run(first.load("feed", [P0])) == {P0: OffsetAndMetadata(5)}
    asyncio.run(first.save("feed", {P0: OffsetAndMetadata(6)}))
    with pytest.raises(StaleOwner):
        asyncio.run(second.save("feed", {P0: OffsetAndMetadata(7)}))


def test_records_that_are_delivered_twice_are_stored_once(connect: Connect) -> None:
    store = owner(connect)
    with closing(connect()) as connection:
        connection.cursor().execute("INSERT INTO results VALUES (40)")
        store.save_in(connection, "feed", {P0: 41})
        connection.commit()
        connection.cursor().execute("INSERT INTO results VALUES (40)")
        with pytest.raises(AlreadyStored, match="views-0 of group feed is already stored up to 41"):
            store.save_in(connection, "feed", {P0: 41})
        connection.rollback()
    assert (results(connect), stored(connect)) == ([40], {P0: OffsetAndMetadata(41)})


def test_an_owner_goes_back_only_on_purpose(connect: Connect) -> None:
    store = owner(connect)
    with closing(connect()) as connection:
        store.save_in(connection, "feed", {P0: 50})
        connection.commit()
        with pytest.raises(AlreadyStored):
            store.save_in(connection, "feed", {P0: 10})
        connection.rollback()
        store.save_in(connection, "feed", {P0: 10}, rewind=True)
        connection.commit()
    assert stored(connect) == {P0: OffsetAndMetadata(10)}
    asyncio.run(store.save("feed", {P0: OffsetAndMetadata(5)}))  # a consumer's commit says where it is, wherever
    assert stored(connect) == {P0: OffsetAndMetadata(5)}


def test_a_store_that_has_not_loaded_a_partition_may_not_save_it(connect: Connect) -> None:
    with pytest.raises(OffsetStoreError, match="does not own"):
        asyncio.run(SqlOffsetStore(connect).save("feed", {P0: OffsetAndMetadata(1)}))


def test_a_claim_that_was_rolled_back_is_none(connect: Connect) -> None:
    rightful, hasty = owner(connect), SqlOffsetStore(connect)
    with closing(connect()) as connection:
        hasty.load_in(connection, "feed", [P0])
        connection.rollback()
    with pytest.raises(StaleOwner):
        asyncio.run(hasty.save("feed", {P0: OffsetAndMetadata(1)}))
    asyncio.run(rightful.save("feed", {P0: OffsetAndMetadata(2)}))


def test_a_successor_waits_for_the_transaction_under_way_and_sees_its_offset(connect: Connect) -> None:
    store, successor = owner(connect), SqlOffsetStore(connect)
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool, closing(connect()) as connection:
        store.save_in(connection, "feed", {P0: 77})

        def take_over() -> dict[tuple[str, int], OffsetAndMetadata]:
            begun.set()
            return asyncio.run(successor.load("feed", [P0]))

        taking = pool.submit(take_over)
        begun.wait()
        connection.commit()
        assert taking.result(timeout=PATIENCE_S) == {P0: OffsetAndMetadata(77)}


def test_many_first_owners_at_once_leave_one(connect: Connect) -> None:
    stores = [SqlOffsetStore(connect) for _ in range(6)]

    def load(store: SqlOffsetStore) -> None:
        asyncio.run(store.load("crowd", [P1, P0]))

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(load, stores))
    outcomes = []
    for store in stores:
        try:
            asyncio.run(store.save("crowd", {P0: OffsetAndMetadata(1), P1: OffsetAndMetadata(1)}))
            outcomes.append(True)
        except StaleOwner:
            outcomes.append(False)
    assert outcomes.count(True) == 1


def test_rows_are_taken_in_one_order_so_that_owners_do_not_wait_in_a_circle(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "order.db")) as connection:
        store = SqlOffsetStore()
        store.create_table(connection)
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        store.load_in(connection, "g", [("b", 0), P1, P0, ("a", 7)])
        store.save_in(connection, "g", {P1: 1, ("b", 0): 1, P0: 1})
    for first_word in ("UPDATE penstock_offsets SET owner", "UPDATE penstock_offsets SET next"):
        rows = [text.partition("topic = ")[2] for text in statements if text.startswith(first_word)]
        assert rows
        assert rows == sorted(rows)


def test_an_offset_below_zero_is_rejected(connect: Connect) -> None:
    with pytest.raises(OffsetStoreError, match="-5"):
        asyncio.run(owner(connect).save("feed", {P0: OffsetAndMetadata(-5)}))


def test_a_table_of_another_name(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        store = SqlOffsetStore(table="my_offsets")
        store.create_table(connection)
        store.load_in(connection, "g", [P0])
        store.save_in(connection, "g", {P0: 3})
        assert connection.execute("SELECT next_offset FROM my_offsets").fetchall() == [(3,)]


@pytest.mark.parametrize("name", ["", "a b", "a;DROP TABLE b", "a.b.c", "1a", "ä"])
def test_an_invalid_table_name_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="table"):
        SqlOffsetStore(table=name)


def test_without_connect_only_the_callers_connections_work() -> None:
    with pytest.raises(ConfigError, match="cannot connect to its database"):
        asyncio.run(SqlOffsetStore().load("g", [P0]))


class _Cursor:
    """Records the statement that it was given."""

    rowcount = 1

    def __init__(self) -> None:
        self.executed: tuple[str, Any] = ("", None)

    def execute(self, text: str, parameters: Any) -> None:
        self.executed = text, parameters


@pytest.mark.parametrize(
    ("style", "executed"),
    [
        ("qmark", ("a = ? AND b = ? OR a = ?", (1, 2, 1))),
        ("format", ("a = %s AND b = %s OR a = %s", (1, 2, 1))),
        ("numeric", ("a = :1 AND b = :2 OR a = :3", (1, 2, 1))),
        ("named", ("a = :a AND b = :b OR a = :a", {"a": 1, "b": 2})),
        ("pyformat", ("a = %(a)s AND b = %(b)s OR a = %(a)s", {"a": 1, "b": 2})),
    ],
)
def test_every_parameter_style(style: str, executed: tuple[str, Any]) -> None:
    cursor = _Cursor()
    Statement("a = {a} AND b = {b} OR a = {a}").on(cursor, style, a=1, b=2)
    assert cursor.executed == executed
    assert style in STYLES


def test_a_driver_of_unknown_parameter_style_needs_it_as_an_option() -> None:
    with pytest.raises(ConfigError, match="paramstyle"):
        SqlOffsetStore().create_table(_Cursor())
    with pytest.raises(ConfigError, match="paramstyle 'dollar'"):
        SqlOffsetStore(paramstyle="dollar")
    SqlOffsetStore(paramstyle="format").create_table(_Cursor())
