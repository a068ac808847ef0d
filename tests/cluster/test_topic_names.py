from __future__ import annotations

import pytest

from penstock.cluster.topic_names import check_topic_name, colliding_topic, has_collision_characters, is_internal


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "...", "-", "_", "__consumer_offsets", "x" * 249])
def test_a_good_name_is_accepted(name: str) -> None:
    assert check_topic_name(name) is None


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "empty"),
        (".", "folder"),
        ("..", "folder"),
        ("x" * 250, "249"),
        ("x" * 1_000_000, "249"),
        ("a b", "' '"),
        ("a/b", "'/'"),
        ("a\n", "\\n"),
        ("caf\u00e9", "\\xe9"),
        ("\u0661", "u0661"),
        ("a\0b", "\\x00"),
        ("\ud800", "ud800"),
    ],
)
def test_a_bad_name_is_refused_with_its_reason(name: str, word: str) -> None:
    reason = check_topic_name(name)
    assert reason is not None
    assert word in reason
    assert len(reason) < 1000
    assert reason.isprintable()


def test_names_that_differ_by_a_dot_for_an_underscore_collide() -> None:
    assert colliding_topic("page.views", ["clicks", "page_views"]) == "page_views"
    assert colliding_topic("a._b", ["a_.b"]) == "a_.b"
    assert colliding_topic("page.views", ["page.views", "page-views", "pageviews"]) is None
    assert has_collision_characters("page.views")
    assert has_collision_characters("page_views")
    assert not has_collision_characters("page-views")


def test_the_brokers_own_topics_are_known() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("consumer_offsets")
