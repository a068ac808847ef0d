"""What Spark is told by others before we add anything: its file of defaults, its variables, its command line.

Rule: read, never changed; the nearest to the user counts. A session's master, above all, may stand in any of these, and
whether executors are elsewhere is known by it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_SHORT: Final = {"--master": "spark.master", "--archives": "spark.archives", "--remote": "spark.remote"}


def told_by_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Settings among arguments of spark-submit."""
    found: dict[str, str] = {}
    for number, argument in enumerate(arguments):
        pair = ""
        if argument in ("--conf", "-c") and number + 1 < len(arguments):
            pair = arguments[number + 1]
        elif argument.startswith("--conf="):
            pair = argument.removeprefix("--conf=")
        name, sign, value = pair.partition("=")
        if sign:
            found[name.strip()] = value
    # An option of its own, such as --master, counts before the same as --conf.
    options = {name: given for option, name in _SHORT.items() if (given := value_of(arguments, option))}
    return {**found, **options}


def value_of(arguments: Sequence[str], option: str) -> str | None:
    """The value behind an option."""
    for number, argument in enumerate(arguments):
        if argument == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def told_by_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Settings that a session has without a word: PYSPARK_SUBMIT_ARGS, spark-defaults.conf, MASTER, SPARK_REMOTE."""
    try:
        arguments = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        arguments = []  # Spark itself will say what is wrong with it.
    folder = environment.get("SPARK_CONF_DIR") or str(home / "conf")
    file = Path(value_of(arguments, "--properties-file") or Path(folder, "spark-defaults.conf"))
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        text = ""
    variables = {"spark.master": environment.get("MASTER"), "spark.remote": environment.get("SPARK_REMOTE")}
    named = {name: value for name, value in variables.items() if value}
    return {**named, **told_by_file(text), **told_by_arguments(arguments)}


def is_local(master: str | None) -> bool:
    """Whether executors run where the driver does, with its packages."""
    return master is None or (master.startswith("local") and not master.startswith("local-cluster"))


def told_by_file(text: str) -> dict[str, str]:
    """spark-defaults.conf: a name, then spaces, `=` or `:`, then its value, on each line."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        end = next((place for place, letter in enumerate(stripped) if letter in " \t=:"), len(stripped))
        rest = stripped[end:].lstrip()
        found[stripped[:end]] = rest[1:].strip() if rest[:1] in ("=", ":") else rest
    return found
