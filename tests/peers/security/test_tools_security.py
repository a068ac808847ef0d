"""The tools of Apache Kafka 4.3 on a broker set up by `penstock security init`: kafka-acls, kafka-configs and others.

They log in with the file that `init` wrote. What they change is compared with what our own commands show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.running import Running
from tests.peers.compatibility.peer_stories import unique
from tests.peers.conversation import ProgramFailed
from tests.peers.java_process import JavaProcess
from tests.peers.security.kafka_tools import (
    ACLS,
    CONFIGS,
    HOST,
    TRANSACTIONS,
    Guarded,
    Rule,
    Tools,
    initialise,
    listed,
    ours,
)
from tests.ports import free_port

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-4.3"), pytest.mark.peer("kafka-broker-4.3")]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home, port = tmp_path_factory.mktemp("guarded") / "security", free_port()
    server = initialise(home, port)
    options = ("--data-dir", home.parent / "data", "--http-port", "0")
    with Running("server", "start", "--config", server, *options) as broker:
        broker.until("broker started")
        yield Guarded(home, f"{HOST}:{port}")


@pytest.fixture
def tools(start_java: Callable[..., JavaProcess], guarded: Guarded) -> Tools:
    return Tools(start_java, guarded)


@pytest.fixture
def user(tools: Tools, guarded: Guarded) -> tuple[str, Path]:
    """A user without rights, made by kafka-configs, and its login."""
    name = unique("user")
    who = ("--entity-type", "users", "--entity-name", name)
    tools.done(CONFIGS, "--alter", *who, "--add-config", f"SCRAM-SHA-512=[password={name}]")
    return name, guarded.login_of(name, name)


# --- kafka-acls


def test_kafka_acls_adds_lists_and_removes_what_our_command_shows(tools: Tools, guarded: Guarded) -> None:
    topic, prefix, group, bob = unique("topic"), unique("shop"), unique("group"), f"User:{unique('bob')}"
    name = "User:CN=kafka 1,O=example"
    tools.done(ACLS, "--add", "--allow-principal", bob, "--producer", "--topic", topic, "--transactional-id", group)
    tools.done(ACLS, "--add", "--allow-principal", bob, "--consumer", "--topic", topic, "--group", group)
    prefixed = ("--topic", prefix, "--resource-pattern-type", "prefixed")
    tools.done(
        ACLS, "--add", "--deny-principal", name, "--deny-host", "10.0.0.7", "--operation", "AlterConfigs", *prefixed
    )
    tools.done(ACLS, "--add", "--allow-principal", bob, "--operation", "IdempotentWrite", "--cluster")
    expected: set[Rule] = {
        *(("TOPIC", topic, "LITERAL", bob, "*", each, "ALLOW") for each in ("WRITE", "CREATE", "DESCRIBE", "READ")),
        *(("TRANSACTIONAL_ID", group, "LITERAL", bob, "*", each, "ALLOW") for each in ("WRITE", "DESCRIBE")),
        ("GROUP", group, "LITERAL", bob, "*", "READ", "ALLOW"),
        ("TOPIC", prefix, "PREFIXED", name, "10.0.0.7", "ALTER_CONFIGS", "DENY"),
        ("CLUSTER", "kafka-cluster", "LITERAL", bob, "*", "IDEMPOTENT_WRITE", "ALLOW"),
    }
    assert listed(tools.done(ACLS, "--list")) == ours(guarded) == expected
    covering = ("--list", "--topic", f"{prefix}.orders", "--resource-pattern-type", "match")
    assert {rule[1] for rule in listed(tools.done(ACLS, *covering))} == {prefix}
    assert {rule[3] for rule in listed(tools.done(ACLS, "--list", "--principal", name))} == {name}

    tools.done(ACLS, "--remove", "--allow-principal", bob, "--operation", "Read", "--topic", topic, "--force")
    expected.remove(("TOPIC", topic, "LITERAL", bob, "*", "READ", "ALLOW"))
    assert listed(tools.done(ACLS, "--list")) == ours(guarded) == expected
    tools.done(ACLS, "--remove", "--force", *prefixed)
    tools.done(ACLS, "--remove", "--force", "--topic", topic, "--group", group, "--transactional-id", group)
    tools.done(ACLS, "--remove", "--force", "--cluster")
    assert listed(tools.done(ACLS, "--list")) == ours(guarded) == set()


def test_kafka_acls_reports_that_it_may_not(tools: Tools, guarded: Guarded, user: tuple[str, Path]) -> None:
    name, login = user
    rule = ("--allow-principal", f"User:{name}", "--operation", "All", "--topic", "*")
    tools.is_denied(ACLS, "--add", *rule, login=login)
    tools.is_denied(ACLS, "--list", login=login)
    assert ours(guarded) == set()


# --- kafka-configs


def test_kafka_configs_makes_describes_and_deletes_users(tools: Tools, guarded: Guarded) -> None:
    name = unique("user")
    who = ("--entity-type", "users", "--entity-name", name)
    added = "SCRAM-SHA-512=[iterations=8192,password=one secret],SCRAM-SHA-256=[password=another]"
    assert f"Completed updating config for user {name}." in tools.done(CONFIGS, "--alter", *who, "--add-config", added)
    described = tools.done(CONFIGS, "--describe", *who)
    scram = "SCRAM-SHA-256=iterations=4096, SCRAM-SHA-512=iterations=8192"
    assert f"SCRAM credential configs for user-principal '{name}' are {scram}" in described
    assert f"SCRAM credential configs for user-principal '{name}' are" in tools.done(
        CONFIGS, "--describe", "--entity-type", "users"
    )
    (found,) = [each for each in guarded.shown("users", "list")["users"] if each["name"] == name]
    assert found["mechanisms"] == {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 8192}

    login = guarded.login_of(name, "one secret")
    assert tools.clients("topics", login) == {}
    tools.done(CONFIGS, "--alter", *who, "--add-config", "SCRAM-SHA-512=[password=changed]")
    with pytest.raises(ProgramFailed, match="SaslAuthenticationException"):
        tools.clients("topics", login)
    login = guarded.login_of(name, "changed")
    assert tools.clients("topics", login) == {}
    tools.done(CONFIGS, "--alter", *who, "--delete-config", "SCRAM-SHA-512,SCRAM-SHA-256")
    with pytest.raises(ProgramFailed, match="SaslAuthenticationException"):
        tools.clients("topics", login)
    assert name not in {each["name"] for each in guarded.shown("users", "list")["users"]}


@pytest.mark.parametrize(
    ("entity", "quotas", "described"),
    [
        (
            ("--entity-type", "users", "--entity-name", "CN=kafka 1/é,O=x"),
            {"producer_byte_rate": 1048576, "consumer_byte_rate": 2097152, "request_percentage": 200},
            "user-principal 'CN=kafka 1/é,O=x'",
        ),
        (("--entity-type", "users", "--entity-default"), {"controller_mutation_rate": 5}, "the default user-principal"),
        (("--entity-type", "clients", "--entity-name", "app"), {"producer_byte_rate": 1000}, "client-id 'app'"),
        (
            ("--entity-type", "users", "--entity-name", "zoe", "--entity-type", "clients", "--entity-default"),
            {"consumer_byte_rate": 1000, "request_percentage": 12.5},
            "user-principal 'zoe', the default client-id",
        ),
        (("--entity-type", "ips", "--entity-name", "10.0.0.7"), {"connection_creation_rate": 10}, "ip '10.0.0.7'"),
    ],
)
def test_kafka_configs_sets_describes_and_deletes_quotas(
    tools: Tools, guarded: Guarded, entity: tuple[str, ...], quotas: dict[str, float], described: str
) -> None:
    assert guarded.shown("quotas", "list")["quotas"] == []
    changes = ",".join(f"{key}={value}" for key, value in quotas.items())
    tools.done(CONFIGS, "--alter", *entity, "--add-config", changes)
    (line,) = [line for line in tools.done(CONFIGS, "--describe", *entity).splitlines() if "Quota configs" in line]
    assert line.startswith(f"Quota configs for {described} are ")
    printed = dict(pair.split("=") for pair in line.rpartition(" are ")[2].split(", "))
    assert {key: float(value) for key, value in printed.items()} == quotas
    (shown,) = guarded.shown("quotas", "list")["quotas"]
    assert shown["values"] == quotas
    tools.done(CONFIGS, "--alter", *entity, "--delete-config", ",".join(quotas))
    assert guarded.shown("quotas", "list")["quotas"] == []


def test_a_producer_is_held_back_by_the_quota_of_its_user(
    tools: Tools, guarded: Guarded, user: tuple[str, Path]
) -> None:
    name, login = user
    topic, records, size, rate = unique("topic"), 40, 10_000, 30_000
    tools.done("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    tools.done(ACLS, "--add", "--allow-principal", f"User:{name}", "--producer", "--topic", topic)
    run = ("--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1",
           "--print-metrics")  # fmt: skip

    def throttled_ms() -> float:
        printed = tools.done("ProducerPerformance", *run, login=login)
        assert f"{records} records sent" in printed
        (line,) = [line for line in printed.splitlines() if "produce-throttle-time-max" in line]
        return float(line.rpartition(":")[2])

    assert throttled_ms() == 0
    who = ("--entity-type", "users", "--entity-name", name)
    tools.done(CONFIGS, "--alter", *who, "--add-config", f"producer_byte_rate={rate}")
    assert throttled_ms() > 100
    tools.done(CONFIGS, "--alter", *who, "--delete-config", "producer_byte_rate")
    tools.done(ACLS, "--remove", "--force", "--topic", topic)


def test_kafka_configs_shows_no_secret_of_a_broker(tools: Tools, guarded: Guarded) -> None:
    described = tools.done(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "0", "--all")
    assert "sasl.enabled.mechanisms=SCRAM-SHA-512" in described
    assert "stored_key" not in described
    assert (guarded.home / "admin.password").read_text().strip() not in described
    assert "PRIVATE KEY" not in described


def test_kafka_configs_needs_rights(tools: Tools, guarded: Guarded, user: tuple[str, Path]) -> None:
    name, login = user
    for entity, change in (
        (("--entity-type", "users", "--entity-name", "admin"), "SCRAM-SHA-512=[password=mine]"),
        (("--entity-type", "users", "--entity-name", name), "producer_byte_rate=1"),
        (("--entity-type", "brokers", "--entity-default"), "num.io.threads=1"),
    ):
        tools.is_denied(CONFIGS, "--alter", *entity, "--add-config", change, login=login)
    assert tools.clients("topics", guarded.admin) is not None


# --- topics, groups and transactions


def test_tools_log_in_and_see_what_acls_allow(tools: Tools, user: tuple[str, Path]) -> None:
    name, login = user
    topic, group = unique("topic"), unique("group")
    tools.done("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    assert topic in tools.done("TopicCommand", "--list").split()
    assert topic not in tools.done("TopicCommand", "--list", login=login).split()
    tools.is_denied("TopicCommand", "--create", "--topic", unique("denied"), login=login)
    tools.done(ACLS, "--add", "--allow-principal", f"User:{name}", "--consumer", "--topic", topic, "--group", group)
    assert topic in tools.done("TopicCommand", "--list", login=login).split()
    tools.is_denied("TopicCommand", "--delete", "--topic", topic, login=login)
    assert topic in tools.done("TopicCommand", "--list").split()
    tools.done(ACLS, "--remove", "--force", "--topic", topic, "--group", group)


def start_of(tools: Tools, where: tuple[str, ...]) -> str:
    """Where the transaction of the only producer begins, as kafka-transactions shows it."""
    _, row = tools.done(TRANSACTIONS, "describe-producers", *where).splitlines()
    return row.split()[-1]


def test_kafka_transactions_aborts_a_hanging_transaction_for_those_who_may(
    tools: Tools, guarded: Guarded, user: tuple[str, Path], start_java: Callable[..., JavaProcess]
) -> None:
    name, login = user
    topic = unique("topic")
    program = start_java("java-clients-4.3", "Transactions")
    tools.done("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    program.ask(
        "open", name=name, id=name, address=guarded.address, settings=guarded.settings(guarded.admin),
        timeout_ms=600_000,
    )  # fmt: skip
    assert program.ask("begin", name=name) is None
    assert program.ask("send", name=name, topic=topic, partition=0, value="hangs") is None
    where = ("--topic", topic, "--partition", "0")
    assert start_of(tools, where) == "0"
    tools.done(ACLS, "--add", "--allow-principal", f"User:{name}", "--operation", "All", "--topic", topic)
    tools.is_denied(TRANSACTIONS, "abort", *where, "--start-offset", "0", login=login)
    tools.done(TRANSACTIONS, "abort", *where, "--start-offset", "0")
    assert start_of(tools, where) == "None"
    assert program.ask("close", name=name) is None
    tools.done(ACLS, "--remove", "--force", "--topic", topic)
