"""Who owns what in a group that shares partitions through ZooKeeper: documents and decisions, as Kafka 0.9 has them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.zookeeper_registry import (
    GroupPaths,
    PartitionOrder,
    Registry,
    RegistryError,
    Subscription,
    assign,
    decode_partitions,
    decode_registration,
    encode_registration,
    filter_text,
    range_of,
    rebalance,
    subscribe,
)
from penstock.client.errors import ConfigError


def static(**streams: int) -> Subscription:
    return Subscription("static", streams)


# --- documents


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"views":"2"}',
        b'{"views":0}',
        b'{"views":true}',
        b'{"views":10000000}',
        b'{"version":1,"subscription":{},"pattern":"static"}',
        b'{"version":1,"subscription":[1],"pattern":"static"}',
        b'{"version":1,"subscription":{"a":1},"pattern":"grey_list"}',
        b'{"version":1,"subscription":{"a":1},"pattern":{}}',
        b'{"version":1,"subscription":{"a":1,"b":1},"pattern":"white_list"}',
        b'{"version":1,"subscription":{"(":1},"pattern":"white_list"}',
        b"*1*(",
        b"[" * 100_000,
    ],
)
def test_registration_that_cannot_be_understood(data: bytes) -> None:
    with pytest.raises(RegistryError):
        decode_registration(data)


@pytest.mark.parametrize(
    ("data", "subscription"),
    [
        # Kafka 0.9
        (b'{"version":1,"subscription":{"views":2},"pattern":"static","timestamp":"1416"}', static(views=2)),
        (
            b'{"version":1,"subscription":{"v.*":1},"pattern":"white_list","timestamp":"1416"}',
            Subscription("white_list", {"v.*": 1}),
        ),
        (b'{"subscription":{"a":1,"b":3},"pattern":"static"}', static(a=1, b=3)),
        # Kafka 0.7
        (b'{"views": 2, "clicks": 1}', static(views=2, clicks=1)),
        (b"*2*v.*", Subscription("white_list", {"v.*": 2})),
        (b"!1!x|y", Subscription("black_list", {"x|y": 1})),
    ],
)
def test_registrations_of_every_version(data: bytes, subscription: Subscription) -> None:
    assert decode_registration(data) == subscription


def test_own_registration_is_what_kafka_writes() -> None:
    written = json.loads(encode_registration(static(views=2), 1_416_000_000_000))
    assert written == {
        "version": 1,
        "subscription": {"views": 2},
        "pattern": "static",
        "timestamp": "1416000000000",
    }
    for subscription in (static(views=2), Subscription("black_list", {"v.*": 3})):
        assert decode_registration(encode_registration(subscription, 0)) == subscription


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"partitions":[]}', b'{"partitions":{"x":[1]}}'])
def test_topic_without_partitions(data: bytes) -> None:
    with pytest.raises(RegistryError):
        decode_partitions(data)


def test_partitions_are_sorted_by_number() -> None:
    assert decode_partitions(b'{"version":1,"partitions":{"10":[1],"9":[1],"2":[2,1]}}') == [2, 9, 10]


@pytest.mark.parametrize(
    ("order", "replicas", "expected"),
    [
        ("number", {"10": [1], "9": [2], "2": [1, 2]}, [2, 9, 10]),
        # The first replica counts, brokers and partitions as numbers: broker 9 is before 10, partition 2 before 11.
        ("broker", {"0": [10, 9], "1": [9, 10], "2": [10, 9], "3": [9, 10], "11": [9]}, [1, 3, 11, 0, 2]),
        ("broker", {"1": [0], "0": [0]}, [0, 1]),
    ],
)
def test_order_in_which_partitions_are_shared(
    order: PartitionOrder, replicas: dict[str, list[int]], expected: list[int]
) -> None:
    assert decode_partitions(json.dumps({"version": 1, "partitions": replicas}).encode(), order) == expected


@pytest.mark.parametrize("replicas", [b"[]", b"{}", b'["1"]', b"[null]", b"[true]", b"7"])
def test_partition_without_brokers_cannot_be_sorted_by_them(replicas: bytes) -> None:
    data = b'{"version":1,"partitions":{"0":[1],"1":%s}}' % replicas
    with pytest.raises(RegistryError, match="which brokers"):
        decode_partitions(data, "broker")
    assert decode_partitions(data, "number") == [0, 1]


def test_paths() -> None:
    paths = GroupPaths("g")
    assert paths.consumer("g_a") == "/consumers/g/ids/g_a"
    assert paths.owner(TopicPartition("views", 3)) == "/consumers/g/owners/views/3"


# --- subscriptions


@pytest.mark.parametrize(
    ("topics", "streams", "pattern", "exclude", "problem"),
    [
        ((), 1, None, None, "only one of them"),
        (("a",), 1, "b", None, "only one of them"),
        ((), 1, "a", "b", "only one of them"),
        (("a",), {"a": 1}, None, None, "names the topics already"),
        ((), {}, None, None, "no topic"),
        (("a",), 0, None, None, "streams is 0"),
        ((), {"a": True}, None, None, "streams is True"),
        (("a/b",), 1, None, None, "cannot be the name of a topic"),
        ((), 1, "(", None, "not a regular expression"),
    ],
)
def test_wrong_subscription_says_what_is_wrong(
    topics: tuple[str, ...], streams: int | dict[str, int], pattern: str | None, exclude: str | None, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        subscribe(topics, streams, pattern, exclude)


def test_subscriptions() -> None:
    assert subscribe(("a", "b"), 2, None, None) == static(a=2, b=2)
    assert subscribe((), {"a": 1, "b": 4}, None, None).stream_count == 4
    assert subscribe((), 2, "a.*, b", None) == Subscription("white_list", {"a.*|b": 2})
    assert subscribe((), 1, None, "'x'") == Subscription("black_list", {"x": 1})
    assert filter_text(' "a,b" ') == "a|b"


def test_filters_match_whole_names_and_no_internal_topics() -> None:
    existing = ["views", "views2", "clicks", "__consumer_offsets"]
    assert Subscription("white_list", {"views": 2}).streams_of(existing) == {"views": 2}
    assert Subscription("white_list", {".*": 1}).streams_of(existing) == {"views": 1, "views2": 1, "clicks": 1}
    assert Subscription("black_list", {"views.*": 1}).streams_of(existing) == {"clicks": 1}


# --- decisions


@pytest.mark.parametrize(
    ("partitions", "threads", "shares"),
    [
        (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
        (4, 2, [[0, 1], [2, 3]]),
        (2, 3, [[0], [1], []]),
        (0, 2, [[], []]),
    ],
)
def test_ranges(partitions: int, threads: int, shares: list[list[int]]) -> None:
    assert [list(range_of(position, threads, partitions)) for position in range(threads)] == shares


def owners(registry: Registry) -> dict[str, list[str]]:
    """By thread: the partitions that each member gives itself."""
    found: dict[str, list[str]] = {}
    for name in registry.members:
        for (topic, number), thread in assign(registry, name).items():
            found.setdefault(f"{name}-{thread}", []).append(f"{topic}{number}")
    return {name: sorted(each) for name, each in sorted(found.items())}


@pytest.mark.parametrize(
    ("members", "partitions", "expected"),
    [
        # Threads of all members, in the order of their names.
        (
            {"g_a": static(t=2), "g_b": static(t=1)},
            {"t": range(7)},
            {"g_a-0": ["t0", "t1", "t2"], "g_a-1": ["t3", "t4"], "g_b-0": ["t5", "t6"]},
        ),
        # A topic is shared only by those that read it.
        (
            {"g_a": static(t=1), "g_b": static(t=1, u=1)},
            {"t": [0, 1], "u": [0, 1]},
            {"g_a-0": ["t0"], "g_b-0": ["t1", "u0", "u1"]},
        ),
        # As text: thread 10 comes before thread 2.
        (
            {"g_a": static(t=11)},
            {"t": [0, 1, 2]},
            {"g_a-0": ["t0"], "g_a-1": ["t1"], "g_a-10": ["t2"]},
        ),
        # White-list, black-list and names in one group.
        (
            {
                "g_a": Subscription("white_list", {"t|u": 1}),
                "g_b": Subscription("black_list", {"t": 1}),
                "g_c": static(t=1),
            },
            {"t": [0, 1], "u": [0, 1]},
            {"g_a-0": ["t0", "u0"], "g_b-0": ["u1"], "g_c-0": ["t1"]},
        ),
        # More threads than partitions; a topic that does not exist.
        ({"g_a": static(t=1, missing=1), "g_b": static(t=1)}, {"t": [0]}, {"g_a-0": ["t0"]}),
    ],
)
def test_who_owns_what(
    members: dict[str, Subscription], partitions: dict[str, list[int]], expected: dict[str, list[str]]
) -> None:
    assert owners(Registry(members, frozenset(partitions), partitions)) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("number", {"g_a-0": ["t0", "t1"], "g_b-0": ["t2", "t3"], "g_b-1": ["t4"]}),
        ("broker", {"g_a-0": ["t0", "t2"], "g_b-0": ["t1", "t4"], "g_b-1": ["t3"]}),
    ],
)
def test_partitions_of_a_broker_stay_together_if_sorted_by_it(
    order: PartitionOrder, expected: dict[str, list[str]]
) -> None:
    document = b'{"version":1,"partitions":{"0":[1,2],"1":[2,1],"2":[1,2],"3":[2,1],"4":[1,2]}}'
    members = {"g_a": static(t=1), "g_b": static(t=2)}
    assert owners(Registry(members, frozenset("t"), {"t": decode_partitions(document, order)})) == expected


@given(
    st.dictionaries(
        st.text("abc-_", min_size=1, max_size=6),
        st.dictionaries(st.sampled_from("tuv"), st.integers(1, 12), min_size=1),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 20)),
)
def test_every_partition_has_one_owner_and_shares_differ_by_one(
    streams: dict[str, dict[str, int]], counts: dict[str, int]
) -> None:
    members = {name: Subscription("static", each) for name, each in streams.items()}
    partitions = {topic: range(count) for topic, count in counts.items()}
    registry = Registry(members, frozenset(partitions), partitions)
    taken: list[TopicPartition] = []
    for name in members:
        taken += assign(registry, name)
    read = {topic for each in streams.values() for topic in each}
    assert sorted(taken) == sorted(
        TopicPartition(topic, number) for topic in read for number in partitions.get(topic, ())
    )


def test_only_what_changes_is_released_and_claimed() -> None:
    a, b, c, d = (TopicPartition("t", number) for number in range(4))
    plan = rebalance({a: 0, b: 0, c: 1}, {a: 0, c: 0, d: 1})
    # c moves from one thread to another.
    assert plan.release == {b: 0, c: 1}
    assert plan.claim == {c: 0, d: 1}
    assert rebalance({a: 0}, {a: 0}) == ({}, {})


def test_member_that_is_not_registered_owns_nothing() -> None:
    assert assign(Registry({"g_a": static(t=1)}, frozenset("t"), {"t": [0]}), "g_b") == {}
