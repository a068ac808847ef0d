"""Pipelines by name, what they say of themselves to other processes, and errors as one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

from penstock.activity.pipelines import definition
from penstock.activity.pipelines.engine import status
from penstock.activity.pipelines.engine.status import PipelineFolder, PipelineStatus, QueryStatus
from penstock.activity.pipelines.errors import UnknownPipeline, cause_of


def test_every_pipeline_of_the_registry_is_a_pipeline_of_its_name() -> None:
    found = definition.selected_pipelines(())
    assert "operations" in [one.name for one in found]
    assert [one.name for one in found] == list(definition.pipeline_names())
    tables = [table.name for one in found for table in one.tables]
    assert len(tables) == len(set(tables))
    topics = [topic for one in found for topic in one.output_topics]
    assert len(topics) == len(set(topics))
    for one in found:
        assert {derived.of for derived in one.derived} <= {rows.name for rows in one.rows}


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownPipeline, match=r"Did you mean operations\?"):
        definition.find_pipeline("operatons")


def test_names_are_given_without_importing_the_pipelines() -> None:
    program = (
        "import sys; from penstock.activity.pipelines import definition; definition.pipeline_names();"
        "print([name for name in ('numpy', 'pyarrow', 'pyspark') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_a_status_is_read_as_it_was_written_and_alive_while_its_process_is(tmp_path: Path) -> None:
    folder = PipelineFolder(str(tmp_path), "search")
    assert folder.read() is None
    query = QueryStatus(name="rows", state="running", batch_id=3, lag=5)
    written = PipelineStatus(
        name="search", state="running", pid=os.getpid(), host=socket.gethostname(), queries=[query]
    )
    folder.write(written)
    found = status.read_all(str(tmp_path))[0]
    assert found == written
    assert found.is_alive
    assert found.to_json()["lag"] == 5

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(PATIENCE_S)
    folder.write(PipelineStatus(name="search", state="running", pid=ended.pid, host=socket.gethostname()))
    assert not status.read_all(str(tmp_path))[0].is_alive


def test_on_another_machine_a_pipeline_is_alive_while_its_status_is_fresh(tmp_path: Path) -> None:
    import time

    now_ms = time.time_ns() // 1_000_000
    fresh = PipelineStatus(name="search", state="running", pid=1, host="elsewhere", updated_ms=now_ms)
    assert fresh.is_alive
    fresh.updated_ms -= 60_000
    assert not fresh.is_alive


def test_a_damaged_status_file_belongs_to_no_process(tmp_path: Path) -> None:
    folder = PipelineFolder(str(tmp_path), "search")
    folder.request_stop()
    assert folder.is_stop_requested()
    Path(tmp_path, "_pipelines", "search", "status.json").write_text('{"name": 3')
    assert folder.read() is None
    folder.clear_stop_request()
    assert not folder.is_stop_requested()


@pytest.mark.parametrize(
    ("text", "said", "retriable"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception\n  File \"x.py\"\n"
            "penstock.client.errors.NotConnected: 127.0.0.1:9092: the connection ended\nat org.apache.spark...",
            "127.0.0.1:9092: the connection ended", True,
        ),
        ("...\npenstock.client.errors.BootstrapError: no broker was found: a:1\n", "no broker was found", True),
        ("...\npenstock.spark.errors.TopicRecreated: it was made again. Go on\n", "it was made again", False),
        ("...\npenstock.spark.errors.ReadStalled: views-0 was read up to offset 3 of 9\n", "up to offset 3", True),
        ("...\npenstock.client.errors.NotLeader: views-0: no leader (LEADER_NOT_AVAILABLE)\n", "no leader", True),
        ("...\npenstock.client.errors.BrokerError: x: no (CLUSTER_AUTHORIZATION_FAILED). Ask\n", "x: no", False),
        ("Job aborted\nReason: ExecutorLostFailure (executor 1 exited)\n", "an executor was lost", True),
        ("...\npenstock.spark.errors.DataLost: it is gone\nat ... java.io.EOFException\n", "it is gone", False),
        ("Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space\n", "OutOfMemoryError: Java heap", False),
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o1623.getResult.\n"
            ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n\tat org.apache...\n"
            "Caused by: java.io.IOException: No space left on device\n\tat java.base...\n",
            "IOException: No space left on device", False,
        ),
        ("Job aborted\nCaused by: java.io.OptionalDataException\n\tat java.base\n", "changed a task", True),
        (
            "[STREAM_FAILED]\norg.apache.spark.SparkException: Python worker failed to connect back.\n",
            "did not start in time", True,
        ),
        ("Traceback\nValueError: no such thing\n", "ValueError: no such thing", False),
    ],
)  # fmt: skip
def test_the_cause_is_found_in_what_spark_says(text: str, said: str, retriable: bool) -> None:
    error = cause_of(text, "search")
    assert said in str(error)
    assert error.retriable is retriable
    assert "\n" not in str(error)
