"""The sync of a tree's journal fails, only the process is started again, then the power goes."""

from __future__ import annotations

import errno

import pytest
from tests.cluster.cluster_stories import run, with_tree

from penstock.cluster.errors import TreeFailed
from penstock.cluster.tree.tree import Tree
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_files import SimulatedFiles


async def _make(tree: Tree, *paths: str) -> None:
    for path in paths:
        await tree.create(path)


async def _names(tree: Tree) -> list[str]:
    return await tree.children("/")


@pytest.mark.parametrize("after", [[], ["/c"]])
def test_change_whose_sync_failed_and_that_a_restart_finds_is_durable_from_then_on(after: list[str]) -> None:
    files = SimulatedFiles()
    run(with_tree(files, lambda tree: _make(tree, "/a")))

    async def fail(tree: Tree) -> None:
        files.operations.fail("sync", errno.EIO, loss=LOSE_UNSYNCED)
        with pytest.raises(TreeFailed):
            await tree.create("/b")

    run(with_tree(files, fail))
    files.kill()
    seen = run(with_tree(files, _names))
    assert "b" in seen
    run(with_tree(files, lambda tree: _make(tree, *after)))
    files.crash(LOSE_UNSYNCED)
    assert run(with_tree(files, _names)) == sorted([*seen, *(path[1:] for path in after)])
