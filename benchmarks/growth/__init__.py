"""Growth: what partitions and idle connections cost a broker that serves only one of them.

    python -m benchmarks.growth [--quick] [--ours-only]

The work never changes; the broker carries 1, 1,000 or 5,000 partitions and 1 or 500 connections. A figure that grows
with them shows unnecessary work. Apache Kafka 4.3 is measured beside ours for 1 and 1,000 partitions, in
turns.

    probes.py      the requests: produce, fetch, and fetches of a session over all partitions
    lifecycle.py   a broker is created, stopped, restarted, measured and stopped; the rows of the result
    command.py     the run, and the cost in multiples of the smallest broker as a picture
"""

from benchmarks.growth.command import main, pictures

__all__ = ["main", "pictures"]
