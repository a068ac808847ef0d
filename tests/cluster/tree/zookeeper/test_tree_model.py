"""The simulated metadata tree beside a real ZooKeeper: the same steps have the same results, errors and events.

A script is drawn from a seed: changes, reads and lists of operations by two sessions, which end and begin again, on a
handful of paths that both watch. It is played on each kind of tree through the same interface. What cannot be equal is
named in one vocabulary first: sessions by which of the two they are, the numbers that nodes were created with by their
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest
from tests.cluster.tree.tree_stories import SimulatedTrees, Trees, ZooKeeperTrees

from penstock.cluster.errors import TreeError
from penstock.cluster.tree.tree import (
    ANY_VERSION,
    NO_OWNER,
    Check,
    Create,
    Delete,
    Event,
    EventKind,
    Node,
    Operation,
    Set,
    Tree,
)
from penstock.runtime.randomness import SeededRandom
from penstock.testing.zookeeper import ZooKeeperServer

_PATHS: Final = ("/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f")
_BARRIER: Final = "/barrier"
_SESSIONS: Final = 2
SEEDS: Final = 6
_STEPS: Final = 80
_PATIENCE_S: Final = 60.0

Step = tuple[str, int, Any]
"""What is done, by which session, with what."""


def script(seed: int) -> list[Step]:
    random = SeededRandom(f"{seed}/script")

    def path() -> str:
        return _PATHS[random.below(len(_PATHS))]

    def version() -> int:
        return ANY_VERSION if random.below(2) else random.below(3)

    def operation() -> Operation:
        kind = random.below(8)
        if kind < 3:
            return Create(path(), b"%d" % random.below(100), ephemeral=not random.below(3))
        if kind < 5:
            return Set(path(), b"%d" % random.below(100), version())
        return Delete(path(), version()) if kind < 7 else Check(path(), version())

    steps: list[Step] = []
    for _ in range(_STEPS):
        session, kind = random.below(_SESSIONS), random.below(20)
        if kind < 9:
            steps.append(("do", session, operation()))
        elif kind < 13:
            steps.append(("multi", session, [operation() for _ in range(1 + random.below(4))]))
        elif kind < 19:
            steps.append((("get", "exists", "children", "get_many")[random.below(4)], session, path()))
        else:
            steps.append(("session", session, None))
    return steps


class Player:
    """Plays a script on one kind of tree and records the result of each step."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        self._sessions: list[Tree] = []
        self._owners: dict[int, str] = {NO_OWNER: ""}
        self._heard: list[list[Event]] = [[] for _ in range(_SESSIONS)]
        self._barriers = 0
        self._passed = [asyncio.Event() for _ in range(_SESSIONS)]
        self.created: dict[tuple[str, int], int] = {}
        """The number of each node that was seen, by its path and the step at which it was made."""
        self._made_at: dict[tuple[str, int], int] = {}
        self.transcript: list[tuple[Step, str, list[dict[str, list[str]]]]] = []

    async def play(self, steps: Sequence[Step]) -> None:
        for number in range(_SESSIONS):
            self._sessions.append(await self._open(number))
        await self._sessions[0].create(_BARRIER)
        await self._settled()
        for heard in self._heard:
            heard.clear()
        for number, step in enumerate(steps):
            result = await self._take(step, number)
            await self._settled()
            self.transcript.append((step, result, [_kinds_by_path(heard, step) for heard in self._heard]))
            for heard in self._heard:
                heard.clear()
        for tree in self._sessions:
            await tree.close()

    async def _open(self, number: int) -> Tree:
        tree = await self._trees.open()
        self._owners[tree.session_id] = f"session {number}"
        for path in _PATHS:
            tree.watch(path, self._heard[number].append)
        tree.watch(_BARRIER, lambda _: self._passed[number].set())
        return tree

    async def _settled(self) -> None:
        """Wait until every session has all events, which arrive in the order of the changes.

        Three times, since a watch that meets a change while it is armed is armed again before it tells.
        """
        async with asyncio.timeout(_PATIENCE_S):
            for _ in range(3):
                for passed in self._passed:
                    passed.clear()
                for tree in self._sessions:
                    await tree.exists("/")  # what was to be watched is
                await self._sessions[0].set(_BARRIER, b"")
                for passed in self._passed:
                    await passed.wait()

    async def _take(self, step: Step, number: int) -> str:
        kind, session, given = step
        tree = self._sessions[session]
        try:
            if kind == "session":
                await tree.close()
                self._sessions[session] = await self._open(session)
                return "another session"
            return repr(await self._ask(tree, kind, given, number))
        except TreeError as error:
            # Of a list, ZooKeeper does not say which version it met: the client looks at what is there afterwards.
            found = "" if kind == "multi" else getattr(error, "found", "")
            return f"{type(error).__name__} {getattr(error, 'path', '')} {found}"

    async def _ask(self, tree: Tree, kind: str, given: Any, number: int) -> Any:
        match kind, given:
            case "do", Create(path, data, ephemeral):
                await tree.create(path, data, ephemeral=ephemeral)
            case "do", Set(path, data, version):
                return await tree.set(path, data, version)
            case "do", Delete(path, version):
                await tree.delete(path, version)
            case "do", Check():
                await tree.multi([given])
            case "multi", _:
                await tree.multi(given)
            case "get", _:
                return self._seen(given, number, await tree.get(given))
            case "exists", _:
                return await tree.exists(given)
            case "children", _:
                return await tree.children(given)
            case _:
                nodes = await tree.get_many(_PATHS)
                return [
                    None if node is None else self._seen(path, number, node)
                    for path, node in zip(_PATHS, nodes, strict=True)
                ]
        return None

    def _seen(self, path: str, number: int, node: Node) -> tuple[bytes, int, str]:
        """Without the number that it was created with, which is kept for `order`."""
        first = self._made_at.setdefault((path, node.created), number)
        self.created[path, first] = node.created
        return node.data, node.version, self._owners[node.owner]


def _kinds_by_path(events: Sequence[Event], step: Step) -> dict[str, list[str]]:
    """By path. Of a list of operations, that something happened to a path: several changes may come as one."""
    kinds: dict[str, list[str]] = {}
    for event in events:
        kinds.setdefault(event.path, []).append(event.kind.value)
    if step[0] in ("multi", "session"):
        return {path: ["something"] for path in sorted(kinds)}
    return dict(sorted(kinds.items()))


def play(trees: Trees, steps: Sequence[Step]) -> Player:
    players: list[Player] = []

    async def story() -> None:
        players.append(Player(trees))
        await players[0].play(steps)

    trees.run(story())
    return players[0]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, SEEDS))])
def test_model_gives_the_same_answers_and_events_as_zookeeper(seed: int, zookeeper: ZooKeeperServer) -> None:
    steps = script(seed)
    model = play(SimulatedTrees(seed), steps)
    real = play(ZooKeeperTrees(zookeeper.connect), steps)
    for number, (expected, found) in enumerate(zip(real.transcript, model.transcript, strict=True)):
        assert found == expected, f"seed {seed}, step {number}: ZooKeeper {expected}, the model {found}"
    assert real.created.keys() == model.created.keys()
    order = sorted(real.created, key=lambda each: (real.created[each], model.created[each]))
    numbers = [model.created[each] for each in order]
    assert numbers == sorted(numbers), "nodes were created in another order"


def test_scripts_cover_the_cases_they_compare() -> None:
    """Changes that are made and rejected, reads that find and miss, sessions that take nodes with them, and events."""
    results: list[str] = []
    kinds: set[str] = set()
    for seed in range(SEEDS):
        for _, result, events in play(SimulatedTrees(seed), script(seed)).transcript:
            results.append(result.split(" ")[0])
            kinds |= {kind for heard in events for all_ in heard.values() for kind in all_}
    expected = {"NodeExists", "NoNode", "BadVersion", "NotEmpty", "EphemeralParent", "None", "True", "False", "another"}
    assert expected <= set(results)
    assert kinds == {"something", *(kind.value for kind in EventKind)}
