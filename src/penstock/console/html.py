"""HTML that cannot be broken by what it shows. Pure.

A page is built of elements: `h.td(topic.name, cls="name")`. Text is escaped where an element takes it, so there is no
template into which a name, a key or a header could put a tag. Only `Html`, which these functions return, is not escaped
again. Control characters and characters that turn the direction of writing are shown as escapes, since they could make
one name look like another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from html import escape
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

from penstock.runtime.quantities import duration_text, human_bytes, time_text


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
Attribute: TypeAlias = "str | int | float | bool | None"
Element = Callable[..., Html]

_VOID: Final = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})
_OWN_NAMES: Final = {"cls": "class", "for_": "for", "type_": "type", "max_": "max", "min_": "min"}
# Zs and letters are printable; line breaks and tabs are meant. Directional marks and zero-width characters are not.
_KEPT: Final = frozenset("\n\t")


def shown(text: str) -> str:
    """The text with invisible and direction-changing characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in _KEPT else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def text_of(child: Child) -> str:
    """A child as HTML: escaped, unless it is HTML."""
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, str):
        return escape(shown(child), quote=False)
    if isinstance(child, int | float):
        return str(child)
    return "".join(map(text_of, child))


def _quoted(value: str) -> str:
    """An attribute's value, which a form sends back as it is: a parser would make line feeds of carriage returns."""
    return escape(value.encode("utf-8", "replace").decode()).replace("\r", "&#13;").replace("\n", "&#10;")


def _attributes(given: dict[str, Attribute]) -> str:
    parts = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        spelled = _OWN_NAMES.get(name) or name.replace("_", "-")
        if value is True:
            parts.append(f" {spelled}")
        else:
            parts.append(f' {spelled}="{_quoted(str(value))}"')
    return "".join(parts)


class _Elements:
    """`h.div(child, ..., cls="x")` is an element; its name is the attribute's."""

    def __getattr__(self, name: str) -> Element:
        tag = name.rstrip("_")

        def element(*children: Child, **attributes: Attribute) -> Html:
            start = f"<{tag}{_attributes(attributes)}>"
            return Html(start if tag in _VOID else f"{start}{text_of(children)}</{tag}>")

        self.__dict__[name] = element
        return element


h: Final = _Elements()


def joined(*children: Child) -> Html:
    """Several children, one after the other."""
    return Html(text_of(children))


# --------------------------------------------------------------------------------------------------- addresses


def path_of(*parts: str | int) -> str:
    """A path of the console; what is special in a path is escaped."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def with_query(path: str, /, **query: str | int | None) -> str:
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


# --------------------------------------------------------------------------------------------------- quantities


def number(value: float | None) -> str:
    """1,234; 0.4; a dash for None."""
    if value is None:
        return "\u2013"
    if isinstance(value, int) or value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def rate(value: float | None, unit: str = "/s") -> str:
    """184/s, 24.3/s, 45.0/s: with a decimal below 100, so that a column is aligned."""
    if value is None:
        return "\u2013"
    return f"{value:,.1f}{unit}" if 0 < value < 100 else f"{value:,.0f}{unit}"


def size(value: float | None) -> str:
    """1.5 MB; a dash for None and for what brokers report as unknown."""
    return "\u2013" if value is None or value < 0 else human_bytes(int(value))


def duration(seconds: float | None) -> str:
    return "\u2013" if seconds is None else duration_text(round(seconds, 1))


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "\u2013"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


def moment(time_ms: int | None) -> Html:
    """A time as UTC; the script shows it in the browser's zone on request."""
    text = time_text(time_ms)
    return (
        Html("\u2013") if text == "-" else h.time(text.replace("T", " ").removesuffix("Z"), datetime=text, title=text)
    )


def sparkline(values: Iterable[float | None], label: str, *, width: int = 96, height: int = 22) -> Html:
    """A line of values, the newest at the right. Empty without two values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Html('<span class="none">\u2013</span>')
    low, high = min(0.0, *known), max(known)
    span = (high - low) or 1.0
    step = width / (len(known) - 1)
    points = " ".join(
        f"{index * step:.1f},{height - 2 - (value - low) / span * (height - 4):.1f}"
        for index, value in enumerate(known)
    )
    return Html(
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        ' preserveAspectRatio="none"'
        f' aria-label="{escape(label)}"><polyline class="area" points="0,{height} {points} {width},{height}"/>'
        f'<polyline points="{points}"/></svg>'
    )


def bar(share: float | None, label: str) -> Html:
    """A share of 1 as a bar."""
    if share is None:
        return Html("\u2013")
    part = max(0.0, min(1.0, share))
    level = "bad" if part > 0.9 else "warn" if part > 0.75 else ""
    return Html(
        f'<svg class="bar {level}" viewBox="0 0 100 6" width="100" height="6" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(label)}"><rect class="track" width="100" height="6" rx="3"/>'
        f'<rect class="fill" width="{part * 100:.1f}" height="6" rx="3"/></svg>'
    )


def json_text(value: object) -> str:
    """JSON for the script: in an attribute or an event, never in a script element."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
