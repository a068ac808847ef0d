"""The page in a real browser: what a person sees, by mouse, by keyboard, on a phone, and when the run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.activity.live.runs import HandMade, full_snapshot
from tests.peers.activity.browser import Browser
from tests.peers.provision import Found

from penstock.activity.live.page.server import PageServer, bound, page_app
from penstock.activity.live.progress import BROKER, QUERIES, SITE, SPARK, TITLES, StartProgress
from penstock.activity.live.state import Snapshot

pytestmark = pytest.mark.peer("chromium")


class Site:
    """The page's server, with what it shows."""

    def __init__(self) -> None:
        self.seen = HandMade()
        self.server = PageServer(bound(0), page_app(self.seen))
        self.server.start()

    def shows(self, snapshot: Snapshot, **changes: Any) -> None:
        number = self.seen.snapshot.number + 1
        self.seen._snapshot = snapshot
        self.seen.shows(**{"number": number, **changes})

    def close(self) -> None:
        self.seen.is_closed = True
        self.server.close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    made.shows(full_snapshot())
    yield made
    made.close()


@pytest.fixture(scope="module")
def _browser(peer: Callable[[str], Found]) -> Iterator[Browser]:
    with Browser(peer("chromium").path) as browser:
        yield browser


@pytest.fixture
def browser(_browser: Browser, site: Site) -> Browser:
    _browser.complaints.clear()
    _browser.resize(1280, 800)
    _browser.open(site.server.url)
    _browser.wait_for("document.querySelectorAll('#ranking tbody tr').length === 100")
    return _browser


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.evaluate(f"[...document.querySelectorAll({selector!r})].map(each => each.innerText)")
    return found


def test_everything_is_there_and_nothing_is_complained_of(browser: Browser) -> None:
    browser.wait_for("document.querySelector('#feed li')")
    assert texts(browser, "#figures dd")[:2] == ["111,110", "123.5k"]
    assert texts(browser, "#phase") == ["running"]
    assert texts(browser, "#alerts li:first-child")[0].split("\n")[:3] == ["critical", "server-7", "latency"]
    assert "Item 4003 rising" in " ".join(texts(browser, "#ranking tbody tr")[2].split())
    assert len(texts(browser, "#suspects tbody tr")) == 32
    assert "everybody" in texts(browser, "#rising tbody tr")[0]
    for chart, count in (("rates", 9), ("latency", 8), ("batches", 6), ("lag", 6)):
        assert browser.evaluate(f"document.querySelectorAll('#{chart} path.line').length") == count, chart
        assert browser.evaluate(f"document.querySelector('#{chart} svg').getAttribute('aria-label').length") > 20
    assert "A word on new kettle." in texts(browser, "#feed")[0]
    assert browser.complaints == []


def test_it_changes_while_one_looks_and_keeps_its_place(browser: Browser, site: Site) -> None:
    browser.evaluate("document.getElementById('suspects').scrollTop = 120")
    site.shows(full_snapshot(), phase="draining", incidents=[])
    browser.wait_for("document.getElementById('phase').innerText === 'draining'")
    assert browser.evaluate("document.getElementById('suspects').scrollTop") == 120
    assert "No alerts so far" in texts(browser, "#timeline")[0]


def test_another_member_can_be_chosen_by_keyboard(browser: Browser) -> None:
    browser.evaluate("document.getElementById('member').focus(); document.getElementById('member').select()")
    browser.type("18")
    browser.press("Enter")
    browser.wait_for("document.getElementById('feed').innerText.includes('Nothing for member 18')")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.id") == "another"


def test_a_member_with_newer_data_is_shown_until_one_is_chosen(browser: Browser, site: Site) -> None:
    browser.wait_for("document.getElementById('member').value === '17'")
    site.shows(full_snapshot(), members=[18, 17])
    browser.wait_for("document.getElementById('member').value === '18'")
    browser.evaluate("document.getElementById('another').click()")
    browser.wait_for("document.getElementById('member').value === '17'")
    site.shows(full_snapshot(), members=[18, 17], phase="draining")
    browser.wait_for("document.getElementById('phase').innerText === 'draining'")
    assert browser.evaluate("document.getElementById('member').value") == "17"


def test_a_chart_is_read_by_keyboard(browser: Browser) -> None:
    browser.evaluate("document.querySelector('#rates svg').focus()")
    browser.press("ArrowLeft")
    browser.wait_for("document.querySelector('#rates .legend').innerText.includes('at ')")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_it_is_readable_on_a_phone_and_in_the_dark(browser: Browser, is_dark: bool) -> None:
    browser.resize(390, 844, is_dark=is_dark)
    browser.wait_for("innerWidth === 390")
    assert browser.evaluate("document.documentElement.scrollWidth") == 390, "nothing is cut off at the side"
    grounds = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (grounds == "rgb(15, 21, 22)") is is_dark


def test_before_the_first_event_it_says_what_is_waited_for(browser: Browser, site: Site) -> None:
    site.shows(Snapshot(waits_for="pipelines: Spark with feed"))
    browser.wait_for("document.getElementById('notice').innerText.includes('Waiting for pipelines: Spark with feed')")
    assert len(browser.evaluate("[...document.querySelectorAll('.empty')].filter(each => each.innerText)")) >= 8
    assert browser.complaints == []


def test_a_start_is_shown_as_steps_with_a_bar_until_it_is_over(browser: Browser, site: Site) -> None:
    start = StartProgress(tuple(TITLES))
    start.observe(1_200, {BROKER: True, SITE: True, SPARK: True}, {QUERIES: "2 of 6"})
    site.shows(Snapshot(phase="starting", start=start.view(6_000)))
    browser.wait_for("document.getElementById('start-time').innerText === '6 s of about 15 s'")
    steps = browser.evaluate("[...document.querySelectorAll('#start-steps li')].map(each => each.dataset.state)")
    assert steps == ["done", "done", "done", "running", "running"]
    assert "2 of 6" in browser.evaluate("document.getElementById('start-steps').innerText")
    assert browser.evaluate("document.getElementById('start-bar').value") == 0.5333
    site.shows(full_snapshot())
    browser.wait_for("document.getElementById('start').hidden")
    assert browser.complaints == []


def test_markup_in_events_is_text(browser: Browser, site: Site) -> None:
    snapshot = full_snapshot()
    evil = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    row = type(snapshot.suspects[0])(
        kind="client", actor=evil, verdict="abuser", score=1.0, evidence=evil, first_seen=0, last_seen=0
    )
    site.shows(snapshot, suspects=[row])
    browser.wait_for("document.querySelectorAll('#suspects tbody tr').length === 1")
    assert evil in texts(browser, "#suspects tbody tr")[0]
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_a_run_that_ends_is_reported(browser: Browser, site: Site) -> None:
    site.shows(full_snapshot(), phase="stopped")
    browser.wait_for("document.getElementById('phase').innerText === 'stopped'")
    site.close()
    browser.wait_for("document.getElementById('notice').innerText.includes('The run has ended')", 40)
    assert len(texts(browser, "#ranking tbody tr")) == 100, "what was known stays"
