"""What can be wrong with settings, and what is merely worth saying.

Rule: a reader of a file wants to know everything that is wrong with it at once. So whatever reads settings collects
`Problem`s and raises one `InvalidSettings` at the end; a `Notice` stops nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SHOWN_CHARACTERS: Final = 120


def shown(text: str) -> str:
    """Text for a message: no control characters, and not endless."""
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:200])
    return printable if len(printable) <= _SHOWN_CHARACTERS else printable[:_SHOWN_CHARACTERS] + "..."


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting that cannot be used: where it was written, its name, and why, in words that say what to do."""

    where: str
    name: str
    reason: str

    def __str__(self) -> str:
        text = f"{self.name}: {self.reason}" if self.name else self.reason
        return f"{self.where}: {text}" if self.where else text


@dataclass(frozen=True, slots=True)
class Notice:
    """Something in the settings that is probably not what was meant."""

    where: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.name}: {self.text}" if self.where else f"{self.name}: {self.text}"


class SettingsError(Exception):
    """Base of everything that is raised about settings."""


class UnreadableFile(SettingsError):
    """The file of settings cannot be read at all."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"settings file {shown(path)}: {reason}")
        self.path = path
        self.reason = reason


class InvalidSettings(SettingsError):
    """Settings that cannot be used, with every reason."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
