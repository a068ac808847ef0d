"""A Java program of ours that holds a conversation: see java/Lines.java.

The programs in `java/` are compiled against a peer's jars, once for each state of their sources, into the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.peers.conversation import Conversation, ProgramFailed
from tests.peers.installing import CACHE
from tests.peers.provision import Found

SOURCES = Path(__file__).with_name("java")
HEAP = "-Xmx256m"
# Short lives on few cores: what the optimising compiler and parallel collectors cost is never earned back.
FLAGS = (HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_COMPILE_S = 120


def classpath(jars: Found, *before: Path) -> str:
    return os.pathsep.join(map(str, [*before, *sorted(jars.path.glob("*.jar"))]))


def compiled(java: Found, jars: Found, sources: tuple[str, ...]) -> Path:
    """The folder with the classes of the programs, compiled against the jars."""
    state = hashlib.sha256(f"{java.version}|{jars.version}|{sources}".encode())
    for source in sources:
        state.update((SOURCES / source).read_bytes())
    done = CACHE / "classes" / f"{jars.name}-{state.hexdigest()[:16]}"
    if done.exists():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=done.parent))
    try:
        paths = [str(SOURCES / source) for source in sources]
        command = ["-proc:none", "-encoding", "UTF-8", "-d", str(fresh), "-cp", classpath(jars), *paths]
        javac = [str(java.path), HEAP, "--module", "jdk.compiler/com.sun.tools.javac.Main", *command]
        run = subprocess.run(javac, capture_output=True, text=True, timeout=_COMPILE_S)
        if run.returncode != 0:
            raise ProgramFailed(f"{', '.join(sources)} against {jars.name}:\n{run.stderr}")
        try:
            fresh.rename(done)
        except OSError:
            # Another process was faster.
            if not done.exists():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return done


class JavaProcess(Conversation):
    """The program whose main class is named, on the jars of a peer."""

    def __init__(self, java: Found, jars: Found, main: str, sources: tuple[str, ...]) -> None:
        classes = compiled(java, jars, sources)
        super().__init__(f"{main} on {jars.name}", [str(java.path), *FLAGS, "-cp", classpath(jars, classes), main])
