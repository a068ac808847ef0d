"""What is decided without a server: addresses, and what differs between two looks at a node."""

from __future__ import annotations

import pytest

from penstock.cluster.tree.tree import EventKind
from penstock.cluster.tree.zookeeper.ensemble import ServerAddress, ZooKeeperConnect, parse_connect
from penstock.cluster.tree.zookeeper.session import TransactionIds, differences

CREATED, CHANGED, DELETED, CHILDREN = EventKind.CREATED, EventKind.CHANGED, EventKind.DELETED, EventKind.CHILDREN


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("zk", ZooKeeperConnect((ServerAddress("zk", 2181),))),
        ("zk:2182/", ZooKeeperConnect((ServerAddress("zk", 2182),))),
        (
            " a:1, [::1]:2,[::2]/kafka/one/ ",
            ZooKeeperConnect(
                (ServerAddress("a", 1), ServerAddress("::1", 2), ServerAddress("::2", 2181)), "/kafka/one"
            ),
        ),
    ],
)
def test_connect_string_is_hosts_and_a_path(text: str, found: ZooKeeperConnect) -> None:
    assert parse_connect(text) == found
    assert parse_connect(str(found)) == found


NODE = TransactionIds(created=1, changed=5, children=6, child_count=2)


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        (None, None, []),
        (NODE, NODE, []),
        (None, NODE, [CREATED, CHILDREN]),
        (None, NODE._replace(child_count=0), [CREATED]),
        (NODE, None, [DELETED]),
        (NODE, NODE._replace(changed=7), [CHANGED]),
        (NODE, NODE._replace(children=7), [CHILDREN]),
        (NODE, NODE._replace(changed=8, children=7, child_count=0), [CHANGED, CHILDREN]),
        (NODE, TransactionIds(7, 7, 7, 0), [DELETED, CREATED]),
        (NODE, TransactionIds(7, 8, 9, 1), [DELETED, CREATED, CHILDREN]),
    ],
)
def test_differences_between_two_reads_of_a_node(
    before: TransactionIds | None, now: TransactionIds | None, kinds: list[EventKind]
) -> None:
    assert list(differences(before, now)) == kinds
