"""A small vocabulary for stories about the metadata of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tests.timeouts import PATIENCE_S

from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.controller.topics import TopicDefaults
from penstock.cluster.image import ClusterImage
from penstock.cluster.membership.standalone import StandaloneMetadata
from penstock.cluster.tree.embedded import EmbeddedTree, open_embedded_tree
from penstock.cluster.tree.layout import BrokerRegistration, Endpoint
from penstock.runtime.clock import ManualClock
from penstock.runtime.files import Files
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers, Workers

T = TypeVar("T")

FOLDER = "/data/metadata"
JOURNAL = f"{FOLDER}/tree.journal"


class Rules:
    """Two settings: a number, and a list."""

    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        if name == "retention.ms":
            return None if value.lstrip("-").isdigit() else f"retention.ms={value!r} is not a number"
        return None if name == "cleanup.policy" else f"{name} is not a setting of a {kind.name.lower()}"

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        return "delete" if name == "cleanup.policy" else None


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(story, PATIENCE_S))


def broker(broker_id: int = 0, rack: str | None = None) -> BrokerRegistration:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", 9092)
    return BrokerRegistration(broker_id, (endpoint,), rack, 1_700_000_000_000)


def image_with(*brokers: BrokerRegistration) -> ClusterImage:
    image = ClusterImage(cluster_id="c", controller_epoch=1)
    for registration in brokers:
        image = image.with_broker(registration)
    return image


def open_tree(
    files: Files, workers: Workers | None = None, *, rewrite_bytes: int = 1 << 20, seed: int = 0
) -> EmbeddedTree:
    return open_embedded_tree(
        files, FOLDER, InlineWorkers() if workers is None else workers, SeededRandom(seed), rewrite_bytes=rewrite_bytes
    )


def metadata_of(tree: EmbeddedTree, *, seed: int = 0, broker_id: int = 0, partitions: int = 1) -> StandaloneMetadata:
    return StandaloneMetadata(
        tree,
        ManualClock(1_700_000_000_000),
        SeededRandom(seed),
        Rules(),
        broker_id=broker_id,
        defaults=TopicDefaults(partitions, 1),
    )


async def with_tree(files: Files, story: Callable[[EmbeddedTree], Awaitable[T]], **options: Any) -> T:
    """Open the tree, live the story, close the tree."""
    tree = open_tree(files, **options)
    try:
        return await story(tree)
    finally:
        await tree.close()


async def with_metadata(files: Files, story: Callable[[StandaloneMetadata], Awaitable[T]], **options: Any) -> T:
    """The same with the broker started on it."""

    async def started(tree: EmbeddedTree) -> T:
        metadata = metadata_of(tree, **options)
        await metadata.start(broker(options.get("broker_id", 0)))
        return await story(metadata)

    return await with_tree(files, started)
