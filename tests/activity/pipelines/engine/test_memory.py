"""A run on one machine for weeks: the settings that keep the memory of its processes bounded."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest
from tests.timeouts import PATIENCE_S

from penstock.activity.pipelines.engine.session import settings_for

# The setting of Python, and the one that Arrow's functions read.
_AFTER = """
import pyarrow
from penstock.activity.pipelines.engine import memory
memory.limit_allocators()
print(pyarrow.default_memory_pool().backend_name)
"""
_BEFORE = """
from penstock.activity.pipelines.engine import memory
memory.limit_allocators()
import pyarrow, pyarrow.compute
begins = {name: getattr(pyarrow, f"{name}_memory_pool")() for name in pyarrow.supported_memory_backends()}
asked = {name: pool.bytes_allocated() for name, pool in begins.items()}
held = pyarrow.table({"k": ["a"] * 1000}).group_by("k").aggregate([("k", "count")])
print(*(name for name, pool in begins.items() if pool.bytes_allocated() > asked[name]))
"""
# What the library reads, and what a process that another thread starts meanwhile would get.
_POOLS = """
import ctypes, os
from penstock.activity.pipelines.engine import memory
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
at_load = []
def load():
    at_load.append(getenv(b"_RJEM_MALLOC_CONF").decode())
    at_load.append("for all" if {"_RJEM_MALLOC_CONF", "ARROW_DEFAULT_MEMORY_POOL"} & {*os.environ} else "for this one")
memory._load = load
memory.limit_allocators()
print(*at_load, "and later", getenv(b"_RJEM_MALLOC_CONF"))
"""


def said(program: str, **variables: str) -> str:
    """What a process prints that gives back what is free."""
    ours = ("ARROW_DEFAULT_MEMORY_POOL", "_RJEM_MALLOC_CONF")
    given = {name: value for name, value in os.environ.items() if name not in ours}
    answer = subprocess.run(
        [sys.executable, "-c", program], env={**given, **variables}, capture_output=True, text=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    return answer.stdout.strip()


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="this Arrow was built without jemalloc")
def test_memory_that_arrow_has_freed_goes_back_to_the_system() -> None:
    assert said(_AFTER) == "jemalloc"


@pytest.mark.skipif(
    sys.platform != "linux" or "jemalloc" not in pa.supported_memory_backends(),
    reason="set on Linux only",
)
def test_arrows_own_functions_ask_the_same_allocator() -> None:
    assert said(_BEFORE) == "jemalloc"


def test_chosen_allocator_is_kept() -> None:
    assert said(_AFTER, ARROW_DEFAULT_MEMORY_POOL="system") == "system"
    assert said(_BEFORE, ARROW_DEFAULT_MEMORY_POOL="system") == "system"


@pytest.mark.skipif(sys.platform != "linux", reason="said on Linux only")
def test_delta_has_few_pools_or_those_that_are_set() -> None:
    ours = said(_POOLS)
    assert "narenas:2" in ours
    assert ours.endswith(" for this one and later None")  # and not for processes that it starts
    assert said(_POOLS, _RJEM_MALLOC_CONF="narenas:7") == "narenas:7 for all and later b'narenas:7'"


def test_spark_on_this_machine_keeps_little_of_what_is_past_and_spark_elsewhere_what_its_owners_say() -> None:
    kept = {"spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs", "spark.ui.retainedStages"}
    for master in (None, "local[2]"):
        assert all(int(settings_for(master)[name]) < 100 for name in kept)
    assert not kept & settings_for("spark://host:7077").keys()
