"""The Kafka cluster that has the events, as pipelines, the watch and the report connect to it.

Connection settings are given once, as options of the data source (`kafka.security.protocol`, `kafka.ssl.*`,
`kafka.sasl.*`). They go to Spark's executors unchanged, and clients of this process use the same. Files that they name
must exist on the executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.spark.options import ReaderOptions

ValueFormat = Literal["json", "avro"]


@dataclass(frozen=True)
class Cluster:
    """Any cluster that speaks the Kafka protocol."""

    bootstrap: str
    value_format: ValueFormat = "json"
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the data source for reading: kafka.* and so on."""

    def admin(self, client_id: str, **more: Any) -> Admin:
        """An admin client of this process; `more` are its arguments."""
        from penstock.client.admin import Admin

        return Admin(self.bootstrap, client_id=client_id, **self.security(), **more)

    def security(self) -> dict[str, Any]:
        """The security options of clients of this process. Raises ConfigError."""
        from penstock.spark.connections import client_security
        from penstock.spark.options import security_of

        return client_security(security_of(self.options))

    def reader(self) -> ReaderOptions:
        """Options for reading a range of a topic in this process."""
        from penstock.spark.options import ReaderOptions, security_of

        return ReaderOptions(security=security_of(self.options))


def cluster_of(where: Cluster | str) -> Cluster:
    """A cluster as it is, or from its bootstrap servers."""
    return Cluster(where) if isinstance(where, str) else where
