"""The schema registry: Confluent's REST API on the topic `_schemas` of any Kafka cluster.

    from penstock.registry import Registry

    with Registry("localhost:9092", port=8081) as registry:
        registry.wait()

Schemas of Avro, JSON Schema and Protobuf by subject, and which may follow which. docs/registry.md has the endpoints,
decision 028 how instances agree on a leader.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from penstock.registry.registry import Registry
    from penstock.registry.settings import RegistrySettings

__all__ = ["Registry", "RegistrySettings"]


def __getattr__(name: str) -> object:
    # Imported when used: `penstock.registry.formats` needs neither a client nor a server.
    if name in __all__:
        from penstock.registry import registry

        return getattr(registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
