"""What must be in the metadata tree before a broker does anything there: the classic paths, and the cluster's id.

Rule: it may be done by several brokers at once, and again at every start; whoever comes first names the cluster.
"""

from __future__ import annotations

from penstock.cluster import paths
from penstock.cluster.errors import ClusterIdMismatch, NodeExists
from penstock.cluster.layout import decode_cluster_id, encode_cluster_id
from penstock.cluster.tree import Tree, ensure_path, find
from penstock.log.folders.metadata_files import encode_id
from penstock.runtime.randomness import Random


async def found_cluster(tree: Tree, random: Random, wanted_id: str | None = None) -> str:
    """The cluster's id.

    `wanted_id` is what the data folders say, if they do: a new tree takes it over, and one of another cluster is a
    ClusterIdMismatch. LayoutError, TreeError.
    """
    for path in (*paths.PERSISTENT, paths.BROKER_EPOCHS):
        await ensure_path(tree, path)
    node = await find(tree, paths.CLUSTER_ID)
    if node is None:
        cluster_id = encode_id(random.uuid_bytes()) if wanted_id is None else wanted_id
        try:
            await tree.create(paths.CLUSTER_ID, encode_cluster_id(cluster_id))
        except NodeExists:
            node = await tree.get(paths.CLUSTER_ID)
        else:
            return cluster_id
    found = decode_cluster_id(node.data)
    if wanted_id is not None and found != wanted_id:
        raise ClusterIdMismatch(wanted_id, found)
    return found
