"""Regular expressions that match in linear time, for patterns that clients send. Pure.

Python's own may take exponential time, and a broker has one event loop. Kafka uses RE2 for the same reason; this is the
part of its syntax that names need: literals, `.`, classes, escapes, groups, `|`, and `* + ? {m,n}`, greedy or lazy.
Back references and look-around are rejected, as RE2 does. A pattern matches a whole text; `groups` says what its groups
matched.

The pattern becomes a nondeterministic automaton, which reads the text once with a set of states (Thompson, 1968). The
work for a character is at most the number of states, which is limited; `steps` yields now and then, so that the caller
can serve others meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

MAX_STATES: Final = 1_000
_MAX_LENGTH: Final = 1_000
_MAX_NESTING: Final = 50
_STEPS_AT_ONCE: Final = 20_000
_ACCEPT: Final = -1
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPETITION: Final = re.compile(r"\{(\d{1,4})(?:(,)(\d{0,4}))?\}")
_LETTERS: Final = frozenset("dDwWsSntrfv")


class PatternError(ValueError):
    """The pattern is not valid, not supported, or too large."""


class _Symbol(NamedTuple):
    """One character: a text of one, or a compiled class."""

    matches: Callable[[str], object]


class _Many(NamedTuple):
    """Parts one after the other, or alternatives."""

    kind: str
    parts: list[_Node]


class _Repeated(NamedTuple):
    part: _Node
    least: int
    most: int | None
    is_lazy: bool


class _Group(NamedTuple):
    """A group whose text is wanted, by its number."""

    part: _Node
    number: int


_Node = _Symbol | _Many | _Repeated | _Group


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_LENGTH:
            raise PatternError(f"the pattern has {len(text)} characters; at most {_MAX_LENGTH} are allowed")
        # A state has a symbol and the next state, or (without a symbol) the states that are reached at once.
        self._symbols: list[_Symbol | None] = []
        self._next: list[tuple[int, ...]] = []
        # By state, what is noted when it is passed: 2n for the start of group n + 1, 2n + 1 for its end.
        self._notes: dict[int, int] = {}
        self._work = 0
        parser = _Parser(text)
        self._start = self._compile(parser.parse(), _ACCEPT)
        self.group_count = parser.groups

    def fullmatch(self, text: str) -> bool:
        """Whether the whole text matches, at once: for short texts."""
        steps = self.steps(text)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def steps(self, text: str) -> Generator[None, None, bool]:
        """Whether the whole text matches, with a yield after some ten thousand steps, of all texts together."""
        current = self._closure({self._start})
        for character in text:
            reached = set()
            for state in current:
                symbol = self._symbols[state] if state != _ACCEPT else None
                if symbol is not None and symbol.matches(character):
                    reached.add(self._next[state][0])
            if not reached:
                return False
            self._work += len(current) + 1
            if self._work > _STEPS_AT_ONCE:
                self._work = 0
                yield
            current = self._closure(reached)
        return _ACCEPT in current

    def groups(self, text: str) -> tuple[str, ...] | None:
        """What the groups matched, "" for one that took no part; None if the text does not match.

        Threads in the order of preference (Pike, 1987): each state is entered once per character. For short texts.
        """
        threads = self._advanced([(self._start, (-1,) * (2 * self.group_count))], 0)
        for position, character in enumerate(text):
            reached = []
            for state, notes in threads:
                symbol = self._symbols[state] if state != _ACCEPT else None
                if symbol is not None and symbol.matches(character):
                    reached.append((self._next[state][0], notes))
            threads = self._advanced(reached, position + 1)
            if not threads:
                return None
        for state, notes in threads:
            if state == _ACCEPT:
                return tuple(
                    text[notes[number] : notes[number + 1]] if notes[number + 1] >= 0 else ""
                    for number in range(0, len(notes), 2)
                )
        return None

    def _advanced(self, threads: list[tuple[int, tuple[int, ...]]], position: int) -> list[tuple[int, tuple[int, ...]]]:
        """The threads that wait for a character or accept, each state once, the preferred first."""
        found: list[tuple[int, tuple[int, ...]]] = []
        entered: set[int] = set()
        waiting = list(reversed(threads))
        while waiting:
            state, notes = waiting.pop()
            if state in entered:
                continue
            entered.add(state)
            if state == _ACCEPT or self._symbols[state] is not None:
                found.append((state, notes))
                continue
            slot = self._notes.get(state)
            if slot is not None:
                notes = (*notes[:slot], position, *notes[slot + 1 :])
            waiting += [(following, notes) for following in reversed(self._next[state])]
        return found

    def _closure(self, states: set[int]) -> set[int]:
        """These states, and those that are reached from them without a character."""
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                if state != _ACCEPT and self._symbols[state] is None:
                    waiting += self._next[state]
        return found

    # --- the automaton, built from its end

    def _compile(self, node: _Node, end: int) -> int:
        """The state in which the node begins, if `end` follows it."""
        if isinstance(node, _Symbol):
            return self._add(node, (end,))
        if isinstance(node, _Repeated):
            return self._compile_repeated(node, end)
        if isinstance(node, _Group):
            after = self._add(None, (end,))
            self._notes[after] = 2 * node.number + 1
            before = self._add(None, (self._compile(node.part, after),))
            self._notes[before] = 2 * node.number
            return before
        if node.kind == "|":
            return self._add(None, tuple(self._compile(part, end) for part in node.parts))
        for part in reversed(node.parts):
            end = self._compile(part, end)
        return end

    def _compile_repeated(self, node: _Repeated, end: int) -> int:
        if node.most is None:
            loop = self._add(None, (end,))
            self._next[loop] = _ordered(self._compile(node.part, loop), end, node)
            end = loop
        else:
            after = end
            for _ in range(node.most - node.least):
                end = self._add(None, _ordered(self._compile(node.part, end), after, node))
        for _ in range(node.least):
            end = self._compile(node.part, end)
        return end

    def _add(self, symbol: _Symbol | None, following: tuple[int, ...]) -> int:
        if len(self._symbols) >= MAX_STATES:
            raise PatternError(f"the pattern needs more than {MAX_STATES} states")
        self._symbols.append(symbol)
        self._next.append(following)
        return len(self._symbols) - 1


def _ordered(again: int, after: int, node: _Repeated) -> tuple[int, int]:
    """The preferred state first."""
    return (after, again) if node.is_lazy else (again, after)


class _Parser:
    def __init__(self, text: str) -> None:
        self.groups = 0
        self._text = text
        self._at = 0
        self._nesting = 0

    def parse(self) -> _Node:
        if self._text.startswith("^"):
            self._at = 1
        node = self._alternatives()
        if self._at < len(self._text):
            raise PatternError(f"unexpected {self._text[self._at]!r} at position {self._at}")
        return node

    def _alternatives(self) -> _Node:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Many("|", parts)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (character := self._peek()) and character not in "|)":
            if character == "$" and self._at == len(self._text) - 1:
                self._at += 1
                break
            parts.append(self._repeated(self._one()))
        return _Many("", parts)

    def _repeated(self, node: _Node) -> _Node:
        character = self._peek()
        bounds: tuple[int, int | None]
        if character and character in "*+?":
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
            self._at += 1
        elif character == "{" and (found := _REPETITION.match(self._text, self._at)):
            least = int(found[1])
            bounds = (least, least if found[2] is None else int(found[3]) if found[3] else None)
            if bounds[1] is not None and bounds[1] < least:
                raise PatternError(f"{found[0]} has a maximum below its minimum")
            self._at = found.end()
        else:
            return node
        is_lazy = self._peek() == "?"
        if is_lazy:
            self._at += 1
        elif self._peek() in ("*", "+"):
            raise PatternError(f"a repetition is repeated at position {self._at}")
        return _Repeated(node, *bounds, is_lazy)

    def _one(self) -> _Node:
        character = self._text[self._at]
        if character == "(":
            return self._group()
        if character == "[":
            found = _CLASS.match(self._text, self._at)
            if found is None:
                raise PatternError(f"the class at position {self._at} has no end")
            return self._class(found[0])
        if character in "*+?^$":
            raise PatternError(f"unexpected {character!r} at position {self._at}")
        if character == "\\":
            return self._escape()
        self._at += 1
        return _Symbol((lambda _: True) if character == "." else character.__eq__)

    def _group(self) -> _Node:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise PatternError(f"more than {_MAX_NESTING} nested groups")
        self._at += 1
        number = -1
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise PatternError(f"the group at position {self._at - 1} is of a kind that is not supported")
        else:
            number = self.groups
            self.groups += 1
        node = self._alternatives()
        if self._peek() != ")":
            raise PatternError("a group has no end")
        self._at += 1
        self._nesting -= 1
        return node if number < 0 else _Group(node, number)

    def _class(self, text: str) -> _Node:
        self._at += len(text)
        return _Symbol(_one_character(text))

    def _escape(self) -> _Node:
        text = self._text[self._at : self._at + 2]
        if len(text) < 2 or (text[1].isalnum() and text[1] not in _LETTERS):
            raise PatternError(f"the escape {text!r} is not supported")
        self._at += 2
        return _Symbol(_one_character(text) if text[1].isalnum() else text[1].__eq__)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]


def _one_character(text: str) -> Callable[[str], object]:
    try:
        return re.compile(text, re.DOTALL).fullmatch
    except re.error as error:
        raise PatternError(f"{text!r}: {error}") from None
