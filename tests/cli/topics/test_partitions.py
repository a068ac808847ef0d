"""Partitions and their offsets, by end and by time."""

from __future__ import annotations

import pytest
from tests.cli.commands import Shell

from penstock.wire.protocol import ApiKey


def test_offsets_of_ends_and_of_a_time(shell: Shell, single: str) -> None:
    lines = "\n".join(f'{{"value": "{n}", "timestamp": {1_700_000_000_000 + n * 1000}}}' for n in range(5))
    shell.done("produce", single, "--format", "json", stdin=lines)
    (row,) = shell.json("offsets", single, "--time", "1700000002500")["partitions"]
    assert row == {
        "topic": single, "partition": 0, "begin": 0, "end": 5, "records": 5, "atOffset": 3, "atTime": 1_700_000_003_000,
    }  # fmt: skip
    text = shell.done("offsets", f"{single}:0", "--time", "1700000002500")
    assert text.splitlines()[1].split() == [single, "0", "0", "5", "5", "3", "2023-11-14T22:13:23.000Z"]
    (late,) = shell.json("offsets", single, "--time", "now")["partitions"]
    assert (late["atOffset"], late["atTime"]) == (None, None)
    assert shell("offsets", f"{single}:3").exit_code == 4
    assert shell("offsets", "no-such").exit_code == 4
    assert single in shell.done("offsets")


def test_lookups_by_time_need_a_recent_broker(
    shell: Shell, single: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.connection import Connection

    supports = Connection.supports

    def older(self: Connection, api_key: int, version: int) -> bool:
        return supports(self, api_key, version) and not (api_key == ApiKey.LIST_OFFSETS and version >= 1)

    monkeypatch.setattr(Connection, "supports", older)
    for args in (
        ("groups", "seek", group, "--topic", single, "--to-time", "1h ago", "--execute"),
        ("groups", "seek", group, "--topic", single, "--by-duration", "1h"),
        ("offsets", single, "--time", "1h ago"),
        ("consume", single, "--from-time", "1h ago", "-e"),
        ("consume", single, "--until-time", "now"),
    ):
        result = shell(*args)
        assert result.exit_code == 4, args
        assert "too old to look up records by time" in result.stderr
    assert shell("groups", "describe", group).exit_code == 4
