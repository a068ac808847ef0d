"""The console in a real browser: pages, actions, keyboard, phone and accessibility, on two kinds of cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.console.visitor import console
from tests.peers.activity.browser import Browser
from tests.peers.client.kafka_server import kafka_4_3
from tests.peers.provision import Found
from tests.timeouts import until

from penstock.client.admin import Admin, TopicSpec
from penstock.client.producer import Producer
from penstock.console.warehouse import WarehouseOptions
from penstock.spark.tables import Loader, Warehouse, create, from_mapping
from penstock.spark.tables.runner import LocalRunner
from penstock.testing import Broker

pytestmark = [
    pytest.mark.peer("chromium"),
    pytest.mark.peer("axe-core"),
]
KAFKA = pytest.param("kafka-4.3", marks=[pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")])

PAGES = (
    "/", "/topics", "/topics/new", "/topics/orders", "/topics/orders/records", "/topics/orders/settings",
    "/topics/orders/readers", "/topics/orders/produce", "/topics/orders/manage", "/groups",
    "/groups/show?name=billing", "/brokers", "/transactions", "/transactions/hanging", "/users", "/acls", "/quotas",
    "/tables", "/tables/show?name=orders", "/tables/dead?name=orders", "/audit",
)  # fmt: skip


class Site:
    """A console, its cluster, and a browser that looks at it."""

    def __init__(self, url: str, servers: str, browser: Browser) -> None:
        self.url = url
        self.servers = servers
        self.browser = browser

    def open(self, path: str) -> Browser:
        self.browser.complaints.clear()
        self.browser.open(self.url + path)
        here = json.dumps(path.partition("?")[0])
        self.browser.wait_for(f"document.readyState === 'complete' && location.pathname === {here}")
        return self.browser

    def click(self, selector: str) -> None:
        self.browser.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        self.browser.evaluate(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def says(self, words: str) -> None:
        self.browser.wait_for(f"document.body?.innerText.includes({json.dumps(words)})")


@pytest.fixture(scope="module")
def _browser(peer: Callable[[str], Found]) -> Iterator[Browser]:
    with Browser(peer("chromium").path) as browser:
        yield browser


def _fill(servers: str) -> None:
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic(TopicSpec("orders", 3))
        until(lambda: all(part.leader for part in admin.describe_topic("orders").partitions), "leaders")
        for number in range(500):
            producer.send("orders", b'{"user": {"id": "u%d"}}' % number, key=b"k%d" % number, partition=number % 3)
        producer.flush()
        admin.set_group_offsets("billing", {("orders", 0): 40})


@pytest.fixture(scope="module", params=["penstock", KAFKA])
def cluster(
    request: pytest.FixtureRequest, peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "penstock":
        with Broker(http_port=0) as broker:
            _fill(broker.address)
            yield broker.address
    else:
        server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp("kafka"))
        try:
            server.launch()
            server.wait_until_listening()
            _fill(server.address)
            yield server.address
        finally:
            server.kill()


def _warehouse(servers: str, folder: Path) -> WarehouseOptions:
    """A table of the topic, with dead letters and records that wait."""
    made = create(Warehouse(str(folder)), from_mapping({"name": "orders", "topic": "orders"}), servers)
    with Producer(servers) as producer:
        producer.send("orders", b"not JSON", partition=0).result(30)
        with Admin(servers) as admin:
            Loader(made, admin, servers, LocalRunner(1)).load_new()
        producer.send("orders", b"{}", partition=0).result(30)
    return WarehouseOptions(str(folder), (sys.executable, "-P", "-m", "penstock"))


@pytest.fixture(scope="module")
def _site(cluster: str, _browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    warehouse = _warehouse(cluster, tmp_path_factory.mktemp("console") / "warehouse")
    # Any topic can be named as that of the audit log: here its lines are those of the test.
    with Admin(cluster) as admin, Producer(cluster) as producer:
        admin.create_topic(TopicSpec("audit", 1), exist_ok=True)
        until(lambda: all(part.leader for part in admin.describe_topic("audit").partitions), "a leader")
        for outcome in ("allowed", "denied", "failed"):
            line = {"event": "request", "outcome": outcome, "action": "CreateTopics", "principal": "User:alice"}
            producer.send("audit", json.dumps(line).encode()).result(30)
    with console(cluster, warehouse=warehouse, audit_topic="audit") as visitor:
        until(lambda: "orders" in visitor.get("/topics").words, "the first snapshot")
        until(lambda: "1" in visitor.get("/tables", q="orders").words.partition("State")[2], "the tables")
        yield Site(f"http://127.0.0.1:{visitor.port}", cluster, _browser)


@pytest.fixture
def site(_site: Site) -> Site:
    _site.browser.resize(1280, 800)
    return _site


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_accessible_in_light_and_dark_and_fits_a_phone(
    site: Site, path: str, peer: Callable[[str], Found]
) -> None:
    axe = (peer("axe-core").path / "node_modules/axe-core/axe.min.js").read_text()
    for is_dark in (False, True):
        site.browser.resize(1280, 800, is_dark=is_dark)
        browser = site.open(path)
        browser.evaluate(axe + "; 0")
        found = json.loads(
            browser.evaluate(
                "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
                ".then(r => JSON.stringify(r.violations.map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html)])))"
            )
        )
        assert found == []
        assert browser.complaints == []
    site.browser.resize(390, 844)
    browser = site.open(path)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_first_screen_changes_by_itself(site: Site) -> None:
    browser = site.open("/")
    browser.wait_for("document.querySelector('#verdict time')")
    before = browser.evaluate("document.querySelector('#verdict time').textContent")
    browser.wait_for(f"document.querySelector('#verdict time').textContent !== {json.dumps(before)}")
    assert browser.complaints == []


def test_a_live_tail_shows_pauses_and_goes_on(site: Site) -> None:
    browser = site.open("/topics/orders/records")
    site.click("#tail")
    site.says("Live: 0 new records")
    with Producer(site.servers) as producer:
        producer.send("orders", b"<b>first</b> arrival").result(30)
        site.says("<b>first</b> arrival")
        site.click("#tail")
        site.says("Paused after 1 new record")
        producer.send("orders", b"second arrival").result(30)
        site.click("#tail")
        site.says("second arrival")
    site.click("#tail")
    assert browser.complaints == []


def test_a_search_shows_its_progress_and_its_hits(site: Site) -> None:
    browser = site.open("/topics/orders/records")
    site.fill("#search [name=text]", "u77")
    site.fill("#search [name=where]", "json")
    site.fill("#search [name=path]", "user.id")
    site.click("#search button.primary")
    site.says("1 found in all 50")
    assert browser.evaluate("document.querySelectorAll('#records tr').length") == 1
    site.fill("#search [name=text]", "nowhere")
    site.click("#search button.primary")
    site.says("Nothing found in all 50")
    assert browser.evaluate("document.querySelectorAll('#records tr').length") == 0
    assert browser.complaints == []


def test_a_search_that_cannot_be_done_says_why(site: Site) -> None:
    site.open("/topics/orders/records")
    site.click("#search button.primary")
    site.says("Say what to search for.")


def test_a_topic_is_made_and_deleted_after_a_confirmation(site: Site) -> None:
    browser = site.open("/topics/new")
    site.fill("[name=name]", "from-the-browser")
    site.click("main .primary")
    site.says("penstock topics create from-the-browser")
    site.click(".confirm .primary")
    site.says("Topic from-the-browser was created.")
    site.open("/topics/from-the-browser/manage")
    site.fill("[name=name]", "from-the-browser")
    browser.evaluate("document.querySelector('form[action$=\"/delete\"]').submit()")
    site.says("cannot be had back")
    site.click(".confirm .danger")
    site.says("Topic from-the-browser was deleted.")
    assert browser.complaints == []


def test_a_record_is_produced_and_a_group_moved(site: Site) -> None:
    browser = site.open("/topics/orders/produce")
    site.fill("main [name=value]", "typed by hand")
    site.click("main .primary")
    site.says("One record is written")
    site.click(".confirm .primary")
    site.says("typed by hand")
    site.open("/groups/show?name=billing")
    site.fill("[name=to]", "latest")
    site.click("main .primary")
    site.says("nothing has been changed yet")
    site.click(".confirm .danger")
    site.says("The offsets of billing were moved.")
    assert browser.complaints == []


def test_the_keyboard_goes_everywhere(site: Site) -> None:
    browser = site.open("/")

    def press(*keys: str) -> None:
        for key in keys:
            event = f"new KeyboardEvent('keydown', {{key: {json.dumps(key)}, bubbles: true, cancelable: true}})"
            browser.evaluate(f"(document.activeElement || document.body).dispatchEvent({event})")

    press("g", "t")
    browser.wait_for("location.pathname === '/topics' && document.readyState === 'complete'")
    press("/")
    assert browser.evaluate("document.activeElement.id") == "q"
    browser.evaluate("document.activeElement.blur()")
    press("j", "Enter")
    browser.wait_for("location.pathname.startsWith('/topics/') && document.readyState === 'complete'")
    press("?")
    assert browser.evaluate("document.querySelector('#keys').open") is True
    browser.evaluate("document.querySelector('#keys').close()")
    press("t", "t")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    site.open("/groups")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    press("t")
    assert browser.evaluate("document.documentElement.dataset.theme") is None
    press("g", "b")
    browser.wait_for("location.pathname === '/brokers'")


def test_a_phone_has_a_menu(site: Site) -> None:
    site.browser.resize(390, 844)
    browser = site.open("/")
    assert browser.evaluate("getComputedStyle(document.querySelector('.side nav')).display") == "none"
    site.click(".menu")
    assert browser.evaluate("getComputedStyle(document.querySelector('.side nav')).display") != "none"


def test_dead_letters_are_tried_again_after_a_confirmation(site: Site) -> None:
    browser = site.open("/tables/dead?name=orders")
    site.says("Try again")
    site.click("main form[action='/tables/replay'] button")
    site.says("penstock table replay-dead orders --local")
    site.click(".confirm .primary")
    site.says("were tried again")
    assert browser.complaints == []


def test_a_search_can_be_downloaded(site: Site) -> None:
    browser = site.open("/topics/orders/records")
    site.fill("#search [name=text]", "u77")
    browser.evaluate(
        "window.sent = ''; navigation.addEventListener('navigate', event => {"
        "window.sent = event.destination.url; event.preventDefault(); })"
    )
    site.click("#search button[value=csv]")
    sent = urlsplit(str(browser.evaluate("window.sent")))
    asked = dict(parse_qsl(sent.query))
    assert sent.path.endswith("/export")
    assert (asked["text"], asked["as"]) == ("u77", "csv")
    assert "offset" not in asked
    assert browser.complaints == []
