"""A real cluster of three brokers under load and faults: is anything lost, and for how long do writes stop?

    python -m benchmarks.faults [--kind penstock|kafka] [--faults 50] [--seed 1] [--rough]
    python -m benchmarks.faults --only cut:leader --outlast --faults 3
    python -m benchmarks.faults --rolling 2          each broker restarted in turn, twice
    python -m benchmarks.faults --secure             with TLS, logins and ACLs

Real processes, real ZooKeepers and three clients by three authors; servers are killed, paused and cut off by a
schedule that a seed decides. The same harness runs Apache Kafka: a finding that both have may be the harness's own.

    namespaces.py     where a server runs: on the loopback, or in a network namespace that can be cut off
    cluster.py        a server's process, what a broker says of the cluster, three brokers and their metadata servers
    kafka_cluster.py, penstock_cluster.py            the two kinds
    access.py         how clients and the harness reach it: in plaintext, or with TLS and a login
    clients.py        confluent-kafka, kafka-python and ours behind one interface
    load.py           one client at work in its own process, and the journal that it writes
    injector.py       which faults, decided by a seed; the clients' processes; the faults carried out
    checks.py         what the cluster holds in the end, and the verdict
    run.py            a whole run, and how long writes stopped
    report.py         rows, details and a timeline
"""

from benchmarks.faults.command import main
from benchmarks.faults.report import pictures

__all__ = ["main", "pictures"]
