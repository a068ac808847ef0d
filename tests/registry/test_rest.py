"""Every endpoint, with its errors. docs/registry.md has the same table."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.registry.api import CONTENT_TYPE, Api, record

import penstock
from penstock.registry.rest import endpoints
from penstock.testing.embedded_broker import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "registry.md"
V1, V2, BROKEN = record("page"), record("page", optional=("site",)), record("page", "site")


def test_the_page_lists_every_endpoint() -> None:
    rows = re.findall(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)`", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(endpoints())


# --- registration and versions


def test_a_schema_is_registered_once_and_has_one_id_in_all_subjects(api: Api, subject: str) -> None:
    first = api.register(subject, V1)
    assert first["version"] == 1
    assert first["schema"] == json.dumps(json.loads(V1["schema"]), separators=(",", ":"))
    assert api.register(subject, V1) == first
    other = api.register(f"{subject}-other", V1)
    assert (other["id"], other["guid"], other["version"]) == (first["id"], first["guid"], 1)
    second = api.register(subject, V2)
    assert (second["version"], second["id"] > first["id"]) == (2, True)
    assert api.get(f"/subjects/{subject}/versions") == [1, 2]


def test_versions_by_number_latest_and_minus_one(api: Api, subject: str) -> None:
    first, second = api.register(subject, V1), api.register(subject, V2)
    for version in ("2", "latest", "-1"):
        found = api.get(f"/subjects/{subject}/versions/{version}")
        assert (found["subject"], found["version"], found["id"]) == (subject, 2, second["id"])
    assert api.get(f"/subjects/{subject}/versions/1/schema") == json.loads(V1["schema"])
    assert api.get(f"/subjects/{subject}/versions/1")["guid"] == first["guid"]
    assert api("GET", f"/subjects/{subject}/versions/3").error == 40402
    assert api("GET", f"/subjects/{subject}-none/versions/1").error == 40401
    assert api("GET", f"/subjects/{subject}-none/versions").error == 40401
    for version in ("0", "-2", "x", "2147483648", "%31%00"):
        assert api("GET", f"/subjects/{subject}/versions/{version}").error == 42202


def test_an_incompatible_schema_is_rejected_with_the_reason(api: Api, subject: str) -> None:
    api.register(subject, V1)
    answer = api("POST", f"/subjects/{subject}/versions", BROKEN)
    assert (answer.status, answer.error) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer.value["message"]
    assert "'site'" in answer.value["message"]
    assert api.get(f"/subjects/{subject}/versions") == [1]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"schema": '{"type": "nonsense"}'}, 42201),
        ({"schema": "{"}, 42201),
        ({"schema": ""}, 42201),
        ({}, 42201),
        ({"schema": '"string"', "schemaType": "XML"}, 42201),
        ({"schema": "[" * 100_000}, 42201),
        ({"schema": '"string"', "references": [{"name": "a", "subject": "no such", "version": 1}]}, 42201),
        ({"schema": 5}, 422),
        ({"schema": '"string"', "nonsense": 1}, 422),
        ({"schema": '"string"', "metadata": {"properties": {"a": 1}}}, 422),
        ([], 422),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 200_000, 422),
        (b'{"schema": ' + b"[" * 200_000, 422),
    ],
)
def test_bad_bodies(api: Api, subject: str, body: Any, code: int) -> None:
    answer = api("POST", f"/subjects/{subject}/versions", body)
    assert answer.error == code
    assert answer.status == (code if code < 1000 else code // 100)
    assert api("GET", f"/subjects/{subject}/versions").error == 40401


@pytest.mark.parametrize("name", ["a%00b", "a%0Ab", "__GLOBAL", "__EMPTY", "%ED%A0%80"])
def test_bad_subjects(api: Api, name: str) -> None:
    assert api("POST", f"/subjects/{name}/versions", V1).status == 422 or name == "%ED%A0%80"


def test_a_subject_may_contain_slashes_and_any_letter(api: Api, subject: str) -> None:
    api.register(f"{subject}%2Fa%20b%C3%A4%3F", V1)
    assert f"{subject}/a bä?" in api.get("/subjects")
    assert api.get(f"/subjects/{subject}%2Fa%20b%C3%A4%3F/versions") == [1]


def test_a_schema_is_looked_up(api: Api, subject: str) -> None:
    first = api.register(subject, V1)
    spaced = {"schema": V1["schema"].replace(":", " :  ")}
    found = api.done("POST", f"/subjects/{subject}", spaced)
    assert (found["id"], found["version"], found["subject"]) == (first["id"], 1, subject)
    assert api("POST", f"/subjects/{subject}", V2).error == 40403
    assert api("POST", f"/subjects/{subject}-none", V1).error == 40401
    api.done("DELETE", f"/subjects/{subject}/versions/1")
    assert api("POST", f"/subjects/{subject}", V1).error == 40401
    assert api.done("POST", f"/subjects/{subject}?deleted=true", V1)["version"] == 1


def test_normalize_ignores_order_and_spelling(api: Api, subject: str) -> None:
    first = api.register(subject, V1)
    shuffled = {"fields": [{"type": {"type": "string"}, "name": "page"}], "name": "View", "type": "record"}
    assert api.done("POST", f"/subjects/{subject}?normalize=True", {"schema": json.dumps(shuffled)})["version"] == 1
    normal = api.done("POST", f"/subjects/{subject}/versions?normalize=true", {"schema": json.dumps(shuffled)})
    assert normal["id"] == first["id"]


def test_what_is_registered_keeps_metadata_and_rules(api: Api, subject: str) -> None:
    metadata = {"properties": {"owner": "web", "major": "1"}, "tags": {"View.page": ["PII"]}, "sensitive": ["owner"]}
    rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "true"}]}
    plain = api.register(subject, V1)
    other = api.register(subject, {**V1, "metadata": metadata, "ruleSet": rules})
    assert other["version"] == 2
    assert other["id"] != plain["id"]
    found = api.get(f"/subjects/{subject}/versions/2")
    assert (found["metadata"], found["ruleSet"]) == (metadata, rules)
    assert api.get(f"/schemas/ids/{other['id']}")["ruleSet"] == rules
    # Without metadata, those of the version before are kept.
    third = api.register(subject, V2)
    assert api.get(f"/subjects/{subject}/versions/3")["metadata"] == metadata
    assert third["version"] == 3
    assert api.get(f"/subjects/{subject}/metadata?key=owner&value=web&key=major&value=1")["version"] == 3
    assert api("GET", f"/subjects/{subject}/metadata?key=owner&value=nobody").error == 40403
    assert api("GET", f"/subjects/{subject}-none/metadata?key=owner&value=web").error == 40401


# --- references


def test_references_resolve_are_shown_and_protect_what_they_name(api: Api, subject: str) -> None:
    page = {"schema": json.dumps({"type": "record", "name": "Page", "fields": [{"name": "url", "type": "string"}]})}
    base = api.register(f"{subject}-page", page)
    view = {
        "schema": json.dumps({"type": "record", "name": "View", "fields": [{"name": "page", "type": "Page"}]}),
        "references": [{"name": "Page", "subject": f"{subject}-page", "version": -1}],
    }
    found = api.register(f"{subject}-view", view)
    numbered = [{"name": "Page", "subject": f"{subject}-page", "version": 1}]
    assert api.get(f"/subjects/{subject}-view/versions/1")["references"] == numbered
    assert api.get(f"/schemas/ids/{found['id']}")["references"] == numbered
    assert api.get(f"/subjects/{subject}-page/versions/1/referencedby") == [found["id"]]
    assert base["id"] != found["id"]
    for path in (f"/subjects/{subject}-page", f"/subjects/{subject}-page/versions/1"):
        assert api("DELETE", path).error == 42206
    api.done("DELETE", f"/subjects/{subject}-view")
    assert api.get(f"/subjects/{subject}-page/versions/1/referencedby") == []
    assert api.get(f"/subjects/{subject}-page/versions/1/referencedby?deleted=true") == [found["id"]]
    assert api.done("DELETE", f"/subjects/{subject}-page") == [1]
    assert api("DELETE", f"/subjects/{subject}-page?permanent=true").error == 42206
    api.done("DELETE", f"/subjects/{subject}-view?permanent=true")
    assert api.done("DELETE", f"/subjects/{subject}-page?permanent=true") == [1]


# --- deletion


def test_a_version_is_hidden_first_and_removed_then(api: Api, subject: str) -> None:
    name = subject.replace("-", "_")  # no other story has this schema
    first, second = (api.register(subject, record(name=name, optional=fields)) for fields in ((), ("site",)))
    assert api("DELETE", f"/subjects/{subject}/versions/1?permanent=true").error == 40407
    assert api.done("DELETE", f"/subjects/{subject}/versions/1") == 1
    assert api("DELETE", f"/subjects/{subject}/versions/1").error == 40406
    assert api("DELETE", f"/subjects/{subject}/versions/9").error == 40402
    assert api("DELETE", f"/subjects/{subject}-none/versions/1").error == 40401
    assert api("GET", f"/subjects/{subject}/versions/1").error == 40402
    assert api.get(f"/subjects/{subject}/versions/1?deleted=true")["deleted"] is True
    assert api.get(f"/subjects/{subject}/versions?deleted=true") == [1, 2]
    assert api.get(f"/subjects/{subject}/versions?deletedOnly=true") == [1]
    assert api.get(f"/schemas/ids/{first['id']}")["schema"] == first["schema"]
    assert api.done("DELETE", f"/subjects/{subject}/versions/1?permanent=true") == 1
    assert api("GET", f"/schemas/ids/{first['id']}").error == 40403
    assert api.get(f"/subjects/{subject}/versions/latest")["id"] == second["id"]


def test_a_deleted_schema_comes_back_as_a_new_version_with_its_id(api: Api, subject: str) -> None:
    first = api.register(subject, V1)
    assert api.done("DELETE", f"/subjects/{subject}/versions/latest") == 1
    again = api.register(subject, V1)
    assert (again["id"], again["version"]) == (first["id"], 2)


def test_a_subject_is_hidden_first_and_removed_then(api: Api, subject: str) -> None:
    api.register(subject, V1)
    api.register(subject, V2)
    api.done("PUT", f"/config/{subject}", {"compatibility": "NONE"})
    assert api("DELETE", f"/subjects/{subject}?permanent=true").error == 40405
    assert api.done("DELETE", f"/subjects/{subject}") == [1, 2]
    assert api("GET", f"/config/{subject}").error == 40408
    assert api("DELETE", f"/subjects/{subject}").error == 40404
    assert api("DELETE", f"/subjects/{subject}-none").error == 40401
    assert subject not in api.get("/subjects")
    assert subject in api.get("/subjects?deleted=true")
    assert subject in api.get("/subjects?deletedOnly=true")
    assert api.done("DELETE", f"/subjects/{subject}?permanent=true") == [1, 2]
    assert subject not in api.get("/subjects?deleted=true")
    assert api.register(subject, BROKEN)["version"] == 1


# --- lists


def test_lists_have_filters_and_pages(api: Api, subject: str) -> None:
    names = [f"{subject}-{number}" for number in range(5)]
    ids = [api.register(name, V1)["id"] for name in names]
    api.register(names[0], V2)
    assert api.get(f"/subjects?subjectPrefix={subject}") == names
    assert api.get(f"/subjects?subjectPrefix={subject}&offset=1&limit=2") == names[1:3]
    assert api.get(f"/subjects?subjectPrefix={subject}&offset=9") == []
    assert api("GET", "/subjects?limit=x").status == 400
    listed = api.get(f"/schemas?subjectPrefix={subject}")
    assert [(each["subject"], each["version"]) for each in listed] == [(names[0], 1), (names[0], 2)] + [
        (name, 1) for name in names[1:]
    ]
    latest = api.get(f"/schemas?subjectPrefix={subject}&latestOnly=true&limit=2")
    assert [(each["subject"], each["version"]) for each in latest] == [(names[0], 2), (names[1], 1)]
    assert [name for name in api.get(f"/schemas/ids/{ids[0]}/subjects") if name.startswith(subject)] == names
    versions = api.get(f"/schemas/ids/{ids[0]}/versions")
    assert {"subject": names[4], "version": 1} in versions
    assert api.get("/schemas/types") == ["AVRO", "JSON", "PROTOBUF"]


def test_schemas_by_id_and_guid(api: Api, subject: str) -> None:
    found = api.register(subject, V1)
    document = api.get(f"/schemas/ids/{found['id']}")
    assert document["schema"] == found["schema"]
    assert "subject" not in document
    assert api.get(f"/schemas/ids/{found['id']}?subject={subject}")["subject"] == subject
    assert api.get(f"/schemas/ids/{found['id']}?fetchMaxId=true")["maxId"] >= found["id"]
    assert api.get(f"/schemas/ids/{found['id']}/schema") == json.loads(V1["schema"])
    assert str(uuid.UUID(found["guid"])) == found["guid"]
    assert api.get(f"/schemas/guids/{found['guid']}")["schema"] == found["schema"]
    assert {"context": ".", "id": found["id"]} in api.get(f"/schemas/guids/{found['guid']}/ids")
    for path in ("ids/99999999", "ids/99999999/schema", "ids/99999999/subjects", "ids/99999999/versions"):
        assert api("GET", f"/schemas/{path}").error == 40403
    missing = uuid.uuid4()
    assert api("GET", f"/schemas/guids/{missing}").error == 40403
    assert api("GET", f"/schemas/guids/{missing}/ids").error == 40403
    assert api("GET", "/schemas/ids/x").status == 404


# --- compatibility and settings


def test_compatibility_is_checked_without_registering(api: Api, subject: str) -> None:
    api.register(subject, V1)
    for path in (f"/compatibility/subjects/{subject}/versions", f"/compatibility/subjects/{subject}/versions/latest"):
        assert api.done("POST", path, V2) == {"is_compatible": True}
        assert api.done("POST", path, BROKEN) == {"is_compatible": False}
        verbose = api.done("POST", f"{path}?verbose=true", BROKEN)
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in verbose["messages"][0]
        assert "BACKWARD" in verbose["messages"][-1]
    assert api("POST", f"/compatibility/subjects/{subject}/versions/7", V2).error == 40402
    assert api("POST", f"/compatibility/subjects/{subject}-none/versions/7", V2).error == 40401
    assert api.done("POST", f"/compatibility/subjects/{subject}-none/versions/latest", V2) == {"is_compatible": True}
    assert api("POST", f"/compatibility/subjects/{subject}/versions/latest", {"schema": "{"}).error == 42201
    assert api.get(f"/subjects/{subject}/versions") == [1]


@pytest.mark.parametrize(
    ("level", "verdicts"),
    [
        ("NONE", (True, True)),
        ("BACKWARD", (False, True)),
        ("FORWARD", (True, False)),
        ("FULL", (False, False)),
    ],
)
def test_the_level_of_a_subject_decides(api: Api, subject: str, level: str, verdicts: tuple[bool, bool]) -> None:
    api.register(subject, record("page"))
    assert api.done("PUT", f"/config/{subject}", {"compatibility": level.lower()}) == {"compatibility": level.lower()}
    added, removed = record("page", "site"), record(name="View")
    for schema, verdict in zip((added, removed), verdicts, strict=True):
        found = api.done("POST", f"/compatibility/subjects/{subject}/versions/latest", schema)
        assert found["is_compatible"] is verdict
        assert (api("POST", f"/subjects/{subject}-{verdict}/versions", schema).status) == 200


def test_transitive_levels_look_at_all_versions(api: Api, subject: str) -> None:
    path = f"/compatibility/subjects/{subject}/versions"
    api.register(subject, record(name="View"))
    api.register(subject, record(optional=("site",)))
    third = record("site")  # compatible with the second version, not with the first
    assert api.done("POST", path, third)["is_compatible"] is True
    api.done("PUT", f"/config/{subject}", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert api.done("POST", path, third)["is_compatible"] is False
    assert api("POST", f"/subjects/{subject}/versions", third).error == 409


def test_settings_of_a_subject_fall_back_to_those_of_all(api: Api, subject: str) -> None:
    assert api("GET", f"/config/{subject}").error == 40408
    assert api("DELETE", f"/config/{subject}").error == 40408
    assert api.get(f"/config/{subject}?defaultToGlobal=true")["compatibilityLevel"] == "BACKWARD"
    api.done("PUT", f"/config/{subject}", {"compatibility": "FULL", "compatibilityGroup": "major"})
    assert api.get(f"/config/{subject}") == {"compatibilityLevel": "FULL", "compatibilityGroup": "major"}
    api.done("PUT", f"/config/{subject}", {"normalize": True, "compatibilityGroup": None})
    assert api.get(f"/config/{subject}") == {"compatibilityLevel": "FULL", "normalize": True}
    assert api("PUT", f"/config/{subject}", {"compatibility": "SOMETIMES"}).error == 42203
    assert api("PUT", f"/config/{subject}", {"compatibility": 5}).error == 422
    assert api.done("DELETE", f"/config/{subject}") == {"compatibilityLevel": "FULL", "normalize": True}
    assert api("GET", f"/config/{subject}").error == 40408


def test_settings_of_all(api: Api, subject: str) -> None:
    assert api.get("/config") == {"compatibilityLevel": "BACKWARD"}
    api.done("PUT", "/config", {"compatibility": "NONE"})
    try:
        assert api.get("/config")["compatibilityLevel"] == "NONE"
        api.register(subject, V1)
        assert api.register(subject, BROKEN)["version"] == 2
    finally:
        assert api.done("DELETE", "/config")["compatibilityLevel"] == "NONE"
    assert api.get("/config") == {"compatibilityLevel": "BACKWARD"}


def test_a_compatibility_group_is_compared_within_itself(api: Api, subject: str) -> None:
    api.done("PUT", f"/config/{subject}", {"compatibilityGroup": "major"})
    api.register(subject, {**V1, "metadata": {"properties": {"major": "1"}}})
    broken = {**BROKEN, "metadata": {"properties": {"major": "2"}}}
    assert api.register(subject, broken)["version"] == 2
    assert (
        api("POST", f"/subjects/{subject}/versions", {**V2, "metadata": {"properties": {"major": "2"}}}).status == 200
    )


def test_metadata_of_settings_are_merged(api: Api, subject: str) -> None:
    config = {
        "defaultMetadata": {"properties": {"owner": "nobody", "team": "web"}},
        "overrideMetadata": {"properties": {"checked": "yes"}},
    }
    api.done("PUT", f"/config/{subject}", config)
    api.register(subject, {**V1, "metadata": {"properties": {"owner": "me"}}})
    properties = api.get(f"/subjects/{subject}/versions/1")["metadata"]["properties"]
    assert properties == {"owner": "me", "team": "web", "checked": "yes"}


def test_an_alias_stands_for_a_subject(api: Api, subject: str) -> None:
    found = api.register(subject, V1)
    api.done("PUT", f"/config/{subject}-alias", {"alias": subject})
    assert api.get(f"/subjects/{subject}-alias/versions/latest")["id"] == found["id"]
    assert api.done("POST", f"/subjects/{subject}-alias", V1)["subject"] == subject
    assert api.get(f"/subjects/{subject}-alias/versions") == [1]


def test_modes(api: Api, subject: str) -> None:
    api.register(subject, V1)
    assert api("GET", f"/mode/{subject}").error == 40409
    assert api("DELETE", f"/mode/{subject}").error == 40409
    assert api.get(f"/mode/{subject}?defaultToGlobal=true") == {"mode": "READWRITE"}
    assert api("PUT", f"/mode/{subject}", {"mode": "SOMETIMES"}).error == 42204
    assert api.done("PUT", f"/mode/{subject}", {"mode": "READONLY"}) == {"mode": "READONLY"}
    for method, path, body in (
        ("POST", f"/subjects/{subject}/versions", V2),
        ("DELETE", f"/subjects/{subject}", None),
        ("DELETE", f"/subjects/{subject}/versions/1", None),
        ("PUT", f"/config/{subject}", {"compatibility": "NONE"}),
    ):
        assert api(method, path, body).error == 42205
    assert api.register(subject, V1)["version"] == 1
    assert api.done("DELETE", f"/mode/{subject}") == {"mode": "READONLY"}
    assert api.register(subject, V2)["version"] == 2


def test_the_mode_of_all(api: Api, subject: str) -> None:
    assert api.get("/mode") == {"mode": "READWRITE"}
    assert api.done("PUT", "/mode", {"mode": "READONLY_OVERRIDE"}) == {"mode": "READONLY_OVERRIDE"}
    try:
        api.done("PUT", f"/mode/{subject}", {"mode": "READWRITE"})
        assert api("POST", f"/subjects/{subject}/versions", V1).error == 42205
    finally:
        assert api.done("DELETE", "/mode") == {"mode": "READONLY_OVERRIDE"}
    api.register(subject, V1)


def test_import_keeps_ids_and_versions(api: Api, subject: str) -> None:
    assert api("POST", f"/subjects/{subject}/versions", {**V1, "id": 4711}).error == 42205
    api.done("PUT", f"/mode/{subject}", {"mode": "IMPORT"})
    assert api("POST", f"/subjects/{subject}/versions", V1).error == 42205
    one = {"schema": json.dumps({"type": "record", "name": subject.replace("-", "_"), "fields": []})}
    two = {"schema": json.dumps({"type": "enum", "name": subject.replace("-", "_"), "symbols": ["A"]})}
    imported = api.register(subject, {**one, "id": 4711, "version": 7})
    assert (imported["id"], imported["version"]) == (4711, 7)
    assert api("POST", f"/subjects/{subject}/versions", {**two, "id": 4711, "version": 8}).error == 42205
    # Compatibility is not checked: what is imported was accepted elsewhere.
    assert api.register(subject, {**two, "id": 4712, "version": 8})["id"] == 4712
    api.done("DELETE", f"/mode/{subject}")
    assert api.register(f"{subject}-next", record(subject.replace("-", "_")))["id"] == 4713
    assert api("PUT", f"/mode/{subject}", {"mode": "IMPORT"}).error == 42205
    assert api.done("PUT", f"/mode/{subject}?force=true", {"mode": "IMPORT"}) == {"mode": "IMPORT"}


# --- contexts


def test_contexts_have_ids_settings_and_subjects_of_their_own(api: Api, subject: str) -> None:
    context = f".{subject}"
    name = f":{context}:views"
    first = api.register(name, V1)
    assert first["id"] == 1
    assert context in api.get("/contexts")
    assert api.get(f"/subjects?subjectPrefix=:{context}:") == [name]
    assert name in api.get("/subjects")
    assert api.get(f"/contexts/{context}/subjects") == [name]
    assert api.get(f"/contexts/{context}/subjects/views/versions/latest")["id"] == 1
    assert api.get(f"/contexts/{context}/schemas/ids/1")["schema"] == first["schema"]
    assert api.get(f"/schemas/ids/1?subject={name}")["subject"] == name
    assert {"context": context, "id": 1} in api.get(f"/schemas/guids/{first['guid']}/ids")
    api.done("PUT", f"/config/:{context}:", {"compatibility": "NONE"})
    assert api.get(f"/config/{name}?defaultToGlobal=true")["compatibilityLevel"] == "NONE"
    assert api.get("/config")["compatibilityLevel"] == "BACKWARD"
    assert api.register(name, BROKEN)["version"] == 2
    assert api("DELETE", f"/contexts/{context}").error == 42211
    assert api("DELETE", f"/contexts/{context}-none").error == 40401
    assert api("DELETE", "/contexts/.").error == 42205
    api.done("DELETE", f"/subjects/{name}")
    api.done("DELETE", f"/subjects/{name}?permanent=true")
    api.done("DELETE", f"/contexts/{context}")
    assert context not in api.get("/contexts")


def test_a_reference_is_meant_within_its_context(api: Api, subject: str) -> None:
    page = {"schema": json.dumps({"type": "record", "name": "Page", "fields": []})}
    view = {
        "schema": json.dumps({"type": "record", "name": "View", "fields": [{"name": "page", "type": "Page"}]}),
        "references": [{"name": "Page", "subject": "page", "version": 1}],
    }
    assert api("POST", f"/subjects/:.{subject}:view/versions", view).error == 42201
    api.register(f":.{subject}:page", page)
    found = api.register(f":.{subject}:view", view)
    assert api.get(f"/subjects/:.{subject}:page/versions/1/referencedby") == [found["id"]]


# --- the protocol


def test_root_leader_and_unknown_paths(broker: EmbeddedBroker, api: Api) -> None:
    assert api.get("/") == {}
    assert api.get("/v1/metadata/leader")["leader"] == api.url
    assert api.get("/v1/metadata/version")["version"] == penstock.__version__
    clusters = api.get("/v1/metadata/id")["scope"]["clusters"]
    assert clusters["schema-registry-cluster"] == "schema-registry"
    assert clusters["kafka-cluster"] == broker.broker.cluster.image.cluster_id
    assert api("GET", "/nonsense").error == 404
    assert api("PATCH", "/subjects").error == 405
    assert api("GET", "/subjects/").status == 200


def test_content_types(api: Api, subject: str) -> None:
    body = json.dumps(V1).encode()
    for kind in (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json; charset=utf-8"):
        assert api("POST", f"/subjects/{subject}/versions", body, {"Content-Type": kind}).status == 200
    # What a page of another site may send without being asked.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert api("POST", f"/subjects/{subject}/versions", body, {"Content-Type": kind}).error == 415
    assert api("GET", "/subjects").headers["content-type"] == CONTENT_TYPE
    assert api("GET", "/subjects", headers={"Accept": "application/json"}).headers["content-type"] == "application/json"
