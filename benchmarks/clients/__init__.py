"""Our clients beside confluent-kafka, aiokafka and kafka-python, against the same broker.

command.py   one run, one result
produce.py   what each contender does to send, and its rows
consume.py   the same for reading
rounds.py    processes, the clock, turns
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] = ()) -> None:
    """As `benchmarks.clients.command` has it; contenders, which run in processes of their own, do without it."""
    from benchmarks.clients.command import main as run

    run(arguments)
