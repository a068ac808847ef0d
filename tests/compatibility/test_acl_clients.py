"""ACLs as the admin clients of confluent-kafka and kafka-python create, describe and delete them, beside our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaException
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ACLResourcePatternType, KafkaAdminClient
from kafka.admin import ResourcePattern as PythonPattern
from kafka.admin import ResourcePatternFilter as PythonPatternFilter
from kafka.admin import ResourceType as PythonType

from penstock.client.admin import AclBinding, AclFilter, Admin
from penstock.testing.embedded_broker import EmbeddedBroker

# Its types leave out the values that filters have.
C: Any = confluent_kafka.admin
KIND, PATTERN, OPERATION, PERMISSION = C.ResourceType, C.ResourcePatternType, C.AclOperation, C.AclPermissionType
WAIT_S = 30


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    settings = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
    with EmbeddedBroker(settings=settings) as broker:
        yield broker.address


@pytest.fixture
def ours(address: str) -> Iterator[Admin]:
    with Admin(address) as admin:
        yield admin
        admin.delete_acls([AclFilter()])


def shown(found: list[AclBinding]) -> list[tuple[object, ...]]:
    return [
        (int(kind), name, int(pattern_type), entry.principal, entry.host, int(entry.operation), int(entry.permission))
        for (kind, name, pattern_type), entry in sorted(found)
    ]


def test_confluent_kafka(address: str, ours: Admin) -> None:
    client = C.AdminClient({"bootstrap.servers": address})
    wanted = [
        C.AclBinding(KIND.TOPIC, "views", PATTERN.LITERAL, "User:alice", "*", OPERATION.READ,
                     PERMISSION.ALLOW),
        C.AclBinding(KIND.GROUP, "team-", PATTERN.PREFIXED, "User:bob", "10.0.0.1",
                     OPERATION.ALL, PERMISSION.DENY),
        C.AclBinding(KIND.BROKER, "kafka-cluster", PATTERN.LITERAL, "User:*", "*",
                     OPERATION.DESCRIBE, PERMISSION.ALLOW),
    ]  # fmt: skip
    for future in client.create_acls(wanted, request_timeout=WAIT_S).values():
        assert future.result(WAIT_S) is None
    assert shown(ours.describe_acls()) == [
        (2, "views", 3, "User:alice", "*", 3, 3),
        (3, "team-", 4, "User:bob", "10.0.0.1", 2, 2),
        (4, "kafka-cluster", 3, "User:*", "*", 8, 3),
    ]
    everything = C.AclBindingFilter(KIND.ANY, None, PATTERN.ANY, None, None, OPERATION.ANY, PERMISSION.ANY)
    described = client.describe_acls(everything, request_timeout=WAIT_S).result(WAIT_S)
    assert set(described) == set(wanted)
    match = C.AclBindingFilter(
        KIND.GROUP,
        "team-7",
        PATTERN.MATCH,
        None,
        None,
        OPERATION.ANY,
        PERMISSION.ANY,
    )
    assert client.describe_acls(match, request_timeout=WAIT_S).result(WAIT_S) == [wanted[1]]
    [deleted] = client.delete_acls([match], request_timeout=WAIT_S).values()
    assert list(deleted.result(WAIT_S)) == [wanted[1]]
    assert len(ours.describe_acls()) == 2
    bad = C.AclBinding(KIND.TOPIC, "x", PATTERN.LITERAL, "nobody", "*", OPERATION.READ,
                       PERMISSION.ALLOW)  # fmt: skip
    [future] = client.create_acls([bad], request_timeout=WAIT_S).values()
    with pytest.raises(KafkaException, match="is not a principal"):
        future.result(WAIT_S)


def test_kafka_python(address: str, ours: Admin) -> None:
    client = KafkaAdminClient(bootstrap_servers=address)
    try:
        pattern = PythonPattern(PythonType.TOPIC, "orders-", ACLResourcePatternType.PREFIXED)
        wanted = ACL("User:carol", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)
        created = client.create_acls([wanted])
        assert (created["succeeded"], created["failed"]) == ([wanted], [])
        assert shown(ours.describe_acls()) == [(2, "orders-", 4, "User:carol", "*", 4, 3)]
        wide = PythonPatternFilter(PythonType.TOPIC, "orders-7", ACLResourcePatternType.MATCH)
        selected = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, wide)
        found, _ = client.describe_acls(selected)
        assert found == [wanted]
        [(_, deleted, _)] = client.delete_acls([selected])
        assert deleted == [wanted]
        assert ours.describe_acls() == []
    finally:
        client.close()
