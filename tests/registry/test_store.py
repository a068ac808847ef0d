"""The state that follows from records; nothing here needs a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.registry import changes
from penstock.registry.changes import SchemaRequest
from penstock.registry.errors import RegistryError
from penstock.registry.formats import Reference
from penstock.registry.records import (
    StoredSchema,
    UnreadableRecord,
    config_record,
    content_guid,
    delete_subject_record,
    mode_record,
    noop_record,
    schema_record,
    schema_tombstone,
)
from penstock.registry.store import Deleted, Store, version_number


def stored(subject: str, version: int, number: int, text: str = '"string"', **more: Any) -> StoredSchema:
    references = more.get("references", ())
    return StoredSchema(subject, version, number, text, guid=content_guid(text, references=references), **more)


def store_of(*schemas: StoredSchema) -> Store:
    store = Store()
    for each in schemas:
        store.replay(*schema_record(each))
    return store


def test_replaying_twice_changes_nothing() -> None:
    one = stored("s", 1, 1)
    store = store_of(one, one)
    assert store.versions("s") == [one]
    assert store.users_of(".", 1) == [one]


def test_an_id_is_gone_with_its_last_version() -> None:
    store = store_of(stored("s", 1, 1), stored("t", 1, 1))
    store.replay(*schema_tombstone("s", 1))
    assert store.by_id(1) is not None
    assert not store.has_subject("s", Deleted.INCLUDE)
    store.replay(*schema_tombstone("t", 1))
    assert store.by_id(1) is None
    assert store.by_guid(content_guid('"string"')) is None
    assert store.id_of(".", content_guid('"string"')) is None
    assert store.max_id(".") == 1  # ids are not used again


def test_a_deleted_subject_hides_versions_up_to_the_last_one_then() -> None:
    store = store_of(stored("s", 1, 1), stored("s", 2, 2, '"int"'))
    store.replay(*delete_subject_record("s", 2))
    store.replay(*schema_record(stored("s", 3, 1)))
    assert [each.version for each in store.versions("s")] == [3]
    assert [each.version for each in store.versions("s", Deleted.ONLY)] == [1, 2]


def test_clearing_a_subject_removes_what_was_hidden() -> None:
    store = store_of(stored("s", 1, 1, deleted=True), stored("s", 2, 2, '"int"'))
    store.replay(b'{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}', b'{"subject":"s"}')
    assert [each.version for each in store.versions("s", Deleted.INCLUDE)] == [2]


def test_the_default_context_has_two_names() -> None:
    store = store_of(stored(":.:s", 1, 1))
    assert store.subjects() == ["s"]
    store.replay(*config_record(":.:", {"compatibilityLevel": "FULL"}))
    assert store.effective_config("s")["compatibilityLevel"] == "FULL"


def test_settings_of_subject_context_and_all() -> None:
    store = Store()
    assert store.effective_config("s") == {"compatibilityLevel": "BACKWARD"}
    store.replay(*config_record(None, {"compatibilityLevel": "NONE", "normalize": True}))
    store.replay(*config_record(":.c:", {"compatibilityLevel": "FULL"}))
    store.replay(*config_record(":.c:s", {"compatibilityGroup": "major", "alias": "t"}))
    assert store.effective_config(":.c:s") == {
        "compatibilityLevel": "FULL", "normalize": True, "compatibilityGroup": "major", "alias": "t",
    }  # fmt: skip
    assert store.effective_config("s") == {"compatibilityLevel": "NONE", "normalize": True}
    store.replay(*mode_record(":.c:", "READONLY"))
    assert (store.effective_mode(":.c:s"), store.effective_mode("s")) == ("READONLY", "READWRITE")
    store.replay(*mode_record(None, "READONLY_OVERRIDE"))
    store.replay(*mode_record("s", "READWRITE"))
    assert store.effective_mode("s") == "READONLY_OVERRIDE"
    store.replay(*mode_record(None, None))
    assert store.effective_mode("s") == "READWRITE"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"), (b"", b"{}"), (b"[]", b"{}"), (b"\xff", b"{}"), (b"[" * 100_000, None),
        (b'{"keytype":"NEW"}', None), (b'{"keytype":"SCHEMA"}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":0}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":true}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":"1","schema":""}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1,"schema":"","references":[{"name":1}]}'),
        (b'{"keytype":"MODE","subject":"s"}', b'{"mode":5}'),
        (b'{"keytype":"DELETE_SUBJECT","subject":"s"}', b'{"version":"x"}'),
        (b'{"keytype":"DELETE_SUBJECT"}', b'{"version":1}'),
    ],
)  # fmt: skip
def test_an_unreadable_record_changes_nothing(key: bytes | None, value: bytes | None) -> None:
    one = stored("s", 1, 1)
    store = store_of(one)
    with pytest.raises(UnreadableRecord):
        store.replay(key, value)
    assert store.unreadable == 1
    assert store.versions("s") == [one]


@given(key=st.binary(max_size=60), value=st.none() | st.binary(max_size=60))
def test_any_bytes_are_replayed_or_unreadable(key: bytes, value: bytes | None) -> None:
    store = Store()
    try:
        store.replay(key, value)
    except UnreadableRecord:
        assert store.subjects() == []


def test_a_circle_of_references_ends() -> None:
    to_b, to_a = (Reference("b", "b", 1),), (Reference("a", "a", 1),)
    store = store_of(stored("a", 1, 1, "{}", references=to_b), stored("b", 1, 2, "[]", references=to_a))
    assert {each.name for each in store.resolved(to_b, ".")} == {"a", "b"}


def test_dependencies_come_first() -> None:
    store = store_of(
        stored("a", 1, 1, "1"),
        stored("b", 1, 2, "2", references=(Reference("a", "a", 1),)),
        stored("c", 1, 3, "3", references=(Reference("b", "b", 1), Reference("a", "a", 1))),
    )
    assert [each.name for each in store.resolved([Reference("c", "c", 1)], ".")] == ["a", "b", "c"]
    with pytest.raises(RegistryError, match="'x' and version 1"):
        store.resolved([Reference("x", "x", 1)], ".")


def test_the_leader_is_who_wrote_last() -> None:
    store = Store()
    for url in ("http://a", "http://b"):
        store.replay(*noop_record(url))
    assert store.leader == "http://b"


@pytest.mark.parametrize(("text", "number"), [("latest", -1), ("-1", -1), ("1", 1), ("2147483647", 2**31 - 1)])
def test_version_numbers(text: str, number: int) -> None:
    assert version_number(text) == number


@pytest.mark.parametrize("text", ["", "0", "-2", "2147483648", "1e3", "\u0661", "9" * 5000])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(RegistryError) as error:
        version_number(text)
    assert error.value.code == 42202


NAMES = st.sampled_from(["a", "b", ":.c:a"])
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["register", "version", "subject"]), NAMES, st.integers(1, 4), st.booleans()), max_size=40
)


@given(OPERATIONS)
def test_whatever_is_decided_indexes_agree_and_a_compacted_log_gives_the_same(operations: list[Any]) -> None:
    store, log = Store(), []
    for kind, subject, number, permanent in operations:
        try:
            if kind == "register":
                change: Any = changes.register(store, subject, SchemaRequest(json.dumps(f"t{number}")), f'"t{number}"')
            elif kind == "version":
                change = changes.delete_version(store, subject, number, permanent=permanent)
            else:
                change = changes.delete_subject(store, subject, permanent=permanent)
        except RegistryError:
            continue
        for each in change.records:
            log.append(each)
            store.replay(*each)
    compacted = {each.key: (place, each) for place, each in enumerate(log)}
    again = Store()
    for _, each in sorted(compacted.values()):
        again.replay(*each)
    everything = list(store.schemas(":*:", Deleted.INCLUDE, latest_only=False))
    assert list(again.schemas(":*:", Deleted.INCLUDE, latest_only=False)) == everything
    for each in everything:
        context = ".c" if each.subject.startswith(":") else "."
        assert each in store.users_of(context, each.id, Deleted.INCLUDE)
        assert store.id_of(context, each.guid) == each.id
        same = [other.id for other in store.users_of(context, each.id, Deleted.INCLUDE)]
        assert set(same) == {each.id}
