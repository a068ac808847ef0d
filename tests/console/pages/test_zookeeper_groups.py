"""The pages of groups in ZooKeeper, over a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tests.console.visitor import Visitor, console
from tests.timeouts import PATIENCE_S, until

from penstock.client.addresses import ZooKeeperAddress
from penstock.client.admin import GroupDescription
from penstock.client.consumer.zookeeper_registry import Subscription, encode_registration
from penstock.client.errors import AuthorizationError, PenstockError, UnknownGroup
from penstock.client.producer import Producer
from penstock.client.zookeeper import new_client, start_client
from penstock.console.pages import zookeeper_groups as pages
from penstock.testing import Broker
from penstock.testing.zookeeper import ZooKeeperServer
from penstock.wire.protocol import ErrorCode

HOSTILE = "<img src=x onerror=alert(3)>"


@pytest.fixture(scope="module")
def where() -> Iterator[ZooKeeperAddress]:
    with ZooKeeperServer() as server:
        root = ZooKeeperAddress(server.connect, "")
        client = new_client(root)
        start_client(client, root, PATIENCE_S * 1000)
        client.ensure_path("/old")
        yield ZooKeeperAddress(server.connect, "/old")
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def kazoo(where: ZooKeeperAddress) -> Iterator[Any]:
    client = new_client(where)
    start_client(client, where, PATIENCE_S * 1000)
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="module")
def site(where: ZooKeeperAddress, kazoo: Any, broker: Broker) -> Iterator[Visitor]:
    broker.create_topic("kept", 2)
    with Producer(broker.address) as producer:
        for number in range(20):
            producer.send("kept", b"x", partition=number % 2)
        producer.flush()
    nodes = {
        "/consumers/feed/offsets/kept/0": b"4", "/consumers/feed/offsets/kept/1": b"10",
        "/consumers/feed/owners/kept/0": b"feed_host-1-0",
        "/consumers/feed/ids/feed_host-1": encode_registration(Subscription("static", {"kept": 1}), 0),
        "/consumers/feed/ids/odd": b"not JSON", "/consumers/feed/offsets/gone/0": b"7",
        "/consumers/feed/offsets/kept/not-a-number": b"1",
        f"/consumers/{HOSTILE}/offsets/kept/0": HOSTILE.encode(),
    }  # fmt: skip
    for path, data in nodes.items():
        kazoo.create(path, data, makepath=True)
    with console(broker.address, zookeeper=where) as found:
        until(lambda: "kept" in found.get("/topics").words, "a snapshot")
        yield found


def test_groups_are_listed_with_members_and_topics(site: Visitor) -> None:
    page = site.get("/groups/zookeeper")
    assert "feed 2 gone, kept" in page.words
    assert "<img" not in page.text
    assert "In ZooKeeper" in site.get("/groups").words
    assert "feed" not in site.get("/groups/zookeeper", q="img").words.partition("Topics")[2]


def test_a_group_shows_lag_owner_and_members(site: Visitor) -> None:
    page = site.get("/groups/zookeeper/show", name="feed").words
    assert "kept-0 4 10 6" in page
    assert "feed_host-1-0" in page
    assert "kept-1 10 10 0 0 s \u2013" in page
    assert "gone-0 7 \u2013 \u2013 \u2013 \u2013" in page
    assert "Records behind 6" in page
    assert "kept (1)" in page
    assert "cannot be read" in page


def test_a_damaged_offset_is_shown_as_such(site: Visitor) -> None:
    page = site.get("/groups/zookeeper/show", name=HOSTILE)
    assert page.status == 200
    assert "damaged" in page.words
    assert "<img" not in page.text


@pytest.mark.parametrize("name", ["absent", "", "a/b", "..", "feed/ids", "\0"])
def test_a_group_that_does_not_exist_is_not_found(site: Visitor, name: str) -> None:
    assert site.get("/groups/zookeeper/show", name=name).status == 404


def test_without_a_zookeeper_there_is_no_such_page(visitor: Visitor) -> None:
    assert visitor.get("/groups/zookeeper").status == 404
    assert "In ZooKeeper" not in visitor.get("/groups").words


def visit_of(
    *, login: bool, topics: tuple[str, ...] = (), groups: Mapping[str, object] | None = None, search: str = ""
) -> Any:
    """Somebody who may describe these topics, and for whom the brokers say this of groups."""

    async def describe_groups(names: list[str], *, with_lag: bool = True) -> dict[str, object]:
        return {name: (groups or {})[name] for name in names}

    collector = SimpleNamespace(look=lambda: SimpleNamespace(topics=topics))
    account = SimpleNamespace(collector=collector, admin=SimpleNamespace(describe_groups=describe_groups))
    console_ = SimpleNamespace(options=SimpleNamespace(login=login))
    return SimpleNamespace(console=console_, account=account, query={"q": search}, number=lambda *_, least: least)


@pytest.mark.parametrize(
    ("subscription", "open_", "limited"),
    [
        (Subscription("static", {"mine": 1, "secret": 2}), "mine (1), secret (2)", "mine (1)"),
        (Subscription("static", {"secret": 2}), "secret (2)", "\u2013"),
        (Subscription("white_list", {"secret-.*": 2}), "all topics like secret-.* (2)", "topics by a pattern"),
        (Subscription("black_list", {"mine": 1}), "all topics but those like mine (1)", "topics by a pattern"),
        ("cannot be read: secret", "cannot be read: secret", "\u2013"),
    ],
)
def test_a_subscription_shows_only_topics_that_the_visitor_may_describe(
    subscription: Subscription | str, open_: str, limited: str
) -> None:
    assert pages.reads(visit_of(login=False), subscription) == open_
    assert pages.reads(visit_of(login=True, topics=("mine",)), subscription) == limited


def test_only_groups_that_the_visitor_may_describe_are_counted() -> None:
    answers = {
        "mine": GroupDescription("mine", "Empty", "", "", None, ()),
        "mine-old": UnknownGroup(ErrorCode.GROUP_ID_NOT_FOUND),
        "secret": AuthorizationError(ErrorCode.GROUP_AUTHORIZATION_FAILED),
        "lost": PenstockError("the coordinator is away"),
    }
    names = list(answers)
    found, is_cut = asyncio.run(pages._listed(visit_of(login=True, groups=answers), names))
    assert (found.rows, found.total, is_cut) == (["mine", "mine-old"], 2, False)
    found, _ = asyncio.run(pages._listed(visit_of(login=True, groups=answers, search="secret"), names))
    assert (found.rows, found.total) == ([], 0)
    found, _ = asyncio.run(pages._listed(visit_of(login=False, search="secret"), names))
    assert (found.rows, found.total) == (["secret"], 1)


@pytest.mark.parametrize(
    ("lags", "ages", "seconds"),
    [([], [], None), ([0, -2], [], 0.0), ([0, 70_000], [], None), ([0, 3], [1.5], 1.5), ([5, 3], [1.5, 4.0], 4.0)],
)
def test_a_group_whose_records_cannot_be_read_is_not_said_to_be_up_to_date(
    lags: list[int], ages: list[float], seconds: float | None
) -> None:
    assert pages._behind(lags, ages) == seconds


def test_only_so_many_groups_of_a_list_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOST_ASKED", 2)
    answers = {name: UnknownGroup(ErrorCode.GROUP_ID_NOT_FOUND) for name in ("a", "b")}  # the third would be a KeyError
    found, is_cut = asyncio.run(pages._listed(visit_of(login=True, groups=answers), ["a", "b", "c"]))
    assert (found.rows, is_cut) == (["a", "b"], True)
