"""acks=all with three replicas: three brokers of ours beside three of Apache Kafka 4.3, same run, same clients.

    python -m benchmarks.replication [--quick] [--only penstock|kafka] [--parts requests bulk failover] [--rounds N]

Rule: a figure of ours means something only as a ratio to Kafka's in the same run. Both clusters run the whole time and
each is loaded in its turn; the order turns from round to round, and the median round counts. Both are as shipped: ours
syncs before it acknowledges, Kafka does not; where ours does not either, the row says so.

    contenders.py    the two clusters, and one of them as the loads of `benchmarks.peers` see it
    rounds.py        who is loaded when, and with how much
    failover.py      the leader is killed: how long confluent-kafka waits for an acknowledgement
    figures.py       the rows of the table, with their goals
    chart.py         the ratios, and requests a second by depth, as pictures
"""

from benchmarks.replication.command import main

__all__ = ["main"]
