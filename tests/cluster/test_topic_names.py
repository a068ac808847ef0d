from __future__ import annotations

import pytest

from penstock.cluster.topic_names import check_topic_name


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "...", "-", "_", "__consumer_offsets", "x" * 249])
def test_valid_name_is_accepted(name: str) -> None:
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
def test_invalid_name_is_rejected_with_the_reason(name: str, word: str) -> None:
    reason = check_topic_name(name)
    assert reason is not None
    assert word in reason
    assert len(reason) < 1000
    assert reason.isprintable()
