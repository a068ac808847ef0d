"""acks=all with three replicas: three brokers of ours beside three of Apache Kafka 4.3, same run, same clients.

    python -m benchmarks.replication [--quick] [--only penstock|kafka] [--parts requests bulk failover] [--rounds N]

A figure of ours means something only as a ratio to Kafka's in the same run. Both clusters run the whole time and each
is loaded in its turn; the order turns from round to round, and the median round counts. Both are as shipped but for
what the result names: ours syncs before it acknowledges, Kafka does not; where ours does not either, the row says so.

    contenders.py    the clusters as they are set up for a part of the run
    rounds.py        which cluster is loaded when, and with how much
    failover.py      a leader is killed, frozen or cut off: how long clients wait for an acknowledgement
    figures.py       the rows of the result, with their goals
    chart.py         requests per second by depth, as a picture
"""

from benchmarks.replication.chart import pictures
from benchmarks.replication.command import main

__all__ = ["main", "pictures"]
