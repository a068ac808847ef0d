"""The Python that Spark starts, for data sources and for workers.

Spark does not ask which Python runs the program: its JVM starts the one that PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON
names, else the first `python3` of PATH. In a virtual environment that is not activated that is another Python, without
this package, and `format("penstock")` is not found. So `import penstock.spark` names the program's own Python before
the JVM starts. What the user has set stays as it is, and nothing is set where Spark was started by someone else
(spark-submit, Databricks) or where `python3` is this environment's already.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.configured import is_local, told_by_environment

if TYPE_CHECKING:
    from pyspark import SparkContext

DRIVER_VARIABLE: Final = "PYSPARK_DRIVER_PYTHON"
VARIABLE: Final = "PYSPARK_PYTHON"
_DEFAULT: Final = "python3"
_DRIVER_SETTING: Final = "spark.pyspark.driver.python"
_SETTING: Final = "spark.pyspark.python"
_READ_BY_SPARK: Final = (DRIVER_VARIABLE, VARIABLE, "PATH")
# Set where the JVM runs before the program, in Spark's own workers, and on hosts that bring a session with them.
_STARTED_BY_OTHERS: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REUSE_WORKER", "DATABRICKS_RUNTIME_VERSION")


def started_python(environment: Mapping[str, str]) -> str:
    """The command that a JVM with this environment starts."""
    return environment.get(DRIVER_VARIABLE) or environment.get(VARIABLE) or _DEFAULT


def is_ours(command: str, environment: Mapping[str, str]) -> bool:
    """Whether a command is the Python of this environment.

    Folders are compared, not the files behind them: `python` of a virtual environment is a link to the Python that it
    was made from, which has other packages.
    """
    found = shutil.which(command, path=environment.get("PATH", os.defpath))
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()


def choose(environment: MutableMapping[str, str]) -> None:
    """Names this Python in the variables that Spark reads, as far as that is safe and needed.

    Executors on other machines may have no such path: for a master that is known to be elsewhere, only the driver's
    variable is set.
    """
    given = (DRIVER_VARIABLE, VARIABLE, *_STARTED_BY_OTHERS)
    if not sys.executable or any(environment.get(name) for name in given) or is_ours(_DEFAULT, environment):
        return
    told = told_by_environment(environment, _spark_home(environment))
    if _DRIVER_SETTING not in told:
        environment[DRIVER_VARIABLE] = sys.executable
    if _SETTING not in told and is_local(told.get("spark.master")):
        environment[VARIABLE] = sys.executable


def cure(context: SparkContext) -> None:
    """Makes a local session that starts the `python3` of PATH start this Python from now on, if that is another one."""
    if is_local(context.master) and context.pythonExec == _DEFAULT and not is_ours(_DEFAULT, os.environ):
        context.pythonExec = sys.executable


def cure_active_session() -> None:
    """Gives the source to a session that was started before this package was imported, and cannot find it.

    A session on other machines keeps the Python that it has; the user is warned.
    """
    # Whoever has not imported pyspark has no session.
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
        f'format("penstock") is not found by this Spark session, which looks for data sources in {started_python(jvm)}'
        f"{reason}. Import penstock.spark before the session starts, set {VARIABLE} to a Python that has penstock, or "
        "call penstock.spark.session.finish(spark)",
        stacklevel=3,
    )


def _spark_home(environment: Mapping[str, str]) -> Path:
    given = environment.get("SPARK_HOME")
    if given:
        return Path(given)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else Path()
