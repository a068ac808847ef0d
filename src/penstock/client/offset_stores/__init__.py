"""Offset stores: the broker, ZooKeeper, and the database into which the results go."""

from penstock.client.offset_stores.base import (
    AlreadyStored,
    Membership,
    OffsetAndMetadata,
    OffsetStore,
    OffsetStoreError,
    StaleOwner,
)
from penstock.client.offset_stores.broker import BrokerOffsetStore
from penstock.client.offset_stores.sql import SqlOffsetStore
from penstock.client.offset_stores.zookeeper import ZooKeeperOffsetStore

__all__ = [
    "AlreadyStored",
    "BrokerOffsetStore",
    "Membership",
    "OffsetAndMetadata",
    "OffsetStore",
    "OffsetStoreError",
    "SqlOffsetStore",
    "StaleOwner",
    "ZooKeeperOffsetStore",
]
