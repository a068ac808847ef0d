"""The picture of the first minutes shows what the commands print today, apart from ids, numbers and times."""

from __future__ import annotations

import html
import importlib.util
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).resolve().parents[2]
_TEXT = re.compile(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', re.DOTALL)
_ID = re.compile(r"(?<!\S)[\w-]{22}(?!\S)")


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_minutes", _ROOT / "tools" / "first_minutes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _drawn(picture: str) -> str:
    rows: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for x, y, text in _TEXT.findall(picture):
        rows[float(y)].append((float(x), html.unescape(text).replace("\N{NO-BREAK SPACE}", " ")))
    return "\n".join("".join(text for _, text in sorted(row)) for row in rows.values())


def _lines(text: str) -> set[str]:
    without_ids = (_ID.sub("ID", line) for line in text.splitlines())
    return {" ".join(re.sub(r"\d+(\.\d+)?", "0", line).split()) for line in without_ids}


def test_the_picture_of_the_first_minutes_shows_what_the_commands_print() -> None:
    tool = _tool()
    printed = _lines(tool.recorded().export_text())
    drawn = _lines(_drawn(tool.PICTURE.read_text())) - {"the first minutes"}
    assert drawn - {""} == printed - {""}, "docs/images/first-minutes.svg is old: run `python tools/first_minutes.py`"
