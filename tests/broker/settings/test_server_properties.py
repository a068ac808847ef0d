r"""Java's properties format: every rule of it, and every way to break it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config_def import UnreadableFile
from penstock.properties_file import MAX_FILE_BYTES, parse_properties, read_properties


def pairs(text: str) -> list[tuple[str, str]]:
    parsed = parse_properties(text, "f")
    assert not parsed.problems
    return [(each.name, each.value) for each in parsed.properties]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\n \t\f\n", []),
        ("# a=b\n  ! c=d\n#\\\na=b", [("a", "b")]),
        ("a=b", [("a", "b")]),
        ("a:b", [("a", "b")]),
        ("a b", [("a", "b")]),
        (" a\t=\tb ", [("a", "b ")]),
        ("a = = b", [("a", "= b")]),
        ("a=b=c:d", [("a", "b=c:d")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("=b", [("", "b")]),
        ("a=#b", [("a", "#b")]),
        ("a=1\r\nb=2\rc=3\n", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("log.dirs=/1,\\\n   /2,\\\r\n\t/3\nb=c", [("log.dirs", "/1,/2,/3"), ("b", "c")]),
        ("a=b\\\n# no comment", [("a", "b# no comment")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a=b\\", [("a", "b")]),
        ("a=b\\\n\nc=d", [("a", "b"), ("c", "d")]),
        ("\\\n# comment\na=b", [("a", "b")]),
        ("a\\=b\\:c\\ d=e", [("a=b:c d", "e")]),
        ("a=\\t\\n\\r\\f\\q\\\\", [("a", "\t\n\r\fq\\")]),
        ("\\u0061=\\u00e9\\uD83D\\uDE00", [("a", "\u00e9\U0001f600")]),
        ("a=\u00e9", [("a", "\u00e9")]),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_each_setting_knows_its_file_and_line() -> None:
    parsed = parse_properties("# head\n\na=1\nb=2\\\n  3\nc=4\n", "server.properties")
    assert [each.where for each in parsed.properties] == [f"server.properties:{line}" for line in (3, 4, 6)]


@pytest.mark.parametrize("bad", ["\\u12", "\\u", "\\u12g4", "\\u\u0661\u0661\u0661\u0661", "\\ud83d", "\\ude00\\ud83d"])
def test_a_bad_escape_costs_its_line_only(bad: str) -> None:
    parsed = parse_properties(f"a=1\nb={bad}\nc=3", "f")
    assert [each.name for each in parsed.properties] == ["a", "c"]
    (problem,) = parsed.problems
    assert str(problem).startswith("f:2: b: ")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab=: \t\f\\\n\r#!u0dD\u00e9", max_size=60))
def test_any_text_gives_settings_or_problems_and_never_more_than_it_has_lines(text: str) -> None:
    parsed = parse_properties(text, "f")
    assert len(parsed.properties) + len(parsed.problems) <= text.count("\n") + text.count("\r") + 1


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=6))
def test_what_is_escaped_comes_back(values: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return "".join(f"\\u{int.from_bytes(c.encode('utf-16-be')[i:i+2]):04x}" for c in text for i in (0, 2)
                       if c.encode("utf-16-be")[i : i + 2])  # fmt: skip

    lines = [f"{escaped(name)}={escaped(value)}" for name, value in values.items()]
    assert dict(pairs("\n".join(lines))) == values


# --- files


def test_a_file_is_utf_8_with_or_without_a_mark_else_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    for data in ("a=\u00e9".encode(), "\ufeffa=\u00e9".encode(), b"a=\xe9"):
        path.write_bytes(data)
        (only,) = read_properties(path).properties
        assert (only.name, only.value, only.where) == ("a", "\u00e9", "server.properties:1")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="No such file"):
        read_properties(tmp_path / "missing")
    with pytest.raises(UnreadableFile, match="directory"):
        read_properties(tmp_path)
    with pytest.raises(UnreadableFile, match="null byte"):
        read_properties("a\0b")


def test_a_file_that_is_not_text_or_too_long_is_rejected(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"a=b\0")
    with pytest.raises(UnreadableFile, match="not a text file"):
        read_properties(binary)
    with pytest.raises(UnreadableFile, match="larger than"):
        read_properties("/dev/zero")
    large = tmp_path / "large"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(UnreadableFile, match="larger than"):
        read_properties(large)
