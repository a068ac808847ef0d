"""What the command line says of a cluster, as pipelines and their readers in Spark's executors have it.

Rule: a reader takes a certificate and its key from one file, and works in another folder than the command was given in;
so files are named by where they are, and two of them that should be one are told before anything is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.cluster import Cluster
from penstock.cli.output import CommandError
from penstock.cli.warehouses import reader_properties

if TYPE_CHECKING:
    from penstock.activity.clusters import Cluster as EventCluster
    from penstock.activity.clusters import ValueFormat

_FILE: Final = ".location"


def event_cluster(cluster: Cluster, value_format: ValueFormat = "json") -> EventCluster:
    """Raises CommandError where the TLS files will not do."""
    from penstock.activity.clusters import Cluster as EventCluster

    connecting = cluster.connecting("penstock-pipelines")
    if connecting["ssl"] is not None and "ssl.key.location" in cluster.properties:
        raise CommandError(
            "Spark's readers take a certificate and its key from one file, and ssl.key.location names another.",
            "Write both into one PEM file and name that with ssl.keystore.location.",
        )
    options = {
        name: str(Path(value).absolute()) if name.endswith(_FILE) else value
        for name, value in reader_properties(cluster).items()
    }
    return EventCluster(cluster.servers, value_format, options)
