"""What members of a group tell each other: both ways, beside kafka-python's reading of it, and as nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.assignors import (
    Assignment,
    ProtocolError,
    Subscription,
    decode_assignment,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_user_data,
    encode_subscription,
)

names = st.text("abcz-._0", min_size=1, max_size=8)
partitions = st.builds(TopicPartition, names, st.integers(0, 1000))
subscriptions = st.builds(
    Subscription,
    st.lists(names, unique=True, max_size=4).map(lambda n: tuple(sorted(n))),
    st.none() | st.binary(max_size=20),
    st.sets(partitions, max_size=8).map(lambda p: tuple(sorted(p))),
    st.integers(-1, 2**31 - 1),
    st.none() | names,
)


@given(subscriptions)
def test_a_subscription_comes_back_as_it_was(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(subscriptions, st.integers(0, 2))
def test_an_older_version_leaves_out_what_it_does_not_know(subscription: Subscription, version: int) -> None:
    found = decode_subscription(encode_subscription(subscription, version))
    assert found.topics == subscription.topics
    assert found.user_data == subscription.user_data
    assert found.owned == (subscription.owned if version >= 1 else ())
    assert found.generation == (subscription.generation if version >= 2 else -1)
    assert found.rack is None


def test_a_version_from_the_future_is_read_as_the_newest_known() -> None:
    subscription = Subscription(("a",), b"x", (TopicPartition("a", 1),), 5, "r")
    future = (9).to_bytes(2, "big") + encode_subscription(subscription)[2:] + b"what comes later"
    assert decode_subscription(future) == subscription


@given(st.sets(partitions, max_size=8), st.none() | st.binary(max_size=9), st.integers(0, 3))
def test_an_assignment_comes_back_as_it_was(owned: set[TopicPartition], data: bytes | None, version: int) -> None:
    assignment = Assignment(tuple(sorted(owned)), data)
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


def test_no_bytes_are_an_empty_assignment() -> None:
    assert decode_assignment(b"") == Assignment(())


@given(st.binary(max_size=60))
def test_whatever_bytes_a_member_sends_the_answer_is_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except ProtocolError:
            continue
    decode_sticky_user_data(data)


@given(subscriptions)
def test_a_truncated_subscription_is_rejected(subscription: Subscription) -> None:
    data = encode_subscription(subscription)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_subscription(data[:size])


@given(st.sets(partitions, max_size=8), st.integers(-1, 1000))
def test_sticky_user_data_comes_back_as_it_was(owned: set[TopicPartition], generation: int) -> None:
    data = encode_sticky_user_data(owned, generation)
    assert decode_sticky_user_data(data) == (tuple(sorted(owned)), generation)
    assert decode_sticky_user_data(data[:-4]) == (tuple(sorted(owned)), -1)


def test_kafka_python_reads_what_we_say_and_we_what_it_says() -> None:
    from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    ours = encode_subscription(Subscription(("a", "b"), b"data", (TopicPartition("a", 2),), 7), 1)
    read = ConsumerProtocolSubscription.decode(ours)
    assert list(read.topics) == ["a", "b"]
    assert read.user_data == b"data"
    theirs = StickyAssignorUserData.decode(
        encode_sticky_user_data([TopicPartition("a", 2), TopicPartition("a", 0)], 7), version=1, header=False
    )
    assert theirs.generation == 7
    assert [(one.topic, list(one.partitions)) for one in theirs.previous_assignment] == [("a", [0, 2])]
    # Theirs has its version in front, unlike Java's.
    expected = (TopicPartition("a", 0), TopicPartition("a", 2)), 7
    assert decode_sticky_user_data(StickyAssignorUserData([("a", [0, 2])], 7).encode()) == expected
