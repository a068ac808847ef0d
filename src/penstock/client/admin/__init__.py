"""Administration of a cluster: topics, partitions, settings, groups. `AsyncAdmin`, and `Admin`, which blocks."""

from penstock.client.admin.admin import Admin, AsyncAdmin
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
