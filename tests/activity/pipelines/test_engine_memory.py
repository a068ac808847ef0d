"""A run on one machine for weeks: what its processes are told so that they keep no more than they need."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from penstock.activity.pipelines.running import settings_for

_PROGRAM = """
import pyarrow
from penstock.activity.pipelines import memory
memory.give_back()
print(pyarrow.default_memory_pool().backend_name)
"""


def backend(**variables: str) -> str:
    """Which of Arrow's allocators a process has that gives back what is free."""
    given = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    answer = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env={**given, **variables}, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    return answer.stdout.strip()


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="this Arrow was built without jemalloc")
def test_what_arrow_has_let_go_of_goes_back_to_the_system() -> None:
    assert backend() == "jemalloc"


def test_whoever_has_chosen_an_allocator_keeps_it() -> None:
    assert backend(ARROW_DEFAULT_MEMORY_POOL="system") == "system"


def test_spark_on_this_machine_keeps_little_of_what_is_past_and_spark_elsewhere_what_its_owners_say() -> None:
    kept = {"spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs", "spark.ui.retainedStages"}
    for master in (None, "local[2]"):
        assert all(int(settings_for(master)[name]) < 100 for name in kept)
    assert not kept & settings_for("spark://host:7077").keys()
