"""Our clients beside confluent-kafka, aiokafka and kafka-python, against the same broker.

command.py     one run, one table, one plot
producing.py   what each contender does to send, and its rounds
consuming.py   the same for reading
rounds.py      processes, turns, medians
"""

from benchmarks.clients.command import main

__all__ = ["main"]
