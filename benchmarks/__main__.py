"""`make bench`: every benchmark, or those named by ARGS, one after the other, each beside its peer in the same run.

make bench ARGS="records_codec log_append"
make bench ARGS="peers --without-0.9"         the options of one benchmark
"""

from __future__ import annotations

import argparse
import importlib

from benchmarks.report import machine

BENCHMARKS = {
    "records_codec": "records encode and decode beside aiokafka's compiled codec",
    "wire_codec": "protocol messages beside kio and kafka-python",
    "log_append": "appends beside a bare os.write",
    "log_lookup": "open and lookup with 1, 100 and 10,000 segments",
    "log_recovery": "recovery after an unclean stop",
    "restart": "a broker killed under load, from its launch to its first answer; some minutes",
    "network_echo": "the socket server beside asyncio streams",
    "peers": "our broker beside Apache Kafka 4.3 and 0.9.0.1; some minutes",
    "clients": "our clients beside confluent-kafka, aiokafka and kafka-python; some minutes",
    "spark": "our Spark source beside Spark's own connector; many minutes",
    "activity_generate": "the site's generator on one core",
    "activity_verdicts": "who is named on sites that nobody has looked at, without Spark",
    "activity_sustained": "all six pipelines at a flat rate, whether lag and memory stay; fifty minutes",
    "controller_scale": "the controller's decisions with 100,000 partitions on 100 brokers",
    "replication": "acks=all on three brokers of ours beside three of Apache Kafka 4.3; some minutes",
    "faults": "three brokers killed, paused and cut off under load, and what becomes of the records; many minutes",
    "growth": "what partitions and idle connections cost our broker, beside Apache Kafka 4.3",
}
WITH_OPTIONS = (
    "peers",
    "clients",
    "spark",
    "growth",
    "activity_verdicts",
    "activity_sustained",
    "replication",
    "faults",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description="Benchmarks beside their peers.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    )
    chosen, options = parser.parse_known_args()
    names = chosen.names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options and (len(names) != 1 or names[0] not in WITH_OPTIONS):
        parser.error(f"options {' '.join(options)} are for one of {', '.join(WITH_OPTIONS)} alone")
    print(machine())
    for name in names:
        print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(*([options] if options else []))


if __name__ == "__main__":
    main()
