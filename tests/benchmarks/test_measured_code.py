"""A result is of the code as it is, or says that it is not."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS
from benchmarks.measured_code import MeasuredCode, difference, files_here, files_of_commit, paths_of

from benchmarks import results

NAME = "log_append"
OWN = "benchmarks/log_append.py"
MEASURED = "src/penstock/log/segment.py"
_SHARED = ("benchmarks/results.py", "benchmarks/ratio_chart.py")


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a commit."""
    git(tmp_path, "init", "-q")
    for path in (OWN, MEASURED, "src/penstock/records/_kernel.pyx", "src/penstock/broker/broker.py"):
        write(tmp_path, path, f"# {path}\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "code")
    return tmp_path


def told(root: Path, commit: str, code: MeasuredCode | None, *, is_dirty: bool = False) -> str | None:
    return difference(NAME, commit, is_dirty, code, root)


def test_code_that_is_not_measured_may_change(root: Path) -> None:
    commit, code = git(root, "rev-parse", "HEAD"), MeasuredCode.here(NAME, root)
    write(root, "src/penstock/broker/broker.py", "changed = True\n")
    write(root, "src/penstock/log/_kernel.so", "compiled here")
    assert told(root, commit, code) is None
    assert told(root, commit, None) is None


def test_changed_new_and_removed_files_are_counted(root: Path) -> None:
    commit, code = git(root, "rev-parse", "HEAD"), MeasuredCode.here(NAME, root)
    write(root, MEASURED, "changed = True\n")
    says = "measured on other code than this: files that differ: 1"
    assert told(root, commit, code) == says
    assert told(root, commit, None) == says
    git(root, "commit", "-q", "-a", "-m", "changed")
    assert told(root, commit, code) == says
    write(root, "src/penstock/log/new.py", "")
    (root / "src/penstock/records/_kernel.pyx").unlink()
    assert told(root, commit, code) == "measured on other code than this: files that differ: 3"


def test_a_commit_that_is_gone_matters_only_without_a_digest(root: Path) -> None:
    code, gone = MeasuredCode.here(NAME, root), "a33d4339405a224e149d4d0110f11144d376d6a5"
    assert told(root, gone, code) is None
    assert told(root, gone, None) == "measured on code that is not in this repository"
    assert told(root, "HEAD", None, is_dirty=True) == "measured on code that is not in this repository"
    write(root, MEASURED, "changed = True\n")
    assert told(root, gone, code) == "measured on other code than this"


def test_a_run_with_changes_on_top_of_its_commit_is_compared_by_what_it_ran(root: Path) -> None:
    commit = git(root, "rev-parse", "HEAD")
    write(root, MEASURED, "changed = True\n")
    code = MeasuredCode.here(NAME, root)
    assert told(root, commit, code, is_dirty=True) is None
    git(root, "checkout", "-q", ".")
    assert told(root, commit, code, is_dirty=True) == "measured on other code than this"


def test_without_git_the_digest_is_enough(root: Path) -> None:
    code = MeasuredCode.here(NAME, root)
    git(root, "checkout", "-q", "--orphan", "other")
    (root / ".git").rename(root / "git")
    assert told(root, "unknown", code) is None


def test_files_of_a_commit_and_of_a_folder_have_the_same_names_for_their_contents() -> None:
    if files_of_commit(results.ROOT, "HEAD", ["benchmarks"]) is None:
        pytest.skip("this is not a clone")
    paths = paths_of(NAME, results.ROOT)
    here, then = files_here(results.ROOT, paths), files_of_commit(results.ROOT, "HEAD", paths)
    assert then is not None
    changed = set(git(results.ROOT, "diff", "HEAD", "--name-only").splitlines())
    assert {path: name for path, name in here.items() if path in then and path not in changed} == {
        path: name for path, name in then.items() if path not in changed
    }


@pytest.mark.parametrize("name", BENCHMARKS)
def test_what_a_benchmark_imports_is_measured_code(name: str) -> None:
    paths = paths_of(name, results.ROOT)
    assert all((results.ROOT / path).exists() for path in paths)
    own = next(path for path in paths if Path(path).stem == name and path.startswith("benchmarks/"))
    start = results.ROOT / own
    imported = {
        found for file in ([start] if start.is_file() else start.rglob("*.py")) for found in imported_paths(file)
    }
    covered = {each for each in imported if any(f"{each}/".startswith(f"{path}/") for path in paths)}
    assert imported - covered - {*_SHARED} == set()


def imported_paths(file: Path) -> Iterator[str]:
    """The files of this repository that are imported, except the names at the top of `penstock`, and test helpers."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
            place = module.replace(".", "/")
            if not place.startswith(("penstock/", "benchmarks/")):
                continue
            path = results.ROOT / ("src" if place.startswith("penstock/") else "") / place
            if path.with_suffix(".py").is_file():
                yield path.with_suffix(".py").relative_to(results.ROOT).as_posix()


def test_a_run_keeps_the_digest_of_what_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "KEPT", tmp_path)
    row = results.Row("append", "MB/s", None, {"ours": results.Figure(1.0)}, "ours")
    kept = results.read(results.Recording(NAME, None, "", {}).keep([row]))
    assert kept.code == MeasuredCode.here(NAME, results.ROOT)
