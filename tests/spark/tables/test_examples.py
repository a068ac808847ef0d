"""examples/read_tables_*.py: a loaded table, read by those who know nothing of us."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.spark.tables.table_stories import VIEWS, World
from tests.timeouts import PATIENCE_S

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    "package",
    ["pandas", pytest.param("polars", marks=pytest.mark.long), pytest.param("duckdb", marks=pytest.mark.long)],
)
def test_an_example_reads_the_table_as_it_is(world: World, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    world.views(50)
    world.loader(world.make(schema=VIEWS, event_time="at")).load_new()
    command = [sys.executable, str(EXAMPLES / f"read_tables_{package}.py"), world.warehouse.storage.uri, "views"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    counts = Counter(partition for partition, _ in world.log())
    assert done.stdout.splitlines() == [
        f"partition {partition}: {rows} rows, up to offset {rows - 1}" for partition, rows in sorted(counts.items())
    ]
