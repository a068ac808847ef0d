"""Randomness that is passed in."""

from __future__ import annotations

import base64
import uuid

import pytest

from penstock.runtime.randomness import Random, SeededRandom, SystemRandom

SOURCES = [SystemRandom(), SeededRandom(7)]


def _draws(source: Random) -> list[object]:
    order = list(range(10))
    source.shuffle(order)
    return [
        source.random_bytes(5),
        source.below(1 << 40),
        source.uniform(1.0, 2.0),
        source.uuid_bytes(),
        order,
    ]


def test_the_same_seed_draws_the_same() -> None:
    assert _draws(SeededRandom(3)) == _draws(SeededRandom(3))
    assert _draws(SeededRandom(3)) != _draws(SeededRandom(4))


def test_a_branch_depends_on_its_name_and_not_on_what_was_drawn_before() -> None:
    source = SeededRandom(3)
    first = _draws(source.branch("disk"))
    _draws(source)
    assert _draws(source.branch("disk")) == first
    assert _draws(source.branch("network")) != first
    assert _draws(source.branch("disk").branch("a")) != first


def test_the_system_does_not_repeat_itself() -> None:
    assert _draws(SystemRandom()) != _draws(SystemRandom())


@pytest.mark.parametrize("source", SOURCES)
def test_draws_keep_their_bounds(source: Random) -> None:
    assert {source.below(3) for _ in range(200)} == {0, 1, 2}
    assert source.below(1) == 0
    assert all(2.0 <= source.uniform(2.0, 3.0) <= 3.0 for _ in range(50))
    assert [len(source.random_bytes(count)) for count in (0, 1, 100)] == [0, 1, 100]
    items = [1, 2, 3, 4]
    source.shuffle(items)
    assert sorted(items) == [1, 2, 3, 4]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("bound", [0, -1])
def test_below_needs_a_positive_bound(source: Random, bound: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        source.below(bound)


@pytest.mark.parametrize("source", SOURCES)
def test_ids_are_random_uuids_that_no_command_line_takes_for_an_option(source: Random) -> None:
    ids = {source.uuid_bytes() for _ in range(500)}
    assert len(ids) == 500
    for raw in ids:
        assert uuid.UUID(bytes=raw).version == 4
        assert not base64.urlsafe_b64encode(raw).startswith(b"-")
