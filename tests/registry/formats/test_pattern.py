"""Regular expressions in linear time, beside Python's own."""

from __future__ import annotations

import random
import re

import pytest

from penstock.registry.formats.pattern import STATES_MAX, Pattern, PatternError

ATOMS = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    "\\d",
    "(ab)",
    "(?:a|b)",
    "^",
    "$",
    "\\b",
    "\\B",
    "a|b",
    "\\w",
    "[a-c1]",
    "\\.",
    "\\S",
]
QUANTIFIERS = ["", "", "*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?", "{0}"]


def test_matches_are_those_of_another_implementation() -> None:
    choice = random.Random(22).choice
    length = random.Random(23).randint
    compared = 0
    for _ in range(2_500):
        text = "".join(choice(ATOMS) + choice(QUANTIFIERS) for _ in range(length(1, 4)))
        subject = "".join(choice("ab1_-.") for _ in range(length(1, 6)))  # on no text, Python's \\B differs
        try:
            expected = re.search(text, subject, re.ASCII) is not None
        except re.error:
            continue
        assert Pattern(text).matches(subject) is expected, (text, subject)
        compared += 1
    assert compared > 1_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(", "not closed"),
        ("[a", "not closed"),
        ("*a", "nothing to repeat"),
        ("a)", "unbalanced"),
        ("a{3,1}", "wrong order"),
        ("a\\", "ends too early"),
        ("[b-a]", "wrong order"),
        ("(?<name", "no end"),
    ],
)
def test_text_that_is_no_expression_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        Pattern(text)


@pytest.mark.parametrize(
    "text", ["(?=a)", "(?!a)", "(?<=a)", "(a)\\1", "\\p{L}", "(" * 500 + "a" + ")" * 500, "a" * 2_000]
)
def test_what_is_beyond_a_regular_language_is_undecided(text: str) -> None:
    pattern = Pattern(text)
    assert not pattern.decidable
    assert pattern.matches("a") is None


@pytest.mark.parametrize(
    ("text", "subject", "expected"),
    [
        ("^(a+)+$", "a" * 200 + "b", False),
        ("^(a|a)*$", "a" * 200, True),
        ("(x+x+)+y", "x" * 200, False),
        ("{a}", "{a}", True),
        ("a{,2}", "a{,2}", True),
        ("\\u0041\\x42", "AB", True),
        ("[\\d\\-]", "-", True),
        ("[]a]", "]a]", False),
        ("(?<word>a)b", "ab", True),
        ("", "", True),
    ],
)
def test_expressions_that_trap_a_backtracking_matcher_and_odd_ones(text: str, subject: str, expected: bool) -> None:
    pattern = Pattern(text)
    assert pattern.matches(subject) is expected
    assert pattern.cost(subject) <= (len(subject) + 1) * (STATES_MAX + 1)


def test_repetitions_of_repetitions_end_at_a_number_of_states() -> None:
    pattern = Pattern("((((a{99}){99}){99}){99}){99}")
    assert not pattern.decidable
    assert pattern.size <= STATES_MAX
