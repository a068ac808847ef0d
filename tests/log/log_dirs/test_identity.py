"""Names of partition folders, and the metadata files of log directories and partitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.log_dirs.identity import (
    InvalidPartitionName,
    MetadataFileError,
    MetaProperties,
    WrongOwner,
    decode_id,
    deleted_folder_name,
    encode_id,
    folder_name,
    is_deleted_folder_name,
    is_stray_name,
    parse_folder_name,
    parse_meta,
    read_meta,
    read_topic_id,
    stray_name,
    write_meta,
    write_topic_id,
)
from penstock.runtime.files import PosixFiles
from penstock.testing.simulated_files import SimulatedFiles

FILES = PosixFiles()
LONGEST = "t" * 249
ID = bytes(range(16))
TOPICS = st.text("abzAZ09._-", min_size=1, max_size=249).filter(lambda topic: topic not in (".", ".."))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("clicks-0", ("clicks", 0)),
        ("page-views-by-user-12", ("page-views-by-user", 12)),
        ("a.b_c-2147483647", ("a.b_c", 2147483647)),
        ("--0", ("-", 0)),
        ("1-2-3", ("1-2", 3)),
        (f"{LONGEST}-7", (LONGEST, 7)),
    ],
)
def test_the_last_dash_parts_topic_and_partition(name: str, expected: tuple[str, int]) -> None:
    assert parse_folder_name(name) == expected
    assert folder_name(*expected) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "-", "clicks", "clicks-", "-0", "clicks-00", "clicks-01", "clicks--", "clicks-1x", "clicks-+1", "clicks-1 ",
        "lost+found-1", "my backup-1", "clicks-2147483648", "clicks-99999999999", "clicks-٣", "clicks-1\n", ".-1",
        "..-1", f"{LONGEST}t-0", "clicks-0.0123456789abcdef0123456789abcdef-delete", "clicks-0-future", "ünter-0",
    ],
)  # fmt: skip
def test_other_names_are_not_parsed_as_partitions(name: str) -> None:
    assert parse_folder_name(name) is None


@given(TOPICS, st.integers(0, 2**31 - 1))
def test_every_partition_has_one_name_that_leads_back_to_it(topic: str, partition: int) -> None:
    assert parse_folder_name(folder_name(topic, partition)) == (topic, partition)


@given(st.text(max_size=30))
def test_a_name_that_is_understood_is_the_name_that_would_be_written(name: str) -> None:
    key = parse_folder_name(name)
    assert key is None or folder_name(*key) == name


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        ("", 0),
        (".", 0),
        ("..", 0),
        ("a/b", 0),
        ("../../etc", 0),
        ("a\0b", 0),
        (LONGEST + "t", 0),
        ("t", -1),
        ("t", 2**31),
    ],
)
def test_a_topic_that_could_leave_the_log_directory_is_rejected(topic: str, partition: int) -> None:
    with pytest.raises(InvalidPartitionName, match="cannot store"):
        folder_name(topic, partition)


@given(TOPICS, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16))
def test_a_deleted_folder_name_fits_a_file_name_and_is_not_a_partition(
    topic: str, partition: int, unique: bytes
) -> None:
    name = deleted_folder_name(topic, partition, unique)
    assert len(name.encode()) <= 255
    assert is_deleted_folder_name(name)
    assert parse_folder_name(name) is None


@pytest.mark.parametrize("name", ["clicks-0", "notes-delete", "clicks-0.xyz-delete", "clicks-0.0123-delete", "-delete"])
def test_other_names_that_end_in_delete_are_not_ours_to_remove(name: str) -> None:
    assert not is_deleted_folder_name(name)


# --- meta.properties


def test_the_owner_is_written_as_kafka_writes_it(tmp_path: Path) -> None:
    write_meta(FILES, str(tmp_path), MetaProperties(1, 7, "Xk-9_w", ID))
    text = (tmp_path / "meta.properties").read_text()
    assert text == "version=1\nnode.id=7\ncluster.id=Xk-9_w\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\n"
    assert read_meta(FILES, str(tmp_path)) == MetaProperties(1, 7, "Xk-9_w", ID)


def test_a_folder_without_the_file_has_no_owner(tmp_path: Path) -> None:
    assert read_meta(FILES, str(tmp_path)) is None


def test_a_folder_of_an_old_kafka_keeps_its_version() -> None:
    text = "#\n#Thu Jan 01 00:00:00 UTC 2015\nversion=0\nbroker.id=3\n"
    meta = parse_meta("meta.properties", text)
    assert meta == MetaProperties(0, 3, None, None)
    assert meta.claimed_by("/data", 3, "c") == MetaProperties(0, 3, "c", None)


def test_a_folder_of_a_new_kafka_is_understood() -> None:
    text = "#\r\n! a remark\r\ncluster.id = abc\\=\\:d\r\nversion : 1\r\nnode.id 4\r\nmore=of it\r\n"
    assert parse_meta("meta.properties", text) == MetaProperties(1, 4, "abc=:d", None)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1))
def test_any_cluster_id_survives_the_file(cluster_id: str) -> None:
    files = SimulatedFiles()
    write_meta(files, "", MetaProperties(1, 4, cluster_id, ID))
    assert read_meta(files, "") == MetaProperties(1, 4, cluster_id, ID)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no owner"),
        ("\0" * 100, "is not key=value"),
        ("version=2\nnode.id=1\ncluster.id=c\n", "unknown version 2"),
        ("version=one\n", "is not a number"),
        ("version=1\ncluster.id=c\n", "node.id and cluster.id"),
        ("version=1\nnode.id=1\n", "node.id and cluster.id"),
        ("version=1\nnode.id=-1\ncluster.id=c\n", "is not a number"),
        ("version=1\nnode.id=99999999999\ncluster.id=c\n", "is not a number"),
        ("version=1\nnode.id=1\nnode.id=2\ncluster.id=c\n", "occurs twice"),
        ("version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short\n", "directory.id"),
        ("version=1\nnode.id=1\ncluster.id=c\ndirectory.id=" + "*" * 22, "directory.id"),
        ("version=1\nnode", "is not key=value"),
    ],
)
def test_a_damaged_owner_file_says_what_to_do(text: str, reason: str) -> None:
    with pytest.raises(MetadataFileError, match=reason) as caught:
        parse_meta("/data/meta.properties", text)
    assert "/data/meta.properties" in str(caught.value)
    assert "restore the file" in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\xfd", b"version=1\n" * 10_000])
def test_an_owner_file_that_is_not_text_or_huge_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(MetadataFileError):
        read_meta(FILES, str(tmp_path))


def test_another_brokers_or_clusters_folder_is_rejected() -> None:
    meta = MetaProperties(1, 7, "ours", ID)
    assert meta.claimed_by("/data", 7, "ours") == meta
    with pytest.raises(WrongOwner, match=r"belongs to node\.id=7, this broker has node\.id=8; correct"):
        meta.claimed_by("/data", 8, "ours")
    with pytest.raises(WrongOwner, match=r"broker\.id=7"):
        replace(meta, version=0).claimed_by("/data", 8, "ours")
    with pytest.raises(WrongOwner, match=r"cluster\.id=ours, this broker has cluster\.id=theirs"):
        meta.claimed_by("/data", 7, "theirs")


# --- partition.metadata


def test_a_topic_id_is_written_as_kafka_writes_it(tmp_path: Path) -> None:
    assert read_topic_id(FILES, str(tmp_path)) is None
    write_topic_id(FILES, str(tmp_path), ID)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert read_topic_id(FILES, str(tmp_path)) == ID


def test_a_topic_id_without_a_last_line_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text("version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw")
    assert read_topic_id(FILES, str(tmp_path)) == ID


@pytest.mark.parametrize(
    "text",
    ["", "version: 0", "version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", "version: 0\ntopic_id: AA", "\0\0\0", "x"],
)
def test_a_damaged_topic_id_is_an_error_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    with pytest.raises(MetadataFileError):
        read_topic_id(FILES, str(tmp_path))


@given(st.binary(min_size=16, max_size=16))
def test_every_id_survives_its_digits(raw: bytes) -> None:
    assert decode_id(encode_id(raw)) == raw


@pytest.mark.parametrize("raw", [b"", bytes(15), bytes(17)])
def test_an_id_has_sixteen_bytes(raw: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        encode_id(raw)


@given(TOPICS, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16))
def test_a_stray_name_is_not_another_kind_of_name(topic: str, partition: int, unique: bytes) -> None:
    name = stray_name(topic, partition, unique)
    assert is_stray_name(name)
    assert not is_deleted_folder_name(name)
    assert parse_folder_name(name) is None
    assert len(name) <= 255
