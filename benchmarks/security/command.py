"""`python -m benchmarks.security`: the whole comparison, printed as tables and kept as a result."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.peers.installing import CACHE, NotAvailable

from benchmarks import results
from benchmarks.peers import kafka, ours
from benchmarks.security.brokers import Certificates, SecureBroker, Start, running
from benchmarks.security.rounds import FULL, QUICK, Contender, Run

_NOTES = (
    "One broker on the same machine with one partition, acks=1, neither synced; Kafka as shipped, with the JVM flags "
    "of its script. Both have the same certificate (ECDSA, P-256).",
    "Handshakes are full ones. A new connection sends one ApiVersions request and ends. Logins use 4096 iterations; "
    "clients keep the hash of the password, so that brokers are measured and not PBKDF2 in clients.",
    "ACL checks: a user who logged in with SCRAM, on a broker with an authorizer and on another one without, in short "
    "slices that take turns; each round has new brokers. The share is the difference of their CPU per request.",
)


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("security", "What TLS, logins and ACLs cost, on our broker and on Apache Kafka 4.3.")
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it works, not how fast")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--folder", type=Path, default=CACHE, help="folder for the brokers' data during the run")
    options = parser.parse_args(arguments)
    recording = results.begin("security", parser, options, arguments, irrelevant=("folder",))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"security: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    # A terminated run takes its brokers along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    starters: dict[str, Start] = {ours.NAME: ours.start}
    if not options.ours_only:
        try:
            starters[kafka.NAME] = kafka.Kafka().start
        except NotAvailable as error:
            recording.lacks(f"{kafka.NAME} is not available: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    load = QUICK if options.quick else FULL
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="security-", dir=options.folder)))
        certificates = Certificates.make(folder)
        contenders = []
        for name, start in starters.items():
            say(f"starting {name}")
            starter = Starter(start, folder / name, certificates)
            contenders.append(Contender(stack.enter_context(starter(False)), starter))
        run = Run(load, contenders, say)
        run.run()
    recording.keep(
        run.rows(),
        notes=[*_NOTES, *(f"{name}: {suite}." for name, suite in run.suites.items())],
        doubts=doubts(run.suites),
        settings={"load": asdict(load)},
    )


class Starter:
    """Starts brokers, each in a folder of its own."""

    def __init__(self, start: Start, folder: Path, certificates: Certificates) -> None:
        self._start = start
        self._folder = folder
        self._certificates = certificates
        self._count = 0

    def __call__(self, has_acls: bool) -> AbstractContextManager[SecureBroker]:
        self._count += 1
        return running(self._start, self._folder / str(self._count), self._certificates, has_acls=has_acls)


def doubts(suites: dict[str, str]) -> list[str]:
    """Different suites do different work."""
    if len(set(suites.values())) > 1:
        return [f"the brokers chose different suites: {', '.join(f'{name} {suite}' for name, suite in suites.items())}"]
    return []
