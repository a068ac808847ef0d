"""Pages, as a visitor without a script reads them, against a broker."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from tests.console.visitor import Visitor, console
from tests.ports import free_port
from tests.timeouts import PATIENCE_S, until

from penstock.client.admin import Admin
from penstock.client.producer import Producer
from penstock.console.accounts import ConsoleOptions
from penstock.console.app import Console
from penstock.testing import Broker


def test_the_first_screen_says_whether_the_cluster_is_well(visitor: Visitor) -> None:
    until(lambda: "All is well" in visitor.get("/").words, "a verdict")
    page = visitor.get("/").words
    assert "Records in" in page
    assert "billing" in page


def test_the_first_screen_is_sent_again_when_it_changes(visitor: Visitor, broker: Broker) -> None:
    with visitor.events("/overview.events") as events:
        first = next(events)[1]["html"]
        with Producer(broker.address) as producer:
            producer.send("orders", b"one more").result(10)
        assert any(document["html"] != first for _, document in events)


def test_rates_and_latencies_come_from_the_brokers_metrics(visitor: Visitor, broker: Broker) -> None:
    def shown() -> bool:
        with Producer(broker.address) as producer:
            producer.send("orders", b"x" * 1000).result(10)
        page = visitor.get("/").words
        return " ms" in page.partition("Produce p99")[2][:20]

    until(shown, "a latency")


def test_an_unreachable_cluster_is_a_page_that_says_why() -> None:
    with console(f"127.0.0.1:{free_port()}") as visitor:
        page = visitor.get("/topics/orders")
        assert page.status == 503
        assert "cannot be reached" in page.words
        until(lambda: "problem" in visitor.get("/").words, "a verdict")


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/topics/absent", "/topics/absent/records", "/brokers/99", "/brokers/x", "/groups/show?name=absent",
     "/transactions/show?id=absent", "/static/../app.py", "/static/secrets"],
)  # fmt: skip
def test_what_does_not_exist_is_not_found(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status == 404


@pytest.mark.parametrize(
    "path",
    ["/topics?page=99999999999999999999", "/topics?page=-1", "/topics?page=x&sort=none&desc=9", "/brokers?x=%FF%00",
     "/groups?sort=lag&desc=1&page=2", "/topics/orders/records?limit=0", "/topics/orders/records?limit=1e9"],
)  # fmt: skip
def test_odd_queries_are_read_as_far_as_they_make_sense(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status == 200


def test_topics_are_searched_and_sorted_on_the_server(visitor: Visitor) -> None:
    until(lambda: "orders" in visitor.get("/topics").words, "topics")
    assert "orders" not in visitor.get("/topics", q="view").words
    assert "No topic has these words" in visitor.get("/topics", q="nothing like it").words
    page = visitor.get("/topics", sort="partitions", desc="1").text
    assert page.index("/topics/orders") < page.index("/topics/views")


def test_a_topic_shows_partitions_settings_and_readers(visitor: Visitor) -> None:
    page = visitor.get("/topics/orders").words
    assert "penstock consume orders" in page
    assert 'spark.read.format("penstock")' in page
    settings = visitor.get("/topics/orders/settings", q="retention.ms").words
    assert "604800000" in settings
    assert "default" in settings
    until(lambda: "billing" in visitor.get("/topics/orders/readers").words, "readers")


def test_a_topic_is_created_changed_and_deleted_with_confirmation(visitor: Visitor, broker: Broker) -> None:
    asked = visitor.post("/topics", {"name": "made", "partitions": "2", "csrf": visitor.token(),
                                     "settings": "retention.ms=60000"})  # fmt: skip
    assert "penstock topics create made -p 2 --config retention.ms=60000 -b" in asked.words
    with Admin(broker.address) as admin:
        assert "made" not in admin.list_topics()
        done = visitor.change("/topics", name="made", partitions="2", settings="retention.ms=60000")
        assert "Topic made was created." in done.words
        assert "Topic made was created." not in visitor.get("/topics").words
        assert len(admin.describe_topic("made").partitions) == 2

        assert visitor.change("/topics/made/settings", name="retention.ms", value="120000").status == 200
        from penstock.client.admin import ConfigResource

        assert admin.describe_config(ConfigResource.topic("made"))["retention.ms"].value == "120000"
        assert visitor.change("/topics/made/partitions", total="3").status == 200
        assert len(admin.describe_topic("made").partitions) == 3
        assert "not 'made'" in visitor.change("/topics/made/delete", name="orders").words
        assert visitor.change("/topics/made/delete", name="made").status == 200
        assert "made" not in admin.list_topics()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ""}, "missing"),
        ({"name": "a/b"}, "a/b"),
        ({"name": ".."}, ".."),
        ({"name": "x" * 250}, "x"),
        ({"name": "ok", "partitions": "many"}, "not a whole number"),
        ({"name": "ok", "partitions": "0"}, "must be"),
        ({"name": "ok", "replicas": "9"}, "9"),
        ({"name": "ok", "settings": "retention.ms"}, "NAME=VALUE"),
        ({"name": "ok", "settings": "no.such.setting=1"}, "no.such.setting"),
    ],
)
def test_a_topic_that_cannot_be_created_is_explained(visitor: Visitor, fields: dict[str, str], says: str) -> None:
    answer = visitor.change("/topics", **fields)
    assert answer.status == 400, answer.words
    assert says in answer.words


def test_records_are_deleted_before_an_offset(visitor: Visitor, broker: Broker) -> None:
    broker.create_topic("trimmed")
    with Producer(broker.address) as producer:
        for number in range(10):
            producer.send("trimmed", b"%d" % number)
    assert "which is not a whole number" in visitor.change("/topics/trimmed/trim", offset="x").words
    assert visitor.change("/topics/trimmed/trim", partition="0", offset="4").status == 200
    with Admin(broker.address) as admin:
        assert admin.list_offsets({("trimmed", 0): "earliest"})[("trimmed", 0)].offset == 4  # type: ignore[index, union-attr]


def test_a_group_shows_its_lag_and_is_moved_by_a_plan(visitor: Visitor, broker: Broker) -> None:
    page = visitor.get("/groups/show", name="billing").words
    assert "orders-0" in page
    asked = visitor.post("/groups/seek", {"name": "billing", "to": "offset", "value": "7",
                                          "csrf": visitor.token()})  # fmt: skip
    assert "nothing has been changed yet" in asked.words
    assert "penstock groups seek billing --all-topics --to-offset 7" in asked.words
    with Admin(broker.address) as admin:
        assert {each.offset for each in admin.group_offsets("billing").values()} == {40, 100}
        visitor.change("/groups/seek", name="billing", to="offset", value="7")
        assert {each.offset for each in admin.group_offsets("billing").values()} == {7}
        visitor.change("/groups/seek", name="billing", to="offset", value="999999999")
        ends = admin.list_offsets({("orders", 0): "latest"})
        assert admin.group_offsets("billing")[("orders", 0)].offset == ends[("orders", 0)].offset  # type: ignore[index, union-attr]
        visitor.change("/groups/seek", name="billing", to="shift", value="-3")
        visitor.change("/groups/seek", name="billing", to="earliest")
        assert {each.offset for each in admin.group_offsets("billing").values()} == {0}
        admin.set_group_offsets("billing", {("orders", 0): 40, ("orders", 1): 100})


def test_a_plan_that_is_out_of_date_moves_nothing(visitor: Visitor, broker: Broker) -> None:
    token = visitor.token()
    fields = {"name": "billing", "to": "latest", "csrf": token, "confirm": "yes", "plan": "0" * 64}
    answer = visitor.post("/groups/seek", fields)
    assert answer.status == 400
    assert "nothing was moved" in answer.words
    for value, says in (("yesterday", "not a time"), ("", "missing")):
        answer = visitor.post("/groups/seek", {"name": "billing", "to": "time", "value": value, "csrf": token})
        assert says in answer.words
    with Admin(broker.address) as admin:
        assert admin.group_offsets("billing")[("orders", 0)].offset == 40  # type: ignore[index]


def test_a_group_is_deleted(visitor: Visitor, broker: Broker) -> None:
    with Admin(broker.address) as admin:
        admin.set_group_offsets("old one/..", {("orders", 0): 1})
        assert visitor.get("/groups/show", name="old one/..").status == 200
        assert visitor.change("/groups/delete", name="old one/..").status == 200
        assert "old one/.." not in [each.group_id for each in admin.list_groups()]


def test_brokers_show_their_disks_and_settings(visitor: Visitor) -> None:
    until(lambda: "controller" in visitor.get("/brokers").words, "brokers")
    page = visitor.get("/brokers/0", q="log.retention.ms").words
    assert "log.retention.ms" in page
    answer = visitor.change("/brokers/0", name="log.retention.ms", value="12345678")
    assert answer.status == 200
    assert "12345678" in visitor.get("/brokers/0", q="log.retention.ms").words
    visitor.change("/brokers/0", name="log.retention.ms", value="")
    assert visitor.change("/brokers/elect").status == 200


def test_transactions_are_listed_and_fenced(visitor: Visitor, broker: Broker) -> None:
    with Producer(broker.address, transactional_id="tx-1") as producer:
        producer.begin_transaction()
        producer.send("orders", b"open").result(10)
        assert "Ongoing" in visitor.get("/transactions").words
        assert "Ongoing" in visitor.get("/transactions/show", id="tx-1").words
        assert "tx-1" in visitor.get("/transactions/hanging").words
        assert visitor.change("/transactions/fence", id="tx-1").status == 200
        until(lambda: "Ongoing" not in visitor.get("/transactions/show", id="tx-1").words, "the abort")


def test_users_and_quotas_are_set_and_removed(visitor: Visitor) -> None:
    token = visitor.token()
    fields = {"user": "ann", "password": "s3cret-word", "again": "s3cret-word", "mechanism": "SCRAM-SHA-512"}
    assert "not confirmed" in visitor.post("/users", {**fields, "csrf": token}).words
    assert "differ" in visitor.post("/users", {**fields, "again": "x", "confirm": "yes", "csrf": token}).words
    assert visitor.post("/users", {**fields, "confirm": "yes", "csrf": token}).status == 303
    page = visitor.get("/users")
    assert "ann" in page.words
    assert "s3cret-word" not in page.text
    assert visitor.change("/users/remove", user="ann").status == 200
    assert "ann" not in visitor.get("/users").words.partition("Add a user")[0].split()

    assert visitor.change("/quotas", user="ann", quota="producer_byte_rate", value="1048576").status == 200
    assert "1.0 MB/s" in visitor.get("/quotas").words
    assert "not a number" in visitor.change("/quotas", user="ann", quota="producer_byte_rate", value="fast").words
    assert "Name a user" in visitor.change("/quotas", quota="producer_byte_rate", value="1").words
    assert visitor.change("/quotas/remove", user="ann").status == 200
    assert "No quotas" in visitor.get("/quotas").words


def test_acls_are_added_explained_and_removed() -> None:
    settings = {"authorizer.class.name": "penstock", "super.users": "User:ANONYMOUS"}
    with Broker(settings=settings) as broker, console(broker.address) as visitor:
        fields = {"principal": "User:ann", "type": "Topic", "resource": "orders", "operation": "Read"}
        question = {"who": "User:ann", "type": "Topic", "resource": "orders", "operation": "Read"}
        denied = visitor.get("/acls", **question).words
        assert "User:ann may not Read Topic orders" in denied
        assert "penstock acls add -p User:ann -o Read --topic orders" in denied
        assert visitor.change("/acls", **fields).status == 200
        assert "User:ann may Read Topic orders" in visitor.get("/acls", **question).words
        assert "nonsense" in visitor.change("/acls", **{**fields, "operation": "nonsense"}).words
        assert visitor.change("/acls/remove", **fields).status == 200
        assert "User:ann may not" in visitor.get("/acls", **question).words


def test_without_an_authorizer_the_page_of_acls_says_so(visitor: Visitor) -> None:
    assert "no authorizer" in visitor.get("/acls").words


def test_what_was_changed_is_shown_soon(visitor: Visitor, broker: Broker) -> None:
    visitor.get("/topics")
    visitor.change("/topics", name=f"new-{time.time_ns()}")
    until(lambda: "new-" in visitor.get("/topics").words, "the new topic")


def test_an_election_is_shown_with_its_epoch(tmp_path: Path) -> None:
    port = free_port()
    with Broker(tmp_path, port=port) as broker:
        broker.create_topic("moved")
        address = broker.address
        stack = console(address)
        visitor = stack.__enter__()
        until(lambda: "No partition and no controller has changed" in visitor.get("/brokers").words, "a first look")
    try:
        with Broker(tmp_path, port=port):
            until(lambda: "moved-0 broker 0 broker 0 0 \u2192 1" in visitor.get("/brokers").words, "the election")
    finally:
        stack.__exit__(None, None, None)


def test_pages_that_wait_do_not_hold_up_each_other() -> None:
    together = 24
    barrier = threading.Barrier(together)

    async def run() -> None:
        app = Console(ConsoleOptions("127.0.0.1:1"))
        async with app._lifespan(Starlette()):
            await asyncio.gather(*(asyncio.to_thread(barrier.wait, PATIENCE_S) for _ in range(together)))

    asyncio.run(run())
