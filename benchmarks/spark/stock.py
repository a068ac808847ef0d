"""Spark's stock Kafka connector: its jars, each by itself, since Spark has the rest.

Its token provider is not available in the connector's own version; an older one works, as only its class names are
looked at where no token is used.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from tests.peers.installing import Budget, NotAvailable
from tests.peers.maven import Jars

_INSTALL_S = 180.0
_COORDINATES = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>{name}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = (
    "    <dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


class LoneJars(Jars):
    """Jars without what they depend on."""

    def _pom(self) -> str:
        parts = [[escape(part) for part in coordinate.split(":")] for coordinate in self.coordinates]
        return _POM.format(name=self.name, dependencies="\n".join(_DEPENDENCY.format(*part) for part in parts))


JARS = LoneJars("spark-kafka", "4.2.0", _COORDINATES)


def stock_jars() -> list[Path]:
    """Found or installed; raises NotAvailable."""
    if JARS.find() is None:
        JARS.install(Budget(_INSTALL_S))
    found = JARS.find()
    if found is None:
        raise NotAvailable("its installation said that it succeeded, yet it is not there")
    return sorted(found.glob("*.jar"))
