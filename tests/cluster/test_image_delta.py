"""Changes of an image, as objects and as bytes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.controller.decision_stories import cluster, only, state

from penstock.cluster.errors import DamagedDelta, DeltaMismatch
from penstock.cluster.image import (
    ClusterImage,
    ImageDelta,
    PartitionImage,
    TopicDelta,
    TopicImage,
    apply_delta,
    decode_delta,
    encode_delta,
    make_delta,
)
from penstock.cluster.tree.layout import BrokerRegistration, Endpoint

EMPTY = ClusterImage()

BROKERS = st.lists(st.integers(0, 300), unique=True, max_size=4).map(tuple)
NUMBERS = st.integers(-1, 2**40)
PARTITIONS = st.builds(
    PartitionImage, BROKERS, NUMBERS, NUMBERS, BROKERS, BROKERS, BROKERS, NUMBERS, st.booleans(), NUMBERS, BROKERS
)
NAMES = st.sampled_from(["a", "b.c", "b_c", "ü"])


@st.composite
def topics(draw: st.DrawFn) -> TopicImage:
    name = draw(NAMES)
    ids = (bytes(16), name.encode().rjust(16, b"1")[-16:], name.encode().rjust(16, b"2")[-16:])
    return TopicImage(name, draw(st.sampled_from(ids)), tuple(draw(st.lists(PARTITIONS, max_size=3))))


SETTINGS = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
REGISTRATIONS = st.builds(
    BrokerRegistration,
    st.integers(0, 5),
    st.lists(st.builds(Endpoint, NAMES, NAMES, NAMES, st.integers(-1, 65535)), max_size=2).map(tuple),
    st.none() | NAMES,
    NUMBERS,
    st.dictionaries(NAMES, st.dictionaries(NAMES, st.integers(0, 9), max_size=2), max_size=1),
    NUMBERS,
    NUMBERS,
    st.booleans(),
)


@st.composite
def images(draw: st.DrawFn) -> ClusterImage:
    registrations = draw(st.lists(REGISTRATIONS, max_size=4))
    image = ClusterImage(
        draw(NAMES),
        draw(NUMBERS),
        draw(NUMBERS),
        {registration.broker_id: registration for registration in registrations},
        topic_configs=draw(st.dictionaries(NAMES, SETTINGS, max_size=2)),
        broker_configs=draw(st.dictionaries(NAMES, SETTINGS, max_size=2)),
        shutting_down=draw(st.frozensets(st.integers(0, 5), max_size=2)),
        deleting=draw(st.frozensets(NAMES, max_size=2)),
    )
    return image.with_topics(draw(st.lists(topics(), max_size=4)))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(images(), images())
def test_delta_through_bytes_makes_the_new_image_of_the_old_one(old: ClusterImage, new: ClusterImage) -> None:
    delta = make_delta(old, new)
    data = encode_delta(delta)
    assert decode_delta(data) == delta
    after = apply_delta(old, decode_delta(data))
    assert after == new
    assert after.names_by_id == new.names_by_id
    assert make_delta(after, new) == ImageDelta()


@settings(max_examples=50, deadline=None)
@given(images())
def test_whole_image_is_the_delta_from_the_empty_one(image: ClusterImage) -> None:
    assert apply_delta(EMPTY, decode_delta(encode_delta(make_delta(EMPTY, image)))) == image


def test_unchanged_parts_are_not_sent_and_stay_the_same_objects() -> None:
    old = cluster((1, 2, 3), t=[state(), state()], other=[state()])
    topic = old.topics["t"]
    new = old.with_topic(
        replace(topic, partitions=(topic.partitions[0], state(leader=2, leader_epoch=6), *topic.partitions[2:]))
    )
    delta = make_delta(old, new)
    assert delta == ImageDelta(topics=(TopicDelta("t", topic.topic_id, 2, {1: state(leader=2, leader_epoch=6)}),))
    after = apply_delta(old, delta)
    assert after.topics["other"] is old.topics["other"]
    assert after.topics["t"].partitions[0] is topic.partitions[0]
    assert after.brokers is old.brokers
    assert after.names_by_id is old.names_by_id


def test_recreated_topic_under_its_name_is_another_one() -> None:
    old = cluster((1,), t=[state((1,)), state((1,))])
    new = old.without_topic("t").with_topic(TopicImage("t", b"2" * 16, (state((1,), leader_epoch=0),)))
    assert apply_delta(old, make_delta(old, new)) == new


def test_settings_that_outlive_their_topic_are_kept() -> None:
    old = cluster((1,), t=[state((1,))]).with_topic_config("t", {"a": "b"})
    new = replace(old.without_topic("t"), topic_configs={"t": {"a": "b"}})
    assert apply_delta(old, make_delta(old, new)) == new


@pytest.mark.parametrize(
    "delta",
    [
        ImageDelta(topics_gone=("other",)),
        ImageDelta(topics=(TopicDelta("t", b"9" * 16, 1, {0: state()}),)),
        ImageDelta(topics=(TopicDelta("other", b"9" * 16, 2, {0: state()}),)),
        ImageDelta(topics=(TopicDelta("other", b"9" * 16, 2**60, {0: state()}),)),
        ImageDelta(topics=(TopicDelta("other", b"9" * 16, 1, {1: state()}),)),
        ImageDelta(topics=(TopicDelta("other", b"9" * 16, 1, {-1: state()}),)),
    ],
)
def test_delta_for_another_image_is_rejected(delta: ImageDelta) -> None:
    with pytest.raises(DeltaMismatch):
        apply_delta(cluster((1, 2, 3), t=[state()]), delta)


def test_unknown_format_is_rejected_with_its_version() -> None:
    fields = msgspec.msgpack.decode(encode_delta(ImageDelta()))
    with pytest.raises(DamagedDelta, match="version 2"):
        decode_delta(msgspec.msgpack.encode([2, *fields[1:]]))


def test_fields_that_a_newer_writer_adds_are_ignored() -> None:
    fields = msgspec.msgpack.decode(encode_delta(ImageDelta(cluster_id="c")))
    assert decode_delta(msgspec.msgpack.encode([*fields, "more"])) == ImageDelta(cluster_id="c")


def test_indexes_without_partitions_are_rejected() -> None:
    part = ImageDelta(topics=(TopicDelta("t", b"1" * 16, 3, {1: state()}),))
    fields = msgspec.msgpack.decode(encode_delta(part))
    fields[5][0][3] = [1, 2]
    with pytest.raises(DamagedDelta):
        decode_delta(msgspec.msgpack.encode(fields))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_only_documented_errors(data: st.DataObject) -> None:
    image = cluster((1, 2, 3), t=[state()])
    whole = bytearray(encode_delta(make_delta(EMPTY, image)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        apply_delta(EMPTY, decode_delta(bytes(whole[: data.draw(st.integers(0, len(whole)))])))
    except (DamagedDelta, DeltaMismatch):
        return


def test_ordinary_partition_is_a_dozen_bytes() -> None:
    partitions = [state((number % 100, (number + 1) % 100, (number + 2) % 100)) for number in range(1000)]
    image = cluster((1, 2, 3), t=partitions)
    assert len(encode_delta(make_delta(EMPTY, image))) < 12 * 1000 + 500
    assert only(image) == partitions[0]
