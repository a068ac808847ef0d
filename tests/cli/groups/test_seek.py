"""`penstock groups seek`: the plan, and its execution."""

from __future__ import annotations

import pytest
from tests.cli.commands import Shell

from penstock.cli.groups.seek import Target, _wanted
from penstock.client.producer import Producer

START_MS = 1_700_000_000_000


@pytest.fixture
def filled(shell: Shell, topic: str) -> str:
    """Ten records in each of three partitions, a second apart."""
    with Producer[bytes, bytes](shell.address) as producer:
        for number in range(30):
            producer.send(topic, b"v", partition=number % 3, timestamp_ms=START_MS + number // 3 * 1000)
    return topic


def committed(shell: Shell, group: str) -> dict[int, int]:
    (described,) = shell.json("groups", "describe", group)["groups"]
    return {each["partition"]: each["committed"] for each in described["partitions"]}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (["--to-earliest"], {0: 0, 1: 0, 2: 0}),
        (["--to-latest"], {0: 10, 1: 10, 2: 10}),
        (["--to-offset", "4"], {0: 4, 1: 4, 2: 4}),
        (["--to-offset", "400"], {0: 10, 1: 10, 2: 10}),
        (["--to-time", str(START_MS + 7_000)], {0: 7, 1: 7, 2: 7}),
        (["--to-time", "now"], {0: 10, 1: 10, 2: 10}),
        (["--by-duration", "PT1H"], {0: 10, 1: 10, 2: 10}),
        (["--shift-by", "-2"], {0: 3, 1: 3, 2: 3}),
        (["--shift-by", "-20"], {0: 0, 1: 0, 2: 0}),
        (["--to-current"], {0: 5, 1: 5, 2: 5}),
    ],
)
def test_a_group_is_moved(shell: Shell, filled: str, group: str, option: list[str], expected: dict[int, int]) -> None:
    shell.done("groups", "seek", group, "--topic", filled, "--to-offset", 5, "--execute")
    plan = shell.json("groups", "seek", group, "--all-topics", *option)
    assert {move["partition"]: move["offset"] for move in plan["moves"]} == expected
    assert not plan["executed"]
    assert committed(shell, group) == {0: 5, 1: 5, 2: 5}
    assert "Moved" in shell.done("groups", "seek", group, "--all-topics", *option, "--execute")
    assert committed(shell, group) == expected


def test_only_the_partitions_that_are_named_move(shell: Shell, filled: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", f"{filled}:0,2", "--to-offset", 3, "--execute")
    assert committed(shell, group) == {0: 3, 2: 3}


def test_a_dry_run_says_so_and_what_is_out_of_range(shell: Shell, filled: str, group: str) -> None:
    text = shell.done("groups", "seek", group, "--topic", filled, "--to-offset", 99)
    assert "99 is out of range; nearest is 10" in text
    assert "Dry run: nothing was changed. Add --execute to move the group." in text
    assert shell("groups", "describe", group).exit_code == 4


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--to-earliest"], "--all-topics"),
        (["--topic", "x", "--all-topics", "--to-earliest"], "--all-topics"),
        (["--topic", "x"], "--to-earliest, --to-latest"),
        (["--topic", "x", "--to-earliest", "--to-latest"], "Use one of"),
        (["--topic", "x", "--to-time", "long ago"], "1h30m"),
        (["--topic", "x", "--to-time", "someday"], "'1 hour ago'"),
        (["--topic", "x", "--by-duration", "long"], "1h30m"),
    ],
)
def test_an_ambiguous_move_is_rejected(shell: Shell, group: str, options: list[str], advice: str) -> None:
    result = shell("groups", "seek", group, *options)
    assert result.exit_code == 2
    assert advice in result.stderr


def test_a_group_without_commits_has_no_topics_of_its_own(shell: Shell, group: str) -> None:
    result = shell("groups", "seek", group, "--all-topics", "--to-earliest")
    assert result.exit_code == 4
    assert "has no committed offsets" in result.stderr


def test_a_topic_that_does_not_exist_cannot_be_moved_to(shell: Shell, filled: str, group: str) -> None:
    assert shell("groups", "seek", group, "--topic", "no-such", "--to-earliest").exit_code == 4
    assert "partitions 0 to 2" in shell("groups", "seek", group, "--topic", f"{filled}:8", "--to-earliest").stderr


@pytest.mark.parametrize(
    ("target", "committed_offset", "at", "expected"),
    [
        (Target("shift_by", 3), 4, None, 7),
        (Target("shift_by", 3), None, None, 2),
        (Target("to_current"), None, None, 2),
        (Target("to_time"), 4, -1, 9),
        (Target("to_time"), 4, 6, 6),
    ],
)
def test_what_a_target_means(target: Target, committed_offset: int | None, at: int | None, expected: int) -> None:
    assert _wanted(target, committed_offset, begin=2, end=9, at=at)[0] == expected


def test_a_group_that_is_made_by_a_move_is_reported(shell: Shell, single: str, group: str) -> None:
    seek = ("groups", "seek", group, "--topic", single, "--to-earliest")
    assert f"Group '{group}' does not exist; --execute would create it." in shell.done(*seek)
    assert group not in shell.done("groups", "list")
    made = shell(*seek, "--execute")
    assert (made.exit_code, made.stderr) == (0, f"Created group {group}.\n")
    assert shell(*seek, "--execute").stderr == ""


def test_a_typing_mistake_creates_no_group(shell: Shell, single: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", single, "--to-earliest", "--execute")
    words = ("--topic", single, "--to-earliest", "--execute")
    typo = shell.at_terminal("groups", "seek", f"{group}x", *words)
    assert typo.returncode == 4
    assert typo.stderr == f"Error: Group '{group}x' does not exist.\nDid you mean {group}? Use --create to create it.\n"
    assert f"{group}x" not in shell.done("groups", "list")
    meant = shell.at_terminal("groups", "seek", f"{group}x", *words, "--create")
    assert meant.returncode == 0
    assert f"{group}x" in shell.done("groups", "list")


def test_a_move_asks_at_a_terminal(shell: Shell, filled: str, group: str) -> None:
    shell.done("groups", "seek", group, "--topic", filled, "--to-earliest", "--execute")
    seek = ("groups", "seek", group, "--topic", filled, "--to-latest")
    declined = shell.at_terminal(*seek, answer="n\n")
    assert (declined.returncode, set(committed(shell, group).values())) == (1, {0})
    accepted = shell.at_terminal(*seek, answer="y\n")
    assert (accepted.returncode, set(committed(shell, group).values())) == (0, {10})
