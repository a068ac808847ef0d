"""Topics made while the disk is full are completed when there is room; meanwhile /health says what is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.request import urlopen

from tests.broker.faulty_files import FaultyFiles
from tests.broker.group_client import commit, committed, find_coordinator
from tests.broker.wire_client import WireClient, batch_of
from tests.timeouts import PATIENCE_S, until

from penstock.broker.broker import Broker
from penstock.broker.settings import settings_from
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest

PARTITIONS = 30  # more than are tried again at once
FULL = {f"views-{index}" for index in range(PARTITIONS)} | {"__consumer_offsets-0"}


def health(broker: Broker) -> tuple[str, list[str]]:
    with urlopen(f"http://127.0.0.1:{broker.http_port}/health", timeout=PATIENCE_S) as answer:
        found = json.load(answer)
    return found["status"], found["reasons"]


def story(broker: Broker, files: FaultyFiles) -> None:
    with WireClient(broker.advertised[0].port) as client:
        assert health(broker) == ("ok", [])
        files.full |= FULL
        asked = CreatableTopic(name="views", num_partitions=PARTITIONS, replication_factor=1)
        client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked]), 5)
        find_coordinator(client, "readers")
        status, (reason,) = health(broker)
        assert (status, reason.split(",")[0]) == ("degraded", f"{PARTITIONS + 1} partitions cannot be created")
        assert client.produce("views", batch_of(b"x")).error_code != ErrorCode.NONE
        assert commit(client, "readers", "views", 1) == ErrorCode.NOT_COORDINATOR

        files.full.clear()
        until(lambda: health(broker) == ("ok", []), "all partitions are made once there is room")
        for partition in range(PARTITIONS):
            assert client.produce("views", batch_of(b"x"), partition=partition).error_code == ErrorCode.NONE
        until(lambda: commit(client, "readers", "views", 1) == ErrorCode.NONE, "the group has its coordinator")
        assert committed(client, "readers", "views") == 1


def test_topics_made_on_a_full_disk_are_completed_when_there_is_room(tmp_path: Path) -> None:
    async def run() -> None:
        files = FaultyFiles()
        settings = {
            "log.dirs": str(tmp_path),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": "1",
        }
        broker = Broker(settings_from(settings), files=files, http_port=0)
        await broker.start()
        try:
            await asyncio.to_thread(story, broker, files)
        finally:
            assert await broker.stop()

    asyncio.run(run())
