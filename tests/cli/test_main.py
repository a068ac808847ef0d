"""The `penstock` command itself: help at once, errors that say what to do, quiet ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.logs import partition, run
from tests.timeouts import PATIENCE_S

from penstock import __version__
from penstock.cli.main import AREAS, EXIT_PIPE_CLOSED, main

HEAVY = ("asyncio", "pyarrow", "lz4", "zstandard", "cramjam", "kazoo", "msgspec", "rich", "crc32c", "penstock.records")


def penstock(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *args], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def imported_by(*args: str) -> set[str]:
    code = (
        "import sys\nfrom penstock.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["log", "--help"],
        ["log", "verify", "--help"],
        ["server", "start", "--help"],
        *([name, "--help"] for name in AREAS),
        ["topics", "create", "--help"],
        ["groups", "seek", "--help"],
        ["perf", "produce", "--help"],
        ["brokers", "versions", "--help"],
    ],
)
def test_help_does_not_wait_for_what_it_does_not_need(args: list[str]) -> None:
    modules = imported_by(*args)
    assert "click" in modules
    assert [name for name in HEAVY if name in modules] == []


def test_the_help_of_all_areas_imports_none_of_them() -> None:
    assert not {area.module for area in AREAS.values()} & imported_by("--help")


def test_reading_an_index_needs_no_codec(tmp_path: Path) -> None:
    partition(tmp_path / "t-0")
    modules = imported_by("log", "verify", str(tmp_path / "t-0"))
    assert "penstock.records" in modules
    assert not {"asyncio", "lz4", "zstandard", "cramjam", "rich"} & modules


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, area in AREAS.items():
        assert name in result.stdout
        assert area.summary in result.stdout


def test_the_module_is_the_command() -> None:
    done = penstock("--version")
    assert (done.returncode, done.stdout) == (0, f"penstock {__version__}\n")


def test_a_mistyped_command_is_guessed() -> None:
    done = penstock("lgo", "verify")
    assert done.returncode == 2
    assert "Did you mean 'log'?" in done.stderr


def test_an_unknown_command_lists_the_commands() -> None:
    result = run("frobnicate")
    assert result.exit_code == 2
    assert f"Commands: {', '.join(AREAS)}." in result.stderr


def test_an_unknown_option_is_a_usage_error() -> None:
    assert penstock("log", "dump", "--nope", "x").returncode == 2


def test_a_reader_that_leaves_early_ends_it_quietly(tmp_path: Path) -> None:
    partition(tmp_path / "t-0", batches=2000)
    args = [sys.executable, "-m", "penstock", "log", "dump", "--records", str(tmp_path / "t-0")]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        code = process.wait(timeout=PATIENCE_S)
    assert first.startswith(b"Dumping ")
    assert (code, errors) == (EXIT_PIPE_CLOSED, b"")


def test_a_reader_that_never_reads_ends_it_quietly_too(tmp_path: Path) -> None:
    # Little output: the pipe breaks only when the last buffer is flushed.
    partition(tmp_path / "t-0", batches=2)
    args = [sys.executable, "-m", "penstock", "log", "dump", str(tmp_path / "t-0")]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        code = process.wait(timeout=PATIENCE_S)
    assert (code, errors) == (EXIT_PIPE_CLOSED, b"")


def test_an_interrupt_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    partition(tmp_path / "t-0", batches=2)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.log.dump.Dump.run", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["log", "dump", str(tmp_path / "t-0")])
    assert end.value.code == 130


def test_an_error_of_the_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partition(tmp_path / "t-0", batches=2)

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error", "t-0/x.log")

    monkeypatch.setattr("penstock.cli.log.dump.Dump.run", failing)
    with pytest.raises(SystemExit) as end:
        main(["log", "dump", str(tmp_path / "t-0")])
    assert end.value.code == 2
    assert capsys.readouterr().err == "Error: t-0/x.log: Input/output error.\n"


@pytest.mark.parametrize("wanted", [False, True])
def test_an_internal_error_is_one_line_or_a_traceback(
    wanted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    partition(tmp_path / "t-0", batches=2)

    def mistaken(*_: object) -> None:
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr("penstock.cli.log.dump.Dump.run", mistaken)
    if wanted:
        monkeypatch.setenv("PENSTOCK_TRACEBACK", "1")
        with pytest.raises(ZeroDivisionError):
            main(["log", "dump", str(tmp_path / "t-0")])
        return
    with pytest.raises(SystemExit) as end:
        main(["log", "dump", str(tmp_path / "t-0")])
    assert end.value.code == 70
    said = capsys.readouterr().err
    assert "ZeroDivisionError: of nothing (test_main.py:" in said
    assert "Traceback" not in said
