"""The page of the audit log, of a broker that writes one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.console.visitor import Visitor, console
from tests.timeouts import until

from penstock.client.admin import (
    AclBinding,
    AclEntry,
    Admin,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.client.producer import Producer
from penstock.testing import Broker


@pytest.fixture(scope="module")
def audited() -> Iterator[Broker]:
    with Broker(settings={"penstock.audit.topic": "audit"}) as found:
        with Admin(found.address) as admin:
            admin.create_topic("orders-1")
            admin.delete_topic("orders-1")
        yield found


@pytest.fixture(scope="module")
def auditor(audited: Broker) -> Iterator[Visitor]:
    with console(audited.address) as found:
        until(lambda: "DeleteTopics" in found.get("/audit").words, "the audit log")
        yield found


def test_changes_are_shown_with_who_and_what(auditor: Visitor) -> None:
    page = auditor.get("/audit").words
    assert "CreateTopics Topic orders-1" in page
    assert "User:ANONYMOUS" in page
    assert "allowed" in page
    assert page.index("DeleteTopics") < page.index("CreateTopics")


@pytest.mark.parametrize(
    ("query", "is_there"),
    [({"action": "deletetopics"}, True), ({"action": "AlterConfigs"}, False), ({"principal": "anonymous"}, True),
     ({"principal": "eve"}, False), ({"outcome": "allowed"}, True), ({"outcome": "denied"}, False),
     ({"resource": "orders-1"}, True), ({"to": "2020-01-01T00:00"}, False), ({"from": "2020-01-01T00:00"}, True),
     ({"outcome": "<nonsense>"}, True)],
)  # fmt: skip
def test_it_is_filtered(auditor: Visitor, query: dict[str, str], is_there: bool) -> None:
    page = auditor.get("/audit", **query).words
    assert ("Topic orders-1 127.0.0.1" in page) is is_there
    assert ("Nothing found in" in page) is not is_there


@pytest.mark.parametrize("query", [{"from": "soon"}, {"at": "0"}, {"at": "x:y"}, {"at": "1" * 9_000}])
def test_odd_filters_are_rejected_with_the_reason(auditor: Visitor, query: dict[str, str]) -> None:
    assert auditor.get("/audit", **query).status == 400


def test_hostile_names_do_not_become_tags(auditor: Visitor, audited: Broker) -> None:
    with Admin(audited.address, client_id="<script>alert(1)</script>") as admin:
        admin.create_topic("hostile")
    until(lambda: "Topic hostile" in auditor.get("/audit").words, "the line")
    page = auditor.get("/audit", principal='"><img src=x>', resource="<b>")
    assert "<img" not in page.text
    assert "<script>alert" not in auditor.get("/audit").text


def test_what_somebody_else_wrote_to_a_topic_is_not_a_line(broker: Broker) -> None:
    topic = f"no-audit-{time.time_ns()}"
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic(topic)
        producer.send(topic, b"not a line").result(30)
        with console(broker.address, audit_topic=topic) as visitor:
            assert "1 of them are not lines of an audit log" in visitor.get("/audit").words


def test_without_an_audit_log_the_page_says_how_to_have_one(visitor: Visitor, broker: Broker) -> None:
    assert "penstock.audit.topic=audit" in visitor.get("/audit").words
    with console(broker.address, audit_topic="absent") as found:
        assert "There is no topic absent that you may see." in found.get("/audit").words


def test_the_audit_log_is_shown_to_those_who_may_read_its_topic() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config":
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="b";',
        "authorizer.class.name": "penstock", "super.users": "User:ANONYMOUS", "penstock.audit.topic": "audit",
    }  # fmt: skip
    login = {"security_protocol": "SASL_PLAINTEXT", "request_timeout_ms": 10_000}
    with Broker(settings=settings) as broker, Admin(broker.address) as admin:
        addresses = {each.protocol: f"{each.host}:{each.port}" for each in broker.broker.advertised}
        admin.create_topic("kept-secret")
        with console(
            addresses["SASL_PLAINTEXT"], login=True, mechanism="PLAIN", client_options=login, audit_topic="audit"
        ) as bob:
            fields = {"csrf": bob.token("/login"), "user": "bob", "password": "b", "mechanism": "PLAIN"}
            assert bob.post("/login", fields).status == 303
            pattern = ResourcePattern(ResourceType.TOPIC, "audit", PatternType.LITERAL)
            for operation in (None, Operation.DESCRIBE):
                if operation is not None:
                    entry = AclEntry("User:bob", "*", operation, Permission.ALLOW)
                    admin.create_acls([AclBinding(pattern, entry)])
                    until(lambda: "/topics/audit" in bob.get("/topics").text, "the right to see it")
                denied = bob.get("/audit")
                assert denied.status == 403
                assert "kept-secret" not in denied.text
            admin.create_acls([AclBinding(pattern, AclEntry("User:bob", "*", Operation.READ, Permission.ALLOW))])
            until(lambda: bob.get("/audit").status == 200, "the right to read it")
            until(lambda: "Topic kept-secret" in bob.get("/audit").words, "the log")
