"""The events of the site: one topic per kind, with the columns of its values.

This is the only place that names topics and columns. Values are JSON objects or Avro records with exactly these
columns, none of them null. `time` is the event time in milliseconds; `id` is unique within its topic. The record key
is the column `key` as text, so that the events of one member, or of one server, are in one partition, in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_AVRO: Final = {"BIGINT": "long", "INT": "int", "DOUBLE": "double", "STRING": "string", "BOOLEAN": "boolean"}
_TABLE: Final = {"BIGINT": "bigint", "INT": "int", "DOUBLE": "double", "STRING": "string", "BOOLEAN": "boolean"}
TIME: Final = "time"


@dataclass(frozen=True)
class Kind:
    """A kind of event."""

    topic: str
    key: str
    columns: tuple[tuple[str, str], ...]
    """Names and Spark types."""
    summary: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL, for `penstock.decode`."""
        return ", ".join(f"`{name}` {kind} NOT NULL" for name, kind in self.columns)

    @property
    def table_schema(self) -> str:
        """The columns as a table declares them, with the event time as a timestamp."""
        return ", ".join(
            f"{name} {'timestamp_ms' if name == TIME else _TABLE[kind]} not null" for name, kind in self.columns
        )

    @property
    def avro(self) -> str:
        """The columns as an Avro schema."""
        return self._record([{"name": name, "type": _AVRO[kind]} for name, kind in self.columns])

    @property
    def table_avro(self) -> str:
        """The Avro schema for tables, with the event time as a timestamp."""
        fields: list[dict[str, object]] = [{"name": name, "type": _AVRO[kind]} for name, kind in self.columns]
        fields[self.names.index(TIME)]["type"] = {"type": "long", "logicalType": "timestamp-millis"}
        return self._record(fields)

    def _record(self, fields: Sequence[Mapping[str, object]]) -> str:
        return json.dumps({"type": "record", "name": self.topic.title().replace("_", ""), "fields": fields})


def _kind(topic: str, key: str, summary: str, columns: str) -> Kind:
    pairs = tuple((name, kind) for name, kind in (column.split() for column in columns.split(",")))
    return Kind(topic, key, (("id", "BIGINT"), (TIME, "BIGINT"), *pairs), summary)


VIEWS: Final = _kind(
    "views", "member", "a member looks at an item's page",
    "member BIGINT, session BIGINT, item BIGINT, referrer STRING, dwell_ms INT",
)  # fmt: skip
IMPRESSIONS: Final = _kind(
    "impressions", "member", "an item is shown in a list (action impression), or chosen there (action click)",
    "member BIGINT, session BIGINT, item BIGINT, position INT, action STRING",
)  # fmt: skip
VOTES: Final = _kind("votes", "member", "a member votes for or against an item", "member BIGINT, item BIGINT, vote INT")
SEARCHES: Final = _kind(
    "searches", "user", "a user searches", "user BIGINT, keyword STRING, user_group STRING"
)  # fmt: skip
POSTS: Final = _kind(
    "posts", "member", "a member writes about an item", "member BIGINT, item BIGINT, text STRING, links INT"
)
FOLLOWS: Final = _kind(
    "follows", "member", "a member follows (action follow) or unfollows (action unfollow) another",
    "member BIGINT, followed BIGINT, action STRING",
)  # fmt: skip
API_CALLS: Final = _kind(
    "api_calls", "client", "a program calls the site", "client STRING, endpoint STRING, status INT, duration_ms DOUBLE"
)
SERVERS: Final = _kind(
    "servers", "server", "a server's own measurements, once per second",
    "server STRING, cpu DOUBLE, io_wait DOUBLE, disk_mb_s DOUBLE, memory DOUBLE",
)  # fmt: skip
REQUESTS: Final = _kind(
    "requests", "server", "a server's log of a request",
    "server STRING, path STRING, status INT, duration_ms DOUBLE, level STRING, message STRING",
)  # fmt: skip

KINDS: Final = (VIEWS, IMPRESSIONS, VOTES, SEARCHES, POSTS, FOLLOWS, API_CALLS, SERVERS, REQUESTS)
BY_TOPIC: Final = {kind.topic: kind for kind in KINDS}
API_CALLS_PER_MINUTE: Final = 300
"""The rate limit for programs: calls beyond it in a minute get status 429."""
TRUTH_TOPIC: Final = "site_truth"
"""What was planted, a JSON object per record; compacted. Only the report reads it."""
