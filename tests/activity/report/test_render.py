"""A report as text and HTML: all sections are there, nothing is fetched, data cannot become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from tests.activity.report.test_scores import T0, count, document

from penstock.activity.report import charts
from penstock.activity.report.document import Document
from penstock.activity.report.measurements import Landing, RowsCount
from penstock.activity.report.render import html_of, text_of, text_table
from penstock.activity.report.scores import Detection
from penstock.activity.report.sections import Bar, Column, Line, Mark, Part, Table

EVIL = '<script>alert("x")</script>'


def whole() -> Document:
    seconds = range(20)
    return document(
        facts={"from": "10:00", "seed": "1"},
        trends=(Detection("17", T0 + 1000, 9000, True, EVIL, 2),),
        counts=(RowsCount("item_minutes", "events of views", 5, 6),),
        landings=(Landing("views", {T0 + 1000 * each: 40 + each for each in seconds}, 900.0, 3000.0, 4000.0),),
        visits=({"start": T0, "visits": 12, "members": 11, "views": 30, "clicks": 9, "bounced": 2},),
        funnel=({"hour": T0, "step": 1, "name": "impression", "members": 10, "share": 1.0},),
        samples=tuple(
            {"time_ms": T0 + 1000 * each, "lag": {"feed": each}, "batch_ms": {"feed": 100}, "rates": {}}
            for each in seconds
        ),
        windows=tuple({"start_ms": T0 + 5000 * each, "server": EVIL, "p95_ms": 20.0 + each} for each in range(4)),
        trend_line=tuple((T0 + 1000 * each, 1.0 + each) for each in seconds),
        incidents=(Detection("server-3", T0 + 2000, 8000, True),),
    )


class Tags(HTMLParser):
    """Whether each element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_well_formed_and_fetches_nothing() -> None:
    page = html_of(whole())
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("svg") == 7
    assert "script" not in tags.seen
    assert not re.search(r"https?:|url\(|src=|@import", page)
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page
    assert "item_minutes: 5 instead of 6" in page
    assert "alert +8.0 s" in page


def test_text_has_goals_tables_and_missed_goals() -> None:
    text = text_of(whole())
    assert "MISSED" in text
    assert text.splitlines()[-1].startswith("Missed: pipelines have counted every event once: item_minutes: 5 instead")
    assert "rising 9 s after its start, best rank 2" in text
    assert re.search(r"^views +100 +97 +3 +0 +0 +0 ", text, re.MULTILINE)
    assert text_of(document()).splitlines()[-1] == "All goals are met."
    assert "\x1b" not in text


def test_empty_document_can_be_shown() -> None:
    empty = document(tables=(), scores=(), incidents=(), ran=())
    assert "<svg" not in html_of(empty)
    assert "All goals are met" in text_of(empty)


def test_table_aligns_numbers_to_the_right() -> None:
    columns = Column("name", "name"), Column("n", "n", "number")
    rows = [{"name": "a", "n": 5}, {"name": "bcd", "n": None}, {"name": "e", "n": 12_345}]
    assert text_table(Table("some", columns, rows)) == [
        "NAME       N", "a          5", "bcd        -", "e     12,345",
    ]  # fmt: skip
    assert text_table(Table("some", columns, [])) == []


def test_text_html_and_json_have_the_same_sections() -> None:
    one = whole()
    text, page, values = text_of(one), html_of(one), one.to_json()
    tables = [section.table for section in one.sections() if section.table is not None]
    assert [table.name for table in tables] == [
        "goals", "scores", "incidents", "trends", "tables", "counts", "latencies", "landings", "visits", "funnel",
    ]  # fmt: skip
    for section in one.sections():
        if section.table is not None and section.table.rows:
            assert section.title in text
            assert f"<h2>{section.title}</h2>" in page
    for table in tables:
        for row in values[table.name]:
            assert {column.name for column in table.columns} <= set(row), table.name
    titles = set(re.findall(r"<h2>(.*?)</h2>", page))
    assert {chart.title for section in one.sections() for chart in section.charts} <= titles


def test_thinned_line_keeps_its_peak() -> None:
    points = [(float(each), 1.0) for each in range(5000)]
    points[3777] = (3777.0, 99.0)
    thin = charts.thinned(points)
    assert len(thin) <= 400
    assert (3777.0, 99.0) in thin


def test_charts_stay_inside_their_view_box() -> None:
    drawn = charts.over_time(
        "t",
        [Line(f"line {each}", [(T0, 0.0), (T0 + 60_000, 7.0 * each)]) for each in range(12)],
        [Mark(T0 + 59_000, "m")],
    )
    bar = Bar("views", [Part(10**6, "good", "landed"), Part(1, "bad", "missing")], "all")
    for svg in (drawn, charts.bars("b", [bar, bar])):
        width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())  # type: ignore[union-attr]
        for place in re.findall(r'\bx[12]?="([\d.]+)"', svg):
            assert 0 <= float(place) <= width
        for place in re.findall(r'\by[12]?="([\d.]+)"', svg):
            assert 0 <= float(place) <= height
    assert '<rect class="bad"' in charts.bars("b", [bar])
    assert charts.over_time("t", [Line("nothing", [])]) == ""


def test_scales_and_labels_are_round() -> None:
    assert [charts.nice_top(value) for value in (0, 3, 4.5, 81, 1000)] == [1.0, 4, 8, 100, 1000]
    assert [charts.short(value) for value in (0, 12.5, 1200, 3_400_000)] == ["0", "12.5", "1.2k", "3.4M"]


def test_completeness_has_one_bar_per_table() -> None:
    page = html_of(document(tables=(count(), count(table="votes", missing=3))))
    assert page.count('<rect class="good"') >= 2
    assert 'class="bad"' in page
