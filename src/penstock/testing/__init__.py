"""Tools for tests: an embedded broker, a ZooKeeper server, a simulated disk, and power loss at every operation.

    from penstock.testing import Broker

The pytest fixtures are in `pytest_plugin`. Imports are lazy, because pytest loads that plugin in every project of an
environment in which Penstock is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.embedded_broker import EmbeddedBroker as Broker
    from penstock.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = ["Broker", "ZooKeeperEnsemble", "ZooKeeperServer"]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from penstock.testing.embedded_broker import EmbeddedBroker

        return EmbeddedBroker
    if name in ("ZooKeeperEnsemble", "ZooKeeperServer"):
        from penstock.testing import zookeeper

        return getattr(zookeeper, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
