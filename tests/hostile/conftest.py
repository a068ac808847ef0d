"""The fixtures of tests/broker: a broker for each module, and connections to it."""

from __future__ import annotations

from tests.broker.conftest import broker, broker_settings, client, embedded, other

__all__ = ["broker", "broker_settings", "client", "embedded", "other"]
