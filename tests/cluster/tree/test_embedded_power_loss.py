"""The power goes at every moment of an embedded tree's life."""

from __future__ import annotations

from tests.cluster.cluster_stories import open_tree, run, with_tree

from penstock.cluster.tree.tree import Create, Delete, Set, Tree
from penstock.runtime.randomness import SeededRandom
from penstock.testing.crash_points import crash_everywhere
from penstock.testing.simulated_files import SimulatedFiles


class _Promises:
    """What was answered, and what was asked last."""

    def __init__(self) -> None:
        self.answered = 0
        self.asked = 0


async def _count_up(tree: Tree, promises: _Promises, end: int) -> None:
    if not await tree.exists("/a"):
        promises.asked = 1
        await tree.multi([Create("/a", b"1"), Create("/b", b"1"), Create("/me", ephemeral=True)])
        promises.answered = 1
    for number in range(promises.answered + 1, end):
        promises.asked = number
        data = str(number).encode()
        renewed = [Delete("/b"), Create("/b", data)] if number % 2 else [Set("/b", data)]
        await tree.multi([Set("/a", data), *renewed, Create(f"/a/{number}", bytes(60))])
        promises.answered = number


async def _found(tree: Tree, promises: _Promises) -> int:
    """The number that both nodes hold, 0 if there are none yet: never one without the other."""
    a, b = await tree.get_many(["/a", "/b"])
    if a is None or b is None:
        assert a is b is None
        return 0
    assert a.data == b.data
    number = int(a.data)
    assert a.version == number - 1
    assert await tree.children("/a") == sorted(str(n) for n in range(2, number + 1))
    assert not await tree.exists("/me")
    return number


def test_answered_changes_survive_a_power_loss_at_any_moment_and_nothing_is_torn() -> None:
    promises = _Promises()

    def scenario(files: SimulatedFiles) -> None:
        promises.answered = promises.asked = 0
        run(with_tree(files, lambda tree: _count_up(tree, promises, 14), rewrite_bytes=600))

    points = 0
    for point in crash_everywhere(scenario):
        number = run(with_tree(point.files, lambda tree: _found(tree, promises)))
        assert promises.answered <= number <= promises.asked, str(point)
        points += 1
    assert points > 200


def test_power_loss_while_a_torn_journal_is_repaired_loses_nothing_more() -> None:
    promises = _Promises()

    def scenario(files: SimulatedFiles) -> None:
        promises.answered = promises.asked = 0
        run(with_tree(files, lambda tree: _count_up(tree, promises, 5)))

    for point in crash_everywhere(scenario, stride=3):
        before = run(with_tree(point.files.fork(SeededRandom(0)), lambda tree: _found(tree, promises)))

        def reopening(files: SimulatedFiles) -> None:
            run(with_tree(files, lambda tree: _found(tree, promises)))

        for second in crash_everywhere(reopening, start=point.files):
            again = run(with_tree(second.files, lambda tree: _found(tree, promises)))
            assert again == before, f"{point}, then {second}"


def test_answered_changes_survive_a_killed_process() -> None:
    files = SimulatedFiles()
    promises = _Promises()

    async def story() -> None:
        await _count_up(open_tree(files), promises, 6)
        files.kill()
        assert await _found(open_tree(files), promises) == 5

    run(story())
