"""A fuzz run: a broker, a well-behaved client and the attackers, each in a process of its own; what they found.

A run fails if the broker logs an exception or an error, if a turn of its event loop or a request of the well-behaved
client takes more processor time of the loop than the limit, if its memory grows beyond the limit, if the well-behaved
client is not served, or if connections stay behind.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from tests.hostile.fuzz.attackers import UNPRIVILEGED, Attack, Peer
from tests.hostile.fuzz.requests import TOPICS
from tests.security.secure_broker import PASSWORD, USER, secure_settings
from tests.timeouts import PATIENCE_S

from penstock.security.credentials import format_jaas

LIMIT_MS: Final = 100
LIMIT_GROWTH_MIB: Final = 256
_LOOK_S: Final = 0.5
_BASELINE_S: Final = 2.0
_OWN_TOPIC: Final = "well-behaved"
_PEER: Final = re.compile(r"peer=(\S+)")
_MIB: Final = 1024 * 1024


class Child:
    """A process that answers lines with lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"tests.hostile.fuzz.{module}", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> dict[str, Any]:
        if self._process.stdin is None:
            raise RuntimeError("no standard input")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("no standard output")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended: exit code {self._process.wait(PATIENCE_S)}")
        return cast("dict[str, Any]", json.loads(line))

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def broker_settings(folder: Path) -> dict[str, str]:
    """Every listener and mechanism, an authorizer, an audit log, and bounds on what permitted clients may create."""
    users = format_jaas("PLAIN", {f"user_{USER}": PASSWORD, f"user_{UNPRIVILEGED}": PASSWORD})
    return {
        **secure_settings(folder / "security"),
        "log.dirs": str(folder / "data"),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": users,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
        "authorizer.class.name": "penstock",
        "super.users": f"User:{USER};User:ANONYMOUS;User:CN=localhost",
        "penstock.audit.log.file": str(folder / "audit.log"),
        "penstock.max.partitions": "300",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "connection.failed.authentication.delay.ms": "1",
        "penstock.authentication.timeout.ms": "3000",
        "connections.max.reauth.ms": "60000",
        "socket.request.max.bytes": "4000000",
        "socket.busy.poll.us": "0",
    }


@dataclass
class Report:
    """What a run saw. `problems` is empty if the broker stood it."""

    state: str
    seed: int
    sent: int = 0
    served: int = 0
    conversations: int = 0
    seconds: float = 0.0
    idle: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    broker: dict[str, Any] = field(default_factory=dict)
    resident_mib: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        broker, client, idle = self.broker, self.client, self.idle
        over = "/".join(str(broker["turns_over"].get(each, 0)) for each in ("20", "50", "100"))
        return (
            f"{self.state}: taken={self.served} sent={self.sent} connections={self.conversations} "
            f"seconds={self.seconds:.0f}\n"
            f"  turns of the loop: longest_cpu_ms={broker['longest_cpu_ms']:.0f} over_20_50_100_ms={over} "
            f"longest_wall_ms={broker['longest_wall_ms']:.0f}\n"
            f"  well-behaved client: requests={client['requests']} throttled={client['throttled']} "
            f"median_ms={client['median_ms']} "
            f"p99_ms={client['p99_ms']} worst_ms={client['worst_ms']} (idle {idle['worst_ms']}) "
            f"worst_loop_cpu_ms={client['worst_broker_ms']} (idle {idle['worst_broker_ms']})\n"
            f"  memory_mib={' '.join(map(str, self.resident_mib))} problems={len(self.problems)}"
        )


class Run:
    """One state of one listener."""

    def __init__(
        self,
        state: str,
        seed: int,
        requests: int,
        findings: Path | None = None,
        baseline_s: float = _BASELINE_S,
        limit_ms: float = LIMIT_MS,
    ) -> None:
        self.report = Report(state, seed)
        self._requests = requests
        self._baseline_s = baseline_s
        self._limit_ms = limit_ms
        self._findings = findings
        self._seen: set[str] = set()

    def run(self, progress: Callable[[str], None] = lambda _: None) -> Report:
        with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as name:
            folder = Path(name)
            broker = Child("broker_process")
            try:
                self._run(folder, broker, progress)
            finally:
                broker.end()
        return self.report

    def _run(self, folder: Path, broker: Child, progress: Callable[[str], None]) -> None:
        report = self.report
        topics: dict[str, dict[str, str]] = {each: {} for each in (*TOPICS, _OWN_TOPIC)}
        topics[TOPICS[-1]] = {"cleanup.policy": "compact"}
        ports = broker.ask(json.dumps({"settings": broker_settings(folder), "topics": topics}))
        client = Child("well_behaved", str(ports["PLAINTEXT"]), _OWN_TOPIC, str(ports["pid"]))
        try:
            client.read()
            time.sleep(self._baseline_s)
            report.idle = client.ask("idle")
            broker.ask("restart-meter")
            before = broker.ask("status")
            attack = Attack(ports, report.state, report.seed, self._requests, folder / "security")
            begun_s = time.monotonic()
            asyncio.run(self._watched(attack, broker, progress))
            report.seconds = time.monotonic() - begun_s
            report.sent, report.conversations = attack.sent, attack.conversations
            report.broker = self._settled(broker)
            report.client = client.ask("stop")
            report.served = report.broker["frames"] - before["frames"] - report.client["requests"] + attack.records
            self._judge(attack, before)
            broker.ask("stop")
            if broker.wait() != 0:
                report.problems.append("the broker did not stop cleanly")
        finally:
            client.end()

    async def _watched(self, attack: Attack, broker: Child, progress: Callable[[str], None]) -> None:
        before = (await asyncio.to_thread(broker.ask, "status"))["frames"]
        running = asyncio.create_task(attack.run())
        shown = 0
        while not running.done():
            await asyncio.wait({running}, timeout=_LOOK_S)
            status = await asyncio.to_thread(broker.ask, "status")
            attack.served = status["frames"] - before
            self._look(attack, status)
            if attack.taken * 10 // self._requests > shown or running.done():
                shown = attack.taken * 10 // self._requests
                self.report.resident_mib.append(status["resident_bytes"] // _MIB)
                progress(
                    f"{attack.state}: taken={attack.taken} rss_mib={self.report.resident_mib[-1]} "
                    f"longest_turn_cpu_ms={status['longest_cpu_ms']:.0f} surprises={len(status['surprises'])}"
                )
        await running

    def _settled(self, broker: Child) -> dict[str, Any]:
        """The broker's state when the attackers' connections are gone: only that of the well-behaved client stays."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (status := broker.ask("status"))["connections"] > 1 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return status

    def _judge(self, attack: Attack, before: dict[str, Any]) -> None:
        report, status = self.report, self.report.broker
        self._look(attack, status)
        report.resident_mib.append(status["resident_bytes"] // _MIB)
        grown_mib = (status["resident_bytes"] - before["resident_bytes"]) // _MIB
        if status["connections"] > 1:
            report.problems.append(f"{status['connections'] - 1} connections stay open")
        if status["longest_cpu_ms"] > self._limit_ms:
            report.problems.append(f"a turn of the event loop took {status['longest_cpu_ms']:.0f} ms of processor time")
        if report.client["worst_broker_ms"] > self._limit_ms:
            report.problems.append(
                f"the well-behaved client waited for {report.client['worst_broker_ms']} ms of the loop's processor time"
            )
        if grown_mib > LIMIT_GROWTH_MIB:
            report.problems.append(f"memory grew by {grown_mib} MiB")
        if report.client["failure"] or report.client["error_codes"]:
            report.problems.append(
                f"the well-behaved client failed: {report.client['failure']} codes={report.client['error_codes']}"
            )

    def _look(self, attack: Attack, status: dict[str, Any]) -> None:
        """Note what the broker logged since the last look, with what its peer had sent."""
        for where, _, text in status["surprises"]:
            if where in self._seen:
                continue
            self._seen.add(where)
            self.report.problems.append(f"{where}\n{text}")
            if self._findings is not None:
                self._keep(attack, where, text)

    def _keep(self, attack: Attack, where: str, text: str) -> None:
        if self._findings is None:
            return
        names = set(_PEER.findall(text))
        peers: list[Peer] = [peer for peer in attack.recent if peer.name in names] or list(attack.recent)
        self._findings.mkdir(parents=True, exist_ok=True)
        content = {
            "state": attack.state,
            "seed": attack.seed,
            "where": where,
            "text": text,
            "connections": [[data.hex() for data in peer.transcript] for peer in peers],
        }
        number = len(list(self._findings.glob("finding-*.json"))) + 1
        (self._findings / f"finding-{number}.json").write_text(json.dumps(content, indent=1))
