"""Growth: what partitions and idle connections cost a broker that is asked for one of them only.

    python -m benchmarks.growth [--quick] [--ours-only]

The work asked for never changes; the broker carries 1, 1,000 or 5,000 partitions and 1 or 500 connections. A
figure that grows with them shows work that nobody asked for. Apache Kafka 4.3 stands beside ours for 1 and 1,000
partitions, in the same run, in turns.

    probes.py      what is asked: produce, fetch, and fetches of a session over all the partitions
    stages.py      a broker through its life: made, stopped, started again, asked, stopped
    figures.py     what was measured, as rows of the result
    chart.py       how many times the cost of the smallest broker, as a picture
"""

from benchmarks.growth.chart import pictures
from benchmarks.growth.command import main

__all__ = ["main", "pictures"]
