"""`make bench`: every benchmark, or those named by ARGS, one after the other, each beside its peer in the same run.

Each one whose result is kept waits until the machine is quiet, also the first. One that fails does not keep the others
from running.

make bench ARGS="records_codec log_append"
make bench ARGS="peers --without-0.9"         the options of one benchmark; --help lists them
make bench ARGS=page                          docs/benchmarks.md, its pictures and the README's figures
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.results import Machine

BENCHMARKS: Final = {
    "peers": "our broker beside Apache Kafka 4.3 and 0.9.0.1, same clients, alternating rounds",
    "replication": "acks=all on three of our brokers beside three of Apache Kafka 4.3",
    "faults": "three brokers killed, paused and cut off under load, and what happens to the records",
    "clients": "our clients beside confluent-kafka, aiokafka and kafka-python",
    "transactions": "transactions on our broker and on Apache Kafka 4.3, with confluent-kafka and our client",
    "security": "what TLS, logins and ACLs cost on our broker and on Apache Kafka 4.3",
    "mirror": "our mirror beside MirrorMaker 2 of Apache Kafka 4.3: throughput, CPU, time from source to target",
    "proxy": "three of our brokers, reached directly and through one address",
    "console": "the web console and the schema registry: first screen, search, memory, latency of produce meanwhile",
    "spark": "our Spark source beside Spark's own Kafka connector",
    "hostile": "hostile requests at full size: the event loop, a well-behaved client and memory meanwhile",
    "growth": "what partitions and idle connections cost our broker, beside Apache Kafka 4.3",
    "restart": "a broker killed under load, from its launch to its first answer",
    "controller_scale": "the controller's decisions with 100,000 partitions on 100 brokers, without sockets and disks",
    "activity_start": "from the start of the live example to the first result on its page",
    "activity_sustained": "all six pipelines at a flat rate, and whether lag and memory stay flat",
    "activity_generate": "the site's generator on one core",
    "activity_verdicts": "actors named crawler, spammer or abuser on unseen seeds, without Spark",
    "records_codec": "records encoded and decoded, beside aiokafka's compiled codec",
    "wire_codec": "protocol messages parsed and serialised, beside kio and kafka-python",
    "log_append": "appends to a partition's log, beside a bare os.write of the same bytes",
    "log_lookup": "opening a log and finding records in it, with 1, 100 and 10,000 segments",
    "log_recovery": "opening a log after an unclean stop, beside reading its bytes and computing one checksum",
    "network_echo": "the socket server beside asyncio streams and a bare loop of poll, recv and send",
}
"""What each measures. The page of results has these sentences too."""
TAKES: Final = {
    "peers": "minutes",
    "replication": "minutes",
    "faults": "many minutes",
    "clients": "many minutes",
    "transactions": "minutes",
    "security": "minutes",
    "mirror": "minutes",
    "proxy": "minutes",
    "console": "forty minutes",
    "spark": "many minutes",
    "hostile": "minutes",
    "growth": "minutes",
    "restart": "minutes",
    "activity_start": "minutes",
    "activity_sustained": "fifty minutes",
}
PAGE: Final = "page"
_BY_A_SIGNAL: Final = 128


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="make bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Benchmarks beside their peers:\n\n"
        + "\n".join(f"  {name:20} {what} ({TAKES.get(name, 'seconds')})" for name, what in BENCHMARKS.items())
        + f"\n\n  {PAGE:20} write docs/benchmarks.md, its pictures and the README's figures from the kept results",
        epilog="NAME --help lists the options of a benchmark and says when its result is kept.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all of them by default")
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), given))
    options = given[len(words) :]
    if not words:
        parser.parse_args(options)
    names = words or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS and name != PAGE]
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}, and {PAGE}")
    if options and (len(names) != 1 or names[0] == PAGE):
        parser.error(f"options ({' '.join(options)}) need the name of one benchmark before them")
    print(Machine.here())
    failed = []
    for name in names:
        try:
            run(name, options)
        except SystemExit as ended:
            # One that was terminated ends all; so does one that runs alone.
            if len(names) == 1 or (isinstance(ended.code, int) and ended.code >= _BY_A_SIGNAL):
                raise
            print(f"{name} failed: {ended.code}")
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def run(name: str, options: Sequence[str]) -> None:
    if name == PAGE:
        from benchmarks import page

        page.write(BENCHMARKS)
        return
    print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
    importlib.import_module(f"benchmarks.{name}").main(options)


if __name__ == "__main__":
    main()
