"""The harness of the peer tests: what is there is used, what is missing is installed or gets a reason."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.debian import DebianProgram
from tests.peers.golang import GoProgram
from tests.peers.installing import Budget, NotAvailable, run_installer
from tests.peers.maven import Jars
from tests.peers.npm import NpmPackages
from tests.peers.provision import PEERS, Found, Peer, Peers

COORDINATES = ("group:thing:1.0",)


def program(folder: Path, name: str, body: str) -> None:
    """Put a Python program of this name on the path that `folder` is."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys, pathlib, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def jars_in(tmp_path: Path) -> Jars:
    return Jars("thing", "1.0", COORDINATES, cache=tmp_path / "cache")


def provide(peers: Peers) -> tuple[dict[str, str], str]:
    said: list[str] = []
    reasons = peers.provide(said.append)
    return reasons, "".join(said)


COPIES = """
folder = next(a.split("=", 1)[1] for a in sys.argv if a.startswith("-DoutputDirectory="))
pathlib.Path(folder).mkdir(parents=True)
for name in ("a.jar", "b.jar"):
    pathlib.Path(folder, name).write_text(name)
"""


def test_what_is_missing_is_installed_once(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", COPIES)
    peers = Peers([Peer("thing", "", jars_in(tmp_path))], outcome=tmp_path / "outcome.json")
    reasons, said = provide(peers)
    assert reasons == {}
    assert "peers: thing 1.0 jars from Maven ... ok, installed (" in said
    (bin_folder / "mvn").unlink()
    assert "ok, already installed" in provide(peers)[1]
    assert peers.find("thing") == Found("thing", "1.0", tmp_path / "cache" / "thing" / "jars")


def test_other_coordinates_are_installed_again(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", COPIES)
    jars_in(tmp_path).install(Budget(60))
    assert jars_in(tmp_path).find() is not None
    newer = Jars("thing", "1.1", ("group:thing:1.1",), cache=tmp_path / "cache")
    assert newer.find() is None


def test_a_jar_that_was_deleted_is_noticed(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", COPIES)
    jars_in(tmp_path).install(Budget(60))
    (tmp_path / "cache" / "thing" / "jars" / "b.jar").unlink()
    assert jars_in(tmp_path).find() is None


def test_without_a_network_the_reason_is_reported_and_no_address_shown(tmp_path: Path, bin_folder: Path) -> None:
    failure = "[ERROR] Could not transfer a:b:1 from/to central (https://somewhere.example/m2): unknown host"
    program(bin_folder, "mvn", f"print('[INFO] resolving')\nprint({failure!r})\nsys.exit(1)")
    peers = Peers([Peer("thing", "", jars_in(tmp_path))], outcome=tmp_path / "outcome.json")
    reasons, said = provide(peers)
    assert "Could not transfer a:b:1" in reasons["thing"]
    assert "somewhere" not in reasons["thing"]
    assert "NOT AVAILABLE" in said
    with pytest.raises(NotAvailable, match="Could not transfer"):
        peers.find("thing")


def test_an_interrupted_installation_leaves_nothing_that_would_be_used(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", COPIES + "sys.exit(1)")
    with pytest.raises(NotAvailable):
        jars_in(tmp_path).install(Budget(60))
    assert jars_in(tmp_path).find() is None


def test_an_installer_that_hangs_is_given_up_and_the_next_not_tried(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", "time.sleep(60)")
    budget = Budget(1.2)
    with pytest.raises(NotAvailable, match="timed out after"):
        run_installer(["mvn"], tmp_path / "log", budget)
    with pytest.raises(NotAvailable, match="not tried"):
        run_installer(["mvn"], tmp_path / "log", budget)


def test_a_machine_without_maven_or_debian_says_what_to_install(tmp_path: Path, bin_folder: Path) -> None:
    with pytest.raises(NotAvailable, match="install maven yourself"):
        jars_in(tmp_path).install(Budget(60))


def test_a_peer_without_the_peer_that_it_needs_is_not_available(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", "sys.exit(1)")
    table = [Peer("thing", "", jars_in(tmp_path)), Peer("other", "", jars_in(tmp_path), needs=("thing",))]
    peers = Peers(table, outcome=tmp_path / "outcome.json")
    assert provide(peers)[0]["other"] == "needs thing, which is missing"


def test_every_peer_says_what_it_is_for_and_needs_only_peers_before_it() -> None:
    names = list(PEERS.table)
    for at, peer in enumerate(PEERS.table.values()):
        assert peer.purpose
        assert set(peer.needs) <= set(names[:at])


NPM = """
folder = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1], "node_modules")
(folder / "@scope" / "thing").mkdir(parents=True)
"""


def test_npm_packages_are_there_once_installed_and_of_no_use_without_node(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "node", "")
    program(bin_folder, "npm", NPM)
    packages = NpmPackages("thing", "1.0", ("@scope/thing@1.0",), cache=tmp_path)
    assert packages.find() is None
    packages.install(Budget(60))
    assert packages.find() == tmp_path / "thing"
    assert NpmPackages("thing", "1.1", ("@scope/thing@1.1",), cache=tmp_path).find() is None
    (bin_folder / "node").unlink()
    assert packages.find() is None


def test_npm_that_fails_leaves_nothing_that_would_be_used(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "node", "")
    program(bin_folder, "npm", NPM + "sys.exit(1)")
    packages = NpmPackages("thing", "1.0", ("@scope/thing@1.0",), cache=tmp_path)
    with pytest.raises(NotAvailable, match="npm failed"):
        packages.install(Budget(60))
    assert packages.find() is None


def test_a_go_program_is_built_again_when_its_sources_change(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "go", 'pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("built")')
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "main.go").write_text("package main")
    built = GoProgram("thing", "1.0", sources, cache=tmp_path / "cache")
    built.install(Budget(60))
    assert built.find() is not None
    (sources / "main.go").write_text("package main // changed")
    assert built.find() is None


def test_a_machine_without_go_says_so(tmp_path: Path, bin_folder: Path) -> None:
    with pytest.raises(NotAvailable, match="install Go yourself"):
        GoProgram("thing", "1.0", tmp_path, cache=tmp_path / "cache").install(Budget(60))


def test_a_program_of_the_machine_says_its_version(bin_folder: Path) -> None:
    kcat = DebianProgram("kcat", "kcat", "-V")
    assert kcat.find() is None
    program(bin_folder, "kcat", 'print("kcat - a tool\\nVersion 1.7.1 (JSON)")')
    there = DebianProgram("kcat", "kcat", "-V")
    assert (there.find(), there.version) == (bin_folder / "kcat", "1.7.1")


TABLE = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.peers import provision
from tests.peers.installing import NotAvailable

class Program:
    version, source = "1.0", "program"

    def __init__(self, path):
        self.path = path

    def find(self):
        return self.path

    def install(self, budget):
        raise NotAvailable("no network")

provision.PEERS = provision.Peers(
    [provision.Peer("there", "", Program(Path("/"))), provision.Peer("gone", "", Program(None))],
    outcome=Path(__file__).with_name("outcome.json"),
)
"""
RUNNER = "import sys, table; from tools.test_peers import main; sys.exit(main(sys.argv[1:]))"
CONFTEST = "import table\nfrom tests.peers.conftest import pytest_runtest_setup\n"
STORIES = """
import pytest

@pytest.mark.peer("there")
def test_of_the_one() -> None: ...

@pytest.mark.peer("there")
@pytest.mark.peer("gone")
def test_of_both() -> None: ...
"""


@pytest.fixture
def run_peers(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs `tools/test_peers.py` with one peer that is there and one that is not, on a test of one and one of both."""
    root = Path(__file__).parents[2]
    (tmp_path / "table.py").write_text(TABLE.format(root=str(root)))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_stories.py").write_text(STORIES)

    def run(*arguments: str, workers: int = 0) -> tuple[int, str]:
        pytest_s = ("-c", str(root / "pyproject.toml"), "-p", "no:cacheprovider", f"-n{workers}")
        command = [sys.executable, "-c", RUNNER, *arguments, *pytest_s, str(tmp_path / "test_stories.py")]
        paths = os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("workers", [0, 2])
def test_a_demanded_peer_whose_tests_are_skipped_fails_the_run(
    run_peers: Callable[..., tuple[int, str]], workers: int
) -> None:
    code, said = run_peers("--demand", "there,gone", workers=workers)
    assert "1 passed, 1 skipped" in said
    assert "peers that ran: there; not run: gone (no network)" in said
    assert "FAILED, tests of required peers were skipped or did not run: gone (no network)" in said
    assert code == 1


def test_a_missing_peer_that_is_not_demanded_costs_its_tests_only(run_peers: Callable[..., tuple[int, str]]) -> None:
    code, said = run_peers("--demand", "there")
    assert "peers that ran: there; not run: gone (no network)" in said
    assert "FAILED" not in said
    assert code == 0


def test_a_demanded_peer_none_of_whose_tests_was_selected_fails_the_run(
    run_peers: Callable[..., tuple[int, str]],
) -> None:
    code, said = run_peers("--demand", "there", "-k", "of_both")
    assert "skipped or did not run: there (its tests need another peer too)" in said
    assert code == 1
    code, said = run_peers("--demand", "there", "-k", "neither")
    assert "skipped or did not run: there (no test of it was selected)" in said
    assert code != 0


def test_a_demand_for_what_is_not_a_peer_is_reported_before_anything_runs(
    run_peers: Callable[..., tuple[int, str]],
) -> None:
    code, said = run_peers("--demand", "there,Gone")
    assert "unknown peers in --demand: Gone; the peers are there, gone" in said
    assert "passed" not in said
    assert code not in (0, 1)


def test_continuous_integration_demands_every_peer() -> None:
    lines = (Path(__file__).parents[2] / ".ci" / "run").read_text().splitlines()
    assigned = [line.partition("=")[2] for line in lines if line.startswith("peers")]
    assert sorted("".join(assigned).split(",")) == sorted(PEERS.table)


def test_what_continuous_integration_leaves_out_is_there() -> None:
    here = Path(__file__).parent
    words = (
        (here.parents[1] / ".ci" / "run").read_text().replace("\\\n", " ").split("for story in ")[1].partition(";")[0]
    )
    assert words.split()
    for story in words.split():
        file, _, function = story.partition("::")
        assert f"def {function}" in (here / file).read_text()
