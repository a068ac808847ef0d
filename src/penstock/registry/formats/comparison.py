"""Comparison of pairs of a reader's and a writer's schema that may refer to one another in circles. Pure.

A rule compares one pair, and asks for the pairs it depends on with `yield`. The pairs under way are a list here, not
frames of the interpreter: a chain of ten thousand names is no problem, and a circle ends at the pair it came from.

A pair that is met again while it is being compared is taken as compatible. If it turns out not to be, verdicts that
relied on it are wrong, so the comparison is repeated with what was found, until nothing new is found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.registry.formats.schema import Incompatibility, InvalidSchema

Schema = TypeVar("Schema")
Verdict = tuple[Incompatibility, ...]
COMPATIBLE: Verdict = ()

# About two seconds of work. Schemas that people write need some hundreds of steps.
STEPS_MAX = 150_000
ROUNDS_MAX = 20
# Differences kept of one pair. A circle of references would otherwise multiply them.
DIFFERENCES_MAX = 20
PATH_CHARACTERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Pair(Generic[Schema]):
    """A question of a rule: can `reader` read what `writer` describes? `key` is equal for equal questions."""

    reader: Schema
    writer: Schema
    key: Hashable


Rule = Callable[[Schema, Schema], Generator[Pair[Schema], Verdict, Verdict]]


class Comparison(Generic[Schema]):
    """The verdicts of a rule on a pair and on all that it depends on."""

    def __init__(self, rule: Rule[Schema]) -> None:
        self._rule = rule
        self._steps = 0

    def verdict(self, first: Pair[Schema]) -> Verdict:
        """The differences that make the first pair incompatible.

        :raises InvalidSchema: if the schemas are too entangled to be compared within the limits
        """
        known: dict[Hashable, Verdict] = {}
        for _ in range(ROUNDS_MAX):
            done, assumed = self._round(first, known)
            incompatible = {key: verdict for key, verdict in done.items() if verdict}
            if not assumed or incompatible.keys() == known.keys():
                return _once(done[first.key])
            known = incompatible
        raise InvalidSchema("The schemas refer to one another in so many circles that they cannot be compared.")

    def _round(self, first: Pair[Schema], known: dict[Hashable, Verdict]) -> tuple[dict[Hashable, Verdict], bool]:
        """The verdicts on all pairs, and whether one of them relied on a pair that was still under way."""
        done: dict[Hashable, Verdict] = {}
        under_way = {first.key}
        stack = [(first.key, self._rule(first.reader, first.writer))]
        answer: Verdict | None = None
        assumed = False
        while stack:
            key, steps = stack[-1]
            try:
                asked = next(steps) if answer is None else steps.send(answer)
            except StopIteration as finished:
                stack.pop()
                under_way.discard(key)
                answer = done[key] = tuple(finished.value[:DIFFERENCES_MAX])
                continue
            self.spend(1)
            if asked.key in done:
                answer = done[asked.key]
            elif asked.key in under_way:
                answer = known.get(asked.key, COMPATIBLE)
                assumed = True
            else:
                under_way.add(asked.key)
                stack.append((asked.key, self._rule(asked.reader, asked.writer)))
                answer = None
        return done, assumed

    def spend(self, steps: int) -> None:
        """Count work that a rule does besides asking.

        :raises InvalidSchema: if the comparison takes too long
        """
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise InvalidSchema(
                f"The schemas need more than {STEPS_MAX:,} comparisons of their parts. "
                "Make them smaller, or set the compatibility of the subject to NONE."
            )


def _once(verdict: Verdict) -> Verdict:
    """Each difference at the shortest of its paths. A circle shows it again at every turn."""
    shortest: dict[tuple[str, str], Incompatibility] = {}
    for each in sorted(verdict, key=lambda difference: len(difference.path)):
        shortest.setdefault((each.kind, each.message), each)
    return tuple(each for each in verdict if shortest[each.kind, each.message] is each)


def below(prefix: str, verdict: Verdict) -> Verdict:
    """The differences of a part, as seen from the whole that has it at `prefix`."""
    return tuple(
        # A path through ten thousand references is of no use, and each of them would keep its own.
        Incompatibility(each.kind, (prefix + each.path)[:PATH_CHARACTERS_MAX], each.message)
        for each in verdict
    )
