"""`make bench`: every benchmark, or those named by ARGS, one after the other, each beside its peer in the same run.

make bench ARGS="records_codec log_append"
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
    "network_echo": "the socket server beside asyncio streams",
    "peers": "our broker beside Apache Kafka 4.3; some minutes",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description="Benchmarks beside their peers.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    )
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    print(machine())
    for name in names:
        print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
