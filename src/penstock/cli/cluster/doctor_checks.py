"""The checks of `penstock doctor`: addresses, versions, clocks and this machine; `client.diagnosis` has the others.

A broker that cannot be reached is reported with the cause; the others are still checked. Checks of this machine (the
compiled kernel, Java, Spark, the limit of open files) give notes only: none of them keeps a broker or a client from
working.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from email.utils import parsedate_to_datetime
from importlib import metadata
from typing import Final

from penstock.cli.connection import Cluster, command_error_for
from penstock.cli.output import sentence
from penstock.client.admin import AsyncAdmin, TopicSpec
from penstock.client.cluster_metadata import Node
from penstock.client.connection import Connection
from penstock.client.diagnosis import NOTE, OK, PROBLEM, Finding, disk_findings, is_loopback, skew, topic_findings
from penstock.client.errors import BootstrapError, PenstockError
from penstock.runtime.quantities import counted
from penstock.wire.protocol import APIS, ApiKey

# Spark 4 runs on Java 17 and later.
_JAVA_NEEDED: Final = 17
_OPEN_FILES: Final = 1024
_JAVA_TIMEOUT_S: Final = 20
_PYTHON_TIMEOUT_S: Final = 20


def examine_machine() -> list[Finding]:
    return [_kernel(), _java(), *_spark(), *_limits()]


def _kernel() -> Finding:
    from penstock.records import kernel

    if kernel.KERNEL == "compiled":
        return Finding(OK, "kernel", "this machine", "the compiled kernel for records is used")
    return Finding(
        NOTE, "kernel", "this machine", "the compiled kernel is missing, so records are encoded and decoded slowly",
        "Install a C compiler or `pip install ziglang`, then reinstall Penstock.",
    )  # fmt: skip


def java_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.9"`, 8 of `java version "1.8.0"`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin") if home else None) or shutil.which("java")
    advice = f"Only Spark and ZooKeeper need it. Install a JDK {_JAVA_NEEDED} or later and set JAVA_HOME."
    if path is None:
        return Finding(NOTE, "java", "Java", "not installed", advice)
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(NOTE, "java", "Java", f"cannot run {path}: {error}", advice)
    version = java_version(done.stderr + done.stdout)
    if version is None:
        return Finding(NOTE, "java", "Java", f"{path} does not report its version", advice)
    if version < _JAVA_NEEDED:
        return Finding(NOTE, "java", "Java", f"{path} is version {version}, which is too old for Spark 4", advice)
    return Finding(OK, "java", "Java", f"version {version}, {path}")


def _spark() -> list[Finding]:
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return [
            Finding(
                NOTE, "spark", "Spark", "PySpark is not installed",
                "Only Spark commands need it: pip install 'penstock[spark]'",
            )
        ]  # fmt: skip
    return [Finding(OK, "spark", "Spark", f"PySpark {version}"), _spark_python(dict(os.environ))]


def _spark_python(environment: dict[str, str]) -> Finding:
    """Whether a plain SparkSession finds the data source, which Spark looks for in the Python that it starts.

    The environment is that of before the import of penstock.spark, which changes it.
    """
    from penstock.spark.environment import is_ours, started_python

    command = started_python(environment)
    found = shutil.which(command, path=environment.get("PATH"))
    subject = "Python of Spark"
    if found is not None and (is_ours(command, environment) or _has_source(found, environment)):
        return Finding(OK, "spark-python", subject, f'{found} finds format("penstock")')
    text = "which does not have penstock" if found is not None else "which does not exist"
    return Finding(
        NOTE, "spark-python", subject,
        f'a plain SparkSession starts {found or command}, {text}: format("penstock") is not found',
        "Import penstock.spark before the session starts, activate this environment, or set PYSPARK_PYTHON to "
        f"{sys.executable}.",
    )  # fmt: skip


def _has_source(python: str, environment: dict[str, str]) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyspark_penstock') is None)"
    try:
        done = subprocess.run(
            [python, "-c", look], env=environment, capture_output=True, timeout=_PYTHON_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _limits() -> list[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > _OPEN_FILES * 4:
        return []
    return [
        Finding(
            NOTE, "open-files", "this machine", f"a process can open at most {hard} files",
            "A broker with many partitions needs more. Raise the limit (LimitNOFILE, ulimit -Hn).",
        )
    ]  # fmt: skip


_HTTP_TIMEOUT_S: Final = 2.0
# What each part of the command needs a broker to serve.
_NEEDS: Final = {
    "produce": (ApiKey.PRODUCE, ApiKey.METADATA),
    "consume": (ApiKey.FETCH, ApiKey.LIST_OFFSETS),
    "groups": (ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT),
    "idempotent producers": (ApiKey.INIT_PRODUCER_ID,),
    "topics create and delete": (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS),
    "configs": (ApiKey.DESCRIBE_CONFIGS,),
    "disk sizes": (ApiKey.DESCRIBE_LOG_DIRS,),
}


def examine_cluster(cluster: Cluster, http_port: int, *, probe: bool) -> list[Finding]:
    return asyncio.run(_examine(cluster, http_port, probe))


async def _examine(cluster: Cluster, http_port: int, probe: bool) -> list[Finding]:
    admin = cluster.async_admin()
    try:
        try:
            await admin.start()
        except BootstrapError as error:
            return [_attempt(address, detail, cause, hint) for address, cause, detail, hint in error.attempts]
        except PenstockError as error:
            return [_failed("connect", cluster.servers, error)]
        findings = [Finding(OK, "connect", cluster.servers, "a broker answers")]
        try:
            described = await admin.describe_cluster()
            for node in described.nodes:
                findings += await _broker(admin, node, cluster.servers, http_port)
            findings += await topic_findings(admin)
            findings += await disk_findings(admin, described.nodes)
            if probe:
                findings += await _probe(admin, cluster)
        except PenstockError as error:
            findings.append(_failed("cluster", "the cluster", error))
        return findings
    finally:
        await admin.close()


def _attempt(address: str, detail: str, cause: str, hint: str) -> Finding:
    from penstock.cli.connection import hint_for_cause
    from penstock.client.errors import Cause

    name = Cause(cause).name
    return Finding(PROBLEM, name.lower().replace("_", "-"), address, detail, sentence(hint_for_cause(name, hint)))


def _failed(check: str, subject: str, error: PenstockError) -> Finding:
    hint = command_error_for(error).hint
    return Finding(PROBLEM, check, subject, error.message, "" if "penstock doctor" in hint else hint)


# --- brokers


async def _broker(admin: AsyncAdmin, node: Node, servers: str, http_port: int) -> list[Finding]:
    name = f"broker {node.id}"
    try:
        connection = await admin.cluster.to(node.id)
    except PenstockError as error:
        return [
            Finding(
                PROBLEM, "advertised", name,
                f"advertises {node.host}:{node.port}, which is not reachable from here: {error.message}",
                "Set advertised.listeners of the broker to an address that its clients can reach.",
            )
        ]  # fmt: skip
    findings = [Finding(OK, "advertised", name, f"answers at its advertised address {node.host}:{node.port}")]
    if is_loopback(node.host) and not all(is_loopback(part.rpartition(":")[0]) for part in servers.split(",")):
        findings.append(
            Finding(
                PROBLEM, "advertised", name,
                f"advertises {node.host}, which only works on the same machine",
                "Set advertised.listeners of the broker to an address that its clients can reach.",
            )
        )  # fmt: skip
    findings.append(_versions(name, connection))
    if http_port:
        findings += await asyncio.to_thread(_clock_by_http, name, node.host, http_port)
    return findings


def _versions(name: str, connection: Connection) -> Finding:
    served = connection.versions
    lacking: dict[str, list[str]] = {}
    for part, keys in _NEEDS.items():
        for key in keys:
            api, theirs = APIS[key], served.get(key)
            if theirs is None:
                lacking.setdefault(part, []).append(f"{api.name}: not supported")
            elif theirs[0] > api.versions.highest or theirs[1] < api.versions.lowest:
                ours = f"{api.versions.lowest}-{api.versions.highest}"
                lacking.setdefault(part, []).append(f"{api.name}: {theirs[0]}-{theirs[1]} there, {ours} here")
    if not lacking:
        return Finding(
            OK, "versions", name, f"supports {counted(len(served), 'API')} in versions that this client supports"
        )
    text = "; ".join(f"{part} ({', '.join(reasons)})" for part, reasons in lacking.items())
    era = f"it is as old as Kafka {connection.legacy_release}; " if connection.legacy_release else ""
    basic = any(part in lacking for part in ("produce", "consume"))
    return Finding(
        PROBLEM if basic else NOTE, "versions", name, f"{era}not supported: {text}",
        "Use Kafka 2.3 or later, or a Penstock broker.",
    )  # fmt: skip


def _clock_by_http(name: str, host: str, port: int) -> list[Finding]:
    """The Date of /health. Only Penstock brokers have it, so no answer proves nothing."""
    address = f"[{host}]" if ":" in host else host
    sent = time.time()
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/health", timeout=_HTTP_TIMEOUT_S) as answer:
            date = answer.headers.get("Date", "")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date", "")
    except (OSError, ValueError):
        return []
    try:
        there = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return []
    # The header is cut to seconds: half of one is its mean error.
    return [skew(name, there + 0.5 - (sent + time.time()) / 2, 0.5)]


# --- a record there and back


async def _probe(admin: AsyncAdmin, cluster: Cluster) -> list[Finding]:
    """Write and read a record in a temporary topic, whose records have the broker's time."""
    from penstock.client.consumer import AsyncConsumer
    from penstock.client.producer import AsyncProducer

    topic = f"penstock-doctor-{uuid.uuid4().hex[:12]}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    await admin.create_topic(TopicSpec(topic, partitions=1, config=settings))
    try:
        async with AsyncProducer(cluster.servers, **cluster.connecting("penstock-doctor")) as producer:
            sent = time.time()
            stored = await producer.send(topic, b"penstock doctor")
            took = time.time() - sent
        async with AsyncConsumer(
            bootstrap_servers=cluster.servers, auto_offset_reset="earliest", **cluster.connecting("penstock-doctor")
        ) as consumer:
            await consumer.assign([(topic, 0)])
            records = await consumer.poll(timeout_ms=cluster.request_timeout_ms)
        findings = [Finding(OK, "probe", topic, f"a record was written in {took * 1000:.1f} ms, and read")]
        if not records:
            findings = [Finding(PROBLEM, "probe", topic, "a record was acknowledged but cannot be read")]
        if stored.timestamp >= 0:
            findings.append(skew("the broker", stored.timestamp / 1000 - (sent + took / 2), took / 2))
        return findings
    finally:
        await admin.delete_topic(topic, missing_ok=True)
