"""acks=all with three replicas: three brokers of ours beside three of Apache Kafka 4.3, same run, same clients.

    python -m benchmarks.replication [--quick] [--only penstock|kafka] [--parts requests bulk failover] [--rounds N]

A figure of ours means something only as a ratio to Kafka's in the same run. Both clusters run the whole time and each
is loaded in its turn; the order changes from round to round, and the median round counts. Both are as shipped except
for what the result names: ours syncs before it acknowledges, Kafka does not; where neither syncs, the row says so.

    rounds.py        the clusters, which one is loaded when and with how much, and the rows of the result
    failover.py      a leader is killed, frozen or cut off: how long clients wait for an acknowledgement
    command.py       the whole comparison, and requests per second by depth as a picture
"""

from benchmarks.replication.command import main, pictures

__all__ = ["main", "pictures"]
