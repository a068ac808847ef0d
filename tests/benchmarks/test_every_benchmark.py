"""`make bench` names benchmarks; each can be run."""

from __future__ import annotations

import importlib

import pytest
from benchmarks.__main__ import BENCHMARKS, WITH_OPTIONS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_named_benchmark_can_be_called(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_options_are_for_benchmarks_that_there_are() -> None:
    assert set(WITH_OPTIONS) <= set(BENCHMARKS)
