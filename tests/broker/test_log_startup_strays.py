"""Partitions on disk that the cluster does not know."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import pytest
from tests.broker.wire_client import WireClient, batch_of, make_topic, values_in

from penstock.broker.log_startup import MetadataLost
from penstock.testing.embedded_broker import EmbeddedBroker

SET_ASIDE = {"penstock.strays": "set-aside"}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    reported = (each.getMessage() for each in caplog.records)
    return [text for text in reported if "stray partition set aside" in text]


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def strays_in(folder: Path) -> dict[str, Path]:
    """What each was before: where it is now."""
    found = {}
    for path in folder.iterdir():
        match = re.fullmatch(r"(.+)\.[0-9a-f]{32}-stray", path.name)
        if match is not None:
            assert match[1] not in found
            found[match[1]] = path
    return found


def filled(folder: Path, value: bytes = b"kept") -> str:
    """The topic that a broker, stopped since, left there with a record."""
    with EmbeddedBroker(str(folder)) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        client.produce(topic, batch_of(value))
    return topic


def test_a_stray_is_set_aside_untouched_and_named_with_its_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(tmp_path)
    for name in ("elsewhere-0", f"{topic}-7"):
        shutil.copytree(tmp_path / f"{topic}-0", tmp_path / name)
    before = contents_of(tmp_path / "elsewhere-0")
    caplog.clear()
    caplog.set_level(logging.WARNING)
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        assert values_in(client.fetch(topic).records) == [b"kept"]
        assert client.fetch("elsewhere").error_code != 0, "it is not served"
    strays = strays_in(tmp_path)
    assert strays.keys() == {"elsewhere-0", f"{topic}-7"}
    assert contents_of(strays["elsewhere-0"]) == before
    reported = warnings_of(caplog)
    assert len(reported) == 2
    for text, name in zip(reported, ("elsewhere-0", f"{topic}-7"), strict=True):
        assert text.startswith(f"stray partition set aside: folder={tmp_path}/{name} ")
        assert str(strays[name]) in text
    assert "the topic does not exist" in reported[0]
    assert "the topic has 1 partitions" in reported[1]


def test_a_topic_that_is_created_by_a_strays_name_begins_empty(tmp_path: Path) -> None:
    topic = filled(tmp_path)
    shutil.copytree(tmp_path / f"{topic}-0", tmp_path / "again-0")
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        embedded.create_topic("again")
        assert client.fetch("again").records in (None, b"")
        assert client.produce("again", batch_of(b"new")).base_offset == 0
        assert values_in(client.fetch("again").records) == [b"new"]
    # A start later it is a partition like any other, and the stray is where it was.
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        assert values_in(client.fetch("again").records) == [b"new"]
    assert strays_in(tmp_path).keys() == {"again-0"}


def test_a_folder_of_an_earlier_topic_of_the_same_name_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = tmp_path / "old"
    with EmbeddedBroker(str(old)) as embedded, WireClient(embedded.port) as client:
        embedded.create_topic("clicks")
        client.produce("clicks", batch_of(b"of another life"))
    new = tmp_path / "new"
    with EmbeddedBroker(str(new)) as embedded:
        embedded.create_topic("clicks")
    shutil.rmtree(new / "clicks-0")
    shutil.copytree(old / "clicks-0", new / "clicks-0")
    caplog.set_level(logging.WARNING)
    with EmbeddedBroker(str(new)) as embedded, WireClient(embedded.port) as client:
        assert client.fetch("clicks").records in (None, b"")
        assert client.produce("clicks", batch_of(b"of this")).base_offset == 0
    assert "it belongs to another topic of this name" in warnings_of(caplog)[0]
    assert strays_in(new).keys() == {"clicks-0"}


def test_a_folder_without_a_topic_id_belongs_to_the_topic_of_its_name(tmp_path: Path) -> None:
    topic = filled(tmp_path)
    (tmp_path / f"{topic}-0" / "partition.metadata").unlink()
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        assert values_in(client.fetch(topic).records) == [b"kept"]
    assert strays_in(tmp_path) == {}


def test_strays_stay_through_many_starts_and_are_not_warned_of_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(tmp_path)
    shutil.copytree(tmp_path / f"{topic}-0", tmp_path / "elsewhere-0")
    for _ in range(3):
        with EmbeddedBroker(str(tmp_path)):
            pass
    assert len(warnings_of(caplog)) == 1
    assert strays_in(tmp_path).keys() == {"elsewhere-0"}
    assert "left alone" not in caplog.text


def test_partitions_that_the_cluster_has_cause_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with EmbeddedBroker(str(tmp_path)) as embedded:
            make_topic(embedded.broker, partitions=3)
    assert warnings_of(caplog) == []
    assert strays_in(tmp_path) == {}


def test_lost_metadata_fails_the_start_and_changes_nothing(tmp_path: Path) -> None:
    topic = filled(tmp_path)
    saved = tmp_path.parent / f"{tmp_path.name}-saved"
    shutil.move(tmp_path / ".metadata", saved)
    before = contents_of(tmp_path / f"{topic}-0")
    for _ in range(2):
        with pytest.raises(MetadataLost) as rejection, EmbeddedBroker(str(tmp_path)):
            pass
        text = str(rejection.value)
        assert "the metadata is missing" in text
        assert f"{tmp_path}/{topic}-0" in text
        assert "--set penstock.strays=set-aside" in text
    assert contents_of(tmp_path / f"{topic}-0") == before
    assert strays_in(tmp_path) == {}
    assert (tmp_path / ".kafka_cleanshutdown").exists(), "it is still cleanly closed"
    # As the message says: with the metadata back all is well.
    shutil.rmtree(tmp_path / ".metadata")
    shutil.move(saved, tmp_path / ".metadata")
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        assert values_in(client.fetch(topic).records) == [b"kept"]


def test_lost_metadata_and_the_operators_word_set_everything_aside(tmp_path: Path) -> None:
    topic = filled(tmp_path)
    shutil.rmtree(tmp_path / ".metadata")
    before = contents_of(tmp_path / f"{topic}-0")
    with (
        EmbeddedBroker(str(tmp_path), settings=SET_ASIDE) as embedded,
        WireClient(embedded.port) as client,
    ):
        embedded.create_topic(topic)
        assert client.produce(topic, batch_of(b"new")).base_offset == 0
    assert contents_of(strays_in(tmp_path)[f"{topic}-0"]) == before
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        assert values_in(client.fetch(topic).records) == [b"new"]


def test_empty_folders_without_a_topic_do_not_mean_lost_metadata(tmp_path: Path) -> None:
    """The first topic of all was being made when the broker was killed."""
    with EmbeddedBroker(str(tmp_path)) as embedded:
        topic = make_topic(embedded.broker)
    shutil.rmtree(tmp_path / ".metadata")
    with EmbeddedBroker(str(tmp_path)) as embedded:
        embedded.create_topic(topic)
    assert strays_in(tmp_path).keys() == {f"{topic}-0"}


def test_a_new_metadata_tree_takes_over_the_cluster_of_the_data_folders(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path)) as embedded:
        cluster_id = embedded.broker.cluster.image.cluster_id
    shutil.rmtree(tmp_path / ".metadata")
    with EmbeddedBroker(str(tmp_path)) as embedded:
        assert embedded.broker.cluster.image.cluster_id == cluster_id
