"""The ACL model: patterns, filters, the order of the rules, what an operation implies, and explanations."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import acls as acls_module
from penstock.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    AclAuthorizer,
    AclBinding,
    AclEntry,
    AclFilter,
    Acls,
    Operation,
    PatternType,
    Permission,
    Reason,
    ResourcePattern,
    ResourceType,
    bits_of,
    member_named,
    member_of,
    parse_super_users,
    problem_of,
    title_of,
)
from penstock.security.principal import Principal, Session

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE = Session(Principal("User", "alice"), host="10.0.0.1")
BOB = Session(Principal("User", "bob"), host="10.0.0.2")


def acl(
    who: str,
    operation: Operation,
    name: str,
    permission: Permission = ALLOW,
    *,
    kind: ResourceType = TOPIC,
    prefixed: bool = False,
    host: str = "*",
) -> AclBinding:
    pattern = ResourcePattern(kind, name, PatternType.PREFIXED if prefixed else PatternType.LITERAL)
    return AclBinding(pattern, AclEntry(who, host, operation, permission))


def authorizer(*bindings: AclBinding, super_users: Iterable[Principal] = (), default: bool = False) -> AclAuthorizer:
    found = AclAuthorizer(frozenset(super_users), allow_without_acls=default)
    found.use(Acls.of(bindings))
    return found


# --- bad input


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        (acl("User:a", READ, "x", kind=ResourceType.ANY), "resource type ANY"),
        (acl("User:a", READ, "x", kind=ResourceType.UNKNOWN), "resource type UNKNOWN"),
        (acl("User:a", Operation.ANY, "x"), "operation ANY"),
        (acl("User:a", Operation.UNKNOWN, "x"), "operation UNKNOWN"),
        (acl("User:a", READ, "x", Permission.ANY), "neither ALLOW nor DENY"),
        (acl("User:a", READ, ""), "name is empty"),
        (acl("alice", READ, "x"), "is not a principal"),
        (acl(":alice", READ, "x"), "is not a principal"),
        (acl("User:", READ, "x"), "is not a principal"),
        (acl("User:a", READ, "x", host=""), "host is empty"),
        (acl("User:a", READ, "another", kind=CLUSTER), "not the name of the cluster"),
        (acl("User:a", READ, "x")._replace(pattern=ResourcePattern(TOPIC, "x", PatternType.MATCH)), "for filters"),
    ],
)
def test_what_cannot_be_stored_is_rejected_with_a_reason(binding: AclBinding, reason: str) -> None:
    problem = problem_of(binding)
    assert problem is not None
    assert reason in problem


def test_valid_acls_have_no_problem() -> None:
    for binding in (
        acl("User:a:b", READ, "x"),
        acl("Group:ops", ALL, "x", DENY, prefixed=True),
        acl("User:*", Operation.ALTER, CLUSTER_NAME, kind=CLUSTER),
    ):
        assert problem_of(binding) is None


def test_numbers_and_names_of_later_versions_are_unknown() -> None:
    assert member_of(Operation, 99) is Operation.UNKNOWN
    assert member_of(ResourceType, -1) is ResourceType.UNKNOWN
    with pytest.raises(ValueError, match="'Fly' is not one of"):
        member_named(Operation, "Fly")
    with pytest.raises(ValueError, match="'unknown' is not one of"):
        member_named(Operation, "unknown")


def test_names_are_understood_in_any_spelling() -> None:
    for text in ("DescribeConfigs", "DESCRIBE_CONFIGS", "describe-configs", " describeconfigs "):
        assert member_named(Operation, text) is Operation.DESCRIBE_CONFIGS
    for kind in (Operation, ResourceType, Permission, PatternType):
        for member in kind:
            if member.value:
                assert member_named(kind, title_of(member)) is member


def test_super_users_are_separated_by_semicolons_because_names_have_commas() -> None:
    found = parse_super_users(" User:admin ; User:CN=a,OU=b;; Group:ops")
    assert found == {Principal("User", "admin"), Principal("User", "CN=a,OU=b"), Principal("Group", "ops")}
    with pytest.raises(ValueError, match="'admin' is not a principal"):
        parse_super_users("User:a;admin")


# --- the rules


def test_without_acls_nothing_is_allowed_unless_the_default_says_so() -> None:
    assert not authorizer().authorize(ALICE, READ, TOPIC, "x")
    assert authorizer(default=True).authorize(ALICE, READ, TOPIC, "x")


def test_the_default_does_not_apply_to_a_resource_with_acls_of_others() -> None:
    rules = authorizer(acl("User:bob", READ, "x"), default=True)
    assert not rules.authorize(ALICE, READ, TOPIC, "x")
    assert rules.authorize(ALICE, READ, TOPIC, "y")
    assert rules.judge(ALICE, READ, TOPIC, "x").reason is Reason.NO_MATCHING_ACL


@pytest.mark.parametrize(
    ("binding", "name", "covered"),
    [
        (acl("User:alice", READ, "views"), "views", True),
        (acl("User:alice", READ, "views"), "views2", False),
        (acl("User:alice", READ, "view", prefixed=True), "views", True),
        (acl("User:alice", READ, "views", prefixed=True), "views", True),
        (acl("User:alice", READ, "views", prefixed=True), "view", False),
        (acl("User:alice", READ, "*"), "anything", True),
        (acl("User:alice", READ, "*", prefixed=True), "anything", False),
        (acl("User:alice", READ, "*", prefixed=True), "*star", True),
        (acl("User:*", READ, "views"), "views", True),
        (acl("User:alice", READ, "views", kind=GROUP), "views", False),
    ],
)
def test_a_pattern_covers_its_name_its_prefix_or_all(binding: AclBinding, name: str, covered: bool) -> None:
    assert authorizer(binding).authorize(ALICE, READ, TOPIC, name) is covered


def test_deny_wins_over_allow_however_it_matches() -> None:
    allow = acl("User:alice", ALL, "views")
    for deny in (
        acl("User:alice", READ, "views", DENY),
        acl("User:*", READ, "views", DENY),
        acl("User:alice", ALL, "vi", DENY, prefixed=True),
        acl("User:alice", READ, "*", DENY),
    ):
        rules = authorizer(allow, deny)
        assert not rules.authorize(ALICE, READ, TOPIC, "views")
        verdict = rules.judge(ALICE, READ, TOPIC, "views")
        assert (verdict.reason, verdict.acl) == (Reason.DENIED_BY_ACL, deny)


def test_hosts_must_be_equal_or_any() -> None:
    rules = authorizer(
        acl("User:*", READ, "x", host="10.0.0.1"), acl("User:*", WRITE, "x"), acl("User:*", WRITE, "x", DENY, host="h")
    )
    assert rules.authorize(ALICE, READ, TOPIC, "x")
    assert not rules.authorize(BOB, READ, TOPIC, "x")
    assert rules.authorize(BOB, WRITE, TOPIC, "x")


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER, DESCRIBE, ALL])
def test_what_is_allowed_implies_describe(operation: Operation) -> None:
    assert authorizer(acl("User:alice", operation, "x")).authorize(ALICE, DESCRIBE, TOPIC, "x")


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS])
def test_other_operations_do_not_imply_describe(operation: Operation) -> None:
    assert not authorizer(acl("User:alice", operation, "x")).authorize(ALICE, DESCRIBE, TOPIC, "x")


def test_alter_configs_implies_describe_configs_and_not_the_other_way_round() -> None:
    alter, describe = Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS
    assert authorizer(acl("User:alice", alter, "x")).authorize(ALICE, describe, TOPIC, "x")
    assert not authorizer(acl("User:alice", describe, "x")).authorize(ALICE, alter, TOPIC, "x")


def test_a_denied_operation_denies_nothing_that_it_would_imply() -> None:
    rules = authorizer(acl("User:alice", READ, "x", DENY), acl("User:alice", DESCRIBE, "x"))
    assert rules.authorize(ALICE, DESCRIBE, TOPIC, "x")
    assert not rules.authorize(ALICE, READ, TOPIC, "x")


def test_groups_and_roles_of_a_session_have_acls_too() -> None:
    member = Session(Principal("User", "carol"), host="h", groups=frozenset({Principal("Group", "analysts")}))
    rules = authorizer(acl("Group:analysts", READ, "x"), acl("Role:auditor", READ, "y"))
    assert rules.authorize(member, READ, TOPIC, "x")
    assert not rules.authorize(member, READ, TOPIC, "y")
    assert not rules.authorize(ALICE, READ, TOPIC, "x")
    denied = authorizer(acl("User:carol", READ, "x"), acl("Group:analysts", READ, "x", DENY))
    assert not denied.authorize(member, READ, TOPIC, "x")


def test_a_user_named_like_a_group_is_not_the_group() -> None:
    assert not authorizer(acl("Group:alice", READ, "x")).authorize(ALICE, READ, TOPIC, "x")
    spaced = Session(Principal("User", "alice "), host="h")
    assert not authorizer(acl("User:alice", READ, "x")).authorize(spaced, READ, TOPIC, "x")


def test_super_users_and_brokers_may_do_everything_even_what_is_denied() -> None:
    deny = acl("User:*", ALL, "*", DENY)
    rules = authorizer(deny, super_users=[ALICE.principal, Principal("Group", "ops")])
    assert rules.authorize(ALICE, READ, TOPIC, "x")
    assert rules.authorize_any(ALICE, WRITE, TOPIC)
    assert rules.authorize(
        Session(Principal("User", "d"), groups=frozenset({Principal("Group", "ops")})), READ, TOPIC, "x"
    )
    assert not rules.authorize(BOB, READ, TOPIC, "x")
    assert rules.authorize(Session(is_broker=True), Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)


def test_unreadable_acls_serve_super_users_only_whatever_the_default() -> None:
    rules = AclAuthorizer({ALICE.principal}, allow_without_acls=True)
    rules.use(Acls(Acls.of([acl("User:bob", ALL, "*")]).by_pattern, problem="/kafka-acl/Topic/x: not JSON"))
    assert rules.authorize(ALICE, READ, TOPIC, "x")
    assert not rules.authorize(BOB, READ, TOPIC, "x")
    assert not rules.authorize_any(BOB, WRITE, TOPIC)
    explanation = rules.explain(BOB, READ, TOPIC, "x")
    assert explanation.verdict.reason is Reason.UNREADABLE
    assert "/kafka-acl/Topic/x" in explanation.detail


# --- any resource of a type


@pytest.mark.parametrize(
    ("bindings", "allowed"),
    [
        ([], False),
        ([acl("User:alice", WRITE, "x")], True),
        ([acl("User:alice", ALL, "x", prefixed=True)], True),
        ([acl("User:alice", READ, "x")], False),
        ([acl("User:bob", WRITE, "x")], False),
        ([acl("User:alice", WRITE, "x"), acl("User:alice", WRITE, "x", DENY)], False),
        ([acl("User:alice", WRITE, "xy"), acl("User:*", WRITE, "x", DENY, prefixed=True)], False),
        ([acl("User:alice", WRITE, "x", prefixed=True), acl("User:*", WRITE, "x", DENY)], True),
        ([acl("User:alice", WRITE, "x"), acl("User:*", ALL, "*", DENY)], False),
        ([acl("User:alice", WRITE, "*"), acl("User:*", ALL, "x", DENY, prefixed=True)], True),
        ([acl("User:alice", WRITE, "x", kind=GROUP)], False),
    ],
)
def test_some_resource_of_a_type_is_enough(bindings: list[AclBinding], allowed: bool) -> None:
    assert authorizer(*bindings).authorize_any(ALICE, WRITE, TOPIC) is allowed


def test_with_the_open_default_some_name_has_no_acls() -> None:
    assert authorizer(default=True).authorize_any(ALICE, WRITE, TOPIC)
    assert authorizer(acl("User:bob", READ, "x"), default=True).authorize_any(ALICE, WRITE, TOPIC)
    assert not authorizer(acl("User:bob", READ, "*"), default=True).authorize_any(ALICE, WRITE, TOPIC)


def test_a_resource_without_a_name_is_not_any_resource() -> None:
    rules = authorizer(acl("User:alice", WRITE, "x"))
    assert rules.authorize_any(ALICE, WRITE, TOPIC)
    assert not rules.authorize(ALICE, WRITE, TOPIC, "")


# --- the collection and its cache


def test_decisions_are_dropped_with_the_collection() -> None:
    rules = authorizer(acl("User:alice", READ, "x"))
    assert rules.authorize(ALICE, READ, TOPIC, "x")
    assert rules.authorize_any(ALICE, READ, TOPIC)
    rules.use(Acls())
    assert not rules.authorize(ALICE, READ, TOPIC, "x")
    assert not rules.authorize_any(ALICE, READ, TOPIC)


def test_remembered_decisions_are_of_one_session_operation_and_resource() -> None:
    rules = authorizer(acl("User:alice", READ, "x", host="10.0.0.1"))
    assert rules.authorize(ALICE, READ, TOPIC, "x")
    assert not rules.authorize(Session(ALICE.principal, host="10.0.0.9"), READ, TOPIC, "x")
    assert not rules.authorize(BOB, READ, TOPIC, "x")
    assert not rules.authorize(ALICE, WRITE, TOPIC, "x")
    assert not rules.authorize(ALICE, READ, GROUP, "x")


def test_a_flood_of_names_does_not_grow_the_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls_module, "_MAX_DECISIONS", 100)
    rules = authorizer(acl("User:alice", READ, "x", prefixed=True))
    for number in range(1000):
        assert rules.authorize(ALICE, READ, TOPIC, f"x{number}")
        assert not rules.authorize(ALICE, READ, TOPIC, f"y{number}")
    assert sum(map(len, rules._decisions.values())) <= 100
    assert rules.authorize(ALICE, READ, TOPIC, "x1")


def test_a_collection_never_changes() -> None:
    before = Acls.of([acl("User:alice", READ, "x")])
    pattern = ResourcePattern(TOPIC, "x")
    after = before.with_entries({pattern: [], ResourcePattern(TOPIC, "y"): [acl("User:b", READ, "y").entry]})
    assert len(before) == len(after) == 1
    assert [each.pattern.name for each in before.select(AclFilter())] == ["x"]
    assert [each.pattern.name for each in after.select(AclFilter())] == ["y"]
    assert before != after
    assert before == Acls.of([acl("User:alice", READ, "x")])


def test_huge_patterns_and_many_lengths_are_looked_up_in_bounded_steps() -> None:
    bindings = [acl("User:alice", READ, "p" * length, prefixed=True) for length in range(1, 900)]
    rules = authorizer(*bindings)
    assert rules.authorize(ALICE, READ, GROUP, "p") is False
    assert rules.authorize(ALICE, READ, TOPIC, "p" * 30_000)
    assert not rules.authorize(ALICE, READ, TOPIC, "q" * 30_000)


NAMES = st.text(alphabet="ab*", min_size=1, max_size=4)
BINDINGS = st.builds(
    AclBinding,
    st.builds(ResourcePattern, st.just(TOPIC), NAMES, st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED])),
    st.builds(
        AclEntry,
        st.sampled_from(["User:alice", "User:bob", "User:*"]),
        st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
        st.sampled_from([READ, WRITE, DESCRIBE, ALL]),
        st.sampled_from([ALLOW, DENY]),
    ),
)


@given(st.lists(BINDINGS, max_size=12), NAMES, st.sampled_from([READ, WRITE, DESCRIBE]), st.booleans())
def test_the_index_decides_as_a_look_at_every_acl_does(
    bindings: list[AclBinding], name: str, operation: Operation, default: bool
) -> None:
    covering = [each for each in bindings if each.pattern.covers(name)]
    mine = [
        each.entry for each in covering if each.entry.principal != "User:bob" and each.entry.host in ("*", ALICE.host)
    ]
    implied = {READ, WRITE, DESCRIBE, ALL} if operation is DESCRIBE else {operation, ALL}
    if any(each.permission is DENY and each.operation in (operation, ALL) for each in mine):
        expected = False
    elif any(each.permission is ALLOW and each.operation in implied for each in mine):
        expected = True
    else:
        expected = default and not covering
    rules = authorizer(*bindings, default=default)
    assert rules.authorize(ALICE, operation, TOPIC, name) is expected
    assert rules.authorize(ALICE, operation, TOPIC, name) is expected
    if expected and not default:
        assert operation is DESCRIBE or rules.authorize_any(ALICE, operation, TOPIC)


# --- filters


def names(found: Iterable[AclBinding]) -> list[tuple[str, int]]:
    return [(each.pattern.name, each.pattern.pattern_type) for each in found]


def test_filters_select_by_name_pattern_and_entry() -> None:
    acls = Acls.of(
        [
            acl("User:alice", READ, "views"),
            acl("User:bob", WRITE, "views", DENY, host="h"),
            acl("User:alice", READ, "vi", prefixed=True),
            acl("User:alice", READ, "*"),
            acl("User:alice", READ, "views", kind=GROUP),
        ]
    )
    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    assert len(list(acls.select(AclFilter()))) == 5
    assert names(acls.select(AclFilter(TOPIC, "views", literal))) == [("views", literal)] * 2
    assert names(acls.select(AclFilter(TOPIC, "vi", PatternType.ANY))) == [("vi", prefixed)]
    assert names(acls.select(AclFilter(TOPIC, None, prefixed))) == [("vi", prefixed)]
    matched = {("*", literal), ("vi", prefixed), ("views", literal)}
    assert set(names(acls.select(AclFilter(TOPIC, "views", PatternType.MATCH)))) == matched
    assert names(acls.select(AclFilter(GROUP, "views", PatternType.MATCH))) == [("views", literal)]
    assert names(acls.select(AclFilter(principal="User:bob", host="h", permission=DENY))) == [("views", literal)]
    assert names(acls.select(AclFilter(operation=WRITE, permission=ALLOW))) == []


def test_filters_with_unknown_parts_are_rejected() -> None:
    assert AclFilter().problem is None
    assert AclFilter(operation=Operation.UNKNOWN).problem == "the filter has an unknown Operation"
    assert AclFilter(type=ResourceType.UNKNOWN).problem is not None


# --- bit fields and explanations


def test_authorized_operations_are_bits_by_their_numbers() -> None:
    rules = authorizer(acl("User:alice", READ, "x"))
    assert rules.authorized_operations(ALICE, TOPIC, "x") == (1 << READ) | (1 << DESCRIBE)
    assert rules.authorized_operations(BOB, TOPIC, "x") == 0
    everything = authorizer(super_users=[ALICE.principal]).authorized_operations(ALICE, TOPIC, "x")
    assert everything == bits_of(OPERATIONS_OF[TOPIC]) == 0b1101_1111_1000


def test_an_explanation_names_the_acl_that_decided() -> None:
    deny = acl("User:alice", READ, "vi", DENY, prefixed=True)
    rules = authorizer(acl("User:alice", READ, "views"), deny)
    found = rules.explain(ALICE, READ, TOPIC, "views")
    assert not found.verdict.allowed
    assert found.detail == "Deny Read on Topic 'vi' (prefix) to User:alice from any host"
    assert found.remedy == f"remove the ACL: {deny}"
    allowed = rules.explain(ALICE, READ, TOPIC, "other")
    assert allowed.verdict.reason is Reason.NO_ACLS


def test_an_explanation_names_the_acl_that_is_missing_and_adding_it_helps() -> None:
    rules = authorizer(acl("User:bob", READ, "views"))
    found = rules.explain(ALICE, READ, TOPIC, "views")
    assert found.verdict.reason is Reason.NO_MATCHING_ACL
    assert found.needed == acl("User:alice", READ, "views")
    rules.use(Acls.of([found.needed]))
    assert rules.authorize(ALICE, READ, TOPIC, "views")
    assert rules.explain(ALICE, READ, TOPIC, "views").verdict.reason is Reason.ALLOWED_BY_ACL
    assert rules.explain(Session(is_broker=True), READ, TOPIC, "views").verdict.reason is Reason.BROKER
