"""`penstock schemas` against a real registry."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell

from penstock.registry import Registry
from penstock.testing.embedded_broker import EmbeddedBroker

VIEW: Any = {"type": "record", "name": "View", "fields": [{"name": "page", "type": "string"}]}
BROKEN = {**VIEW, "fields": [*VIEW["fields"], {"name": "site", "type": "string"}]}
NEWER = {**VIEW, "fields": [*VIEW["fields"], {"name": "site", "type": "string", "default": ""}]}


@pytest.fixture(scope="module")
def registry(broker: EmbeddedBroker) -> Iterator[Registry]:
    with Registry(broker.address) as instance:
        yield instance


@pytest.fixture
def schemas(registry: Registry) -> Shell:
    shell = Shell("127.0.0.1:1")
    shell.environment = {"PENSTOCK_REGISTRY": registry.url}
    return shell


@pytest.fixture
def subject() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


def file_of(folder: Path, schema: object, name: str = "view.avsc") -> Path:
    path = folder / name
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return path


def test_register_list_and_get(schemas: Shell, subject: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, VIEW)
    found = schemas.json("schemas", "register", subject, path)
    assert (found["subject"], found["version"]) == (subject, 1)
    assert schemas.done("schemas", "register", subject, path) == f"{subject}: version 1, id {found['id']}.\n"
    schemas.done("schemas", "register", subject, file_of(tmp_path, NEWER))
    rows = [line.split() for line in schemas.lines("schemas", "list")]
    assert [row[1:4] for row in rows if row[0] == subject] == [["2", str(found["id"] + 1), "AVRO"]]
    assert [each["version"] for each in schemas.json("schemas", "list", subject)["schemas"]] == [1, 2]
    listed = schemas.json("schemas", "list", "--prefix", subject)["schemas"]
    assert [each["subject"] for each in listed] == [subject]
    assert json.loads(schemas.done("schemas", "get", subject, "--version", 1)) == VIEW
    assert json.loads(schemas.done("schemas", "get", "--id", found["id"])) == VIEW
    assert schemas.json("schemas", "get", "--guid", found["guid"])["guid"] == found["guid"]


def test_types_by_the_files_ending_and_references(schemas: Shell, subject: str, tmp_path: Path) -> None:
    base = 'syntax = "proto3"; package web; message Page { string url = 1; }'
    main = 'syntax = "proto3"; package web; import "page.proto"; message View { Page page = 1; }'
    schemas.done("schemas", "register", f"{subject}-page", file_of(tmp_path, base, "page.proto"))
    schemas.done(
        "schemas", "register", subject, file_of(tmp_path, main, "view.proto"),
        "--reference", f"page.proto={subject}-page:1",
    )  # fmt: skip
    found = schemas.json("schemas", "get", subject)
    assert found["schemaType"] == "PROTOBUF"
    assert found["references"] == [{"name": "page.proto", "subject": f"{subject}-page", "version": 1}]
    assert "message View" in schemas.done("schemas", "get", subject)
    assert schemas.error("schemas", "register", subject, tmp_path / "view.proto", "--reference", "a=b")["exitCode"] == 2


def test_check(schemas: Shell, subject: str, tmp_path: Path) -> None:
    schemas.done("schemas", "register", subject, file_of(tmp_path, VIEW))
    assert schemas.done("schemas", "check", subject, file_of(tmp_path, NEWER)) == "Compatible.\n"
    broken = schemas("schemas", "check", subject, file_of(tmp_path, BROKEN))
    assert broken.exit_code == 1
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in broken.stdout
    answer = schemas("schemas", "check", subject, tmp_path / "view.avsc", "--version", 1, "--format", "json")
    assert json.loads(answer.stdout)["compatible"] is False
    rejected = schemas.error("schemas", "register", subject, tmp_path / "view.avsc")
    assert (rejected["code"], rejected["exitCode"]) == ("409", 4)
    assert schemas.lines("schemas", "list", subject)[1:] != []


def test_delete(schemas: Shell, subject: str, tmp_path: Path) -> None:
    for schema in (VIEW, NEWER):
        schemas.done("schemas", "register", subject, file_of(tmp_path, schema))
    assert "2 versions" in schemas.done("schemas", "delete", subject, "--dry-run")
    assert schemas.json("schemas", "delete", subject, "--version", 1, "--yes")["versions"] == [1]
    assert [each["version"] for each in schemas.json("schemas", "list", subject)["schemas"]] == [2]
    schemas.done("schemas", "delete", subject, "--yes")
    assert schemas.error("schemas", "list", subject)["code"] == "40401"
    assert "deleted" in schemas.done("schemas", "list", subject, "--deleted")
    assert schemas.json("schemas", "delete", subject, "--permanent", "--yes")["versions"] == [1, 2]
    assert schemas.error("schemas", "delete", subject, "--yes")["code"] == "40401"


def test_a_person_is_asked_before_deleting(schemas: Shell, subject: str, tmp_path: Path) -> None:
    schemas.done("schemas", "register", subject, file_of(tmp_path, VIEW))
    declined = schemas.at_terminal("schemas", "delete", subject, answer="n\n")
    assert declined.returncode == 1
    assert "Nothing was changed." in declined.stderr
    assert len(schemas.json("schemas", "list", subject)["schemas"]) == 1


def test_settings_and_modes(schemas: Shell, subject: str) -> None:
    assert schemas.json("schemas", "config", subject) == {"compatibilityLevel": "BACKWARD"}
    changed = schemas.json(
        "schemas", "config", subject, "--compatibility", "full", "--normalize", "--compatibility-group", "major"
    )
    assert changed == {"compatibilityLevel": "FULL", "normalize": True, "compatibilityGroup": "major"}
    assert "compatibilityLevel  FULL" in schemas.done("schemas", "config", subject)
    assert schemas.json("schemas", "config", subject, "--unset") == {"compatibilityLevel": "BACKWARD"}
    assert schemas.done("schemas", "mode", subject) == "READWRITE\n"
    assert schemas.json("schemas", "mode", subject, "--to", "readonly") == {"mode": "READONLY"}
    assert schemas.done("schemas", "mode", subject, "--unset") == "READWRITE\n"
    for words in (("config", "--unset", "--alias", "x"), ("mode", "--unset", "--to", "IMPORT"), ("get",)):
        assert schemas.error("schemas", *words)["exitCode"] == 2


def test_a_registry_that_is_not_there(schemas: Shell, tmp_path: Path) -> None:
    found = schemas.error("schemas", "list", "--registry", "http://127.0.0.1:1")
    assert (found["code"], found["exitCode"]) == ("UNREACHABLE", 3)
    assert "127.0.0.1:1" in found["message"]
    assert schemas.error("schemas", "list", "--registry", "localhost:8081")["exitCode"] == 2
    assert schemas.error("schemas", "register", "s", tmp_path / "none.avsc")["exitCode"] == 2
    assert schemas.error("schemas", "list", "--registry-token", "secret")["exitCode"] == 2
