"""`penstock log verify`: what is sound, what is only worth a note, and that nothing is touched."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.logs import (
    FIRST,
    START_MS,
    document,
    fill,
    flip,
    headers,
    one_segment,
    opened,
    partition,
    run,
    segments,
    transactional,
)
from tests.timeouts import PATIENCE_S

from penstock.log.index import OFFSET_ENTRY
from penstock.records import encode_batch
from penstock.runtime.files import PosixFiles
from penstock.runtime.quantities import counted, human_bytes


def test_a_sound_partition(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    result = run("log", "verify", folder)
    assert result.exit_code == 0
    count = len(segments(folder))
    size = sum(path.stat().st_size for path in segments(folder))
    assert result.stdout == (
        f"sound   {folder}\n        {count} segments, 60 batches, 240 records, {human_bytes(size)}, offsets 0 to 239\n"
    )


def test_the_same_as_json(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    size = sum(path.stat().st_size for path in segments(folder))
    assert document(run("log", "verify", folder, "--format", "json")) == {
        "sound": True,
        "bytes": size,
        "soundBytes": size,
        "reports": [
            {
                "path": str(folder),
                "sound": True,
                "segments": len(segments(folder)),
                "batches": 60,
                "records": 240,
                "bytes": size,
                "soundBytes": size,
                "firstOffset": 0,
                "nextOffset": 240,
                "findings": [],
            }
        ],
    }


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_every_codec_and_transactions_are_sound(tmp_path: Path, deep: list[str]) -> None:
    result = run("log", "verify", transactional(tmp_path / "t-0"), *deep)
    assert result.exit_code == 0
    assert "note" not in result.stdout


def test_a_data_folder_is_verified_partition_by_partition(tmp_path: Path) -> None:
    partition(tmp_path / "orders-0")
    transactional(tmp_path / "with-dashes-12")
    (tmp_path / "orders-1").mkdir()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 240\n")
    result = run("log", "verify", tmp_path, "--format", "json")
    assert result.exit_code == 0
    names = [Path(report["path"]).name for report in document(result)["reports"]]
    assert names == ["orders-0", "orders-1", "with-dashes-12"]
    assert "in 3 places, all sound." in run("log", "verify", tmp_path).stdout


def test_folders_that_wait_for_deletion_are_noted(tmp_path: Path) -> None:
    partition(tmp_path / "orders-0")
    shutil.copytree(tmp_path / "orders-0", tmp_path / f"orders-1.{'ab' * 16}-delete")
    report = document(run("log", "verify", tmp_path, "--format", "json"))["reports"][-1]
    assert [(finding["severity"], finding["kind"]) for finding in report["findings"]] == [("note", "leftover")]


def test_nothing_is_touched(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    flip(segments(folder)[0], 200)
    (folder / f"{FIRST}.timeindex").unlink()
    (folder / f"{FIRST}.index").write_bytes(b"\0" * 13)
    before = state(tmp_path)
    for args in (["verify", "--deep"], ["dump", "--records"]):
        assert run("log", *args, folder).exit_code == 1
    for path in folder.iterdir():
        run("log", "verify", path)
        run("log", "dump", path)
    assert state(tmp_path) == before


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def test_a_folder_that_may_only_be_read_is_enough(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert run("log", "verify", "--deep", folder).exit_code == 0
    finally:
        folder.chmod(0o755)


def test_it_works_while_a_broker_has_the_folder_open(tmp_path: Path) -> None:
    lock = PosixFiles().lock(str(tmp_path / ".lock"))
    log = opened(tmp_path / "t-0")
    fill(log, 40)
    try:
        result = run("log", "verify", tmp_path, "--format", "json")
        assert result.exit_code == 0
        (report,) = document(result)["reports"]
        assert (report["batches"], report["findings"]) == (40, [])
        fill(log, 5)
        assert document(run("log", "verify", tmp_path, "--format", "json"))["reports"][0]["batches"] == 45
    finally:
        log.close()
        lock.release()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    (folder / "notes.txt").write_text("mine")
    (folder / "server.log").write_text("not a segment")
    (folder / "partition.metadata").write_text("version: 0\n")
    (folder / "sub-1").mkdir()
    assert document(run("log", "verify", folder, "--format", "json"))["reports"][0]["findings"] == []


def test_leftovers_are_noted(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    (folder / f"{FIRST}.log.cleaned").touch()
    (folder / f"{FIRST}.index.swap").touch()
    (folder / f"{999:020d}.log.deleted").touch()
    (folder / f"{7:020d}.index").touch()
    result = run("log", "verify", folder, "--format", "json")
    assert result.exit_code == 0
    findings = document(result)["reports"][0]["findings"]
    assert {(finding["severity"], finding["kind"]) for finding in findings} == {("note", "leftover")}
    assert len(findings) == 4


def test_a_gap_between_segments_is_noted(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    _, missing, following, *_ = segments(folder)
    for path in folder.glob(f"{missing.stem}.*"):
        path.unlink()
    result = run("log", "verify", folder, "--format", "json")
    assert result.exit_code == 0
    (finding,) = document(result)["reports"][0]["findings"]
    assert (finding["kind"], finding["offset"], finding["resumes"]) == ("gap", int(missing.stem), int(following.stem))


def test_missing_indexes_are_noted(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    path.with_suffix(".index").unlink()
    path.with_suffix(".timeindex").unlink()
    result = run("log", "verify", tmp_path / "t-0", "--format", "json")
    assert result.exit_code == 0
    findings = document(result)["reports"][0]["findings"]
    assert [(finding["severity"], finding["kind"]) for finding in findings] == [
        ("note", "offset-index"),
        ("note", "time-index"),
    ]


def test_an_index_that_lacks_entries_is_sound(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    for suffix, size in ((".index", 8), (".timeindex", 12)):
        index = path.with_suffix(suffix)
        index.write_bytes(index.read_bytes()[size * 2 : size * 4])
    assert document(run("log", "verify", tmp_path / "t-0", "--format", "json"))["reports"][0]["findings"] == []


def test_room_set_aside_in_the_last_index_is_noted(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    with path.with_suffix(".index").open("ab") as index:
        index.write(bytes(800))
    result = run("log", "verify", tmp_path / "t-0", "--format", "json")
    assert result.exit_code == 0
    (finding,) = document(result)["reports"][0]["findings"]
    assert (finding["severity"], finding["kind"], finding["size"]) == ("note", "offset-index", 800)


def test_an_index_entry_for_several_batches_of_one_append_is_sound(tmp_path: Path) -> None:
    # Kafka's followers index the last offset of an append at the position of its first batch.
    path = one_segment(tmp_path / "t-0")
    found = headers(path)
    entries = [(found[5].last_offset, found[3].position), (found[12].last_offset, found[10].position)]
    path.with_suffix(".index").write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries))
    assert run("log", "verify", tmp_path / "t-0").exit_code == 0


def test_an_empty_log_is_sound(tmp_path: Path) -> None:
    opened(tmp_path / "t-0").close()
    result = run("log", "verify", tmp_path / "t-0")
    assert result.exit_code == 0
    assert "1 segment, 0 batches, 0 records, 0 bytes" in result.stdout


def test_a_folder_of_something_else_is_not_a_log(tmp_path: Path) -> None:
    """Like /etc, which has folders whose names end with numbers."""
    (tmp_path / "dbus-1" / "session.d").mkdir(parents=True)
    (tmp_path / "X11-2").mkdir()
    (tmp_path / "X11-2" / "rgb.txt").write_text("255 250 250 snow\n")
    for path in (tmp_path, tmp_path / "dbus-1", tmp_path / "X11-2"):
        result = run("log", "verify", path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is not a data folder or a partition's folder" in result.stderr


def test_a_data_folder_without_partitions_is_sound(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=0\n")
    result = run("log", "verify", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "No partitions to verify.\n")


def test_an_empty_partition_folder_is_sound(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=0\n")
    (tmp_path / "t-0").mkdir()
    assert run("log", "verify", tmp_path / "t-0").exit_code == 0


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex"])
def test_a_single_file_is_verified(tmp_path: Path, suffix: str) -> None:
    result = run("log", "verify", transactional(tmp_path / "t-0") / f"{FIRST}{suffix}")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "sound")


def test_a_single_snapshot_is_verified(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    (snapshot,) = folder.glob("*.snapshot")
    assert run("log", "verify", snapshot).exit_code == 0
    flip(snapshot, 20)
    assert run("log", "verify", snapshot).exit_code == 1


def test_an_index_without_its_log_cannot_be_compared(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    path.unlink()
    result = run("log", "verify", path.with_suffix(".index"))
    assert result.exit_code == 0
    assert "nothing to compare it with" in result.stdout


def test_a_segment_by_another_name_is_verified_from_its_first_offset(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    copy = tmp_path / "copy.log"
    shutil.copy(segments(folder)[2], copy)
    (report,) = document(run("log", "verify", copy, "--format", "json"))["reports"]
    assert (report["sound"], report["firstOffset"]) == (True, int(segments(folder)[2].stem))


def test_gaps_inside_a_segment_are_compactions(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    for base in (0, 10, 500):
        log.append_as_follower(encode_batch([(START_MS, b"k", b"v", ())], base_offset=base), now_ms=START_MS)
    log.close()
    assert document(run("log", "verify", tmp_path / "t-0", "--format", "json"))["reports"][0]["findings"] == []


def test_several_paths_share_one_document(tmp_path: Path) -> None:
    first, second = partition(tmp_path / "a-0"), partition(tmp_path / "b-0", 3)
    reports = document(run("log", "verify", f"{first}/", second, "--format", "json"))["reports"]
    assert [report["path"] for report in reports] == [str(first), str(second)]


def test_a_long_verification_shows_progress_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition(tmp_path / "t-0")
    code = "import penstock.cli.log.verify as v; v.PROGRESS_FROM_BYTES = 1\nfrom penstock.cli.main import main; main()"
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "log", "verify", str(tmp_path / "t-0")],
            stdout=subprocess.PIPE, stderr=theirs, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        seen = os.read(ours, 65536)
    finally:
        os.close(theirs)
        os.close(ours)
    assert done.stdout.startswith(b"sound   ")
    assert b"\x1b" not in done.stdout
    assert b"verifying" in seen


def test_colour_is_for_terminals(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    flip(segments(folder)[0], 100)
    assert "\x1b" not in run("log", "verify", folder).stdout
    assert "\x1b" not in run("log", "dump", folder).stdout


def test_sizes_and_counts_are_readable() -> None:
    assert [human_bytes(size) for size in (0, 1023, 1536, 5 * 1024**3)] == ["0 bytes", "1023 bytes", "1.5 KB", "5.0 GB"]
    assert [counted(1, "batch"), counted(1234, "batch"), counted(2, "segment")] == [
        "1 batch",
        "1,234 batches",
        "2 segments",
    ]
