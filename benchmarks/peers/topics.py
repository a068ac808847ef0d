"""Topics of a broker under test, made and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
_PATIENCE_S = 60.0


class Topics(Protocol):
    def make(self, name: str, configs: Mapping[str, str] = NO_CONFIGS, partitions: int = 1) -> None: ...

    def delete(self, name: str) -> None: ...


class AdminTopics:
    """By requests for it, which every broker of the last years answers."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def make(self, name: str, configs: Mapping[str, str] = NO_CONFIGS, partitions: int = 1) -> None:
        topic = NewTopic(name, partitions, 1, config=dict(configs))
        self._admin.create_topics([topic])[name].result(_PATIENCE_S)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(_PATIENCE_S)
