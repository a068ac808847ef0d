"""Python source in the making: lines with their indentation, and the constants that the finished code
refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct as Packer
from typing import Any, NamedTuple

from penstock.wire.compiler.plan import Field


class Source:
    """Lines of functions that will be executed in one namespace of constants."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = constants
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0
        self._packers: dict[str, str] = {}

    def line(self, text: str) -> None:
        self._lines.append(" " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def function(self, head: str) -> Iterator[None]:
        """A function of its own, set before whatever is being written."""
        outer, depth = self._lines, self._depth
        self._lines, self._depth = [], 0
        with self.block(head):
            yield
        self._lines, self._depth = self._lines + outer, depth

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        name = self.name(prefix)
        self.constants[name] = value
        return name

    def packer(self, codes: str, method: str) -> str:
        """The name of a bound method (`pack`, `unpack_from`, `iter_unpack`) of a precompiled format."""
        key = f"{method} {codes}"
        if key not in self._packers:
            self._packers[key] = self.constant("S", getattr(Packer(f">{codes}"), method))
        return self._packers[key]

    def default(self, field: Field) -> str:
        """An expression for a field's default, new at each evaluation where it must be."""
        if field.fresh:
            return "[]" if field.factory is list else f"{self.constant('F', field.factory)}()"
        if field.default is None or type(field.default) in (bool, int, str, float):
            return repr(field.default)
        return self.constant("D", field.default)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, name: str, label: str) -> Callable[..., Any]:
        """Executes the source and answers with one of its functions."""
        namespace = dict(self.constants)
        exec(compile(self.text(), f"<{label}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function


class Run(NamedTuple):
    """Adjacent fixed-size values, read or written by a single `struct` call."""

    codes: list[str]
    terms: list[str]
    """Names to assign when reading, expressions to write when writing."""

    def add(self, code: str, term: str) -> None:
        self.codes.append(code)
        self.terms.append(term)

    def take(self) -> tuple[str, list[str]]:
        codes, terms = "".join(self.codes), self.terms.copy()
        self.codes.clear()
        self.terms.clear()
        return codes, terms
