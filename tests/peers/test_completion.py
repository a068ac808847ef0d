"""The completion of our command, by the shells themselves: zsh with its line editor on a terminal, and fish."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli.commands import put_on_path
from tests.peers.provision import Found
from tests.timeouts import PATIENCE_S, until

from penstock.testing.embedded_broker import EmbeddedBroker

_TOPIC = "page-views"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The command on the path, with a broker that has a topic."""
    home = tmp_path_factory.mktemp("home")
    with EmbeddedBroker() as broker:
        broker.create_topic(_TOPIC)
        yield {
            **put_on_path(tmp_path_factory.mktemp("bin")), "PENSTOCK_BOOTSTRAP_SERVER": broker.address,
            "HOME": str(home), "ZDOTDIR": str(home), "XDG_CONFIG_HOME": str(home), "TERM": "dumb",
        }  # fmt: skip


@pytest.mark.peer("fish")
def test_fish_completes_commands_options_and_topics(
    peer: Callable[[str], Found], environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "penstock.fish"
    with script.open("wb") as output:
        subprocess.run(
            ["penstock", "completion", "fish"], env=environment, stdout=output, check=True, timeout=PATIENCE_S
        )

    def offered(line: str) -> dict[str, str]:
        done = subprocess.run(
            [peer("fish").path, "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        words = (each.partition("\t") for each in done.stdout.splitlines())
        return {word: text for word, _, text in words}

    assert offered("penstock to") == {"topics": "Manage topics: create, list, describe, alter, trim, delete."}
    assert list(offered("penstock consume --from-b")) == ["--from-beginning"]
    assert list(offered("penstock topics describe page-")) == [_TOPIC]


class Terminal:
    """An interactive zsh on a terminal of its own, which writes down its line on request."""

    _SHOW = "\x18\x13"

    def __init__(self, fd: int, line: Path) -> None:
        self._fd = fd
        self._line = line

    def completed(self, typed: str) -> str:
        """The line after typing this and pressing Tab."""
        self._line.unlink(missing_ok=True)
        self.type(f"{typed}\t{self._SHOW}")
        until(self._line.exists, f"{typed} was completed", PATIENCE_S)
        return self._line.read_text()

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())


@contextmanager
def zsh_on_a_terminal(program: Path, environment: dict[str, str], folder: Path) -> Iterator[Terminal]:
    line, fresh, ready = folder / "line", folder / "fresh", folder / "ready"
    start = folder / "start.zsh"
    # Renamed when it is complete, so that a reader never sees half of it. The line is emptied for the next word.
    start.write_text(
        "autoload -Uz compinit; compinit -u -D\n"
        'eval "$(penstock completion zsh)"\n'
        f"show() {{ print -rn -- $BUFFER > {fresh}; mv {fresh} {line}; BUFFER= }}\n"
        "zle -N show; bindkey -e; bindkey '^X^S' show; stty -ixon\n"
        f": > {ready}\n"
    )
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(program, [str(program), "-f", "-i"], environment)

    def drain() -> None:
        # Who does not read from a terminal blocks who writes to it.
        with suppress(OSError):
            while os.read(fd, 65_536):
                pass

    draining = threading.Thread(target=drain, daemon=True)
    draining.start()
    try:
        terminal = Terminal(fd, line)
        terminal.type(f"source {start}\n")
        until(ready.exists, "zsh is set up", PATIENCE_S)
        yield terminal
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        draining.join(PATIENCE_S)
        os.close(fd)


@pytest.mark.peer("zsh")
def test_zsh_completes_commands_options_and_topics(
    peer: Callable[[str], Found], environment: dict[str, str], tmp_path: Path
) -> None:
    with zsh_on_a_terminal(peer("zsh").path, environment, tmp_path) as terminal:
        assert terminal.completed("penstock topi") == "penstock topics "
        assert terminal.completed("penstock consume --from-b") == "penstock consume --from-beginning "
        assert terminal.completed("penstock topics describe pag") == f"penstock topics describe {_TOPIC} "
