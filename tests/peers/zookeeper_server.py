"""A real ZooKeeper for a test: from the jars inside pyspark if that is installed, else from those of Kafka 3.9."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.peers.java_process import FLAGS
from tests.peers.provision import Found
from tests.ports import free_port

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"


@contextmanager
def zookeeper(peer: Callable[[str], Found], folder: Path) -> Iterator[str]:
    """Runs one with its data in a folder; yields its address. Clients that come before it is up try again."""
    port = free_port()
    settings = folder / "zoo.cfg"
    settings.write_text(
        f"dataDir={folder / 'data'}\nclientPortAddress=127.0.0.1\nclientPort={port}\n"
        "admin.enableServer=false\ntickTime=500\nmaxClientCnxns=0\n"
    )
    classpath = os.pathsep.join(map(str, sorted(_jars(peer).glob("*.jar"))))
    with (folder / "zookeeper.log").open("wb") as log:
        process = subprocess.Popen(
            [str(peer("java").path), *FLAGS, "-cp", classpath, MAIN, str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _jars(peer: Callable[[str], Found]) -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is not None and pyspark.origin is not None:
        return Path(pyspark.origin).parent / "jars"
    return peer("kafka-3.9").path
