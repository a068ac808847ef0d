"""What this machine has installed: the compiled kernel, Java, Spark.

Rule: nothing here keeps a broker or a client from working, so nothing here is a problem; it is what Spark's pipelines,
or speed, would need.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Final

from penstock.cli.doctor_findings import NOTE, OK, Finding

# Spark 4 runs on Java 17 and later.
_JAVA_NEEDED: Final = 17
_OPEN_FILES: Final = 1024
_JAVA_TIMEOUT_S: Final = 20
_PYTHON_TIMEOUT_S: Final = 20


def examine_machine() -> list[Finding]:
    return [_kernel(), _java(), *_spark(), *_limits()]


def _kernel() -> Finding:
    from penstock.records import kernel

    if kernel.KERNEL == "compiled":
        return Finding(OK, "kernel", "this machine", "the compiled kernel for records is used")
    return Finding(
        NOTE, "kernel", "this machine", "records are encoded and decoded in plain Python, which is slow",
        "Install a C compiler, or `pip install ziglang`, and install Penstock again.",
    )  # fmt: skip


def java_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.9"`, 8 of `java version "1.8.0"`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin") if home else None) or shutil.which("java")
    advice = f"Only Spark and ZooKeeper need it. Install a JDK {_JAVA_NEEDED} or later, and set JAVA_HOME to it."
    if path is None:
        return Finding(NOTE, "java", "Java", "not installed", advice)
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(NOTE, "java", "Java", f"{path} does not run: {error}", advice)
    version = java_version(done.stderr + done.stdout)
    if version is None:
        return Finding(NOTE, "java", "Java", f"{path} does not say which version it is", advice)
    if version < _JAVA_NEEDED:
        return Finding(NOTE, "java", "Java", f"{path} is version {version}, which is too old for Spark 4", advice)
    return Finding(OK, "java", "Java", f"version {version}, {path}")


def _spark() -> list[Finding]:
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return [
            Finding(
                NOTE, "spark", "Spark", "PySpark is not installed",
                "Only the pipelines need it: pip install 'penstock[spark]'",
            )
        ]  # fmt: skip
    return [Finding(OK, "spark", "Spark", f"PySpark {version}"), _spark_python(dict(os.environ))]


def _spark_python(environment: dict[str, str]) -> Finding:
    """Whether a plain SparkSession finds the data source: Spark looks for it in the Python that it starts.

    The environment is as it was before anything of penstock.spark was imported, which changes it.
    """
    from penstock.spark.interpreter import is_ours, started_python

    command = started_python(environment)
    found = shutil.which(command, path=environment.get("PATH"))
    subject = "Python of Spark"
    if found is not None and (is_ours(command, environment) or _has_source(found, environment)):
        return Finding(OK, "spark-python", subject, f'{found} finds format("penstock")')
    text = "which does not have penstock" if found is not None else "which is not there"
    return Finding(
        NOTE, "spark-python", subject,
        f'a plain SparkSession starts {found or command}, {text}: format("penstock") is not found',
        "Import penstock.spark before the session starts, activate this environment, or set PYSPARK_PYTHON to "
        f"{sys.executable}.",
    )  # fmt: skip


def _has_source(python: str, environment: dict[str, str]) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyspark_penstock') is None)"
    try:
        done = subprocess.run(
            [python, "-c", look], env=environment, capture_output=True, timeout=_PYTHON_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _limits() -> list[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > _OPEN_FILES * 4:
        return []
    return [
        Finding(
            NOTE, "open-files", "this machine", f"a process may have {hard} files open at most",
            "A broker needs two or three for each partition: raise the limit (LimitNOFILE, ulimit -Hn).",
        )
    ]  # fmt: skip
