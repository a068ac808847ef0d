"""The ZooKeeper store without a ZooKeeper: names, numbers, no connection. The rest is a peer test."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.client.errors import ConfigError
from penstock.client.offset_stores import OffsetStoreError, ZooKeeperOffsetStore
from penstock.client.offset_stores.zookeeper import offset_path, parse_offset
from penstock.runtime.network import PortReservation


def test_the_path_is_the_classic_one() -> None:
    assert offset_path("feed", ("views", 3)) == "/consumers/feed/offsets/views/3"


@pytest.mark.parametrize(("group", "topic"), [("a/b", "t"), ("", "t"), ("..", "t"), ("g", "."), ("g", "a\0b")])
def test_an_invalid_node_name_is_rejected(group: str, topic: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name"):
        offset_path(group, (topic, 0))


@pytest.mark.parametrize(("data", "offset"), [(b"0", 0), (b"42\n", 42), (b"9223372036854775807", 2**63 - 1)])
def test_offsets_are_decimal_text(data: bytes, offset: int) -> None:
    assert parse_offset(data, "/x") == offset


@pytest.mark.parametrize("data", [b"", b"-1", b"1.5", b"\xff", b"9" * 20, "٣".encode()])
def test_an_invalid_offset_is_rejected(data: bytes) -> None:
    with pytest.raises(OffsetStoreError, match="/x contains"):
        parse_offset(data, "/x")


def test_an_unreachable_zookeeper_raises_and_leaves_no_thread() -> None:
    reservation = PortReservation("127.0.0.1", 0)  # bound, and not listening
    before = set(threading.enumerate())
    with pytest.raises(OffsetStoreError, match=r"could not be reached within 0\.3 s") as caught:
        asyncio.run(ZooKeeperOffsetStore(f"127.0.0.1:{reservation.port}", timeout_ms=300).load("g", [("t", 0)]))
    assert caught.value.retriable
    reservation.release()
    assert [each for each in threading.enumerate() if each not in before] == []
