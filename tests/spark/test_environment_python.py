"""The Python that Spark starts is the program's, unless the user has said something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.timeouts import PATIENCE_S

from penstock.cli.cluster import doctor_checks
from penstock.spark.environment import (
    DRIVER_VARIABLE,
    VARIABLE,
    fix_session_python,
    is_ours,
    set_python_variables,
    started_python,
)

BOTH = {DRIVER_VARIABLE: sys.executable, VARIABLE: sys.executable}


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """A PATH as it is when no environment is activated: its `python3` has no packages at all."""
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" -S "$@"\n')
    other.chmod(0o755)
    own = Path(sys.executable).parent
    return os.pathsep.join([str(tmp_path), *(part for part in os.get_exec_path() if Path(part) != own)])


def chosen(path: str, **given: str) -> dict[str, str]:
    """The variables that are set."""
    environment = {"PATH": path, **given}
    set_python_variables(environment)
    return {name: value for name, value in environment.items() if name not in {"PATH", *given}}


def test_without_an_activated_environment_the_programs_python_is_named(elsewhere: str) -> None:
    assert chosen(elsewhere) == BOTH
    assert started_python({"PATH": elsewhere, **BOTH}) == sys.executable


def test_in_an_activated_environment_nothing_is_set(elsewhere: str, tmp_path: Path) -> None:
    own = Path(sys.executable).parent
    if not (own / "python3").exists():
        pytest.skip(f"{own} has no python3")
    assert chosen(f"{own}{os.pathsep}{elsewhere}") == {}
    # The file behind a virtual environment's python3 is that of the Python it was made from: the folder counts.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "python3").symlink_to(sys.executable)
    assert not is_ours("python3", {"PATH": str(tmp_path / "other")})


@pytest.mark.parametrize("name", [VARIABLE, DRIVER_VARIABLE])
def test_what_the_user_has_set_stays(elsewhere: str, name: str) -> None:
    assert chosen(elsewhere, **{name: "/opt/python"}) == {}


@pytest.mark.parametrize("name", ["PYSPARK_GATEWAY_PORT", "DATABRICKS_RUNTIME_VERSION", "SPARK_REUSE_WORKER"])
def test_where_others_have_started_spark_nothing_is_set(elsewhere: str, name: str) -> None:
    assert chosen(elsewhere, **{name: "1"}) == {}


def test_executors_on_other_machines_keep_their_python(elsewhere: str) -> None:
    driver = {DRIVER_VARIABLE: sys.executable}
    assert chosen(elsewhere, MASTER="yarn") == driver
    assert chosen(elsewhere, PYSPARK_SUBMIT_ARGS="--master spark://host:7077 pyspark-shell") == driver
    assert chosen(elsewhere, MASTER="local[4]") == BOTH


def test_what_the_configuration_of_spark_says_stays(elsewhere: str, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.pyspark.python /opt/python\n")
    assert chosen(elsewhere, SPARK_CONF_DIR=str(tmp_path)) == {DRIVER_VARIABLE: sys.executable}
    (tmp_path / "spark-defaults.conf").write_text("spark.pyspark.driver.python /opt/python\n")
    assert chosen(elsewhere, SPARK_CONF_DIR=str(tmp_path)) == {VARIABLE: sys.executable}


@pytest.mark.parametrize(
    ("master", "before", "after"),
    [
        ("local[2]", "python3", sys.executable), ("local[2]", "/opt/python", "/opt/python"),
        ("spark://host:7077", "python3", "python3"),
    ],
)  # fmt: skip
def test_a_session_that_runs_gets_this_python_if_it_is_local_and_the_user_named_none(
    elsewhere: str, master: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", elsewhere)
    context: Any = SimpleNamespace(master=master, pythonExec=before)
    fix_session_python(context)
    assert context.pythonExec == after


def test_doctor_says_which_python_a_plain_session_starts(
    elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (VARIABLE, DRIVER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", elsewhere)
    found = {finding.check: finding for finding in doctor_checks.examine_machine()}["spark-python"]
    assert found.level == "note"
    assert f"a plain SparkSession starts {tmp_path}/python3, which does not have penstock" in found.text
    assert "Import penstock.spark before the session starts" in found.advice
    monkeypatch.setenv(VARIABLE, sys.executable)
    found = {finding.check: finding for finding in doctor_checks.examine_machine()}["spark-python"]
    assert (found.level, found.text) == ("ok", f'{sys.executable} finds format("penstock")')


PLAIN = """\
import sys
if sys.argv[1] == "before":
    import penstock.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
if sys.argv[1] == "after":
    import penstock.spark
options = {"subscribe": "views", "kafka.bootstrap.servers": "127.0.0.1:1"}
print(spark.read.format("penstock").options(**options).load().columns)
"""


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_importing_the_package_is_enough_for_a_plain_session(elsewhere: str, when: str) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, when], env={**variables, "PATH": elsewhere}, capture_output=True, text=True,
        timeout=PATIENCE_S * 2, check=False,
    )  # fmt: skip
    assert "'key', 'value', 'topic'" in done.stdout, done.stderr[-2000:]
