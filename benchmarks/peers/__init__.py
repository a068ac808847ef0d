"""Our broker beside Apache Kafka 4.3 and 0.9.0.1: same machine, same run, same clients, alternating rounds, one table.

    python -m benchmarks.peers [--quick] [--ours-only] [--without-0.9]

A figure of ours means something only as a ratio to Kafka's in the same run. All brokers run the whole time and each is
loaded in its turn; the order changes from round to round, and the median round counts.

    servers.py     a broker's processes: start, CPU, memory, topics
    ours.py        `penstock server start`, on uvloop and on asyncio's loop
    kafka.py       Apache Kafka 4.3, KRaft, one node, from its jars
    kafka_09.py    Apache Kafka 0.9.0.1 with ZooKeeper, from its jars
    logins.py      logins and single questions on bare sockets
    workloads.py   big batches with confluent-kafka; one-record requests on a bare socket, one and 64 in flight
    rounds.py      the order and size of the loads, and the rows of the result with their goals
"""

from benchmarks.peers.command import main

__all__ = ["main"]
