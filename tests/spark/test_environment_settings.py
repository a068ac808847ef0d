"""Settings of Spark that come from elsewhere are found and kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.spark import session as sessions
from penstock.spark.environment import settings_from_arguments, settings_from_environment, settings_from_file
from penstock.spark.errors import TableError
from penstock.spark.session import settings
from penstock.spark.tables import Warehouse
from penstock.spark.tables.delta import DataFile, Storage

DEFAULTS = """
# a comment
spark.master            spark://there:7077
spark.executor.memory = 4g
spark.eventLog.dir:file:/logs
spark.executor.extraJavaOptions  -Da=b -Dc="d e"
  spark.empty
"""


def test_the_file_of_defaults_is_read_as_spark_reads_it() -> None:
    assert settings_from_file(DEFAULTS) == {
        "spark.master": "spark://there:7077",
        "spark.executor.memory": "4g",
        "spark.eventLog.dir": "file:/logs",
        "spark.executor.extraJavaOptions": '-Da=b -Dc="d e"',
        "spark.empty": "",
    }


def test_an_option_counts_before_the_same_as_conf() -> None:
    given = ["--conf", "spark.master=a", "--master", "b", "--conf=x=1=2", "--archives=f.zip"]
    assert settings_from_arguments(given) == {"spark.master": "b", "x": "1=2", "spark.archives": "f.zip"}


def test_the_nearest_to_the_user_counts(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master file\na file\nb file\n")
    variables = {"MASTER": "variable", "PYSPARK_SUBMIT_ARGS": "--conf b=argument pyspark-shell"}
    assert settings_from_environment(variables, tmp_path) == {"spark.master": "file", "a": "file", "b": "argument"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert (
        settings_from_environment({**variables, "SPARK_CONF_DIR": str(elsewhere)}, tmp_path)["spark.master"]
        == "variable"
    )
    other = tmp_path / "other.conf"
    other.write_text("spark.master other")
    assert settings_from_environment({"PYSPARK_SUBMIT_ARGS": f"--properties-file {other}"}, tmp_path) == {
        "spark.master": "other"
    }


@pytest.mark.parametrize("variables", [{}, {"PYSPARK_SUBMIT_ARGS": "--conf 'a"}])
def test_no_records_give_no_detections(variables: dict[str, str], tmp_path: Path) -> None:
    assert settings_from_environment(variables, tmp_path) == {}


def test_a_master_in_the_defaults_has_the_package_delivered_and_keeps_what_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master spark://there:7077\nspark.archives mine.zip\nspark.python.unix.domain.socket.enabled false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reported = settings_from_environment(os.environ, Path())
    chosen = settings(reported, master=reported["spark.master"])
    assert chosen["spark.archives"].startswith("mine.zip,")
    assert chosen["spark.python.unix.domain.socket.enabled"] == "false"
    added = sessions.missing_settings({}, None, None)
    redaction = "spark.sql.redaction.options.regex"
    assert added.keys() == {"spark.archives", "spark.executorEnv.PYTHONPATH", redaction}


# ---------------------------------------------------------------------------------------------- the warehouse's folder


def test_a_warehouse_by_a_relative_name_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Warehouse("tables").storage.uri == str(tmp_path / "tables")
    assert Warehouse("s3://bucket/tables").storage.uri == "s3://bucket/tables"


def test_files_that_executors_wrote_on_disks_of_their_own_are_not_committed(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    (tmp_path / "here.parquet").write_bytes(b"1234")
    storage.check_files_exist([DataFile("here.parquet", 4, 1, {}, "")])
    for file in (DataFile("there.parquet", 4, 1, {}, ""), DataFile("here.parquet", 5, 1, {}, "")):
        with pytest.raises(TableError, match="nothing was committed") as rejected:
            storage.check_files_exist([file])
        assert "must be a folder that the driver and all executors share" in str(rejected.value)
