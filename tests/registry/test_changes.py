"""Decisions that the stories of the API do not reach."""

from __future__ import annotations

import pytest

from penstock.registry import changes
from penstock.registry.changes import SchemaRequest
from penstock.registry.errors import RegistryError
from penstock.registry.records import config_record
from penstock.registry.store import Store


def test_what_is_decided_is_not_yet_so() -> None:
    store = Store()
    change = changes.register(store, "s", SchemaRequest('"int"'), '"int"')
    assert store.subjects() == []
    for each in change.records:
        store.replay(*each)
    assert store.versions("s") == [change.result]
    assert changes.register(store, "s", SchemaRequest('"int"'), '"int"').records == ()


def test_a_new_context_is_recorded() -> None:
    change = changes.register(Store(), ":.c:s", SchemaRequest('"int"'), '"int"')
    assert b'"CONTEXT"' in change.records[0].key


def test_a_version_that_is_given_has_to_be_the_next() -> None:
    store = Store()
    assert changes.register(store, "s", SchemaRequest('"int"', version=1), '"int"').result.version == 1
    with pytest.raises(RegistryError, match="one more") as error:
        changes.register(store, "s", SchemaRequest('"int"', version=3), '"int"')
    assert error.value.code == 42201


def test_a_non_transitive_level_compares_with_the_last_version_only() -> None:
    store = Store()
    for text in ('"int"', '"long"', '"float"'):
        for each in changes.register(store, "s", SchemaRequest(text), text).records:
            store.replay(*each)
    request = SchemaRequest('"double"')
    assert [each.schema for each in changes.comparison(store, "s", request, store.versions("s")).earlier] == ['"float"']
    store.replay(*config_record("s", {"compatibilityLevel": "FULL_TRANSITIVE"}))
    assert len(changes.comparison(store, "s", request, store.versions("s")).earlier) == 3
    store.replay(*config_record("s", {"compatibilityLevel": "NONE"}))
    assert changes.comparison(store, "s", request, store.versions("s")).earlier == ()
