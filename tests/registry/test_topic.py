"""The topic `_schemas`: created as it has to be, refused where it would lose schemas."""

from __future__ import annotations

import pytest
from tests.registry.api import Api, record

from penstock.client.admin import Admin, ConfigResource
from penstock.registry import Registry
from penstock.registry.errors import RegistryUnavailable
from penstock.testing.embedded_broker import EmbeddedBroker


def test_it_is_created_compacted_with_one_partition(broker: EmbeddedBroker, subject: str) -> None:
    with Registry(broker.address, topic=subject, group_id=subject):
        pass
    with Admin(broker.address) as admin:
        assert len(admin.describe_topic(subject).partitions) == 1
        assert admin.describe_config(ConfigResource.topic(subject))["cleanup.policy"].value == "compact"


@pytest.mark.parametrize(
    ("partitions", "policy", "reason"), [(2, "compact", "2 partitions"), (1, "delete", r"cleanup\.policy=delete")]
)
def test_one_that_would_lose_schemas_is_refused(
    broker: EmbeddedBroker, subject: str, partitions: int, policy: str, reason: str
) -> None:
    broker.create_topic(subject, partitions=partitions, config={"cleanup.policy": policy})
    with pytest.raises(RegistryUnavailable, match=reason):
        Registry(broker.address, topic=subject, group_id=subject).start()


def test_schemas_outlive_the_registry(broker: EmbeddedBroker, subject: str) -> None:
    for number in range(1, 4):
        with Registry(broker.address, topic=subject, group_id=subject) as instance:
            api = Api(instance.url)
            assert api.register("s", record(optional=tuple(f"f{n}" for n in range(number))))["version"] == number
            assert api.get("/subjects/s/versions") == list(range(1, number + 1))
