"""HTML that cannot be broken by what it shows."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.html import Html, bar, h, moment, number, path_of, rate, size, sparkline, with_query


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@given(st.text(), st.text())
def test_any_text_is_text_and_any_attribute_is_one(text: str, attribute: str) -> None:
    parser = _Tags()
    parser.feed(h.p(text, title=attribute))
    assert parser.tags == ["p"]
    assert parser.attributes == [("title", attribute)]


def test_only_html_is_not_escaped() -> None:
    assert h.p(Html("<b>x</b>"), "<i>") == "<p><b>x</b>&lt;i&gt;</p>"
    assert h.input(type_="checkbox", checked=True, disabled=False, value=None) == '<input type="checkbox" checked>'
    assert h.p([["a", None], 1, h.b(2.5)]) == "<p>a1<b>2.5</b></p>"


@pytest.mark.parametrize("text", ["a\x00b", "a\u202eb", "a\u200bb", "a\x1b[31mb", "\ud800"])
def test_invisible_characters_are_seen(text: str) -> None:
    assert "\\" in h.p(text)


def test_addresses_are_escaped() -> None:
    assert path_of("topics", "a/b?c#d e") == "/topics/a%2Fb%3Fc%23d%20e"
    assert with_query("/audit", path="x") == "/audit?path=x"
    assert with_query("/groups/show", name="a&b=c", page=None) == "/groups/show?name=a%26b%3Dc"


def test_quantities() -> None:
    assert (number(1234567), number(0.44), number(None)) == ("1,234,567", "0.4", "\u2013")
    assert (rate(45.0), rate(0.0), rate(1234.5, ""), rate(None)) == ("45.0/s", "0/s", "1,234", "\u2013")
    assert (size(1536), size(-1)) == ("1.5 KB", "\u2013")
    assert "2023-11-14 22:13:20.000" in moment(1_700_000_000_000)
    assert moment(-1) == "\u2013"
    assert "polyline" in sparkline([1, None, 3], "x")
    assert "polyline" not in sparkline([1], "x")
    assert 'class="bar bad"' in bar(0.95, "x")
