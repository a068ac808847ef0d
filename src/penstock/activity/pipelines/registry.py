"""The pipelines by name.

Rule: a pipeline is a module of its name here that exports `PIPELINE`. It is imported when it is asked for, so that the
command line answers at once whatever the others need.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from penstock.activity.pipelines.errors import UnknownPipeline
from penstock.activity.pipelines.pipeline import Pipeline

_PACKAGE: Final = "penstock.activity.pipelines"
_MODULES: Final = ("feed", "relevance", "security", "operations", "search", "reporting")


def names() -> tuple[str, ...]:
    """In the order in which people are shown them."""
    return tuple(name for name in _MODULES if find_spec(f"{_PACKAGE}.{name}") is not None)


def find(name: str) -> Pipeline:
    """Raises UnknownPipeline, which names the nearest."""
    known = names()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}"
        raise UnknownPipeline(f"there is no pipeline {name}", hint=hint)
    pipeline = import_module(f"{_PACKAGE}.{name}").PIPELINE
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"{_PACKAGE}.{name}.PIPELINE is no pipeline")
    return pipeline


def chosen(wanted: tuple[str, ...]) -> list[Pipeline]:
    """These, each once; all of them if none is named."""
    return [find(name) for name in dict.fromkeys(wanted or names())]
