"""Changed rows as records: an object of JSON for each row, under its key; nothing under the key of a row that went.

Noun: `Outputs`, the way to the output topics.

Rule: values are absolute, so a row that is sent again says the same. It is sent, and acknowledged, before its table is
committed: a crash in between sends it once more and never leaves it out. Times are milliseconds since 1970.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.clusters import Cluster, cluster_of
from penstock.activity.pipelines.changes import Change
from penstock.client.admin import Admin
from penstock.client.admin.results import TopicSpec
from penstock.client.errors import PenstockError, TopicExists

if TYPE_CHECKING:
    from penstock.client.producer.producer import Producer

_PATIENCE_S: Final = 30.0
_COMPACTED: Final = {"cleanup.policy": "compact"}
_SEPARATOR: Final = ":"


class Outputs:
    """Shared by the queries of a process."""

    def __init__(self, where: Cluster | str) -> None:
        self._cluster = cluster_of(where)
        self._lock = threading.Lock()
        self._producer: Producer[bytes, bytes] | None = None

    def send(self, topic: str, change: Change, key: Sequence[str]) -> None:
        """Returns when all of it is in the log. Raises what the producer does."""
        keys = [*keys_of(change.changed, key), *keys_of(change.deleted, key)]
        values: list[bytes | None] = [*values_of(change.changed), *[None] * change.deleted.num_rows]
        if not keys:
            return
        producer = self._open()
        producer.send_many(topic, values, keys=keys).result()

    def _open(self) -> Producer[bytes, bytes]:
        from penstock.client.producer.producer import Producer

        with self._lock:
            if self._producer is None:
                self._producer = Producer(
                    self._cluster.bootstrap, client_id="penstock-pipelines", ssl=self._cluster.ssl(),
                    delivery_timeout_ms=_PATIENCE_S * 1000, max_block_ms=_PATIENCE_S * 1000, request_timeout_ms=10_000,
                )  # fmt: skip
            return self._producer

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout=2.0)


def values_of(rows: pa.Table) -> list[bytes]:
    """Each row as an object of JSON."""
    encode = msgspec.json.Encoder().encode
    names = rows.column_names
    columns = [_plain(rows.column(name)).to_pylist() for name in names]
    return [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[bytes]:
    """The values of the key's columns with colons between them."""
    columns = [_plain(rows.column(name)).to_pylist() for name in key]
    return [_SEPARATOR.join(map(str, row)).encode() for row in zip(*columns, strict=True)]


def _plain(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return pc.divide(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 1000)
    if pa.types.is_date(column.type):
        return column.cast(pa.string())
    return column


def ensure_topics(admin: Admin, events: Iterable[str], outputs: Iterable[str], partitions: int) -> None:
    """Make those that are not there. Raises the first refusal that is not about one that is."""
    specs = [TopicSpec(name, partitions) for name in dict.fromkeys(events)]
    specs += [TopicSpec(name, 1, config=_COMPACTED) for name in dict.fromkeys(outputs)]
    answers = admin.create_topics(specs, exist_ok=True)
    for answer in answers.values():
        if isinstance(answer, PenstockError) and not isinstance(answer, TopicExists):
            raise answer
