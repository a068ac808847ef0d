"""Whose folder it is: partition folder names, `meta.properties` and `partition.metadata`.

    <topic>-<partition>                      a partition's log; the last dash separates the number
    <topic>-<partition>.<32 hex>-delete      deleted, waiting for removal
    <topic>-<partition>.<32 hex>-stray       set aside: the cluster did not know the partition; never removed
    <topic>-<partition>.future               a copy in progress from another log directory
    <topic>-<partition>.ready                such a copy, complete, about to take the partition's place
    meta.properties                          broker and cluster that own the directory, and the directory's id
    partition.metadata                       the topic id ("version: 0", "topic_id: ...")

A name denotes a partition only if formatting that partition gives the same name ("t-07" does not). A directory of
another broker or cluster is rejected, never adopted. Ids are 16 bytes, written as 22 characters of URL-safe base64.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from typing import Final

from penstock.log.checkpoints import TopicPartition, atomic_write, read_file
from penstock.log.errors import LogError
from penstock.runtime.files import Files

META_FILE: Final = "meta.properties"
PARTITION_METADATA_FILE: Final = "partition.metadata"
NEWEST_META_VERSION: Final = 1
MAX_TOPIC_LENGTH: Final = 249
MAX_PARTITION: Final = 2**31 - 1

_NAME_BYTES_MAX: Final = 255
_FUTURE: Final = ".future"
_READY: Final = ".ready"
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})", re.DOTALL)
_DELETED: Final = re.compile(r"[a-zA-Z0-9._-]+-[0-9]{1,10}\.[0-9a-f]{32}-delete")
_STRAY: Final = re.compile(r"[a-zA-Z0-9._-]+-[0-9]{1,10}\.[0-9a-f]{32}-stray")


_METADATA_BYTES_MAX: Final = 64 * 1024
_ID_BYTES: Final = 16
_ID_DIGITS: Final = 22
_INT32_MAX: Final = 2**31 - 1
_ENTRY: Final = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)")
_ESCAPED: Final = re.compile(r"\\(.)")


# -------------------------------------------------------------------------------------------------------- folder names


class InvalidPartitionName(LogError):
    """A topic or partition that cannot have a folder."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(
            f"cannot store {topic[:300]!r} partition {partition}: a topic name has 1 to {MAX_TOPIC_LENGTH} of the "
            f"characters a-z A-Z 0-9 . _ - and is not . or .., a partition is 0 to {MAX_PARTITION}"
        )
        self.topic = topic
        self.partition = partition


def is_topic(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def folder_name(topic: str, partition: int) -> str:
    """ "clicks-3" for partition 3 of clicks."""
    if not is_topic(topic) or not 0 <= partition <= MAX_PARTITION:
        raise InvalidPartitionName(topic, partition)
    return f"{topic}-{partition}"


def parse_folder_name(name: str) -> TopicPartition | None:
    """ "page-views-3" is partition 3 of page-views; None if it is not a partition's name."""
    match = _PARTITION.fullmatch(name)
    if match is None or not is_topic(match[1]) or int(match[2]) > MAX_PARTITION:
        return None
    return match[1], int(match[2])


def deleted_folder_name(topic: str, partition: int, unique: bytes) -> str:
    """The name of a deleted partition's folder until it is removed. A long topic is shortened to fit a file name."""
    return _with_tail(topic, f"-{partition}.{unique.hex()}-delete")


def is_deleted_folder_name(name: str) -> bool:
    return _DELETED.fullmatch(name) is not None


def stray_name(topic: str, partition: int, unique: bytes) -> str:
    """The name of a folder that was set aside. A long topic is shortened to fit a file name."""
    return _with_tail(topic, f"-{partition}.{unique.hex()}-stray")


def is_stray_name(name: str) -> bool:
    return _STRAY.fullmatch(name) is not None


def future_name(topic: str, partition: int) -> str:
    """The name of a copy in progress. InvalidPartitionName if it would be too long."""
    return _with_suffix(topic, partition, _FUTURE)


def ready_name(topic: str, partition: int) -> str:
    """The name of a complete copy."""
    return _with_suffix(topic, partition, _READY)


def parse_future_name(name: str) -> TopicPartition | None:
    return parse_folder_name(name.removesuffix(_FUTURE)) if name.endswith(_FUTURE) else None


def parse_ready_name(name: str) -> TopicPartition | None:
    return parse_folder_name(name.removesuffix(_READY)) if name.endswith(_READY) else None


def _with_suffix(topic: str, partition: int, suffix: str) -> str:
    name = folder_name(topic, partition) + suffix
    if len(name) > _NAME_BYTES_MAX:
        raise InvalidPartitionName(topic, partition)
    return name


def _with_tail(topic: str, tail: str) -> str:
    return topic[: _NAME_BYTES_MAX - len(tail)] + tail


# ----------------------------------------------------------------------------------------------------- meta.properties


class MetadataFileError(LogError):
    """A metadata file that contradicts its format."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}; restore the file, or move the directory away to start with an empty one")
        self.path = path
        self.reason = reason


class WrongOwner(LogError):
    """A log directory of another broker or another cluster."""

    def __init__(self, path: str, setting: str, found: str, wanted: str) -> None:
        super().__init__(
            f"log directory {path} belongs to {setting}={found}, this broker has {setting}={wanted}; "
            f"correct the broker's settings, or give it its own directory in log.dirs"
        )
        self.path = path
        self.setting = setting
        self.found = found
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory. Version 0 may leave everything unset."""

    version: int
    node_id: int | None
    cluster_id: str | None
    directory_id: bytes | None

    def claimed_by(self, path: str, node_id: int, cluster_id: str) -> MetaProperties:
        """These properties with the owner set. WrongOwner if they name another one."""
        if self.node_id is not None and self.node_id != node_id:
            setting = "broker.id" if self.version == 0 else "node.id"
            raise WrongOwner(path, setting, str(self.node_id), str(node_id))
        if self.cluster_id is not None and self.cluster_id != cluster_id:
            raise WrongOwner(path, "cluster.id", self.cluster_id, cluster_id)
        return replace(self, node_id=node_id, cluster_id=cluster_id)


NO_OWNER: Final = MetaProperties(NEWEST_META_VERSION, None, None, None)


def encode_id(raw: bytes) -> str:
    """Sixteen bytes as 22 digits."""
    if len(raw) != _ID_BYTES:
        raise ValueError(f"an id has {_ID_BYTES} bytes, not {len(raw)}")
    return base64.urlsafe_b64encode(raw).decode()[:_ID_DIGITS]


def decode_id(text: str) -> bytes:
    """The sixteen bytes of 22 digits; ValueError for anything else."""
    if len(text) != _ID_DIGITS:
        raise ValueError(f"{text[:60]!r} has {len(text)} digits, an id has {_ID_DIGITS}")
    try:
        return base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not base64: {error}") from error


def read_meta(files: Files, folder: str) -> MetaProperties | None:
    """The owner of a log directory, None if it has none yet. MetadataFileError if the file is damaged."""
    path = f"{folder}/{META_FILE}"
    text = _read_text(files, path)
    return None if text is None else parse_meta(path, text)


def write_meta(files: Files, folder: str, meta: MetaProperties) -> None:
    """Make `meta` the owner, durably."""
    entries = {
        "version": str(meta.version),
        "broker.id" if meta.version == 0 else "node.id": None if meta.node_id is None else str(meta.node_id),
        "cluster.id": meta.cluster_id,
        "directory.id": None if meta.directory_id is None else encode_id(meta.directory_id),
    }
    lines = [f"{key}={_escape(value)}\n" for key, value in entries.items() if value is not None]
    atomic_write(files, f"{folder}/{META_FILE}", "".join(lines).encode())


def parse_meta(path: str, text: str) -> MetaProperties:
    entries = _properties(path, text)
    if not entries:
        raise MetadataFileError(path, "it names no owner")
    version = _number(path, "version", entries.get("version", "0"))
    if version > NEWEST_META_VERSION:
        raise MetadataFileError(path, f"unknown version {version}, the newest known is {NEWEST_META_VERSION}")
    owner = "broker.id" if version == 0 else "node.id"
    if version > 0 and not {owner, "cluster.id"} <= entries.keys():
        raise MetadataFileError(path, f"version {version} needs {owner} and cluster.id")
    directory_id = None
    if "directory.id" in entries:
        try:
            directory_id = decode_id(entries["directory.id"])
        except ValueError as error:
            raise MetadataFileError(path, f"directory.id: {error}") from error
    node_id = _number(path, owner, entries[owner]) if owner in entries else None
    return MetaProperties(version, node_id, entries.get("cluster.id"), directory_id)


def _properties(path: str, text: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise MetadataFileError(path, f"{line[:60]!r} is not key=value")
        key, value = _ESCAPED.sub(r"\1", match[1]), _ESCAPED.sub(r"\1", match[2])
        if entries.setdefault(key, value) != value:
            raise MetadataFileError(path, f"{key} occurs twice, as {entries[key]!r} and as {value!r}")
    return entries


def _escape(value: str) -> str:
    return re.sub(r"([\\=:#!])", r"\\\1", value)


def _number(path: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _INT32_MAX):
        raise MetadataFileError(path, f"{key}={text[:60]!r} is not a number from 0 to {_INT32_MAX}")
    return int(text)


# -------------------------------------------------------------------------------------------------- partition.metadata


def read_topic_id(files: Files, folder: str) -> bytes | None:
    """The topic id of a partition's folder, None if it has none. MetadataFileError if the file is damaged."""
    path = f"{folder}/{PARTITION_METADATA_FILE}"
    text = _read_text(files, path)
    if text is None:
        return None
    entries: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            raise MetadataFileError(path, f"{line[:60]!r} is not key: value")
        entries[key.strip()] = value.strip()
    if entries.get("version") != "0":
        raise MetadataFileError(path, f"unknown version {entries.get('version', '')[:60]!r}, expected '0'")
    try:
        return decode_id(entries.get("topic_id", ""))
    except ValueError as error:
        raise MetadataFileError(path, f"topic_id: {error}") from error


def write_topic_id(files: Files, folder: str, topic_id: bytes) -> None:
    """Store the topic id in the folder, durably."""
    text = f"version: 0\ntopic_id: {encode_id(topic_id)}\n"
    atomic_write(files, f"{folder}/{PARTITION_METADATA_FILE}", text.encode())


def _read_text(files: Files, path: str) -> str | None:
    data = read_file(files, path, _METADATA_BYTES_MAX + 1)
    if data is None:
        return None
    if len(data) > _METADATA_BYTES_MAX:
        raise MetadataFileError(path, f"longer than {_METADATA_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MetadataFileError(path, "not UTF-8 text") from error
