"""What is wrong with a cluster, as its protocol shows it, and the command that mends it.

`penstock doctor` and the console share these checks. Each returns findings: what it is about, in one sentence, and
advice. Partitions without a leader, replicas out of sync, min.insync.replicas that cannot be met, transactions that
hold up readers, clocks that differ and disks that are full are found. The cost is bounded: checks that ask about each
topic or partition stop after the first thousand or two.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple

from penstock.client.admin import (
    AsyncAdmin,
    ConfigResource,
    LogDirectory,
    OffsetResult,
    OpenTransaction,
    PartitionDescription,
    TopicDescription,
)
from penstock.client.cluster_metadata import Node
from penstock.client.errors import PenstockError
from penstock.runtime.quantities import counted, duration_text, human_bytes, some_of
from penstock.wire.protocol import ApiKey

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """A finding. `level` is ok, note or problem; `check` is a stable name for programs."""

    level: str
    check: str
    subject: str
    text: str
    advice: str = ""


_MAX_TIMEOUT_MS: Final = 15 * 60_000
"""The default of transaction.max.timeout.ms: a coordinator aborts a transaction that is open for longer."""
FREE_SHARE: Final = 0.10
FREE_BYTES: Final = 1024**3
# A broker rejects records whose time is further off than message.timestamp.after.max.ms, an hour by default; seconds
# already spoil what reads by time.
_SKEW_S: Final = 5.0
_FUTURE_MS: Final = 60_000
_MOST_PARTITIONS: Final = 2_000
_MOST_TOPICS: Final = 1_000
_MOST_TRANSACTIONS: Final = 10
_TRANSACTION_APIS: Final = (ApiKey.DESCRIBE_PRODUCERS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS)


def is_troubled(part: PartitionDescription) -> bool:
    """Whether a partition has no leader, or replicas that are not in sync."""
    return part.leader is None or set(part.isr) != set(part.replicas)


def abort_command(item: OpenTransaction, *options: str) -> str:
    """The command that aborts a hanging transaction, ready for a shell."""
    where = f"{item.partition.topic}:{item.partition.partition}"
    words = ["penstock", "transactions", "abort", where, "--start-offset", str(item.start_offset), *options]
    return shlex.join(words)


def fence_command(transactional_id: str, *options: str) -> str:
    """The command that aborts the open transaction of a transactional id, ready for a shell."""
    return shlex.join(["penstock", "transactions", "fence", transactional_id, *options])


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def skew(name: str, ahead_s: float, error_s: float) -> Finding:
    if abs(ahead_s) <= _SKEW_S + error_s:
        within_ms = max(abs(ahead_s), error_s, 0.001) * 1000
        return Finding(OK, "clock", name, f"its clock agrees with this machine's within {within_ms:.0f} ms")
    which = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        PROBLEM, "clock", name, f"its clock is {duration_text(abs(ahead_s))} {which} this machine's",
        "Synchronise both clocks (chrony, systemd-timesyncd). Otherwise lag in seconds, retention and reading by "
        "time are wrong.",
    )  # fmt: skip


# --- topics


async def topic_findings(admin: AsyncAdmin) -> list[Finding]:
    """Leaders, replicas, min.insync.replicas, transactions and clocks of all topics."""
    answers = await admin.describe_topics()
    topics = [topic for topic in answers.values() if isinstance(topic, TopicDescription)]
    led = [(topic.name, part.index) for topic in topics for part in topic.partitions if part.leader]
    findings = replica_findings(topics)
    findings += min_insync_findings(await min_insync_of(admin, topics), topics)
    return findings + await transaction_findings(admin, led) + await clock_findings(admin, led)


def replica_findings(topics: Iterable[TopicDescription]) -> list[Finding]:
    """Partitions without a leader, and those whose replicas are not all in sync."""
    parts = [(topic.name, part) for topic in topics for part in topic.partitions]
    findings = []
    leaderless = [f"{name}-{part.index}" for name, part in parts if part.leader is None]
    if leaderless:
        findings.append(
            Finding(
                PROBLEM, "leaders", "partitions",
                f"{some_of(leaderless)} without a leader, so they cannot be written or read",
                "Start their brokers; `penstock topics describe --troubled` shows which.",
            )
        )  # fmt: skip
    behind = [f"{name}-{part.index}" for name, part in parts if part.leader is not None and is_troubled(part)]
    if behind:
        findings.append(
            Finding(
                PROBLEM, "replicas", "partitions", f"{some_of(behind)} with replicas out of sync",
                "Check for brokers that are offline or slow; `penstock topics describe --troubled` shows which.",
            )
        )  # fmt: skip
    if not findings:
        findings.append(
            Finding(OK, "leaders", "partitions", f"all {len(parts):,} have a leader and all replicas in sync")
        )
    return findings


async def min_insync_of(admin: AsyncAdmin, topics: Iterable[TopicDescription]) -> dict[str, int]:
    """min.insync.replicas of the first thousand topics; empty if the brokers do not tell."""
    wanted = [ConfigResource.topic(topic.name) for topic in topics if topic.partitions][:_MOST_TOPICS]
    try:
        settings = await admin.describe_configs(wanted)
    except PenstockError:
        return {}
    found: dict[str, int] = {}
    for resource in wanted:
        answer = settings[resource]
        entry = None if isinstance(answer, PenstockError) else answer.get("min.insync.replicas")
        if entry is not None and entry.value and entry.value.isdigit():
            found[resource.name] = int(entry.value)
    return found


def min_insync_findings(needed: Mapping[str, int], topics: Iterable[TopicDescription]) -> list[Finding]:
    """Topics whose min.insync.replicas exceeds their replicas, and partitions whose ISR is below it: no write with
    acks=all succeeds there.
    """
    wrong: dict[str, tuple[int, int]] = {}
    under: list[str] = []
    for topic in topics:
        least = needed.get(topic.name, 0)
        fewest = min((len(part.replicas) for part in topic.partitions), default=least)
        if least > fewest:
            wrong[topic.name] = (least, fewest)
        else:
            under += [
                f"{topic.name}-{part.index}" for part in topic.partitions if part.leader and len(part.isr) < least
            ]
    findings = []
    if wrong:
        name, (least, fewest) = next(iter(wrong.items()))
        findings.append(
            Finding(
                PROBLEM, "min-insync", some_of(list(wrong)),
                f"min.insync.replicas is {least} with {counted(fewest, 'replica')}, so no write with acks=all can "
                "succeed",
                f"Lower it: penstock configs alter --topic {name} --set min.insync.replicas={fewest}. "
                f"Or add replicas: penstock reassign plan {name} -r {least}",
            )
        )  # fmt: skip
    if under:
        findings.append(
            Finding(
                PROBLEM, "under-min-isr", some_of(under),
                "fewer replicas are in sync than min.insync.replicas demands, so writes with acks=all are rejected",
                "Start the missing brokers; `penstock topics describe --under-min-isr` shows which.",
            )
        )  # fmt: skip
    return findings


async def transaction_findings(admin: AsyncAdmin, partitions: list[tuple[str, int]]) -> list[Finding]:
    """Transactions that keep the last stable offset of a partition from moving on: hanging ones, and old ones."""
    connection = await admin.cluster.to_any()
    if not all(connection.supports(key, 0) for key in _TRANSACTION_APIS):
        return []
    looked_at = partitions[:_MOST_PARTITIONS]
    try:
        ends = await admin.list_offsets(dict.fromkeys(looked_at, "latest"))
        stable = await admin.list_offsets(dict.fromkeys(looked_at, "latest"), isolation_level="read_committed")
        held = [key for key, end in ends.items() if _offset(stable[key]) < _offset(end)]
        answers = await admin.open_transactions(held)
    except PenstockError as error:
        return [Finding(NOTE, "transactions", "transactions", f"cannot be checked: {error.message}")]
    now_ms = time.time() * 1000
    found = [item for each in answers.values() if not isinstance(each, PenstockError) for item in each]
    hanging = [each for each in found if each.is_hanging and now_ms - each.producer.last_timestamp >= _MAX_TIMEOUT_MS]
    old = [each for each in found if each.start_time_ms is not None and now_ms - each.start_time_ms >= _MAX_TIMEOUT_MS]
    findings = [_hanging(item) for item in hanging[:_MOST_TRANSACTIONS]]
    findings += [_long_open(name, old, now_ms) for name in _ids(old)[:_MOST_TRANSACTIONS]]
    more = max(0, len(hanging) - _MOST_TRANSACTIONS) + max(0, len(_ids(old)) - _MOST_TRANSACTIONS)
    if more:
        findings.append(
            Finding(
                PROBLEM, "transactions", "transactions", f"{counted(more, 'other')} like these",
                "`penstock transactions find-hanging` and `penstock transactions list --open-for 15m` show them all.",
            )
        )  # fmt: skip
    return findings or [Finding(OK, "transactions", "transactions", "none keeps committed readers waiting")]


def _offset(answer: OffsetResult | PenstockError) -> int:
    return answer.offset if isinstance(answer, OffsetResult) else -1


def _ids(found: list[OpenTransaction]) -> list[str]:
    return list(dict.fromkeys(each.transactional_id for each in found if each.transactional_id is not None))


def _hanging(item: OpenTransaction) -> Finding:
    return Finding(
        PROBLEM, "transactions", str(item.partition),
        f"a hanging transaction of producer {item.producer.producer_id} keeps committed readers at offset "
        f"{item.start_offset}; it will never complete",
        f"Abort it: {abort_command(item)}",
    )  # fmt: skip


def _long_open(transactional_id: str, old: list[OpenTransaction], now_ms: float) -> Finding:
    own = [each for each in old if each.transactional_id == transactional_id]
    age = duration_text(max(now_ms - (each.start_time_ms or now_ms) for each in own) / 1000)
    return Finding(
        PROBLEM, "transactions", some_of([str(each.partition) for each in own]),
        f"the transaction of {transactional_id} is open for {age}, and committed readers wait for it",
        f"Have its producer commit or abort, or abort it: {fence_command(transactional_id)}",
    )  # fmt: skip


async def clock_findings(admin: AsyncAdmin, partitions: list[tuple[str, int]]) -> list[Finding]:
    """Records with a timestamp in the future: the clock of the producer or of this machine is wrong."""
    try:
        found = await admin.list_offsets(dict.fromkeys(partitions[:_MOST_PARTITIONS], "max_timestamp"))
    except PenstockError:
        return []
    now_ms = time.time() * 1000
    future = {
        str(partition): answer.timestamp - now_ms
        for partition, answer in found.items()
        if isinstance(answer, OffsetResult) and answer.timestamp > now_ms + _FUTURE_MS
    }
    if not future:
        return []
    most = duration_text(max(future.values()) / 1000)
    return [
        Finding(
            PROBLEM, "clock", some_of(list(future)),
            f"the newest record is {most} ahead of this machine's clock",
            "Compare the clocks of the producers and of this machine. Such records are kept too long.",
        )
    ]  # fmt: skip


# --- disks


async def disk_findings(admin: AsyncAdmin, nodes: tuple[Node, ...]) -> list[Finding]:
    answers = await admin.describe_log_dirs(node.id for node in nodes)
    findings: list[Finding] = []
    for broker, folders in answers.items():
        if isinstance(folders, PenstockError):
            findings.append(Finding(NOTE, "disk", f"broker {broker}", f"does not report its disks: {folders.message}"))
            continue
        local = any(node.id == broker and is_loopback(node.host) for node in nodes)
        findings += [disk_finding(f"broker {broker}", folder, local) for folder in folders]
    return findings


def disk_finding(name: str, folder: LogDirectory, local: bool) -> Finding:
    if folder.error is not None:
        return Finding(
            PROBLEM, "disk", name, f"{folder.path} is offline: {folder.error}",
            "Check the broker's log and the disk. The folder is used again after a restart of the broker.",
        )  # fmt: skip
    total, free = folder.total_bytes, folder.usable_bytes
    if total < 0 and local:
        total, free = _local_disk(folder.path)
    if total < 0:
        return Finding(NOTE, "disk", name, f"{folder.path}: the broker is too old to report free space")
    text = f"{folder.path}: {human_bytes(free)} of {human_bytes(total)} free"
    if free < FREE_BYTES or (total and free / total < FREE_SHARE):
        return Finding(
            PROBLEM, "disk", name, text,
            "Free some space or lower retention.ms or retention.bytes. A full disk rejects writes. "
            "`penstock brokers disks --topics` shows what is large.",
        )  # fmt: skip
    return Finding(OK, "disk", name, text)


def _local_disk(path: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1, -1
    return usage.total, usage.free
