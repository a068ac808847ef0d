"""Bootstrap addresses, as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.addresses import Address, ZooKeeperAddress, parse_bootstrap
from penstock.client.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("localhost", [("localhost", 9092)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , a:1, ", [("a", 1)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
        (("a:1,b:2", "c:3"), [("a", 1), ("b", 2), ("c", 3)]),
        ([("a", 1)], [("a", 1)]),
        ({"a": 1}, [("a", 1)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
    ],
)
def test_what_is_meant(written: Any, meant: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(written) == tuple(Address(*pair) for pair in meant)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", "has no address"),
        ([], "has no address"),
        ("a:b", "port 'b'"),
        ("a:0", "port '0'"),
        ("a:65536", "port '65536'"),
        ("a:-1", "port '-1'"),
        ("a:", "port ''"),
        ("a:99999999999999999999", "port"),
        ("a:٣", "port"),
        (":9092", "has no host"),
        ("::1:9092", "several colons"),
        ("[::1", "bracket"),
        ("http://a:80", "starts with http://"),
        ("a:9092/topic", "has a path"),
        ("a b:9092", "contains a space"),
        (9092, "bootstrap_servers is 9092"),
        ([9092], "contains 9092"),
        ({"a": "x"}, "port 'x'"),
        ({"a": None}, "is not a host and a port"),
        ("zookeeper:///brokers", "has no host"),
    ],
)
def test_an_invalid_address_is_rejected_with_the_reason(written: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bootstrap(written)
    assert complaint in str(caught.value)
    assert caught.value.hint


def test_zookeeper_with_and_without_a_root() -> None:
    assert parse_bootstrap("zookeeper://a:2182,b/kafka/one/") == ZooKeeperAddress("a:2182,b:2181", "/kafka/one")
    assert parse_bootstrap("zookeeper://a") == ZooKeeperAddress("a:2181", "")
    assert str(parse_bootstrap("zookeeper://a/x")) == "zookeeper://a:2181/x"
