"""Looking after a cluster: topics, partitions, settings, groups. `AsyncAdmin`, and `Admin`, its blocking face."""

from penstock.client.admin.async_admin import AsyncAdmin
from penstock.client.admin.blocking import Admin
from penstock.client.admin.results import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSynonym,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    GroupMember,
    LogDirectory,
    OffsetResult,
    PartitionDescription,
    PartitionLag,
    PartitionReassignment,
    TopicDescription,
    TopicSpec,
)

__all__ = [
    "Admin",
    "AsyncAdmin",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSynonym",
    "CreatedTopic",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "LogDirectory",
    "OffsetResult",
    "PartitionDescription",
    "PartitionLag",
    "PartitionReassignment",
    "TopicDescription",
    "TopicSpec",
]
