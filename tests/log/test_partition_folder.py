from __future__ import annotations

import pytest
from tests.log.log_stories import (
    FOLDER,
    TINY,
    base_offsets,
    batch_of,
    content_of,
    contents,
    overwrite,
    path_of,
    put,
    reopen,
    stopped,
)

from penstock.log.partition_folder import (
    CLEANED,
    DELETED,
    SPARE,
    SWAP,
    begin_swap,
    complete_swap,
    recover_folder,
    segment_files,
)
from penstock.log.segment import Segment
from penstock.records import scan
from penstock.testing.crash_points import crash_everywhere
from penstock.testing.simulated_files import SimulatedFiles


def write_cleaned(files: SimulatedFiles, base_offset: int, *kept: int) -> None:
    """A compacted segment in which only these batches (two records each) are left."""
    cleaned = Segment.create(files, FOLDER, base_offset, 100, suffix=CLEANED)
    for number in kept:
        batch = batch_of(number, base_offset=number * 2, leader_epoch=0)
        cleaned.append(batch, scan(batch).headers)
    cleaned.seal()
    for suffix in (".log", ".index", ".timeindex"):
        files.open(path_of(base_offset, suffix) + CLEANED).sync()
    cleaned.release()


def keys(files: SimulatedFiles) -> list[bytes | None]:
    return [batch.keys[0] for batch in contents(reopen(files, clean=False, recovery_point=14).log)]


def test_segment_files_ignores_other_names() -> None:
    names = [f"{7:020d}.log", f"{7:020d}.index", f"{9:020d}.txnindex", f"{9:020d}.log.deleted", "7.log", "x", ""]
    assert segment_files([*names, f"{3:020d}.log\n", f"{3:020d}.log.swap", f"{3:021d}.log"]) == {
        7: {".log", ".index"},
        9: {".txnindex"},
    }


@pytest.mark.parametrize("ending", [CLEANED, DELETED, SPARE])
def test_leftovers_are_removed(ending: str) -> None:
    files = stopped()
    before = set(files.list_folder(FOLDER))
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        overwrite(files, path_of(4, suffix) + ending, b"left over")
    recover_folder(files, FOLDER)
    assert set(files.list_folder(FOLDER)) == before
    assert base_offsets(reopen(files, clean=False).log) == [0, 2, 4, 6, 8, 10, 12]


def test_a_folder_without_leftovers_is_not_written_to() -> None:
    files = stopped()
    before = files.operations.count
    recover_folder(files, FOLDER)
    assert files.operations.count == before


def test_files_of_others_are_not_swept_up() -> None:
    files = stopped()
    foreign = ["notes.deleted", "7.log.deleted", f"{7:020d}.txt.deleted", f"{7:020d}.log.deleted.keep"]
    for name in foreign:
        overwrite(files, f"{FOLDER}/{name}", b"")
    recover_folder(files, FOLDER)
    assert set(foreign) <= set(files.list_folder(FOLDER))


def test_a_finished_compaction_replaces_what_it_was_made_from() -> None:
    files = stopped()
    write_cleaned(files, 0, 1, 3)
    begin_swap(files, FOLDER, 0)
    assert files.exists(path_of(0) + SWAP)
    complete_swap(files, FOLDER, 0, [4])
    assert not any(name.endswith(SWAP) for name in files.list_folder(FOLDER))
    assert not files.exists(path_of(4))
    assert keys(files) == [b"001-0", b"003-0", b"004-0", b"005-0", b"006-0"]


def test_an_unfinished_compaction_is_forgotten() -> None:
    files = stopped()
    write_cleaned(files, 0, 1, 3)
    assert keys(files)[0] == b"000-0"
    assert not files.exists(path_of(0) + CLEANED)


def test_a_compacted_segment_needs_no_index_of_aborts() -> None:
    files = stopped()
    overwrite(files, path_of(0, ".txnindex"), bytes(34))
    write_cleaned(files, 0, 0, 1)
    begin_swap(files, FOLDER, 0)
    recover_folder(files, FOLDER)
    assert not files.exists(path_of(0, ".txnindex"))


def test_the_index_of_the_segment_before_compaction_is_not_used_for_the_new_one() -> None:
    files = stopped()
    write_cleaned(files, 0, 1)
    stem = path_of(0, "")
    files.rename(f"{stem}.log{CLEANED}", f"{stem}.log{SWAP}")
    old = content_of(files, path_of(0, ".index"))
    recover_folder(files, FOLDER)
    assert not files.exists(path_of(0, ".index"))
    assert old
    assert keys(files)[0] == b"001-0"


def test_a_compaction_counts_wholly_or_not_at_all_wherever_the_power_goes() -> None:
    start = stopped()
    for path in ("/", "/data", FOLDER):
        start.sync_folder(path)
    for name in start.list_folder(FOLDER):
        start.open(f"{FOLDER}/{name}").sync()

    def scenario(files: SimulatedFiles) -> None:
        write_cleaned(files, 0, 1, 3)
        begin_swap(files, FOLDER, 0)
        complete_swap(files, FOLDER, 0, [4])

    before = [b"%03d-0" % number for number in range(7)]
    after = [b"001-0", *before[3:]]
    seen = set()
    for point in crash_everywhere(scenario, start=start):
        found = keys(point.files)
        assert found in (before, after), str(point)
        seen.add(len(found))
        assert not [name for name in point.files.list_folder(FOLDER) if name.endswith((CLEANED, SWAP))]
    assert seen == {7, 5}


def test_a_log_accepts_appends_after_its_swap_was_completed() -> None:
    files = stopped()
    write_cleaned(files, 4, 2)
    begin_swap(files, FOLDER, 4)
    log = reopen(files, TINY, clean=True).log
    put(log, 7)
    assert base_offsets(log) == [0, 2, 4, 8, 10, 12, 14]
    log.close()
    assert reopen(files, TINY, clean=True).log.log_end_offset == 16
