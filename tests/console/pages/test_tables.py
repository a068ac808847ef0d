"""The pages of tables and pipelines: what they show, to whom, replay, and warehouses that cannot be read."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.console.visitor import Answer, Visitor, console
from tests.spark.tables.table_stories import VIEWS, World, world_of
from tests.timeouts import until

from penstock.client.admin import (
    AclBinding,
    AclEntry,
    Admin,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.console.app import NotThere
from penstock.console.pages import tables as pages
from penstock.console.pages import verdict
from penstock.console.warehouse import DeadLetter, PipelineRow, Reason, TableRow, View, WarehouseOptions
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name

PROGRAM = (sys.executable, "-P", "-m", "penstock")
HOSTILE = "<img src=x onerror=alert(7)>"


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    name = topic_name(request.node.name)
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def world(broker: Broker, topic: str, tmp_path: Path) -> Iterator[World]:
    with world_of(broker, topic, tmp_path) as made:
        yield made


def options(folder: str | Path, program: tuple[str, ...] = PROGRAM) -> WarehouseOptions:
    return WarehouseOptions(str(folder), program)


def options_of(world: World) -> WarehouseOptions:
    return options(world.warehouse.storage.uri)


def with_dead_letters(world: World) -> None:
    world.views(20)
    world.send([HOSTILE.encode(), b"bad"], partition=0)
    world.loader(world.make(schema=VIEWS)).load_new()


def shown(visitor: Visitor, path: str, words: str) -> Answer:
    """The page once it has these words: the warehouse is read in the background."""
    found: list[Answer] = []

    def has_words() -> bool:
        found[:] = [visitor.get(path)]
        return words in found[0].words

    until(has_words, words)
    return found[0]


def test_tables_show_until_when_they_are_complete_and_why_records_are_dead(world: World) -> None:
    with_dead_letters(world)
    with console(world.address, warehouse=options_of(world)) as visitor:
        page = shown(visitor, "/tables", "views").words
        assert "complete" in page
        assert time.strftime("%Y-%m-%d", time.gmtime()) in page
        one = visitor.get("/tables/show", name="views").words
        assert "Audit by hour" in one
        assert f"penstock table audit views -w {world.warehouse.storage.uri} -b {world.address}" in one
        assert "Dead letters by reason" in one
        dead = visitor.get("/tables/dead", name="views")
        assert "0:" in dead.words
        assert "&lt;img" in dead.text
        assert "<img" not in dead.text
        assert "No table has these words" in visitor.get("/tables", q="nothing like it").words


def test_what_waits_and_what_is_missing_is_on_the_first_screen(world: World) -> None:
    world.views(20)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    world.views(5, first=20)
    # The rows of a file are lost: its commit is removed from the table, as by a bad tool.
    opened.store.refresh()
    gone = opened.store.files()[0]
    opened.store.delta.delete(f"_partition = {gone.partitions[0]}")  # type: ignore[index]
    with console(world.address, warehouse=options_of(world)) as visitor:
        page = shown(visitor, "/", "records are missing").words
        assert "views" in page
        assert "problem" in page
        assert "penstock table audit views" in page
        # The count beside the navigation is that of the verdict.
        assert "1 problem: views" in page
        assert "1 problem Theme" in page
        with visitor.events("/tables.events") as events:
            assert "not sound" in next(events)[1]["html"]


def test_dead_letters_are_tried_again_after_a_confirmation(world: World) -> None:
    world.views(4)
    world.send([b"bad"], partition=0)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    with console(world.address, warehouse=options_of(world)) as visitor:
        shown(visitor, "/tables", "views")
        token = visitor.token("/tables/dead?name=views")
        asked = visitor.post("/tables/replay", {"name": "views", "csrf": token})
        assert "penstock table replay-dead views --local" in asked.words
        opened.dead.refresh()
        before = opened.dead.version
        page = visitor.change("/tables/replay", "/tables/dead?name=views", name="views")
        assert "1 dead letters were tried again, 0 landed." in page.words
        opened.dead.refresh()
        assert opened.dead.version == before


def test_a_replay_moves_what_fits_now_into_the_table(world: World) -> None:
    world.send([b'{"user": "u1", "ms": 5000000000}'], partition=0)
    opened = world.make(schema=VIEWS, evolution="none")
    world.loader(opened).load_new()
    from penstock.spark.tables.warehouse import redeclare

    assert sum(file.rows or 0 for file in opened.dead.files()) == 1
    redeclare(opened, world.declare(schema=VIEWS.replace("ms int", "ms bigint"), evolution="add"))
    with console(world.address, warehouse=options_of(world)) as visitor:
        shown(visitor, "/tables", "views")
        page = visitor.change("/tables/replay", "/tables/dead?name=views", name="views")
        assert "1 dead letters were tried again, 1 landed." in page.words
        opened.store.refresh()
        assert sum(file.rows or 0 for file in opened.store.files()) == 1


USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="b\\"=#\\\\ob";'
PASSWORD = 'b"=#\\ob'


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker at whose second listener everybody is a super user."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "authorizer.class.name": "penstock",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings=settings) as found:
        yield found


def _log_in(visitor: Visitor) -> None:
    fields = {"csrf": visitor.token("/login"), "user": "bob", "password": PASSWORD, "mechanism": "PLAIN"}
    assert visitor.post("/login", fields).status == 303


def test_a_visitor_sees_and_changes_what_the_rights_to_the_topic_allow(guarded: Broker, tmp_path: Path) -> None:
    addresses = {each.protocol: f"{each.host}:{each.port}" for each in guarded.broker.advertised}

    def allow(operation: Operation) -> None:
        pattern = ResourcePattern(ResourceType.TOPIC, "guarded", PatternType.LITERAL)
        rule = AclBinding(pattern, AclEntry("User:bob", "*", operation, Permission.ALLOW))
        with Admin(addresses["PLAINTEXT"]) as admin:
            assert list(admin.create_acls([rule]).values()) == [None]

    guarded.create_topic("guarded")
    login = {"security_protocol": "SASL_PLAINTEXT", "request_timeout_ms": 10_000}
    with world_of(guarded, "guarded", tmp_path) as world:
        with_dead_letters(world)
        given = WarehouseOptions(world.warehouse.storage.uri, PROGRAM, {"security.protocol": "SASL_PLAINTEXT"})
    with console(
        addresses["SASL_PLAINTEXT"], login=True, mechanism="PLAIN", client_options=login, warehouse=given
    ) as bob:
        assert bob.get("/tables").headers["location"] == "/login?to=%2Ftables"
        _log_in(bob)
        shown(bob, "/tables", "No tables in this warehouse")
        assert bob.get("/tables/dead", name="views").status == 404
        allow(Operation.DESCRIBE)
        shown(bob, "/tables", "views")
        for path in ("/tables/show", "/tables/dead"):
            denied = bob.get(path, name="views")
            assert denied.status == 403
            assert "img" not in denied.text
        allow(Operation.READ)
        until(lambda: bob.get("/tables/dead", name="views").status == 200, "the right to read")
        until(lambda: "complete" in bob.get("/tables/show", name="views").words, "an audit with bob's login")
        fields = {"name": "views", "confirm": "yes", "csrf": bob.token("/tables/dead?name=views")}
        assert bob.post("/tables/replay", fields).status == 403
        allow(Operation.ALTER_CONFIGS)
        until(lambda: bob.post("/tables/replay", fields).status == 303, "the right to replay")
        assert "2 dead letters were tried again" in bob.get("/tables/dead", name="views").words


def test_a_replay_needs_the_token_and_a_console_that_may_change(world: World) -> None:
    with_dead_letters(world)
    with console(world.address, warehouse=options_of(world)) as visitor:
        shown(visitor, "/tables", "views")
        fields = {"name": "views", "confirm": "yes"}
        assert visitor.post("/tables/replay", fields).status == 403
        assert visitor.get("/tables/replay", **fields).status in (404, 405)
        token = visitor.token("/tables/dead?name=views")
        assert Visitor(visitor.port).post("/tables/replay", {**fields, "csrf": token}).status == 403
        assert visitor.post("/tables/replay", {**fields, "csrf": token, "name": "../views"}).status == 404
    with console(world.address, warehouse=options_of(world), read_only=True) as visitor:
        page = shown(visitor, "/tables/dead?name=views", "Try again")
        assert "This console is read-only." in page.words
        assert 'action="/tables/replay"' not in page.text


def test_a_table_that_is_damaged_is_shown_with_its_error(world: World) -> None:
    world.views(3)
    world.loader(world.make(schema=VIEWS)).load_new()
    for name in (HOSTILE, f"{HOSTILE}__dead"):
        folder = Path(world.warehouse.storage.uri) / name / "_delta_log"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}.json").write_text("{not json\n")
    with console(world.address, warehouse=options_of(world)) as visitor:
        page = shown(visitor, "/tables", "cannot be read")
        assert "views" in page.words
        for path in ("/", "/tables"):
            assert "<img" not in visitor.get(path).text
        assert visitor.get("/tables/show", name=HOSTILE).status == 200
        assert "<img" not in visitor.get("/tables/show", name=HOSTILE).text


@pytest.mark.parametrize("path", ["/tables/show?name=absent", "/tables/dead?name=absent", "/tables/dead?name=../x"])
def test_a_table_that_does_not_exist_is_not_found(world: World, path: str) -> None:
    with console(world.address, warehouse=options_of(world)) as visitor:
        shown(visitor, "/tables", "No tables in this warehouse")
        assert visitor.get(path).status == 404


def test_without_a_warehouse_the_page_says_how_to_name_one(visitor: Visitor) -> None:
    page = visitor.get("/tables")
    assert page.status == 200
    assert "penstock console --warehouse FOLDER" in page.words
    assert visitor.get("/tables/show", name="views").status == 404
    assert visitor.get("/tables.events").status == 404


def test_a_warehouse_that_cannot_be_read_says_why(broker: Broker, tmp_path: Path) -> None:
    with console(broker.address, warehouse=options("nosuch://bucket/tables")) as visitor:
        page = shown(visitor, "/tables", "cannot use nosuch://bucket/tables")
        assert page.status == 200
    missing = ("sh", "-c", """echo '{"message": "deltalake is missing", "hint": "pip install x"}' >&2; exit 2""")
    with console(broker.address, warehouse=options(tmp_path, missing)) as visitor:
        assert "pip install x" in shown(visitor, "/tables", "deltalake is missing").words
    with console(broker.address, warehouse=options(tmp_path, ("sh", "-c", "echo nonsense"))) as visitor:
        shown(visitor, "/tables", "ended with code 0")
    with console(broker.address, warehouse=options(tmp_path, (str(tmp_path / "absent"),))) as visitor:
        shown(visitor, "/tables", "cannot be started")


def test_pipelines_show_their_queries_and_failed_ones_are_problems(broker: Broker, tmp_path: Path) -> None:
    folder = tmp_path / "_pipelines" / "feed"
    folder.mkdir(parents=True)
    query = {"name": "feed_entries", "state": "failed", "batch_id": 4, "lag": 1200, "message": HOSTILE}
    status = {"name": "feed", "state": "failed", "message": "out of memory", "pid": 1, "queries": [query]}
    (folder / "status.json").write_text(json.dumps(status))
    with console(broker.address, warehouse=options(tmp_path)) as visitor:
        page = shown(visitor, "/tables", "feed_entries")
        assert "1,200" in page.words
        assert "<img" not in page.text
        shown(visitor, "/", "is failed: out of memory")
        assert "penstock pipeline run feed" in visitor.get("/").words


def visit_of(
    *, login: bool, may_describe: bool = False, partitions: tuple[Any, ...] = (), view: View | None = None
) -> Any:
    """Somebody with a warehouse that looks like this, and a topic with these partitions."""

    async def describe_topic(_: str) -> Any:
        return SimpleNamespace(partitions=partitions)

    warehouse = SimpleNamespace(view=view or View(), options=SimpleNamespace(uri="folder"))
    collector = SimpleNamespace(look=lambda: SimpleNamespace(topics=(), findings=(), may_describe_cluster=may_describe))
    account = SimpleNamespace(
        collector=collector, warehouse=warehouse, admin=SimpleNamespace(describe_topic=describe_topic)
    )
    console_ = SimpleNamespace(options=SimpleNamespace(login=login))
    return SimpleNamespace(console=console_, account=account, query={}, number=lambda *_, least: least)


@pytest.mark.parametrize(("length", "known", "is_cut"), [(400, 400, False), (401, 401, True), (2_000, 3_000, True)])
def test_a_value_that_is_cut_says_so(length: int, known: int, is_cut: bool) -> None:
    letter = DeadLetter(0, 1, 2, "bad", False, known, "x" * length)
    assert ("\u2026" in str(pages._value(letter))) == is_cut


def test_only_a_reason_is_a_link_to_its_dead_letters() -> None:
    row = TableRow("views", reasons=[Reason("bad", 2), Reason("", 1)])
    shown_ = str(pages._reasons(row))
    assert "reason=bad" in shown_
    assert "(no reason)" in shown_
    assert shown_.count("href=") == 1


def test_without_a_leader_nobody_can_say_whether_a_visitor_may_read() -> None:
    visit = visit_of(login=True, partitions=(SimpleNamespace(index=0, leader=None),))
    with pytest.raises(NotThere, match="has a leader"):
        asyncio.run(pages._check_read(visit, "views"))


@pytest.mark.parametrize(
    ("login", "may_describe", "sees"), [(False, False, True), (True, True, True), (True, False, False)]
)
def test_pipelines_and_messages_are_for_those_who_may_describe_the_cluster(
    login: bool, may_describe: bool, sees: bool
) -> None:
    view = View(1, pipelines=(PipelineRow("etl", "failed", False, "secret topic"),), errors=(("secret path", ""),))
    visit = visit_of(login=login, may_describe=may_describe, view=view)
    shown_ = str(pages._parts(visit, view))
    assert ("etl" in shown_, "secret topic" in shown_, "secret path" in shown_) == (sees, sees, sees)
    assert "could not be read" in shown_ or sees
    snapshot = visit.account.collector.look()
    assert bool(verdict.findings(visit, snapshot)) == sees
    assert len(verdict.problems(visit, snapshot)) == int(sees)
