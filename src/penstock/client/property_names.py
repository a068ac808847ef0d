"""Names and values that client properties had in Kafka 0.7 and 0.8.

`translated` gives a client's properties their current names. If a current name is set too, it applies. What clients no
longer have (timeouts of ZooKeeper sessions, sizes of Java's buffers) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SERVERS: Final = "bootstrap.servers"
PRODUCER_TYPE, EVENT_HANDLER, CALLBACK_HANDLER = "producer.type", "event.handler", "callback.handler"
SERIALIZER, KEY_SERIALIZER, PARTITIONER = "serializer.class", "key.serializer.class", "partitioner.class"
QUEUE_MESSAGES, QUEUE_SIZE, ENQUEUE_TIMEOUT = "batch.num.messages", "queue.size", "queue.enqueue.timeout.ms"

# Older name: current name.
RENAMED: Final[Mapping[str, str]] = {
    "groupid": "group.id",
    "queue.time": "linger.ms",
    "queue.buffering.max.ms": "linger.ms",
    "queue.buffering.max.messages": QUEUE_SIZE,
    "queue.enqueueTimeout.ms": ENQUEUE_TIMEOUT,
    "autocommit.enable": "enable.auto.commit",
    "auto.commit.enable": "enable.auto.commit",
    "autocommit.interval.ms": "auto.commit.interval.ms",
    "autooffset.reset": "auto.offset.reset",
    "compression.codec": "compression.type",
    "max.message.size": "max.request.size",
    "fetch.size": "max.partition.fetch.bytes",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.timeout.ms": "request.timeout.ms",
    "zk.connectiontimeout.ms": "connect.timeout.ms",
    "zookeeper.connection.timeout.ms": "connect.timeout.ms",
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "num.retries": "retries",
}
# Older values of the current names.
_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "auto.offset.reset": {"smallest": "earliest", "largest": "latest"},
    "compression.type": {"0": "none", "1": "gzip", "2": "snappy"},
}
BROKERS: Final = ("broker.list", "metadata.broker.list")
ZOOKEEPER: Final = ("zk.connect", "zookeeper.connect")
# They concern what clients no longer do, or how a Java client does it.
WITHOUT_EFFECT: Final = frozenset({
    "zk.sessiontimeout.ms", "zk.synctime.ms", "zk.read.num.retries", "zookeeper.session.timeout.ms",
    "zookeeper.sync.time.ms", "buffer.size", "socket.buffersize", "socket.receive.buffer.bytes",
    "send.buffer.bytes", "reconnect.interval", "reconnect.time.interval.ms", "backoff.increment.ms",
    "queuedchunks.max", "queued.max.message.chunks", "rebalance.retries.max", "rebalance.max.retries",
    "rebalance.backoff.ms", "consumerid", "consumer.id", "compressed.topics", "mirror.consumer.numthreads",
})  # fmt: skip
# Understood by `properties.producer_from_properties`; clients have no option of that name.
OF_PRODUCERS: Final = frozenset({
    PRODUCER_TYPE, EVENT_HANDLER, CALLBACK_HANDLER, SERIALIZER, KEY_SERIALIZER, PARTITIONER, QUEUE_MESSAGES, QUEUE_SIZE,
    ENQUEUE_TIMEOUT,
})  # fmt: skip


def translated(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties by their current names and values. Names without effect are left out."""
    found = {name: text for name, text in properties.items() if not _is_older(name)}
    if PRODUCER_TYPE in found and "batch.size" in found:
        found.setdefault(QUEUE_MESSAGES, found.pop("batch.size"))
    for name, text in properties.items():
        if name in RENAMED:
            found.setdefault(RENAMED[name], text)
    for name in BROKERS:
        if name in properties:
            found.setdefault(SERVERS, _addresses(properties[name]))
    for name in ZOOKEEPER:
        if name in properties:
            found.setdefault(SERVERS, f"zookeeper://{properties[name].strip()}")
    for name, values in _VALUES.items():
        if name in found:
            found[name] = values.get(found[name].strip(), found[name])
    return found


def _is_older(name: str) -> bool:
    return name in RENAMED or name in WITHOUT_EFFECT or name in BROKERS or name in ZOOKEEPER


def _addresses(text: str) -> str:
    """`0:a:9092,1:b:9092` of Kafka 0.7 has the ids of brokers."""
    addresses = []
    for each in text.split(","):
        number, _, rest = each.strip().partition(":")
        addresses.append(rest if number.isdigit() and ":" in rest else each.strip())
    return ",".join(addresses)
