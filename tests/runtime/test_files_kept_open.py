"""Files kept open between uses: bounded, the oldest dropped first, and never the one being opened."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.runtime.files import File, OpenFiles, PosixFiles
from penstock.testing.simulated_files import SimulatedFiles


class Owner:
    def __init__(self, files: PosixFiles | SimulatedFiles, path: str) -> None:
        self.files = files
        self.path = path
        self.file: File | None = None
        self.growth = 0
        self.is_unsynced = False

    def open(self, registry: OpenFiles) -> None:
        self.file = registry.open(self, self.files, self.path, create=True)

    def drop_file(self) -> None:
        self.file = None


def owners(folder: Path, count: int, registry: OpenFiles) -> list[Owner]:
    made = [Owner(PosixFiles(), str(folder / str(number))) for number in range(count)]
    for owner in made:
        owner.open(registry)
    return made


def still_open(made: list[Owner]) -> list[int]:
    return [number for number, owner in enumerate(made) if owner.file is not None]


def test_beyond_the_limit_the_oldest_owner_drops_its_file(tmp_path: Path) -> None:
    registry = OpenFiles(3)
    made = owners(tmp_path, 5, registry)
    assert still_open(made) == [2, 3, 4]
    made[0].open(registry)
    assert still_open(made) == [0, 3, 4]
    assert len(registry) == 3


def test_owners_that_grew_or_are_unsynced_are_skipped(tmp_path: Path) -> None:
    registry = OpenFiles(4)
    made = owners(tmp_path, 4, registry)
    made[0].growth = 100
    made[1].is_unsynced = True
    made += owners(tmp_path, 1, registry)
    assert still_open(made) == [0, 1, 3, 4]
    made += owners(tmp_path, 2, registry)
    assert still_open(made) == [1, 4, 5, 6], "owners that grew before and not since had their second chance"


def test_with_all_in_use_the_oldest_drops_its_file_never_the_one_that_opens(tmp_path: Path) -> None:
    registry = OpenFiles(3)
    made = [Owner(PosixFiles(), str(tmp_path / str(number))) for number in range(6)]
    for owner in made:
        owner.is_unsynced = True
        owner.open(registry)
        assert owner.file is not None
        assert len(still_open(made)) == len(registry) <= 3


def test_a_file_held_elsewhere_stays_readable(tmp_path: Path) -> None:
    registry = OpenFiles(1)
    (first,) = owners(tmp_path, 1, registry)
    held = first.file
    assert held is not None
    held.write_at(0, b"bytes")
    Owner(PosixFiles(), str(tmp_path / "other")).open(registry)
    assert first.file is None
    assert held.read_at(0, 5) == b"bytes"


def test_owners_that_dropped_their_file_or_are_gone_no_longer_count(tmp_path: Path) -> None:
    registry = OpenFiles(3)
    made = owners(tmp_path, 3, registry)
    made[0].drop_file()
    registry.forget(made[0])
    assert len(registry) == 2
    del made[1:]
    kept = owners(tmp_path, 3, registry)
    assert still_open(kept) == [0, 1, 2]


def test_simulated_files_have_no_descriptors_and_are_never_dropped() -> None:
    registry, files = OpenFiles(1), SimulatedFiles()
    files.make_folder("/data")
    made = [Owner(files, f"/data/{number}") for number in range(5)]
    for owner in made:
        owner.open(registry)
    assert still_open(made) == [0, 1, 2, 3, 4]


def test_the_bound_is_half_of_what_the_process_may_open() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert OpenFiles().most <= soft // 2


SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tests.runtime.test_files_kept_open import Owner
from penstock.runtime.files import OPEN_FILES
from penstock.runtime.files import PosixFiles
files, folder = PosixFiles(), sys.argv[1]
OPEN_FILES.measure()
kept = [Owner(files, f"{folder}/{number}") for number in range(30)]
for owner in kept:
    owner.open(OPEN_FILES)
others = []
try:
    while True:
        others.append(files.open(f"{folder}/other-{len(others)}", create=True))
except OSError as error:
    print(error.errno, sum(owner.file is not None for owner in kept))
"""


def test_owners_close_files_when_the_process_cannot_open_another(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout.split() == [str(errno.EMFILE), "0"]


@pytest.mark.parametrize("most", [1, 7])
def test_the_bound_holds_whatever_is_opened_again(tmp_path: Path, most: int) -> None:
    registry = OpenFiles(most)
    made = owners(tmp_path, 20, registry)
    for step in range(200):
        owner = made[step * 7 % 20]
        if owner.file is None:
            owner.open(registry)
        owner.growth += step % 3
        assert len(still_open(made)) <= most
