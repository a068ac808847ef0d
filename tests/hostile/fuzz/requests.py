"""Hostile requests, generated from the schemas of the protocol.

Most are sound in form: they decode, and reach their handler with extreme numbers, names that exist and names that do
not, and values that earlier responses gave (member ids, producer ids, fetch sessions). Some of their bytes are then
changed: lengths and counts, versions, truncated and spliced bodies. Everything else follows from the seed.
"""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict, deque
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from crc32c import crc32c
from tests.wire.generate import Generator

from penstock.broker.api_table import apis_of
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, TOPIC_DEFINITIONS
from penstock.records import Codec, encode_batch
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.wire.framing import chunk_size, encode_request
from penstock.wire.layout import ArrayOf, Field, Kind, Struct, layout
from penstock.wire.protocol import APIS, FIRST_PRIVATE_KEY, ApiKey, response_codec
from penstock.wire.types import FLOAT64, STRING, Message

TOPICS: Final = ("fuzz-a", "fuzz-b", "fuzz-compacted")
"""Topics that exist at the start; requests may delete them and create them again."""

_NAMES: Final = (*TOPICS, *TOPICS, "nobody", "__consumer_offsets", "__transaction_state", "", ".", "../up", "x" * 249,
                 "x" * 300, "Gr\u00fc\u00dfe", "a\x00b")  # fmt: skip
_GROUPS: Final = (*(f"group-{number}" for number in range(12)), "", "\U0001f600" * 40)
_PRINCIPALS: Final = ("User:alice", "User:mallory", "User:*", "Group:ops", "nobody", "", ":", "User:")
# Settings by which a permitted client shuts out others are not drawn: the run would end with them.
_SHUTS_OUT: Final = ("max.connection", "message.max.bytes", "max.message.bytes", "quota", "queued.max", "socket.")
_SETTINGS: Final = tuple(
    name
    for name in (*TOPIC_DEFINITIONS, *BROKER_DEFINITIONS, "no.such.setting", "")
    if not any(part in name for part in _SHUTS_OUT)
)
_SETTING_VALUES: Final = ("1", "0", "-1", "1048576", "true", "compact", "delete", "compact,delete", "zstd", "x" * 2000,
                          "", "9223372036854775807", "1e400", "0:1,1:0", "*", "\u0661")  # fmt: skip

_TEXTS: Final[dict[str, tuple[str, ...]]] = {
    "group_id": _GROUPS, "groups": _GROUPS, "groups_names": _GROUPS, "group_ids": _GROUPS, "key": _GROUPS,
    "coordinator_keys": _GROUPS,
    "transactional_id": ("txn-0", "txn-1", "txn-2", "", "t" * 500), "transactional_ids": ("txn-0", "txn-1", "txn-2"),
    "member_id": ("", "member-0", "m" * 300), "group_instance_id": ("static-0", "static-1", ""),
    "protocol_type": ("consumer", "consumer", "connect", ""), "protocol_name": ("range", "range", "roundrobin", ""),
    "mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "plain", ""),
    "principal": _PRINCIPALS, "principal_filter": _PRINCIPALS, "host": ("*", "127.0.0.1", "::1", "here", ""),
    "host_filter": ("*", "127.0.0.1", ""), "entity_type": ("user", "client-id", "ip", "group", ""),
    # Not the default entity (null), nor those of the well-behaved client.
    "entity_name": ("mallory", "nobody", "10.1.2.3", "", "not an address", "u" * 300),
    "configuration_keys": _SETTINGS, "value": _SETTING_VALUES,
    "transactional_id_pattern": ("txn-.*", "(a+)+$", "[", "", "(" * 200, "a{1000}{1000}", ".*" * 50),
}  # fmt: skip
_TEXTS_OF: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("CreatableTopicConfig", "name"): tuple(TOPIC_DEFINITIONS),
    ("AlterableConfig", "name"): _SETTINGS,
    ("JoinGroupRequestProtocol", "name"): ("range", "range", "roundrobin", "sticky", ""),
    ("ScramCredentialDeletion", "name"): ("mallory", "nobody", ""),
    ("ScramCredentialUpsertion", "name"): ("mallory", "nobody", "", "u" * 300),
    ("OpData", "key"): ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "connection_creation_rate",
                        "controller_mutation_rate", "nothing"),
    ("AlterConfigsResource", "resource_name"): (*TOPICS, "1", "0", "", "nobody"),
    ("DescribeConfigsResource", "resource_name"): (*TOPICS, "1", "0", "", "nobody"),
}  # fmt: skip

_I16, _I32, _I64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
_INDEXES: Final = (0, 0, 0, 0, 1, 2, 5, -1, _I32)
_SHORT_MS: Final = (0, 0, 1, 5, 50)
_EPOCHS: Final = (-1, -1, 0, 0, 1, 2)
_NUMBERS: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("partition", "partition_index", "partition_indexes", "partitions", "index"), _INDEXES),
    **dict.fromkeys(("timeout_ms", "max_wait_ms", "rebalance_timeout_ms", "transaction_timeout_ms"), _SHORT_MS),
    **dict.fromkeys(("leader_epoch", "current_leader_epoch", "last_fetched_epoch", "producer_epoch"), _EPOCHS),
    **dict.fromkeys(("generation_id", "member_epoch", "generation_id_or_member_epoch"), (-1, 0, 1, 2, 3)),
    **dict.fromkeys(("fetch_offset", "offset", "log_start_offset", "committed_offset"), (0, 0, 1, 5, 100, -1, _I64)),
    **dict.fromkeys(("replica_id", "replica_nodes", "broker_ids", "replicas"), (-1, -1, -1, 0, 1, -2)),
    **dict.fromkeys(("resource_type", "resource_type_filter"), (2, 2, 3, 4, 5, 7, 1, 0, 9)),
    **dict.fromkeys(("pattern_type", "pattern_type_filter", "resource_pattern_type"), (3, 3, 4, 1, 2, 0)),
    **dict.fromkeys(("permission_type", "operation"), (2, 3, 4, 8, 1, 0, 12)),
    "session_timeout_ms": (6000, 6000, 10_000, 0, -1, _I32), "acks": (-1, 1, 1, 0, 5), "min_bytes": (0, 1, 1, _I32),
    "max_bytes": (_I32, 1000, 0, -1), "partition_max_bytes": (1_000_000, 1000, 0, -1, _I32),
    "num_partitions": (1, 1, 2, 3, -1, 0, 5000, _I32), "count": (1, 2, 3, -1, 5000, _I32),
    "replication_factor": (1, 1, -1, 3, 0, _I16), "isolation_level": (0, 1, 1, 2), "session_epoch": (-1, 0, 0, 1, 2),
    "session_id": (0, 0, 1, _I32), "timestamp": (-1, -2, -3, -4, 0, 1_700_000_000_000, _I64), "key_type": (0, 1, 1, 2),
    "config_operation": (0, 1, 2, 3, 4), "iterations": (4096, 8192, 16384, 0, -1, _I32),
    "max_num_offsets": (1, 10, _I32), "endpoint_type": (1, 2), "election_type": (0, 1, 2),
}  # fmt: skip
_LEARNED: Final = frozenset(
    {"member_id", "producer_id", "producer_epoch", "session_id", "topic_id", "generation_id", "member_epoch", "cursor"}
)
_TEACHING: Final = frozenset(
    {ApiKey.JOIN_GROUP, ApiKey.INIT_PRODUCER_ID, ApiKey.FETCH, ApiKey.METADATA, ApiKey.CREATE_TOPICS}
)
# Changes of the cluster wait for the disk, so they are drawn less often.
_RARE: Final = {
    ApiKey.CREATE_TOPICS: 0.3, ApiKey.DELETE_TOPICS: 0.15, ApiKey.CREATE_PARTITIONS: 0.2, ApiKey.ALTER_CONFIGS: 0.3,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 0.4, ApiKey.CREATE_ACLS: 0.3, ApiKey.DELETE_ACLS: 0.3,
    ApiKey.ALTER_CLIENT_QUOTAS: 0.3, ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0.3, ApiKey.JOIN_GROUP: 0.5,
    ApiKey.PRODUCE: 3.0, ApiKey.FETCH: 3.0,
}  # fmt: skip
_EDGES: Final = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff",
                 b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
                 b"\x00\x0f\x42\x40", b"\x00\x00\x00\x00")  # fmt: skip


_layout = cache(layout)


class Template(NamedTuple):
    """A request without its length: correlation id at byte 4, body from `body` on."""

    api_key: int
    version: int
    data: bytes
    body: int


class Hostile(Generator):
    """Messages that decode and mean nonsense."""

    def __init__(self, random: Random) -> None:
        super().__init__(0)
        self.random = random
        self.learned: defaultdict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=32))
        self._within = ""

    def learn(self, message: msgspec.Struct) -> None:
        """Remember the values of a response that later requests may name."""
        for name in message.__struct_fields__:
            value = getattr(message, name)
            if name in _LEARNED:
                if value is not None:
                    self.learned[name].append(value)
            elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
                for each in value[:4]:
                    self.learn(each)

    def message(self, message: type[Message], version: int) -> Any:
        return self.struct(_layout(message, version))

    def struct(self, struct: Struct) -> msgspec.Struct:
        before, self._within = self._within, struct.message.__name__
        made = super().struct(struct)
        self._within = before
        return made

    def field(self, field: Field) -> Any:
        if field.nullable and self.random.random() < (0.0 if field.name == "entity_name" else 0.15):
            return None
        return self.value(field.kind, field.name)

    def value(self, kind: Kind, name: str) -> Any:
        random = self.random
        if isinstance(kind, Struct):
            return self.struct(kind)
        if isinstance(kind, ArrayOf):
            return [self.value(kind.element, name) for _ in range(self._count(kind))]
        if name in _LEARNED and random.random() < 0.7:
            known = self.learned.get(name)
            if known:
                return random.choice(known)
        if kind is STRING:
            pool = _TEXTS_OF.get((self._within, name)) or _TEXTS.get(name, _NAMES)
            return random.choice(pool)
        if kind is FLOAT64:
            return random.choice((0.0, 1.0, 1e6, -1.0, 1e300, float("nan"), float("inf")))
        if kind.name == "records":
            return records(random, self.learned)
        if name in _NUMBERS and random.random() < 0.95:
            return random.choice(_NUMBERS[name])
        return super().value(kind, name)

    def _count(self, kind: ArrayOf) -> int:
        draw = self.random.random()
        if draw < 0.99:
            return self.random.choice((0, 1, 1, 1, 2, 3))
        if isinstance(kind.element, Struct) and any(isinstance(each.kind, ArrayOf) for each in kind.element.fields):
            return 20
        return 100 if draw < 0.9998 else 20_000


# ------------------------------------------------------------------------------------------------------------- records


@cache
def _bomb() -> bytes:
    """A batch of a hundred kilobytes that is a hundred megabytes when decompressed."""
    batch = encode_batch([(0, b"k", b"v", ())])
    batch[61:] = gzip.compress(bytes(100_000_000), 1)
    batch[21:23] = struct.pack(">h", Codec.GZIP)
    return bytes(sealed(batch))


def sealed(batch: bytearray) -> bytearray:
    """With the right length and checksum, so that what is inside is looked at."""
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    batch[17:21] = struct.pack(">I", crc32c(batch[21:]))
    return batch


def records(random: Random, learned: defaultdict[str, deque[Any]]) -> bytes:
    """Batches: sound ones of every format and codec, of known and unknown producers, and damaged ones."""
    draw = random.random()
    if draw < 0.05:
        return random.randbytes(random.choice((0, 1, 17, 61, 100, 500)))
    if draw < 0.15:
        messages = [LegacyMessage(number, 1_700_000_000_000, 0, b"k", b"v" * 20) for number in range(3)]
        data = bytearray(encode_message_set(messages, random.choice((0, 1)), codec=random.choice((0, 1, 2))))
        return bytes(changed(random, data) if random.random() < 0.5 else data)
    if draw < 0.152:
        return _bomb()
    producers, epochs = learned["producer_id"], learned["producer_epoch"]
    is_idempotent = bool(producers) and random.random() < 0.6
    values = [b"value" * random.randrange(8) for _ in range(random.choice((1, 1, 3, 40)))]
    batch = encode_batch(
        [(1_700_000_000_000 + number, b"key", value, ()) for number, value in enumerate(values)],
        codec=random.choice((0, 0, 1, 2, 3, 4)),
        producer_id=random.choice(producers) if is_idempotent else -1,
        producer_epoch=random.choice(epochs) if is_idempotent and epochs else random.choice(_EPOCHS[1:]),
        base_sequence=random.choice((0, 0, 1, 2, _I32)) if is_idempotent else -1,
        transactional=is_idempotent and random.random() < 0.4,
        control=random.random() < 0.03,
    )  # fmt: skip
    if draw < 0.4:
        # Behind the checksum, so that the damage is found where the header or the records are read.
        place = random.randrange(21, len(batch))
        edge = random.choice(_EDGES)
        batch[place : place + len(edge)] = edge
        return bytes(sealed(batch))
    if draw < 0.5:
        return bytes(changed(random, batch))
    return bytes(batch) * (2 if draw > 0.97 else 1)


# ------------------------------------------------------------------------------------------------------------ mutation


def changed(random: Random, data: bytearray, start: int = 0) -> bytearray:
    """With a few changes from byte `start` on."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if len(data) <= start:
            return data
        place = random.randrange(start, len(data))
        kind = random.randrange(7)
        if kind == 0:
            data[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[place] = random.randrange(256)
        elif kind == 2:
            edge = random.choice(_EDGES)
            data[place : place + len(edge)] = edge
        elif kind == 3:
            data[place:place] = random.randbytes(random.randrange(1, 9))
        elif kind == 4:
            del data[place : place + random.randrange(1, 9)]
        elif kind == 5:
            del data[place:]
        else:
            data[place:place] = data[place : place + random.randrange(1, 64)]
    return data


class Requests:
    """Frames to send. Templates are made again all the time, so that they use what was learned meanwhile."""

    def __init__(self, seed: object, apis: frozenset[int] | None = None) -> None:
        self.random = Random(f"templates {seed}")
        self.hostile = Hostile(self.random)
        self._served = apis_of(in_cluster=False)
        keys = [key for key in APIS if (key in self._served if apis is None else key in apis)]
        weights = [_RARE.get(ApiKey(key), 1.0) if key < FIRST_PRIVATE_KEY else 0.3 for key in keys]
        self._keys, self._weights = keys, weights
        self.templates = [self.template() for _ in range(400)]

    def template(self) -> Template:
        random = self.random
        [key] = random.choices(self._keys, self._weights)
        if random.random() < 0.01:
            key = random.choice(list(APIS))
        api, served = APIS[key], self._served.get(key)
        low, high = api.versions.lowest, api.versions.highest
        if served is not None and random.random() < 0.99:
            low, high = served.min_version, served.max_version
        # Newer versions have more fields.
        version = max(random.randint(low, high), random.randint(low, high))
        message = self.hostile.message(api.request, version)
        client = self.random.choice(("fuzz", None, "", "c" * 200))
        chunks: Any = encode_request(key, version, 0, client, message)
        data = b"".join(bytes(chunk) for chunk in chunks if chunk_size(chunk))[4:]
        body = 10 + len(client or "") + (1 if version in api.flexible else 0)
        return Template(key, version, data, min(body, len(data)))

    def renew(self, count: int = 1) -> None:
        for _ in range(count):
            self.templates[self.random.randrange(len(self.templates))] = self.template()

    def frame(self, random: Random, number: int, mutated: float) -> tuple[bytes, int, int]:
        """A frame with its length, and the API and version that it was made from."""
        key, version, data, body = random.choice(self.templates)
        patched = bytearray(data)
        patched[4:8] = struct.pack(">i", number)
        size = None
        if random.random() < mutated:
            kind = random.random()
            if kind < 0.75:
                changed(random, patched, body)
            elif kind < 0.85:
                changed(random, patched)
            elif kind < 0.9:
                patched[2:4] = struct.pack(">h", random.choice((version + 1, -1, _I16, 0)))
            elif kind < 0.95:
                other = random.choice(self.templates)
                patched[body:] = other.data[other.body :]
            else:
                size = random.choice((len(patched) + 100, max(0, len(patched) - 3), -1, _I32, 0, 3))
        return struct.pack(">i", len(patched) if size is None else size) + patched, key, version

    def learn(self, api_key: int, version: int, frame: bytes) -> None:
        """Remember what the response to a sound request gives."""
        if api_key not in _TEACHING:
            return
        try:
            message, _ = response_codec(api_key, version).decode(frame, 4 + (version in APIS[api_key].flexible))
        except Exception:  # noqa: BLE001 - the response to a changed request may have another form
            return
        self.hostile.learn(message)
