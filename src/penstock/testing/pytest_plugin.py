"""pytest fixtures for tests with any Kafka client: a real broker and topics on it.

    def test_sent_records_arrive(penstock_broker, penstock_topic):
        producer = AnyKafkaClient(bootstrap_servers=penstock_broker.address)
        producer.send(penstock_topic, b"...")

`penstock_broker` is one broker per session; set `penstock_broker_scope = function` (or class, module, package) in
pytest's configuration for a shorter lifetime. `penstock_fresh_broker` is a new broker for each test. To start brokers
with settings, by Kafka's names, override the fixture `penstock_broker_settings` in a conftest.py. `penstock_topic` is
the name of a new topic on `penstock_broker`; the marker `penstock_topic(partitions=3, config={"cleanup.policy":
"compact"})` configures it. The broker is imported when the first fixture is used.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

if TYPE_CHECKING:
    from penstock.testing.embedded_broker import EmbeddedBroker

Scope = Literal["session", "package", "module", "class", "function"]

_SCOPES: Final[tuple[Scope, ...]] = ("session", "package", "module", "class", "function")
_SCOPE: Final = "penstock_broker_scope"
_MARKER: Final = "penstock_topic"
_LONGEST_STEM: Final = 60
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_SCOPE, f"how long a penstock_broker serves: {', '.join(_SCOPES)}", default="session")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_MARKER}(partitions=1, config=None): configures the topic of that fixture")


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    configured = str(config.getini(_SCOPE))
    for scope in _SCOPES:
        if scope == configured:
            return scope
    raise pytest.UsageError(f"{_SCOPE} is {configured!r}; it can be {', '.join(_SCOPES)}")


@pytest.fixture(scope="session")
def penstock_broker_settings() -> Mapping[str, str]:
    """The settings of the brokers, by their names in server.properties. Override this fixture to change them."""
    return {}


@pytest.fixture(scope=_scope)
def penstock_broker(penstock_broker_settings: Mapping[str, str]) -> Iterator[EmbeddedBroker]:
    """A running broker, in this process: `.address` for clients, `.create_topic(...)`, `.data_dir`."""
    yield from _running(penstock_broker_settings)


@pytest.fixture
def penstock_fresh_broker(penstock_broker_settings: Mapping[str, str]) -> Iterator[EmbeddedBroker]:
    """A new broker for each test."""
    yield from _running(penstock_broker_settings)


@pytest.fixture
def penstock_topic(request: pytest.FixtureRequest, penstock_broker: EmbeddedBroker) -> str:
    """The name of a new, empty topic."""
    marker = request.node.get_closest_marker(_MARKER)
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    unknown = options.keys() - {"partitions", "config"}
    if marker is not None and (marker.args or unknown):
        raise pytest.UsageError(f"{_MARKER} takes partitions= and config=, not {[*marker.args, *sorted(unknown)]}")
    name = topic_name(request.node.name)
    penstock_broker.create_topic(name, **options)
    return name


def topic_name(test: str) -> str:
    """A unique, valid topic name that contains the name of the test."""
    stem = _NOT_IN_NAMES.sub("-", test)[:_LONGEST_STEM].strip("-")
    return f"{stem}-{uuid.uuid4().hex[:8]}" if stem else uuid.uuid4().hex


def _running(settings: Mapping[str, str]) -> Iterator[EmbeddedBroker]:
    from penstock.testing.embedded_broker import EmbeddedBroker

    with EmbeddedBroker(settings=settings) as broker:
        yield broker
