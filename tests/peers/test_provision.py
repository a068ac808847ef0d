"""The harness of the peer tests: what is there is used, what is missing is installed or gets a reason."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from tests.peers.debian import DebianProgram
from tests.peers.golang import GoProgram
from tests.peers.installing import Budget, NotToBeHad, run_installer
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
    assert "ok, there already" in provide(peers)[1]
    assert peers.find("thing") == Found("thing", "1.0", tmp_path / "cache" / "thing" / "jars")


def test_other_coordinates_are_installed_anew(tmp_path: Path, bin_folder: Path) -> None:
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


def test_without_a_network_the_reason_is_told_and_no_address_shown(tmp_path: Path, bin_folder: Path) -> None:
    failure = "[ERROR] Could not transfer a:b:1 from/to central (https://somewhere.example/m2): unknown host"
    program(bin_folder, "mvn", f"print('[INFO] resolving')\nprint({failure!r})\nsys.exit(1)")
    peers = Peers([Peer("thing", "", jars_in(tmp_path))], outcome=tmp_path / "outcome.json")
    reasons, said = provide(peers)
    assert "Could not transfer a:b:1" in reasons["thing"]
    assert "somewhere" not in reasons["thing"]
    assert "NOT TO BE HAD" in said
    with pytest.raises(NotToBeHad, match="Could not transfer"):
        peers.find("thing")


def test_an_interrupted_installation_leaves_nothing_that_would_be_used(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", COPIES + "sys.exit(1)")
    with pytest.raises(NotToBeHad):
        jars_in(tmp_path).install(Budget(60))
    assert jars_in(tmp_path).find() is None


def test_an_installer_that_hangs_is_given_up_and_the_next_not_tried(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", "time.sleep(60)")
    budget = Budget(1.2)
    with pytest.raises(NotToBeHad, match="had not finished"):
        run_installer(["mvn"], tmp_path / "log", budget)
    with pytest.raises(NotToBeHad, match="not tried"):
        run_installer(["mvn"], tmp_path / "log", budget)


def test_a_machine_without_maven_or_debian_says_what_to_install(tmp_path: Path, bin_folder: Path) -> None:
    with pytest.raises(NotToBeHad, match="install maven yourself"):
        jars_in(tmp_path).install(Budget(60))


def test_a_peer_without_the_peer_that_it_needs_is_not_to_be_had(tmp_path: Path, bin_folder: Path) -> None:
    program(bin_folder, "mvn", "sys.exit(1)")
    table = [Peer("thing", "", jars_in(tmp_path)), Peer("other", "", jars_in(tmp_path), needs=("thing",))]
    peers = Peers(table, outcome=tmp_path / "outcome.json")
    assert provide(peers)[0]["other"] == "needs thing, which is not there"


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
    with pytest.raises(NotToBeHad, match="npm failed"):
        packages.install(Budget(60))
    assert packages.find() is None


def test_a_go_program_is_built_anew_when_its_sources_change(tmp_path: Path, bin_folder: Path) -> None:
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
    with pytest.raises(NotToBeHad, match="install Go yourself"):
        GoProgram("thing", "1.0", tmp_path, cache=tmp_path / "cache").install(Budget(60))


def test_a_program_of_the_machine_tells_its_version(bin_folder: Path) -> None:
    kcat = DebianProgram("kcat", "kcat", "-V")
    assert kcat.find() is None
    program(bin_folder, "kcat", 'print("kcat - a tool\\nVersion 1.7.1 (JSON)")')
    there = DebianProgram("kcat", "kcat", "-V")
    assert (there.find(), there.version) == (bin_folder / "kcat", "1.7.1")
