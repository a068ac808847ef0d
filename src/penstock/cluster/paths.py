"""Where things are in the metadata tree: Kafka's classic paths."""

from __future__ import annotations

from typing import Final

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
SEQUENCE_IDS: Final = "/brokers/seqid"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER_ID: Final = "/cluster/id"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
BROKER_EPOCHS: Final = "/penstock/broker_epochs"  # our own: of each broker the last life that was dealt with

# What every tool expects to be there, whatever is in it; the kinds of configuration are topics, clients, ...
PERSISTENT: Final = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    "/config/changes",
    DELETE_TOPICS,
    SEQUENCE_IDS,
    "/isr_change_notification",
    PRODUCER_ID_BLOCK,
    "/log_dir_event_notification",
    TOPIC_CONFIGS,
    "/config/clients",
    "/config/users",
    BROKER_CONFIGS,
    "/config/ips",
    "/cluster",
)

# Under BROKER_CONFIGS: what holds for every broker that has no value of its own.
DEFAULT_BROKER: Final = "<default>"


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def partition_state(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config(name: str) -> str:
    """`name` is a broker's id or DEFAULT_BROKER."""
    return f"{BROKER_CONFIGS}/{name}"


def deletion(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"
