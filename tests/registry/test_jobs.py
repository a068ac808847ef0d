"""Jobs on schemas, here and in a process of their own."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.registry.api import Api, record
from tests.timeouts import until

from penstock.registry import jobs
from penstock.registry.changes import SchemaSource
from penstock.registry.formats import ReferencedSchema
from penstock.registry.jobs import Job, carried_out, result_of

PAGE = ReferencedSchema("Page", '{"type":"record","name":"Page","fields":[]}')
VIEW = SchemaSource("AVRO", '{"type": "record", "name": "V", "fields": [{"name": "p", "type": "Page"}]}', (PAGE,))
BROKEN = SchemaSource("AVRO", '{"type": "record", "name": "V", "fields": [{"name": "q", "type": "int"}]}')


def large(suffix: str = "") -> dict[str, str]:
    return record(optional=tuple(f"field_{number}{suffix}" for number in range(4_000)))


@pytest.mark.parametrize(
    "job",
    [
        Job("text", (VIEW,)),
        Job("text", (VIEW,), normalize=True, is_new=True),
        Job("format", (VIEW,), form="resolved"),
        Job("compare", (BROKEN, VIEW), level="BACKWARD"),
        Job("compare", (VIEW, VIEW), level="FULL_TRANSITIVE"),
        Job("text", (SchemaSource("AVRO", "{"),)),
        Job("text", (SchemaSource("XML", "<a/>"),)),
    ],
)
def test_a_process_gives_the_same_result(job: Job) -> None:
    assert jobs._in_a_process(job) == result_of(job)


def test_a_large_schema_is_examined_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Job] = []
    in_a_process = jobs._in_a_process

    def noted(job: Job) -> Any:
        used.append(job)
        return in_a_process(job)

    monkeypatch.setattr(jobs, "_in_a_process", noted)
    text = large()["schema"]
    assert json.loads(carried_out(Job("text", (SchemaSource("AVRO", text),))).text) == json.loads(text)
    assert carried_out(Job("text", (VIEW,))).text
    assert len(used) == 1


def test_one_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_TIMEOUT_S", 0.001)
    result = carried_out(Job("text", (SchemaSource("AVRO", large()["schema"]),)))
    assert result.invalid is not None
    assert "takes longer" in result.invalid


def test_reads_go_on_while_a_large_schema_is_examined(api: Api, subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held, entered = threading.Event(), threading.Event()
    carry_out = jobs._in_a_process

    def slow(job: Job) -> Any:
        entered.set()
        assert held.wait(60)
        return carry_out(job)

    monkeypatch.setattr(jobs, "_in_a_process", slow)
    answers: list[Any] = []
    writer = threading.Thread(target=lambda: answers.append(api.register(subject, large())))
    writer.start()
    until(entered.is_set, "the job begins")
    assert api.get("/subjects") is not None
    assert api.done("PUT", f"/config/{subject}-other", {"compatibility": "FULL"})  # the lock of writes is free
    held.set()
    writer.join()
    assert answers[0]["version"] == 1
