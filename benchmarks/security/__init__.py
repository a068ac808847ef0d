"""What TLS, logins and ACLs cost: our broker beside Apache Kafka 4.3, same machine, same clients, alternating rounds.

    python -m benchmarks.security [--quick] [--ours-only]

    brokers.py     both brokers with the same listeners, certificate, user and ACLs; with an authorizer and without
    workloads.py   big batches over TLS and in plaintext; connections with a handshake or a login; requests under ACLs
    rounds.py      the order and length of the loads, and the rows of the result with their goals
    command.py     options, and the result

Every broker runs the whole time and is loaded in its turn.
"""

from benchmarks.security.command import main

__all__ = ["main"]
