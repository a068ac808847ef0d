"""A strict reader of Prometheus' text format 0.0.4, written from its description: the oracle for what is rendered."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]

_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"\\}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\\\|\\"|\\n)*)"')
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN")


class NotExposition(Exception):
    """The text is not what Prometheus would take."""


@dataclass
class ParsedFamily:
    name: str
    help: str
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, sample: str = "", **labels: str) -> float:
        return self.samples[sample or self.name, tuple(labels.items())]


def parse(text: str) -> dict[str, ParsedFamily]:
    """Families by name. Raises `NotExposition` at the first thing that is out of order."""
    if text and not text.endswith("\n"):
        raise NotExposition("the last line has no end")
    families: dict[str, ParsedFamily] = {}
    current: ParsedFamily | None = None
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            if name in families:
                raise NotExposition(f"{name} comes twice")
            current = families[name] = ParsedFamily(name, _unescaped(words, quotes=False))
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if current is None or current.name != name or current.kind or current.samples:
                raise NotExposition(f"the type of {name} is out of place")
            current.kind = kind
        elif current is None or not current.kind:
            raise NotExposition(f"a sample before its type: {line!r}")
        else:
            _add_sample(current, line)
    for family in families.values():
        if family.kind == "histogram":
            _check_histogram(family)
    return families


def _add_sample(family: ParsedFamily, line: str) -> None:
    match = _SAMPLE.fullmatch(line)
    if match is None or not _NUMBER.fullmatch(match[3]):
        raise NotExposition(f"not a sample: {line!r}")
    endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    if match[1] not in [family.name + ending for ending in endings]:
        raise NotExposition(f"{match[1]} is not of {family.name}")
    key = (match[1], _labels(match[2]))
    if key in family.samples:
        raise NotExposition(f"{key} comes twice")
    family.samples[key] = float(match[3])


def _labels(text: str | None) -> Labels:
    if text is None:
        return ()
    found: list[tuple[str, str]] = []
    position = 0
    while True:
        match = _LABEL.match(text, position)
        if match is None:
            raise NotExposition(f"not labels: {text!r}")
        found.append((match[1], _unescaped(match[2], quotes=True)))
        position = match.end()
        if position == len(text):
            break
        if text[position] != ",":
            raise NotExposition(f"not labels: {text!r}")
        position += 1
    if len({name for name, _ in found}) != len(found):
        raise NotExposition(f"a label comes twice: {text!r}")
    return tuple(found)


def _unescaped(text: str, *, quotes: bool) -> str:
    meanings = {"\\": "\\", "n": "\n"} | ({'"': '"'} if quotes else {})

    def meaning(match: re.Match[str]) -> str:
        if match[1] not in meanings:
            raise NotExposition(f"no such escape: {match[0]!r}")
        return meanings[match[1]]

    return re.sub(r"\\(.?)", meaning, text)


def _check_histogram(family: ParsedFamily) -> None:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            if labels[-1][0] != "le":
                raise NotExposition(f"{family.name}: le is not the last label")
            series.setdefault(labels[:-1], []).append((float(labels[-1][1]), value))
    for labels, buckets in series.items():
        if buckets != sorted(set(buckets)) or [count for _, count in buckets] != sorted(c for _, c in buckets):
            raise NotExposition(f"{family.name}: buckets do not rise")
        if buckets[-1] != (math.inf, family.samples[f"{family.name}_count", labels]):
            raise NotExposition(f"{family.name}: the last bucket is not all")
        if (f"{family.name}_sum", labels) not in family.samples:
            raise NotExposition(f"{family.name}: no sum")
