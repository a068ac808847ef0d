"""Stored ACLs: Kafka's documents, damaged ones, changes by the controller and by Kafka's tools, chunks and deltas."""

from __future__ import annotations

import pytest
from tests.cluster.cluster_stories import run, with_tree
from tests.cluster.controller.controller_stories import Held, Member, Stage, until
from tests.cluster.controller.decision_stories import cluster, state
from tests.cluster.controller.test_controller_on_zookeeper import governing, joined
from tests.cluster.tree.tree_stories import ZooKeeperTrees

from penstock.cluster.controller.acls import MAX_DOCUMENT_BYTES, alter_acls, check_acl
from penstock.cluster.controller.store import load_acls
from penstock.cluster.controller.transaction import chunked
from penstock.cluster.errors import DamagedDelta, InvalidRequest, LayoutError, MetadataUnavailable, TreeBusy
from penstock.cluster.image import ClusterImage, apply_delta, decode_delta, diff, encode_delta, make_delta
from penstock.cluster.tree import layout
from penstock.cluster.tree.embedded import EmbeddedTree
from penstock.cluster.tree.tree import Node, Set, Tree, ensure_path
from penstock.security.acls import (
    AclBinding,
    AclEntry,
    AclFilter,
    Acls,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.zookeeper import ZooKeeperServer

TOPIC = ResourceType.TOPIC
VIEWS = ResourcePattern(TOPIC, "views")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "tx-", PatternType.PREFIXED)
KAFKAS = (
    b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"DescribeConfigs","host":"*"}'
    b',{"principal":"User:bob","permissionType":"Deny","operation":"All","host":"10.0.0.1"}]}'
)


def entry(who: str = "User:alice", operation: Operation = Operation.READ) -> AclEntry:
    return AclEntry(who, "*", operation, Permission.ALLOW)


def acl(pattern: ResourcePattern = VIEWS, who: str = "User:alice") -> AclBinding:
    return AclBinding(pattern, entry(who))


# --- documents


def test_documents_and_paths_are_kafkas() -> None:
    found = layout.decode_acls("/kafka-acl/Topic/views", KAFKAS)
    assert found == {
        AclEntry("User:alice", "*", Operation.DESCRIBE_CONFIGS, Permission.ALLOW),
        AclEntry("User:bob", "10.0.0.1", Operation.ALL, Permission.DENY),
    }
    assert layout.encode_acls(found) == KAFKAS
    assert layout.acl_path(VIEWS) == "/kafka-acl/Topic/views"
    assert layout.acl_path(PREFIX) == "/kafka-acl-extended/prefixed/TransactionalId/tx-"
    for pattern in (VIEWS, PREFIX):
        assert layout.pattern_at(layout.acl_path(pattern)) == pattern
    assert layout.pattern_at("/kafka-acl/Planet/mars") is None
    assert layout.pattern_at("/kafka-acl/Topic") is None
    assert layout.pattern_at("/config/topics/views") is None


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Perhaps","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Any","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"alice","permissionType":"Allow","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":""}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read"}]}',
    ],
)
def test_a_damaged_document_is_never_half_read(data: bytes) -> None:
    with pytest.raises(LayoutError, match="/kafka-acl/Topic/views"):
        layout.decode_acls("/kafka-acl/Topic/views", data)


def test_one_damaged_document_makes_all_acls_unreadable() -> None:
    async def story(tree: EmbeddedTree) -> None:
        assert await load_acls(tree) == Acls()
        await put(tree, "/kafka-acl/Topic/views", KAFKAS)
        await put(tree, "/kafka-acl/Planet/mars", b"of a later version")
        await put(tree, "/kafka-acl/Group/empty", b"")
        assert (await load_acls(tree)).problem is None
        await put(tree, "/kafka-acl-extended/prefixed/Group/g", b"{")
        acls = await load_acls(tree)
        assert acls.problem is not None
        assert "/kafka-acl-extended/prefixed/Group/g" in acls.problem
        assert acls.entries(VIEWS)

    run(with_tree(SimulatedFiles(), story))


async def put(tree: Tree, path: str, data: bytes) -> None:
    await ensure_path(tree, path)
    await tree.set(path, data)


# --- decisions


@pytest.mark.parametrize("name", ["a/b", ".", "..", "a\0b", "a\x7fb", "x" * 2000])
def test_names_that_the_tree_cannot_hold_are_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_acl(acl(ResourcePattern(ResourceType.GROUP, name)))


def test_a_pattern_with_too_many_acls_is_rejected_before_the_tree_would() -> None:
    entries = [entry(f"User:{number:0200}") for number in range(2500)]
    altered = alter_acls(ClusterImage(), {VIEWS: entries, PREFIX: [entry()]}, {}, {VIEWS: None, PREFIX: None})
    assert "too many ACLs" in str(altered.errors[VIEWS])
    assert len(altered.decision.operations) == 1
    assert altered.decision.image.acls == Acls({PREFIX: frozenset({entry()})})
    assert MAX_DOCUMENT_BYTES < 1024 * 1024


def test_what_another_session_wrote_meanwhile_is_kept() -> None:
    stored = Node(layout.encode_acls([entry("User:bob")]), 7, 1)
    altered = alter_acls(ClusterImage(), {VIEWS: [entry()]}, {}, {VIEWS: stored})
    assert altered.decision.image.acls.entries(VIEWS) == {entry(), entry("User:bob")}
    [operation] = altered.decision.operations
    assert operation == Set(layout.acl_path(VIEWS), layout.encode_acls([entry(), entry("User:bob")]), 7)


def test_each_chunk_of_a_large_change_shows_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", 1)
    other = ResourcePattern(TOPIC, "other")
    before = cluster((1,), t=[state((1,))]).with_acls(Acls.of([acl(other)]))
    nodes = {VIEWS: None, other: Node(layout.encode_acls([entry()]), 0, 1)}
    decision = alter_acls(before, {VIEWS: [entry()]}, {other: [entry()]}, nodes).decision
    first, last = chunked(before, decision)
    assert set(first.image.acls.by_pattern) == {VIEWS, other}
    assert set(last.image.acls.by_pattern) == {VIEWS}


# --- deltas


def test_acls_travel_as_the_difference() -> None:
    old = ClusterImage().with_acls(Acls.of([acl(), acl(PREFIX)]))
    new = old.with_acls(Acls.of([acl(VIEWS, "User:bob"), acl(ResourcePattern(TOPIC, "new"))]))
    delta = make_delta(old, new)
    assert delta.acls is not None
    assert set(delta.acls.changed) == {VIEWS, PREFIX, ResourcePattern(TOPIC, "new")}
    assert decode_delta(encode_delta(delta)) == delta
    assert apply_delta(old, decode_delta(encode_delta(delta))) == new
    assert diff(old, new).acls_changed
    assert make_delta(new, new.with_acls(Acls(new.acls.by_pattern))).acls is None


def test_unreadable_acls_travel_too_and_end_with_the_repair() -> None:
    sound = ClusterImage().with_acls(Acls.of([acl()]))
    broken = sound.with_acls(Acls(sound.acls.by_pattern, "damaged"))
    assert apply_delta(sound, decode_delta(encode_delta(make_delta(sound, broken)))) == broken
    assert apply_delta(broken, decode_delta(encode_delta(make_delta(broken, sound)))) == sound


def test_a_delta_with_unknown_operations_is_damaged() -> None:
    data = encode_delta(make_delta(ClusterImage(), ClusterImage().with_acls(Acls.of([acl()]))))
    with pytest.raises(DamagedDelta):
        decode_delta(data.replace(b"\xa1*\x03\x03", b"\xa1*\x63\x03"))


# --- the controller


async def start(stage: Stage) -> tuple[Member, Held]:
    member = await stage.member(1)
    return member, await stage.controller(member)


def test_acls_are_created_selected_and_deleted() -> None:
    stage = Stage()

    async def story() -> None:
        member, held = await start(stage)
        controller = held.controller
        bad = acl(ResourcePattern(TOPIC, ""))
        errors = await controller.create_acls([acl(), bad, acl(PREFIX), acl()])
        assert [error and error.code.name for error in errors] == [None, "INVALID_REQUEST", None, None]
        assert await controller.create_acls([acl(VIEWS, "User:bob"), acl()]) == [None, None]
        assert len(controller.image.acls) == 3
        await stage.in_step(held)
        unknown = AclFilter(operation=Operation.UNKNOWN)
        one, none, rejected = await controller.delete_acls(
            [AclFilter(TOPIC, "views", principal="User:bob"), AclFilter(name="nothing"), unknown]
        )
        assert (list(one.deleted), one.error) == ([acl(VIEWS, "User:bob")], None)
        assert (list(none.deleted), none.error) == ([], None)
        assert isinstance(rejected.error, InvalidRequest)
        await stage.in_step(held)
        [rest] = await controller.delete_acls([AclFilter()])
        assert len(rest.deleted) == 2
        assert await member.tree.children("/kafka-acl/Topic") == []
        await stage.in_step(held)

    stage.run(story())


def test_thousands_of_acls_are_stored_in_groups_and_deleted_with_one_filter() -> None:
    stage = Stage()

    async def story() -> None:
        member, held = await start(stage)
        wanted = [acl(ResourcePattern(TOPIC, f"t-{number}")) for number in range(1_200)]
        writes = len(member.tree.writes)
        assert set(await held.controller.create_acls(wanted)) == {None}
        assert len(held.controller.image.acls) == 1_200
        assert 5 <= len(member.tree.writes) - writes <= 6
        await stage.in_step(held)
        [deletion] = await held.controller.delete_acls([AclFilter(TOPIC)])
        assert len(deletion.deleted) == 1_200
        await stage.in_step(held)

    stage.run(story())


def test_what_is_stored_before_a_failure_is_reported_as_stored() -> None:
    stage = Stage()

    async def story() -> None:
        member, held = await start(stage)
        wanted = [acl(ResourcePattern(TOPIC, f"t-{number}")) for number in range(600)]
        first = len(member.tree.writes)

        async def before(number: int) -> None:
            if number == first + 1:
                raise TreeBusy(1)

        member.tree.before_write = before
        errors = await held.controller.create_acls(wanted)
        assert [errors.index(error) for error in errors if error is not None][:1] == [250]
        assert len([error for error in errors if error is None]) == 250
        await stage.in_step(held)

    stage.run(story())


def test_what_kafkas_tools_write_is_noticed_by_its_notification() -> None:
    stage = Stage()

    async def story() -> None:
        _, held = await start(stage)
        tool = await stage.session()
        await put(tool, "/kafka-acl/Topic/views", KAFKAS)
        await ensure_path(tool, "/kafka-acl-changes/acl_changes_0000000000")
        await until(lambda: len(held.controller.image.acls) == 2)
        assert held.images[-1].acls == held.controller.image.acls
        await tool.delete("/kafka-acl/Topic/views")
        await ensure_path(tool, "/kafka-acl-extended-changes/acl_changes_0000000000")
        await until(lambda: not len(held.controller.image.acls))
        await stage.in_step(held)

    stage.run(story())


def is_unreadable(held: Held) -> bool:
    return held.controller.image.acls.problem is not None


def test_a_damaged_node_blocks_only_its_own_change_and_a_repair_is_found() -> None:
    stage = Stage()

    async def story() -> None:
        tool = await stage.session()
        await put(tool, "/kafka-acl/Topic/views", b"{")
        _, held = await start(stage)
        controller = held.controller
        assert is_unreadable(held)
        failed, fine = await controller.create_acls([acl(), acl(PREFIX)])
        assert isinstance(failed, MetadataUnavailable)
        assert fine is None
        assert is_unreadable(held)
        await tool.delete("/kafka-acl/Topic/views")
        assert await controller.create_acls([acl(PREFIX, "User:bob")]) == [None]
        assert not is_unreadable(held)
        await stage.in_step(held)

    stage.run(story())


def test_a_write_by_a_tool_at_the_same_time_is_not_lost() -> None:
    stage = Stage()

    async def story() -> None:
        member, held = await start(stage)
        controller = held.controller
        assert await controller.create_acls([acl()]) == [None]
        tool = await stage.session()

        async def before(_: int) -> None:
            member.tree.before_write = None
            await tool.set("/kafka-acl/Topic/views", layout.encode_acls([entry("User:carol")]))

        member.tree.before_write = before
        with pytest.raises(MetadataUnavailable):
            await controller.create_acls([acl(VIEWS, "User:bob")])
        assert await controller.create_acls([acl(VIEWS, "User:bob")]) == [None]
        assert {each.principal for each in controller.image.acls.entries(VIEWS)} == {"User:carol", "User:bob"}
        await stage.in_step(held)

    stage.run(story())


def test_the_next_controller_reads_the_acls() -> None:
    stage = Stage()

    async def story() -> None:
        one, two = await stage.members(1, 2)
        first = await stage.controller(one)
        await first.controller.create_acls([acl()])
        stage.die(one)
        second = await stage.controller(two)
        assert second.controller.image.acls == Acls.of([acl()])

    stage.run(story())


def test_on_zookeeper_acls_are_stored_and_tools_are_noticed(zookeeper: ZooKeeperServer) -> None:
    async def story() -> None:
        trees = ZooKeeperTrees(zookeeper.connect)
        one, tool = await joined(trees, 1), await trees.open()
        held = await governing(one, 1)
        assert await held.controller.create_acls([acl(), acl(PREFIX)]) == [None, None]
        assert await load_acls(tool) == held.controller.image.acls == Acls.of([acl(), acl(PREFIX)])
        await put(tool, "/kafka-acl/Topic/views", KAFKAS)
        await ensure_path(tool, "/kafka-acl-changes/acl_changes_0000000000")
        await held.until(lambda image: len(image.acls) == 3)
        await held.controller.resign()
        for tree in (one, tool):
            await tree.close()

    run(story())
