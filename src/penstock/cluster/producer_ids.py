"""Producer ids: numbers that no two producers ever share.

Rule: ids come in blocks of a thousand. A block is this broker's once its end is stored in the tree, durably and against
the version that was read; an id is given away once. What is left of a block at a restart is never used.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.cluster import paths
from penstock.cluster.errors import BadVersion, ProducerIdsExhausted
from penstock.cluster.layout import ProducerIdBlock, decode_producer_ids, encode_producer_ids
from penstock.cluster.tree import Tree, ensure_path

BLOCK_SIZE: Final = 1000

_INT64_MAX = 2**63 - 1


class ProducerIds:
    """The producer ids that one broker gives away."""

    def __init__(self, tree: Tree, broker_id: int) -> None:
        self._tree = tree
        self._broker_id = broker_id
        self._next = 0
        self._end = 0
        self._fetching = asyncio.Lock()

    def follow(self, tree: Tree) -> None:
        """Take further blocks from this session of the tree; what is in hand stays."""
        self._tree = tree

    async def stock_up(self) -> None:
        """Have ids in hand, for times in which the tree cannot be reached. ProducerIdsExhausted, TreeError."""
        async with self._fetching:
            if self._next >= self._end:
                block = await self.next_block()
                self._next, self._end = block.first, block.last + 1

    async def allocate(self) -> int:
        """An id that nobody had before. ProducerIdsExhausted, TreeError."""
        while self._next >= self._end:
            await self.stock_up()  # whoever waited there finds the block that another fetched
        self._next += 1
        return self._next - 1

    async def next_block(self) -> ProducerIdBlock:
        """A whole block, for whoever gives its ids away. ProducerIdsExhausted, TreeError."""
        await ensure_path(self._tree, paths.PRODUCER_ID_BLOCK)
        while True:
            node = await self._tree.get(paths.PRODUCER_ID_BLOCK)
            latest = decode_producer_ids(node.data)
            first = 0 if latest is None else latest.last + 1
            if first > _INT64_MAX - BLOCK_SIZE:
                raise ProducerIdsExhausted
            block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1)
            try:
                await self._tree.set(paths.PRODUCER_ID_BLOCK, encode_producer_ids(block), node.version)
            except BadVersion:
                # Another broker took it; there is a next one.
                continue
            return block
