"""The commands that read a warehouse: their end, their login, their bounds, and what they print."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S, until

from penstock.console import warehouse as module
from penstock.console.accounts import Account, ConsoleOptions
from penstock.console.server import ConsoleServer
from penstock.console.warehouse import Warehouse, WarehouseError, WarehouseOptions
from penstock.properties_file import read_properties


def options(folder: Path, program: tuple[str, ...]) -> WarehouseOptions:
    return WarehouseOptions(str(folder), program)


def saying(folder: Path, text: str, code: int = 0) -> Warehouse:
    """A warehouse whose commands print this."""
    file = folder / "printed"
    file.write_text(text)
    return Warehouse(options(folder, ("sh", "-c", f"cat '{file}'; exit {code}")), "127.0.0.1:1", {})


def test_the_command_ends_with_the_console(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = ("sh", "-c", f"echo $$ > {mark}; exec sleep 1000")
    warehouse = Warehouse(options(tmp_path, program), "127.0.0.1:1", {})
    warehouse.look()
    until(lambda: mark.is_file() and mark.read_text().strip().isdigit(), "the command")
    pid = mark.read_text().strip()
    warehouse.close()
    assert subprocess.run(["kill", "-0", pid], capture_output=True, check=False).returncode != 0


def test_a_login_reaches_the_command_in_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    script = (
        'while [ "$1" != --command-config ]; do shift; done; '
        f'stat -c %a "$2" > {copy}.mode; echo "$2" > {copy}.path; cp "$2" {copy}; '
        """echo '{"count": 0, "dead": []}'"""
    )
    login = {"sasl.jaas.config": 'x required password="a=b #!\\\\ \u00e9\U0001f600\n";'}
    warehouse = Warehouse(options(tmp_path, ("sh", "-c", script, "sh")), "127.0.0.1:1", login)
    assert warehouse.letters("views", "") == ([], 0)
    (found,) = read_properties(copy).properties
    assert (found.name, found.value) == ("sasl.jaas.config", login["sasl.jaas.config"])
    assert Path(f"{copy}.mode").read_text().strip() == "600"
    assert not Path(Path(f"{copy}.path").read_text().strip()).exists()


def test_only_so_many_replays_at_once(tmp_path: Path) -> None:
    warehouse = Warehouse(options(tmp_path, ("sh", "-c", "exec sleep 1000")), "127.0.0.1:1", {})
    warehouse.replay("one")
    with pytest.raises(WarehouseError, match="already"):
        warehouse.replay("one")
    warehouse.replay("two")
    with pytest.raises(WarehouseError, match="under way"):
        warehouse.replay("three")
    warehouse.close()
    assert warehouse.replays["one"].done.wait(PATIENCE_S)
    assert warehouse.replays["one"].is_failed


def test_a_replay_outlives_a_logout_but_not_the_console(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    given = options(tmp_path, ("sh", "-c", f"echo $$ > {mark}; exec sleep 1000"))
    server = ConsoleServer(ConsoleOptions("127.0.0.1:1", login=True, warehouse=given))
    accounts = server.console.accounts

    async def run() -> None:
        account = Account(ConsoleOptions("127.0.0.1:1", warehouse=given), "bob", {})
        accounts._by_session["session"] = account
        assert account.warehouse is not None
        busy = [server.is_busy]
        replay = account.warehouse.replay("views")
        until(lambda: mark.is_file() and mark.read_text().strip().isdigit(), "the command")
        await accounts.logout("session")
        assert not replay.done.is_set()
        assert _lives(mark.read_text().strip())
        busy.append(server.is_busy)
        await accounts.close()
        assert replay.done.wait(PATIENCE_S)
        assert not _lives(mark.read_text().strip())
        busy.append(server.is_busy)
        assert busy == [False, True, False]

    asyncio.run(run())


def test_a_replay_that_begins_while_its_visitor_leaves_goes_on(tmp_path: Path) -> None:
    warehouse = saying(tmp_path, '{"tried": 3, "landed": 2}')
    warehouse.close(keep_replays=True)
    replay = warehouse.replay("views")
    assert replay.done.wait(PATIENCE_S)
    assert replay.text == "3 dead letters were tried again, 2 landed."
    with pytest.raises(WarehouseError, match="stopping"):
        warehouse.letters("views", "")


def test_all_visitors_share_so_many_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPLAYS", threading.BoundedSemaphore(1))
    one, other = saying(tmp_path, "{}"), saying(tmp_path, "{}")
    with module._REPLAYS, pytest.raises(WarehouseError, match="Other visitors"):
        one.replay("views")
    assert not one.is_replaying
    for warehouse in (one, other):
        assert warehouse.replay("views").done.wait(PATIENCE_S)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "nonsense", '{"count": "x", "dead": []}', '{"count": 1, "dead": [{}]}', "[" * 99_999],
)  # fmt: skip
def test_what_is_not_an_answer_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(WarehouseError, match="ended with code 3"):
        saying(tmp_path, text, 3).letters("views", "")


def test_an_answer_counts_whatever_the_exit_code_is(tmp_path: Path) -> None:
    assert saying(tmp_path, '{"count": 7, "dead": [], "more": 1}', 1).letters("views", "") == ([], 7)


def test_more_than_a_page_can_show_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 5)
    with pytest.raises(WarehouseError, match="more than this page can show"):
        saying(tmp_path, '{"count": 7, "dead": []}').letters("views", "")


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEAD_S", 0.2)
    mark = tmp_path / "mark"
    slow = Warehouse(options(tmp_path, ("sh", "-c", f"echo $$ > {mark}; exec sleep 1000")), "127.0.0.1:1", {})
    with pytest.raises(WarehouseError, match="took longer"):
        slow.letters("views", "")
    assert not mark.exists() or not _lives(mark.read_text().strip())


def _lives(pid: str) -> bool:
    return subprocess.run(["kill", "-0", pid], capture_output=True, check=False).returncode == 0


def test_nobody_reads_it_while_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "_SHARE", 0)
    counts = tmp_path / "counts"
    script = f"""echo one >> {counts}; echo '{{"time": 1, "tables": []}}'"""
    idle = Warehouse(options(tmp_path, ("sh", "-c", script)), "127.0.0.1:1", {})
    assert not counts.exists()
    idle.look()
    until(lambda: counts.exists() and len(counts.read_text().splitlines()) > 2, "readings")
    monkeypatch.setattr(module, "_WANTED_S", -1.0)
    until(lambda: idle.is_resting, "a rest")
    before = counts.read_text()
    assert idle.view.is_known
    monkeypatch.setattr(module, "_WANTED_S", 60.0)
    idle.look()
    until(lambda: counts.read_text() != before, "another reading")
    idle.close()


def test_a_visit_just_before_a_rest_is_not_forgotten(tmp_path: Path) -> None:
    warehouse = saying(tmp_path, '{"time": 1, "tables": []}')

    class Wake(threading.Event):
        """A visit comes right before the first look at whether there was one."""

        def clear(self) -> None:
            if not warehouse.view.is_known:
                warehouse._wanted_at = time.monotonic()
                self.set()
            super().clear()

    warehouse._wake, warehouse._wanted_at = Wake(), float("-inf")
    thread = threading.Thread(target=warehouse._run, daemon=True)
    thread.start()
    assert warehouse._ready.wait(PATIENCE_S)
    warehouse.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_what_a_command_reports_otherwise_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = "yes early | head -c 70000 >&2; echo 'Traceback: the last words' >&2; exit 3"
    broken = Warehouse(options(tmp_path, ("sh", "-c", script)), "127.0.0.1:1", {})
    with pytest.raises(WarehouseError, match="ended with code 3"):
        broken.letters("views", "")
    (line,) = [each.getMessage() for each in caplog.records]
    assert "code=3" in line
    assert "the last words" in line
    assert len(line) < 3_000


def test_a_reason_that_cannot_be_an_argument_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="cannot be started"):
        saying(tmp_path, "{}").letters("views", "\0")


def test_tables_that_cannot_be_read_any_more_stay_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "_SHARE", 0)
    warehouse = saying(tmp_path, '{"time": 1, "tables": [{"name": "views", "rows": 3}]}')
    warehouse.look()
    until(lambda: "views" in warehouse.view.tables, "a reading")
    (tmp_path / "printed").write_text("damaged")
    until(lambda: bool(warehouse.view.errors), "the error")
    assert warehouse.view.tables["views"].rows == 3
    warehouse.close()
    warehouse.close()


def test_only_so_many_read_dead_letters_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0.01)
    monkeypatch.setattr(module, "_LETTERS", threading.BoundedSemaphore(1))
    warehouse = saying(tmp_path, '{"count": 0, "dead": []}')
    with module._LETTERS, pytest.raises(WarehouseError, match="Too many visitors"):
        warehouse.letters("views", "")
    for _ in range(2):
        assert warehouse.letters("views", "") == ([], 0)


def test_one_login_at_a_time_reads_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READINGS", threading.BoundedSemaphore(1))
    warehouse = saying(tmp_path, '{"time": 1, "tables": []}')
    with module._READINGS:
        warehouse.look()
        assert not warehouse._ready.wait(0.3)
    assert warehouse._ready.wait(PATIENCE_S)
    warehouse.close()
