"""What Spark takes from its environment: existing settings, and the Python it starts.

Settings come from spark-defaults.conf, PYSPARK_SUBMIT_ARGS, MASTER, SPARK_REMOTE and the command line. They are read
and never changed; the source closest to the user wins.

Spark's JVM starts the Python named by PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON, else the first `python3` of PATH. In a
virtual environment that is not activated that Python lacks this package, and `format("penstock")` is not found. So
`import penstock.spark` sets the variables before the JVM starts, unless the user has set them, Spark was started by
someone else (spark-submit, Databricks), or `python3` already belongs to this environment.

Only the standard library is imported here: `import penstock.spark` and Spark's worker daemon load this module.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkContext


DRIVER_VARIABLE: Final = "PYSPARK_DRIVER_PYTHON"
VARIABLE: Final = "PYSPARK_PYTHON"
_DEFAULT: Final = "python3"
_DRIVER_SETTING: Final = "spark.pyspark.driver.python"
_SETTING: Final = "spark.pyspark.python"
_READ_BY_SPARK: Final = (DRIVER_VARIABLE, VARIABLE, "PATH")
# Set if the JVM starts the program, in Spark's workers, and on hosts that provide a session.
_STARTED_BY_OTHERS: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REUSE_WORKER", "DATABRICKS_RUNTIME_VERSION")
_SHORT: Final = {"--master": "spark.master", "--archives": "spark.archives", "--remote": "spark.remote"}

# ---------------------------------------------------------------------------------------------- settings


def settings_from_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Settings that a session gets from its environment, spark-defaults.conf included."""
    try:
        arguments = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        arguments = []  # Spark reports the error itself.
    folder = environment.get("SPARK_CONF_DIR") or str(home / "conf")
    file = Path(value_of(arguments, "--properties-file") or Path(folder, "spark-defaults.conf"))
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        text = ""
    variables = {"spark.master": environment.get("MASTER"), "spark.remote": environment.get("SPARK_REMOTE")}
    named = {name: value for name, value in variables.items() if value}
    return {**named, **settings_from_file(text), **settings_from_arguments(arguments)}


def settings_from_arguments(arguments: Sequence[str]) -> dict[str, str]:
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
    # An option such as --master takes precedence over the same setting by --conf.
    options = {name: given for option, name in _SHORT.items() if (given := value_of(arguments, option))}
    return {**found, **options}


def value_of(arguments: Sequence[str], option: str) -> str | None:
    """The value of an option: `--option VALUE` or `--option=VALUE`."""
    for number, argument in enumerate(arguments):
        if argument == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def settings_from_file(text: str) -> dict[str, str]:
    """Parses spark-defaults.conf: on each line a name, then spaces, `=` or `:`, then the value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        end = next((place for place, letter in enumerate(stripped) if letter in " \t=:"), len(stripped))
        rest = stripped[end:].lstrip()
        found[stripped[:end]] = rest[1:].strip() if rest[:1] in ("=", ":") else rest
    return found


def is_local(master: str | None) -> bool:
    """Whether executors run on the driver's machine, with its packages."""
    return master is None or (master.startswith("local") and not master.startswith("local-cluster"))


def runs_own_workers(master: str | None, environment: Mapping[str, str]) -> bool:
    """Whether a session's Python workers run on this machine, with this Python and the installed pyspark.

    Then they can be forks of one process (see `fork_server`). False if the user has chosen otherwise.
    """
    if any(environment.get(name) not in (None, "", sys.executable) for name in (DRIVER_VARIABLE, VARIABLE)):
        return False
    if environment.get("SPARK_HOME") or sys.platform != "linux":
        return False
    existing = settings_from_environment(environment, find_spark_home(environment))
    if not existing.keys().isdisjoint((_DRIVER_SETTING, _SETTING)) or (master is None and "spark.remote" in existing):
        return False
    return is_local(master or existing.get("spark.master"))


def find_spark_home(environment: Mapping[str, str]) -> Path:
    """The folder of Spark's programs: SPARK_HOME, or that of pyspark."""
    given = environment.get("SPARK_HOME")
    if given:
        return Path(given)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else Path()


# ----------------------------------------------------------------------------------------- the Python that Spark starts


def set_python_variables(environment: MutableMapping[str, str]) -> None:
    """Sets the variables that name the Python for Spark, where that is safe and needed.

    Executors on other machines may not have this path: for a remote master only the driver's variable is set.
    """
    given = (DRIVER_VARIABLE, VARIABLE, *_STARTED_BY_OTHERS)
    if not sys.executable or any(environment.get(name) for name in given) or is_ours(_DEFAULT, environment):
        return
    existing = settings_from_environment(environment, find_spark_home(environment))
    if _DRIVER_SETTING not in existing:
        environment[DRIVER_VARIABLE] = sys.executable
    if _SETTING not in existing and is_local(existing.get("spark.master")):
        environment[VARIABLE] = sys.executable


def fix_session_python(context: SparkContext) -> None:
    """Makes a local session use this Python instead of the `python3` of PATH, if they differ."""
    if is_local(context.master) and context.pythonExec == _DEFAULT and not is_ours(_DEFAULT, os.environ):
        context.pythonExec = sys.executable


def fix_active_session() -> None:
    """Registers the data source in a session that was started before this import and cannot find it.

    A session on other machines keeps its Python, and the user is warned.
    """
    # Without pyspark imported there is no session.
    module = sys.modules.get("pyspark.core.context")
    context: Any = None if module is None else module.SparkContext._active_spark_context
    if context is None or any(os.environ.get(name) for name in _STARTED_BY_OTHERS):
        return
    reason = ""
    jvm = {name: value for name in _READ_BY_SPARK if (value := context._jvm.java.lang.System.getenv(name)) is not None}
    if is_ours(started_python(jvm), jvm):
        return
    if is_local(context.master):
        try:
            from pyspark.sql import SparkSession

            from penstock.spark.session import finish

            finish(SparkSession.builder.getOrCreate(), visible_lag=False)
        except Exception as error:  # noqa: BLE001 - an import does not fail for a session that may never read a topic
            reason = f" ({error})"
        else:
            return
    warnings.warn(
        f'this Spark session cannot find format("penstock"): it searches {started_python(jvm)}'
        f"{reason}. Import penstock.spark before the session starts, set {VARIABLE} to a Python that has penstock, or "
        "call penstock.spark.session.finish(spark)",
        stacklevel=3,
    )


def started_python(environment: Mapping[str, str]) -> str:
    """The Python command that a JVM with this environment starts."""
    return environment.get(DRIVER_VARIABLE) or environment.get(VARIABLE) or _DEFAULT


def is_ours(command: str, environment: Mapping[str, str]) -> bool:
    """Whether a command is the Python of this environment.

    Folders are compared, not link targets: `python` of a virtual environment links to the Python it was created from,
    which has other packages.
    """
    found = shutil.which(command, path=environment.get("PATH", os.defpath))
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()
