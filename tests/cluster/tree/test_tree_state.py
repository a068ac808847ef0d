"""What operations do to the nodes of a tree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.errors import (
    BadVersion,
    DataTooLarge,
    EphemeralParent,
    InvalidPath,
    NodeExists,
    NoNode,
    NotEmpty,
    TreeError,
)
from penstock.cluster.tree.tree import (
    MAX_DATA_BYTES,
    Check,
    Create,
    Delete,
    Event,
    EventKind,
    Operation,
    OrphanNode,
    Set,
    StoredNode,
    TreeState,
    check_path,
)


def after(*operations: Operation, state: TreeState | None = None) -> TreeState:
    state = TreeState() if state is None else state
    state.commit(state.prepare(operations, 1))
    return state


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/./a", "/a/..", "/a\x00b", "/a\nb", "/" + "a" * 1024])
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(InvalidPath):
        check_path(path)
    with pytest.raises(InvalidPath):
        after(Create(path))


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a"), NodeExists),
        (Create("/missing/b"), NoNode),
        (Create("/e/child"), EphemeralParent),
        (Create("/big", bytes(MAX_DATA_BYTES + 1)), DataTooLarge),
        (Set("/a", bytes(MAX_DATA_BYTES + 1)), DataTooLarge),
        (Set("/missing", b""), NoNode),
        (Set("/a", b"", 7), BadVersion),
        (Delete("/missing"), NoNode),
        (Delete("/a"), NotEmpty),
        (Delete("/a/b", 3), BadVersion),
        (Delete("/"), InvalidPath),
        (Check("/missing"), NoNode),
        (Check("/a", 0), BadVersion),
    ],
)
def test_impossible_operation_spoils_the_whole_list(operation: Operation, error: type[TreeError]) -> None:
    state = after(Create("/a", b"1"), Create("/a/b"), Create("/e", ephemeral=True))
    with pytest.raises(error):
        after(Create("/first"), Set("/a", b"2"), operation, state=state)
    assert state.node("/first") is None
    assert state.node("/a") == StoredNode(b"1", 0, None, 1)


def test_operations_of_a_list_see_those_before_them() -> None:
    state = after(
        Create("/a"), Create("/a/b"), Set("/a/b", b"x", 0), Delete("/a/b", 1), Delete("/a"), Create("/a", b"new")
    )
    assert state.node("/a") == StoredNode(b"new", 0, None, 3)
    assert state.children("/") == ["a"]
    assert state.children("/a") == []


def test_version_rises_with_every_set_and_restarts_with_the_node() -> None:
    state = after(Create("/a"), Set("/a", b"1"), Set("/a", b"2", 1))
    assert state.node("/a") == StoredNode(b"2", 2, None, 1)
    after(Delete("/a", 2), Create("/a"), state=state)
    assert state.node("/a") == StoredNode(b"", 0, None, 2)


def test_last_version_is_followed_by_zero_as_no_version_is_negative() -> None:
    state = TreeState.of([("/a", StoredNode(b"", 2**31 - 1))])
    assert after(Set("/a", b"x"), state=state).node("/a") == StoredNode(b"x", 0)


def test_watches_fire_for_the_node_and_for_the_children_of_its_parent() -> None:
    state = after(Create("/a"))
    change = state.prepare((Create("/a/b"), Set("/a/b", b""), Delete("/a/b")), 1)
    assert change.events == [
        Event(EventKind.CREATED, "/a/b"),
        Event(EventKind.CHILDREN, "/a"),
        Event(EventKind.CHANGED, "/a/b"),
        Event(EventKind.DELETED, "/a/b"),
        Event(EventKind.CHILDREN, "/a"),
    ]


def test_ephemeral_nodes_belong_to_their_session() -> None:
    state = after(Create("/a"), Create("/a/e", ephemeral=True))
    assert state.owned_by(1) == ["/a/e"]
    assert [path for path, _ in state.persistent()] == ["/", "/a"]
    after(Set("/a/e", b"x"), state=state)
    assert state.owned_by(1) == ["/a/e"]


def test_node_without_a_parent_is_rejected() -> None:
    with pytest.raises(OrphanNode):
        TreeState.of([("/a/b", StoredNode(b"", 0))])


_PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/1", "/b/z"])
_OPERATIONS = st.one_of(
    st.builds(Create, _PATHS, st.binary(max_size=2), st.booleans()),
    st.builds(Set, _PATHS, st.binary(max_size=2), st.integers(-1, 2)),
    st.builds(Delete, _PATHS, st.integers(-1, 2)),
    st.builds(Check, _PATHS, st.integers(-1, 2)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(_OPERATIONS, max_size=5), max_size=12))
def test_list_does_the_same_as_its_operations_one_by_one_or_nothing(changes: list[list[Operation]]) -> None:
    state = TreeState()
    nodes: dict[str, StoredNode] = dict(state.persistent())
    for operations in changes:
        single = TreeState.of(nodes.items(), state.last_created)
        try:
            for operation in operations:
                single.commit(single.prepare((operation,), 1))
            nodes = {
                path: node
                for path in ("/", "/a", "/b", "/a/x", "/a/y", "/a/x/1", "/b/z")
                if (node := single.node(path))
            }
            state.commit(state.prepare(operations, 1))
        except TreeError as expected:
            with pytest.raises(type(expected)):
                state.prepare(operations, 1)
        for path, node in nodes.items():
            assert state.node(path) == node
            assert state.children(path) == TreeState.of(nodes.items()).children(path)
        assert len(state) == len(nodes)
