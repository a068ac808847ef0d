"""A real cluster of three brokers under load and faults: is anything lost, and for how long do writes stop?

    python -m benchmarks.faults [--kind penstock|kafka] [--faults 50] [--seed 1] [--rough]
    python -m benchmarks.faults --only cut:leader --outlast --faults 3
    python -m benchmarks.faults --rolling 2          each broker restarted in turn, twice

Real processes, real ZooKeepers and three clients by three different authors; servers are killed, paused and cut off by
a schedule that a seed decides. The same harness runs Apache Kafka's cluster: a finding that both have may be its own.

    places.py         where a server stands: on the loopback, or in a network namespace that can be cut off
    nodes.py          a server's process
    asking.py         what a broker says of itself and of the cluster
    clusters.py       three brokers and what keeps their metadata
    kafka_cluster.py, penstock_cluster.py            the kinds
    clients.py        confluent-kafka, kafka-python and ours behind one interface
    journal.py        what a client saw, as lines of a file
    load.py           a client at work, in its own process; workers.py: all of them, seen from outside
    schedule.py       which faults, decided by a seed
    injecting.py      faults carried out
    reading_back.py   what the cluster has in the end
    checking.py       the judgement; gaps.py: how long writes stopped
    running.py        a whole run; reporting.py, timeline.py: how it is shown
"""

from benchmarks.faults.command import main
from benchmarks.faults.reporting import pictures

__all__ = ["main", "pictures"]
