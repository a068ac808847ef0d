"""Sessions with everything set, and this package for executors that do not have it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.spark.sink_stories import values

from penstock.client.errors import MissingDependency
from penstock.records import kernel
from penstock.spark.environment import is_local
from penstock.spark.session import (
    ARCHIVE_FOLDER,
    arguments,
    delivery_settings,
    make_archive,
    prepare,
    session,
    settings,
    spark_home,
    submit_variable,
)
from penstock.testing import Broker

PATIENCE_S = 240


def test_what_is_given_counts_before_what_is_added() -> None:
    name = "spark.python.unix.domain.socket.enabled"
    added = settings({}, master="local[2]")
    assert added[name] == "true"
    assert settings({name: "false", "a": "b"}, master="local[2]") == {**added, name: "false", "a": "b"}


def test_the_python_of_the_user_stays() -> None:
    environment = {"PYSPARK_PYTHON": "mine", "PATH": os.environ["PATH"], "HOME": "/nowhere"}
    prepare(environment)
    assert (environment["PYSPARK_PYTHON"], environment["PYSPARK_DRIVER_PYTHON"]) == ("mine", sys.executable)


def test_settings_become_arguments_that_survive_a_shell() -> None:
    assert arguments({"a": "b c"}) == ["--conf", "a=b c"]
    assert submit_variable({"a": "b c"}, {}) == "--conf 'a=b c' pyspark-shell"
    assert (
        submit_variable({"a": "b"}, {"PYSPARK_SUBMIT_ARGS": "--x y pyspark-shell"}) == "--conf a=b --x y pyspark-shell"
    )


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r'Spark needs pyspark.*pip install "penstock\[spark\]"'):
        session()


@pytest.mark.parametrize(
    ("master", "local"),
    [(None, True), ("local", True), ("local[*]", True), ("local-cluster[1,1,512]", False), ("spark://h:7077", False)],
)
def test_executors_elsewhere_are_known_by_the_master(master: str | None, local: bool) -> None:
    assert is_local(master) is local


def test_what_is_delivered_is_added_to_what_is_there(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    given = {"spark.archives": "x.zip#x", "spark.executorEnv.PYTHONPATH": "mine"}
    assert delivery_settings(archive, given) == {
        "spark.archives": f"x.zip#x,{archive}#{ARCHIVE_FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"{ARCHIVE_FOLDER}:mine",
    }  # fmt: skip


@pytest.mark.long
def test_two_who_make_the_same_archive_at_the_same_time_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open, others = tarfile.open, list[Path]()

    def while_another_makes_it(*given: Any, **named: Any) -> Any:
        opened = really_open(*given, **named)
        monkeypatch.setattr(tarfile, "open", really_open)
        others.append(make_archive(tmp_path))
        return opened

    monkeypatch.setattr(tarfile, "open", while_another_makes_it)
    archive = make_archive(tmp_path)
    assert others == [archive]
    assert list(tmp_path.iterdir()) == [archive]
    with really_open(archive) as opened:
        assert "penstock/__init__.py" in opened.getnames()


def test_the_archive_holds_only_what_a_task_imports(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    assert make_archive(tmp_path) == archive
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there"
    assert {"penstock", "pyspark_penstock", "msgspec", "cramjam"} <= {path.name for path in there.iterdir()}
    assert not list(there.rglob("__pycache__"))
    assert bool(list((there / "penstock" / "records").glob("_kernel*.so"))) is (kernel.KERNEL == "compiled")
    assert not list(there.rglob("*.pyx"))
    # By itself it can all be imported, the compiled kernel among it.
    packages = Path(pytest.__file__).parents[1]
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for name in ("pyarrow", "numpy", "numpy.libs"):
        if (packages / name).exists():
            (borrowed / name).symlink_to(packages / name)
    code = "import penstock.client.producer, penstock.records.kernel as k, penstock as p; print(k.KERNEL, p.__file__)"
    said = subprocess.run(
        [os.path.realpath(sys.executable), "-S", "-c", code],
        env={"PYTHONPATH": f"{there}:{borrowed}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.stdout.split() == [kernel.KERNEL, str(there / "penstock" / "__init__.py")], said.stderr


BARE = """\
#!/bin/sh
# In an executor's folder a Python that has what the cluster has, and nothing of ours.
case "$PWD" in
  {work}/*) PYTHONPATH="$PYTHONPATH:{packages}" exec {base} -S "$@" ;;
esac
exec {ours} "$@"
"""
OURS = ("penstock", "__editable__", "msgspec", "crc32c", "lz4", "cramjam", "zstandard", "kazoo")


@pytest.mark.long
def test_executors_without_the_package_get_it_delivered_for_batch_and_stream(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if not entry.name.startswith(OURS):
            (packages / entry.name).symlink_to(entry)
    python = tmp_path / "python"
    base = os.path.realpath(sys.executable)
    # Executors work below SPARK_HOME, which must not be the installed package then.
    home = tmp_path / "spark"
    (home / "work" / "here").mkdir(parents=True)
    for entry in spark_home().iterdir():
        (home / entry.name).symlink_to(entry)
    python.write_text(BARE.format(work=home / "work", packages=packages, base=base, ours=sys.executable))
    python.chmod(0o755)
    bare = subprocess.run(
        [python, "-c", "import pyarrow; import penstock"], cwd=home / "work" / "here", capture_output=True, check=False
    )
    assert b"No module named 'penstock'" in bare.stderr
    program = tmp_path / "program.py"
    program.write_text(
        dedent("""
            import sys
            from penstock.spark.session import session
            address, topic, folder = sys.argv[1:]
            quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
            config = {"spark.ui.enabled": "false",
                      "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
                      "spark.executor.memory": "512m", "spark.driver.memory": "512m",
                      "spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick}
            spark = session("far", master="local-cluster[1,1,1024]", config=config)
            here = {"kafka.bootstrap.servers": address}
            df = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
            df.write.format("penstock").options(**here, topic=topic).mode("append").save()
            stream = spark.readStream.format("penstock").options(**here, subscribe=topic, startingOffsets="earliest")
            query = stream.load().select("value").writeStream.format("penstock").options(**here, topic=topic + "-out")
            query = query.option("checkpointLocation", folder).trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            spark.stop()
        """)
    )
    broker.create_topic(f"{topic}-out", 2)
    environment = {
        **os.environ, "PYSPARK_PYTHON": str(python), "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "SPARK_HOME": str(home),
    }  # fmt: skip
    command = [sys.executable, str(program), broker.address, topic, str(tmp_path / "checkpoint")]
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    said = [line for line in ran.stderr.splitlines() if not line.startswith("\tat ") and " WARN " not in line]
    assert ran.returncode == 0, "\n".join(said)
    assert sorted(map(bytes, filter(None, values(broker, f"{topic}-out")))) == [b"0", b"1", b"2", b"3", b"4"]
