"""`penstock profile`: clusters by name."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from tests.cli.commands import Shell

from penstock.cli.connection import resolve_cluster
from penstock.cli.output import CommandError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Without a cluster in the environment."""
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVER", raising=False)
    shell = Shell("")
    shell.environment = {}
    return shell


def test_a_profile_says_where_the_cluster_is(bare: Shell, shell: Shell, topic: str) -> None:
    assert bare.done("profile", "create", "here", "-b", shell.address) == "Created profile here, now in use.\n"
    assert topic in bare.lines("topics", "list")
    bare.done("profile", "create", "gone", "-b", "127.0.0.1:1", "--no-use")
    assert topic in bare.lines("topics", "list")
    assert bare("topics", "list", "--profile", "gone").exit_code == 3
    bare.done("profile", "use", "gone")
    assert bare("topics", "list").exit_code == 3
    assert topic in bare.lines("topics", "list", "--profile", "here")
    listed = bare.json("profile", "list")["profiles"]
    assert [(each["name"], each["inUse"]) for each in listed] == [("gone", True), ("here", False)]
    bare.done("profile", "delete", "gone", "here")
    assert bare("profile", "list").stderr.startswith("No profiles.")


def test_only_its_owner_can_read_a_profile(bare: Shell, config_home: Path) -> None:
    secret = ["--set", "ssl.key.password=hush"]
    bare.done("profile", "create", "tls", "-b", "k:9093", "--set", "security.protocol=SSL", *secret)
    folder = config_home / "penstock" / "profiles"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "tls.properties").stat().st_mode) == 0o600
    assert "hush" not in bare.done("profile", "show")
    assert "ssl.key.password = hush" in bare.done("profile", "show", "tls", "--secrets")
    bare.done("profile", "edit", "tls", "--set", "ssl.key.password=a\\b", "--unset", "security.protocol")
    assert stat.S_IMODE((folder / "tls.properties").stat().st_mode) == 0o600
    assert bare.json("profile", "show", "tls", "--secrets")["properties"] == {
        "bootstrap.servers": "k:9093",
        "ssl.key.password": "a\\b",
    }


def test_what_no_client_has_is_not_kept(bare: Shell) -> None:
    for words in (["--set", "linger.msx=5"], ["--set", "security.protocol=MAGIC"], ["--from", "/nowhere"]):
        assert bare("profile", "create", "p", "-b", "k:9092", *words).exit_code == 2
    assert bare("profile", "create", "p").exit_code == 2
    assert bare("profile", "create", "../p", "-b", "k:9092").exit_code == 2
    assert bare.json("profile", "list")["profiles"] == []
    bare.done("profile", "create", "p", "-b", "k:9092")
    assert bare("profile", "create", "p", "-b", "k:9093").exit_code == 2
    assert bare("profile", "edit", "p", "--set", "linger.msx=5").exit_code == 2
    assert "Did you mean p?" in bare("profile", "use", "pp").stderr
    assert bare.json("profile", "show", "p")["properties"] == {"bootstrap.servers": "k:9092"}


def test_a_profile_is_edited_as_a_file(bare: Shell, config_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare.done("profile", "create", "p", "-b", "k:9092")
    path = config_home / "penstock" / "profiles" / "p.properties"

    def editor(new: str) -> str:
        script = config_home / "editor.py"
        script.write_text(f"import sys; open(sys.argv[1], 'w').write({new!r})")
        return f"{sys.executable} {script}"

    monkeypatch.setenv("VISUAL", editor("# ours\nbootstrap.servers = q:9092\n"))
    assert bare.done("profile", "edit") == "Changed profile p.\n"
    assert path.read_text() == "# ours\nbootstrap.servers = q:9092\n"
    monkeypatch.setenv("VISUAL", editor("bootstrap.server = q:9092\n"))
    assert bare("profile", "edit", "p").exit_code == 2
    assert path.read_text() == "# ours\nbootstrap.servers = q:9092\n"


def test_the_profile_in_use_never_reaches_another_cluster(
    bare: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its certificates and passwords are not for an address of another cluster."""
    bare.done("profile", "create", "p", "-b", "k:9092", "--set", "client.id=mine")
    in_use = {"bootstrap.servers": "k:9092", "client.id": "mine"}
    assert resolve_cluster(None, None, None, {}) == ("k:9092", in_use)
    assert resolve_cluster("other:1", None, None, {}) == ("other:1", {})
    assert resolve_cluster("other:1", "p", None, {}) == ("other:1", in_use)
    assert resolve_cluster(None, None, None, {"client.id": "given"}) == ("k:9092", {**in_use, "client.id": "given"})
    config = tmp_path / "c.properties"
    config.write_text("bootstrap.servers=file:1\n")
    assert resolve_cluster(None, None, str(config), {}) == ("file:1", {"bootstrap.servers": "file:1"})
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVER", "variable:1")
    assert resolve_cluster(None, None, None, {}) == ("variable:1", {})
    assert resolve_cluster(None, "p", None, {}) == ("k:9092", in_use)
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVER")
    bare.done("profile", "use", "--none")
    assert resolve_cluster(None, None, None, {}) == ("localhost:9092", {})
    monkeypatch.setenv("PENSTOCK_PROFILE", "p")
    assert resolve_cluster(None, None, None, {}) == ("k:9092", in_use)
    monkeypatch.setenv("PENSTOCK_PROFILE", "q")
    with pytest.raises(CommandError, match="Profile 'q' does not exist"):
        resolve_cluster(None, None, None, {})
