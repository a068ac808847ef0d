"""`penstock acls`: rules that are listed, added, removed and explained; and what the Admin client says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.commands import Shell
from tests.timeouts import PATIENCE_S

from penstock.client.admin import (
    AclBinding,
    AclEntry,
    AclFilter,
    Admin,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.client.errors import AuthorizationError, BrokerError, PenstockError
from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker

SETTINGS = {"authorizer.class.name": "penstock", "super.users": "User:ANONYMOUS;User:root"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def shell(guarded: EmbeddedBroker) -> Iterator[Shell]:
    yield Shell(guarded.address)
    with Admin(guarded.address) as admin:
        admin.delete_acls([AclFilter()])


def acl(
    name: str, operation: Operation = Operation.READ, who: str = "User:alice", *, prefixed: bool = False
) -> AclBinding:
    pattern = ResourcePattern(ResourceType.TOPIC, name, PatternType.PREFIXED if prefixed else PatternType.LITERAL)
    return AclBinding(pattern, AclEntry("User:alice", "*", Operation.READ, Permission.ALLOW))


def rules(shell: Shell, *args: str) -> list[tuple[str, ...]]:
    found = shell.json("acls", "list", *args)["acls"]
    keys = ("resourceType", "resource", "patternType", "principal", "operation", "permission", "host")
    return sorted(tuple(each[key] for key in keys) for each in found)


def test_rules_are_added_and_listed(shell: Shell) -> None:
    assert "No rules." in shell("acls", "list").output
    shell.done("acls", "add", "-p", "User:alice", "-o", "read,describe-configs", "-t", "views")
    shell.done(
        "acls", "add", "-p", "Group:ops", "-o", "All", "-g", "team-", "--prefixed", "--deny", "--host", "10.0.0.1"
    )
    assert rules(shell) == [
        ("Group", "team-", "PREFIXED", "Group:ops", "All", "Deny", "10.0.0.1"),
        ("Topic", "views", "LITERAL", "User:alice", "DescribeConfigs", "Allow", "*"),
        ("Topic", "views", "LITERAL", "User:alice", "Read", "Allow", "*"),
    ]
    text = shell.done("acls", "list", "-g", "team-1", "--covering")
    assert "team-*" in text
    assert "views" not in text
    assert rules(shell, "-g", "team-1") == []
    assert len(rules(shell, "-p", "User:alice")) == 2


def test_presets_grant_what_producers_and_consumers_need(shell: Shell) -> None:
    shell.done("acls", "add", "-p", "User:a", "--producer", "-t", "views", "--transactional-id", "tx")
    shell.done("acls", "add", "-p", "User:b", "--consumer", "-t", "views", "-g", "g")
    found = {(principal, kind, operation) for kind, _, _, principal, operation, _, _ in rules(shell)}
    assert found == {
        ("User:a", "Topic", "Write"), ("User:a", "Topic", "Describe"), ("User:a", "Topic", "Create"),
        ("User:a", "TransactionalId", "Write"), ("User:a", "TransactionalId", "Describe"),
        ("User:b", "Topic", "Read"), ("User:b", "Topic", "Describe"), ("User:b", "Group", "Read"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["-p", "alice", "-o", "read", "-t", "x"], "not a principal"),
        (["-p", "User:alice", "-o", "fly", "-t", "x"], "'fly' is not one of"),
        (["-p", "User:alice", "-o", "read"], "No resource"),
        (["-p", "User:alice", "-t", "x"], "No operation"),
        (["-p", "User:alice", "-o", "write", "-g", "x"], "Write is not an operation on a Group"),
        (["-p", "User:alice", "--consumer", "--cluster"], "A producer needs"),
        (["-p", "User:alice", "-o", "read", "-g", "a/b"], "slash"),
    ],
)
def test_mistakes_are_explained(shell: Shell, args: list[str], text: str) -> None:
    result = shell("acls", "add", *args)
    assert result.exit_code in (2, 4)
    assert text in result.output
    assert rules(shell) == []


def test_a_dry_run_adds_nothing(shell: Shell) -> None:
    planned = shell.done("acls", "add", "-p", "User:alice", "-o", "read", "-t", "views", "--dry-run")
    assert "User:alice" in planned
    assert planned.endswith("Dry run: nothing was changed.\n")
    assert len(shell.json("acls", "add", "-p", "User:a", "-o", "read", "-t", "v", "--dry-run")["planned"]) == 1
    assert rules(shell) == []


def test_rules_that_could_not_be_added_are_named(shell: Shell) -> None:
    partly = shell("acls", "add", "-p", "User:alice", "-o", "read", "-t", "views", "-t", "")
    assert partly.exit_code == 1
    assert len(rules(shell)) == 1
    assert partly.stderr.startswith("Not added: Allow Read on Topic ''")


def test_rules_are_removed_only_with_execute(shell: Shell) -> None:
    shell.done("acls", "add", "-p", "User:alice", "-o", "read,write", "-t", "views")
    shell.done("acls", "add", "-p", "User:bob", "-o", "read", "-t", "views")
    assert "Nothing was changed" in shell.done("acls", "remove", "-t", "views", "-p", "User:alice")
    assert len(rules(shell)) == 3
    assert len(shell.json("acls", "remove", "-t", "views", "--dry-run")["planned"]) == 3
    assert "Removed 1 rule." in shell.done("acls", "remove", "-t", "views", "-o", "write", "--execute")
    removed = shell.json("acls", "remove", "-p", "User:alice", "--execute")["removed"]
    assert [each["principal"] for each in removed] == ["User:alice"]
    assert len(rules(shell)) == 1
    assert "No rules match." in shell.done("acls", "remove", "-t", "nothing", "--execute")
    assert shell("acls", "remove", "--execute").exit_code == 2


def test_explain_names_the_rule_that_decides_and_the_one_that_is_missing(shell: Shell) -> None:
    denied = shell("acls", "explain", "User:alice", "read", "-t", "views")
    assert denied.exit_code == 1
    assert "the resource has no ACLs" in denied.output
    assert "add the ACL: Allow Read on Topic 'views' to User:alice from any host" in denied.output
    shell.done("acls", "add", "-p", "User:alice", "-o", "read", "-t", "view", "--prefixed")
    allowed = shell.json("acls", "explain", "User:alice", "describe", "-t", "views")["explanations"]
    assert [(each["allowed"], each["reason"], each["rule"]["resource"]) for each in allowed] == [
        (True, "ALLOWED_BY_ACL", "view")
    ]
    shell.done("acls", "add", "-p", "Group:guests", "-o", "all", "-t", "*", "--deny")
    assert shell("acls", "explain", "User:alice", "read", "-t", "views").exit_code == 0
    guest = shell("acls", "explain", "User:alice", "read", "-t", "views", "--member", "Group:guests")
    assert guest.exit_code == 1
    assert "DENY wins" in guest.output
    root = shell.done("acls", "explain", "User:root", "alter", "--cluster")
    assert "super.users names the principal" in root


def test_without_an_authorizer_the_error_says_what_to_set(broker: EmbeddedBroker) -> None:
    result = Shell(broker.address)("acls", "list")
    assert result.exit_code == 4
    assert result.stderr.count("authorizer.class.name") == 1


# --- the Admin client


def test_the_admin_client_creates_describes_and_deletes(shell: Shell) -> None:
    with Admin(shell.address) as admin:
        bad = acl("")
        outcomes = admin.create_acls([acl("views"), acl("vi", prefixed=True), bad])
        assert [outcomes[each] for each in (acl("views"), acl("vi", prefixed=True))] == [None, None]
        assert isinstance(outcomes[bad], PenstockError)
        assert admin.describe_acls() == [acl("vi", prefixed=True), acl("views")]
        match = AclFilter(ResourceType.TOPIC, "views", PatternType.MATCH)
        assert len(admin.describe_acls(match)) == 2
        deleted = admin.delete_acls([AclFilter(ResourceType.TOPIC, "views", PatternType.LITERAL)])
        assert list(deleted.values()) == [[acl("views")]]
        assert admin.describe_acls() == [acl("vi", prefixed=True)]
        assert admin.create_acls([]) == {}
        with pytest.raises(BrokerError, match="unknown Operation"):
            admin.describe_acls(AclFilter(operation=Operation.UNKNOWN))


def test_a_denied_client_gets_an_authorization_error() -> None:
    with EmbeddedBroker(settings={"authorizer.class.name": "penstock"}) as broker:
        with Admin(broker.address) as admin:
            with pytest.raises(AuthorizationError):
                admin.describe_acls()
            [outcome] = admin.create_acls([acl("views")]).values()
            assert isinstance(outcome, AuthorizationError)
            [deletion] = admin.delete_acls([AclFilter()]).values()
            assert isinstance(deletion, AuthorizationError)
        with Producer(broker.address) as producer, pytest.raises(AuthorizationError):
            producer.send("views", b"x").result(PATIENCE_S)
