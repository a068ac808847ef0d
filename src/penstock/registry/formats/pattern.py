"""Regular expressions of JSON Schema, matched in time that grows with the pattern and the text only. Pure.

Which properties a `patternProperties` means is decided by a stranger's expression, and a backtracking matcher can be
kept busy for years by forty characters. This one follows all alternatives at once. It knows what a regular language
needs: literals, classes, groups, alternatives, quantifiers and anchors. For the rest of ECMA-262 (look-around and
back-references) it answers that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Larger expressions are left undecided.
CHARACTERS_MAX = 1_000
STATES_MAX = 2_000
GROUPS_MAX = 40

Test = Callable[[str], bool]


class PatternError(ValueError):
    """The text is not a regular expression."""


class _Undecidable(Exception):
    """The expression is beyond what is matched here."""


@dataclass(slots=True)
class _State:
    """A state of the automaton: where to go with a character that passes the test, or with none."""

    test: Test | None = None
    anchor: str = ""  # "^" or "$": may be left only at that end; "b" or "B": only at such a place
    next: list[int] = field(default_factory=list)


class Pattern:
    """A compiled expression.

    :raises PatternError: if the text is not an expression
    """

    def __init__(self, text: str) -> None:
        self._states: list[_State] = []
        self._start = self._end = -1
        self.decidable = True
        self.size = 0  # states that were made, also if they were too many
        try:
            if len(text) > CHARACTERS_MAX:
                raise _Undecidable
            parser = _Parser(text, self._states)
            self._start, self._end = parser.parse()
        except _Undecidable:
            self.decidable = False
        self.size = len(self._states)
        if not self.decidable:
            self._states.clear()

    def cost(self, text: str) -> int:
        """At most so many steps are needed to match the text."""
        return (len(text) + 1) * (len(self._states) + 1)

    def matches(self, text: str) -> bool | None:
        """Whether the expression matches somewhere in the text; None if that cannot be decided here."""
        if not self.decidable:
            return None
        current: set[int] = set()
        for position in range(len(text) + 1):
            current.add(self._start)
            current = self._closure(current, text, position)
            if self._end in current:
                return True
            if position < len(text):
                character = text[position]
                current = {
                    target
                    for each in current
                    if (test := self._states[each].test) is not None and test(character)
                    for target in self._states[each].next
                }
        return False

    def _closure(self, states: set[int], text: str, position: int) -> set[int]:
        """The states reached without a character."""
        reached = set(states)
        waiting = list(states)
        while waiting:
            state = self._states[waiting.pop()]
            if state.test is not None or (state.anchor and not _at_anchor(state.anchor, text, position)):
                continue
            for target in state.next:
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
        return reached


def _at_anchor(anchor: str, text: str, position: int) -> bool:
    if anchor == "^":
        return position == 0
    if anchor == "$":
        return position == len(text)
    before = position > 0 and _is_word(text[position - 1])
    after = position < len(text) and _is_word(text[position])
    return (before != after) == (anchor == "b")


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def _is_word(character: str) -> bool:
    return character == "_" or (character.isascii() and character.isalnum())


def _is_space(character: str) -> bool:
    return character.isspace() or character == "\ufeff"


_CLASSES: dict[str, Test] = {
    "d": _is_digit,
    "w": _is_word,
    "s": _is_space,
    "D": lambda character: not _is_digit(character),
    "W": lambda character: not _is_word(character),
    "S": lambda character: not _is_space(character),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
Fragment = tuple[int, int]


class _Parser:
    """Builds the automaton while it reads the expression. A fragment has one state to enter and one to leave by."""

    def __init__(self, text: str, states: list[_State]) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._states = states

    def parse(self) -> Fragment:
        fragment = self._alternatives()
        if self._at < len(self._text):
            raise PatternError(f"unbalanced ')' at character {self._at}")
        return fragment

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("the expression ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _state(self, test: Test | None = None, anchor: str = "") -> int:
        if len(self._states) >= STATES_MAX:
            raise _Undecidable
        self._states.append(_State(test, anchor))
        return len(self._states) - 1

    def _link(self, source: int, target: int) -> None:
        self._states[source].next.append(target)

    def _single(self, test: Test | None = None, anchor: str = "") -> Fragment:
        start, end = self._state(test, anchor), self._state()
        self._link(start, end)
        return start, end

    def _alternatives(self) -> Fragment:
        start, end = self._state(), self._state()
        while True:
            first, last = self._sequence()
            self._link(start, first)
            self._link(last, end)
            if self._peek() != "|":
                return start, end
            self._at += 1

    def _sequence(self) -> Fragment:
        start = end = self._state()
        while self._peek() not in ("", "|", ")"):
            first, last = self._quantified()
            self._link(end, first)
            end = last
        return start, end

    def _quantified(self) -> Fragment:
        begin = self._at
        fragment = self._atom()
        after_atom = self._at
        quantifier = self._quantifier()
        if quantifier is None:
            return fragment
        after = self._at
        if self._peek() == "?":  # reluctant: matches the same texts
            after += 1
        minimum, maximum = quantifier
        start = end = self._state()
        for _ in range(minimum):
            fragment = self._again(begin, after_atom)
            self._link(end, fragment[0])
            end = fragment[1]
        if maximum is None:
            first, last = self._again(begin, after_atom)
            loop = self._state()
            self._link(end, loop)
            self._link(loop, first)
            self._link(last, loop)
            end = loop
        else:
            final = self._state()
            for _ in range(maximum - minimum):
                first, last = self._again(begin, after_atom)
                self._link(end, final)
                self._link(end, first)
                end = last
            self._link(end, final)
            end = final
        self._at = after
        return start, end

    def _again(self, begin: int, end: int) -> Fragment:
        """Another copy of the atom that was read there."""
        self._at = begin
        fragment = self._atom()
        assert self._at == end
        return fragment

    def _quantifier(self) -> tuple[int, int | None] | None:
        character = self._peek()
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if character in simple:
            self._at += 1
            return simple[character]
        if character != "{":
            return None
        closing = self._text.find("}", self._at)
        parts = self._text[self._at + 1 : closing].split(",") if closing > 0 else []
        if (
            not 1 <= len(parts) <= 2
            or not _is_number(parts[0])
            or (parts[1:] and parts[1] and not _is_number(parts[1]))
        ):
            return None  # a brace that is meant literally
        minimum = int(parts[0])
        maximum = minimum if len(parts) == 1 else int(parts[1]) if parts[1] else None
        if maximum is not None and maximum < minimum:
            raise PatternError(f"the numbers of a quantifier are in the wrong order at character {self._at}")
        if max(minimum, maximum or 0) > STATES_MAX:
            raise _Undecidable
        self._at = closing + 1
        return minimum, maximum

    def _atom(self) -> Fragment:
        at = self._at
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return self._single(self._set())
        if character == "\\":
            return self._escape()
        if character == ".":
            return self._single(lambda each: each not in "\n\r\u2028\u2029")
        if character in "^$":
            return self._single(anchor=character)
        if character in "*+?":
            raise PatternError(f"nothing to repeat before {character!r} at character {at}")
        return self._single(_literal(character))

    def _group(self) -> Fragment:
        self._depth += 1
        if self._depth > GROUPS_MAX:
            raise _Undecidable
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._text.startswith("?<", self._at) and self._text[self._at + 2 : self._at + 3] not in ("=", "!", ""):
            closing = self._text.find(">", self._at)
            if closing < 0:
                raise PatternError("the name of a group has no end")
            self._at = closing + 1
        elif self._peek() == "?":
            raise _Undecidable  # looks ahead or behind, or sets flags
        fragment = self._alternatives()
        if self._peek() != ")":
            raise PatternError("a '(' is not closed")
        self._at += 1
        self._depth -= 1
        return fragment

    def _escape(self) -> Fragment:
        character = self._peek()
        if character in ("b", "B"):
            self._at += 1
            return self._single(anchor=character)
        if character in ("k", "p", "P") or (_is_digit(character or "x") and character != "0"):
            raise _Undecidable  # refers back, or needs Unicode's tables
        return self._single(self._escaped())

    def _escaped(self) -> Test:
        """What follows a backslash, also in a set."""
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        return _literal(self._escaped_character(character))

    def _escaped_character(self, character: str) -> str:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character in "xu":
            digits = self._text[self._at : self._at + (2 if character == "x" else 4)]
            if len(digits) == (2 if character == "x" else 4) and all(
                each in "0123456789abcdefABCDEF" for each in digits
            ):
                self._at += len(digits)
                return chr(int(digits, 16))
            raise _Undecidable
        if character == "c":
            raise _Undecidable
        return character

    def _set(self) -> Test:
        negated = self._peek() == "^"
        self._at += negated
        tests: list[Test] = []
        while True:
            character = self._peek()
            if character == "":
                raise PatternError("a '[' is not closed")
            if character == "]":
                self._at += 1
                break
            tests.append(self._member())
        members = tuple(tests)
        return lambda each: any(test(each) for test in members) != negated

    def _member(self) -> Test:
        low = self._member_character()
        if callable(low):
            return low
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return _literal(low)
        self._at += 1
        high = self._member_character()
        if callable(high):
            raise _Undecidable
        if high < low:
            raise PatternError(f"the range {low}-{high} is in the wrong order")
        return lambda each: low <= each <= high

    def _member_character(self) -> str | Test:
        character = self._take()
        if character != "\\":
            return character
        escaped = self._take()
        if escaped in _CLASSES:
            return _CLASSES[escaped]
        if escaped in ("p", "P"):
            raise _Undecidable
        return "\b" if escaped == "b" else self._escaped_character(escaped)


def _literal(character: str) -> Test:
    return lambda each: each == character


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
