"""The settings of users, client ids and addresses: their paths, and how they travel with the image."""

from __future__ import annotations

import pytest
from tests.cluster.controller.decision_stories import cluster

from penstock.cluster.controller.transaction import Decision, chunked
from penstock.cluster.entity_configs import DEFAULT, Entity, EntityConfigs, entity_at
from penstock.cluster.image import ClusterImage, apply_delta, decode_delta, diff, encode_delta, make_delta
from penstock.cluster.tree.layout import encode_config
from penstock.cluster.tree.tree import Create

ALL = {
    Entity(user="alice"): {"SCRAM-SHA-256": "salt=..", "producer_byte_rate": "1"},
    Entity(user="alice", client="app"): {"producer_byte_rate": "2"},
    Entity(user=DEFAULT, client=DEFAULT): {"producer_byte_rate": "3"},
    Entity(client="app"): {},
    Entity(ip="::1"): {"connection_creation_rate": "4"},
}


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity(user="alice"), "/config/users/alice"),
        (Entity(user="CN=a,OU=b c/d*~+%"), "/config/users/CN%3Da%2COU%3Db%20c%2Fd%2A%7E%2B%25"),
        (Entity(user=DEFAULT), "/config/users/<default>"),
        (Entity("a", "b"), "/config/users/a/clients/b"),
        (Entity("a", DEFAULT), "/config/users/a/clients/<default>"),
        (Entity(client="b"), "/config/clients/b"),
        (Entity(ip="10.0.0.1"), "/config/ips/10.0.0.1"),
        (Entity(ip="::1"), "/config/ips/%3A%3A1"),
    ],
)
def test_the_path_of_an_entity_is_kafkas(entity: Entity, path: str) -> None:
    assert entity.path == path
    assert entity_at(path) == entity


@pytest.mark.parametrize("path", ["/config/users", "/config/topics/t", "/config/users/a/clients", "/brokers/ids/1"])
def test_other_paths_have_no_entity(path: str) -> None:
    assert entity_at(path) is None


def test_entities_are_found_by_kind_and_their_settings_are_in_no_text() -> None:
    configs = EntityConfigs(ALL)
    assert set(configs.users) == {"alice"}
    assert set(configs.clients) == {"app"}
    assert set(configs.user_clients) == {("alice", "app"), (DEFAULT, DEFAULT)}
    assert set(configs.ips) == {"::1"}
    assert "salt" not in repr(configs)


def test_a_delta_carries_what_was_added_changed_and_removed() -> None:
    old = cluster((1,)).with_entities(EntityConfigs(ALL))
    changes = {Entity(user="alice"): {"producer_byte_rate": "9"}, Entity(ip="::1"): None, Entity(user="bob"): {}}
    new = old.with_entities(old.entities.with_changes(changes))
    assert diff(old, new).entities_changed
    delta = decode_delta(encode_delta(make_delta(old, new)))
    assert apply_delta(old, delta) == new
    whole = decode_delta(encode_delta(make_delta(ClusterImage(), new)))
    assert apply_delta(ClusterImage(), whole) == new
    assert not diff(new, apply_delta(ClusterImage(), whole))


def test_a_change_of_many_users_is_stored_in_chunks_that_each_have_their_image() -> None:
    before = cluster((1,))
    entities = [Entity(user=f"user-{number}") for number in range(2500)]
    after = before.with_entities(before.entities.with_changes({each: {"producer_byte_rate": "1"} for each in entities}))
    operations = tuple(Create(each.path, encode_config({"producer_byte_rate": "1"})) for each in entities)
    chunks = list(chunked(before, Decision(operations, after)))
    assert [len(chunk.image.users) for chunk in chunks] == [1000, 2000, 2500]
    assert chunks[-1].image == after
