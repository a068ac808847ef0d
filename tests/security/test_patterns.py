"""Patterns that match in linear time agree with Python's own, and reject what they do not support."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.patterns import MAX_STATES, Pattern, PatternError


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("abc", ["abc"], ["", "ab", "abcd", "xabc"]),
        ("", [""], ["a"]),
        ("a.c", ["abc", "a\nc"], ["ac", "abbc"]),
        ("^orders-.*$", ["orders-", "orders-1"], ["my-orders-1"]),
        ("(orders|views)-[0-9]+", ["orders-1", "views-22"], ["orders-", "views-x", "orders|views-1"]),
        ("(?:a|b)*c?", ["", "abab", "bac", "c"], ["cc", "abca"]),
        (r"a\.b\\", ["a.b\\"], ["axb\\"]),
        (r"\w+\d\s", ["ab1 "], ["ab1", "1 "]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("[]a]+", ["]a"], ["b"]),
        (r"[\]x]", ["]", "x"], ["\\"]),
        ("a{3}", ["aaa"], ["aa", "aaaa"]),
        ("a{2,}", ["aa", "aaaaa"], ["a"]),
        ("a{1,3}?b", ["ab", "aaab"], ["b", "aaaab"]),
        ("a{x}", ["a{x}"], ["a"]),
        ("|a", ["", "a"], ["b"]),
        ("(a*)*b", ["b", "aaab"], ["a"]),
        ("()*", [""], ["a"]),
        ("ü+", ["üü"], ["u"]),
    ],
)
def test_a_pattern_matches_whole_texts(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [text for text in (*matching, *others) if compiled.fullmatch(text)] == matching


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "(a", "[a", "*a", "a**", "a+*", "+", "a|*", "{1}*+", "a{3,1}", r"\1", r"(a)\1", "(?=a)",
     "(?P<n>a)", r"\Z", "\\", "a^b", "a$b", "[b-a]", "a" * 2_000, "(" * 60 + ")" * 60, "((a{1000}){1000}){1000}",
     "(a{0,999}b){2}"],
)  # fmt: skip
def test_what_is_wrong_unsupported_or_too_large_is_rejected(pattern: str) -> None:
    with pytest.raises(PatternError):
        Pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a*)*b", "a" * 5_000),
        ("(a|a)*b", "a" * 5_000),
        ("a?" * 30 + "a" * 30, "a" * 30),
        ("(a|a)" * 30 + "b", "a" * 30),
        (".*.*.*.*.*x", "a" * 5_000),
    ],
)
def test_patterns_that_backtrack_elsewhere_take_linear_time(pattern: str, text: str) -> None:
    compiled = Pattern(pattern)
    slices = 0
    steps = compiled.steps(text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            matched = end.value
            break
        slices += 1
    assert matched is (pattern == "a?" * 30 + "a" * 30)
    assert slices <= len(text) * MAX_STATES // 20_000


_PATTERNS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\."]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(_PATTERNS, st.text("ab.", max_size=8))
def test_it_agrees_with_pythons_own(pattern: str, text: str) -> None:
    assert Pattern(pattern).fullmatch(text) == (re.fullmatch(pattern, text, re.DOTALL) is not None)


@pytest.mark.parametrize(
    "pattern",
    ["CN=(.*?),(.*)", "(a+)(a*)", "(a+?)(a*)", "(a|ab)(c|bcd)(d*)", "(?:(x)|(y))+", "((a*)b)*", "(a){2,3}?(.*)", "()"],
)
@pytest.mark.parametrize("text", ["CN=al,OU=eng,O=x", "aaa", "abcd", "xyx", "aabb", "aab", "", "yx"])
def test_groups_match_what_pythons_own_match(pattern: str, text: str) -> None:
    found = re.compile(pattern, re.DOTALL).fullmatch(text)
    expected = None if found is None else tuple(each or "" for each in found.groups())
    assert Pattern(pattern).groups(text) == expected


def test_groups_of_a_nested_repetition_take_linear_time() -> None:
    assert Pattern("((a+)+)+b").groups("a" * 5_000) is None
