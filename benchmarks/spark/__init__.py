"""Our data source beside Spark's stock Kafka connector, and beside what Spark's Python transport can carry at all."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] = ()) -> None:
    """As `benchmarks.spark.command` has it; Spark's workers, which import the ceiling from here, do without it."""
    from benchmarks.spark.command import main as run

    run(arguments)
