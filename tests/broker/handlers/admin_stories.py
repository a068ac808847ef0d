"""Words for stories about administration: a broker's metadata on a disk in memory, and questions that go through bytes.

Every request and answer is written and read in the version of the story, as between a client and a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.broker.handlers.services import services_for
from tests.cluster.cluster_stories import broker as registration
from tests.cluster.cluster_stories import open_tree, run

from penstock.broker.dynamic_config import SettingsRules
from penstock.broker.handlers import configs, create_partitions, create_topics, delete_topics
from penstock.broker.request import Handler, LongRequests, Request
from penstock.broker.settings import BrokerSettings, settings_from
from penstock.cluster.controller.topics import TopicDefaults
from penstock.cluster.membership.standalone import StandaloneMetadata
from penstock.cluster.tree.embedded import EmbeddedTree
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.protocol import ApiKey, request_codec, response_codec
from penstock.wire.schemas.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from penstock.wire.schemas.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from penstock.wire.schemas.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.schemas.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.wire.schemas.incremental_alter_configs import (
    AlterableConfig as Edit,
)
from penstock.wire.schemas.incremental_alter_configs import (
    AlterConfigsResource as Edits,
)
from penstock.wire.schemas.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire.types import Message

NODE_ID = 3
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

_HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    ApiKey.DESCRIBE_CONFIGS: configs.handle_describe,
    ApiKey.ALTER_CONFIGS: configs.handle_alter,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.handle_incremental_alter,
}


class Stage:
    """As much of a broker as administration sees."""

    def __init__(self, tree: EmbeddedTree, files: SimulatedFiles, settings: BrokerSettings) -> None:
        self.files = files
        clock = ManualClock(1_700_000_000_000)
        self.services = services_for(settings, NODE_ID, clock=clock, files=files)
        self.services.loop = asyncio.get_running_loop()
        self.services.long_requests = LongRequests(self.services)
        self.services.cluster = self.cluster = StandaloneMetadata(
            tree,
            clock,
            SeededRandom(1),
            SettingsRules(),
            broker_id=NODE_ID,
            defaults=TopicDefaults(settings.num_partitions, 1),
        )
        self.cluster.listen(lambda _, new: self.services.config.apply(new))

    @property
    def settings(self) -> BrokerSettings:
        return self.services.settings

    async def ask(self, key: ApiKey, version: int, message: Message) -> Any:
        """The answer; it is an error to be answered twice."""
        codec = request_codec(key, version)
        asked, _ = codec.decode(codec.encode(message))
        answered: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        _HANDLERS[key](self.services, Request(key, version, "me", "peer", asked, 0), answered.set_result)
        answer = await answered
        while self.services._tasks:
            await asyncio.sleep(0)
        if answer is None:
            raise AssertionError("no answer")
        response = response_codec(key, version)
        decoded, _ = response.decode(response.encode(answer))
        return decoded

    async def create(
        self, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
    ) -> list[CreatableTopicResult]:
        request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
        response: CreateTopicsResponse = await self.ask(ApiKey.CREATE_TOPICS, version, request)
        return response.topics

    async def delete(self, request: DeleteTopicsRequest, version: int = 6) -> DeleteTopicsResponse:
        response: DeleteTopicsResponse = await self.ask(ApiKey.DELETE_TOPICS, version, request)
        return response

    async def grow(self, request: CreatePartitionsRequest, version: int = 3) -> list[tuple[str, int]]:
        response: CreatePartitionsResponse = await self.ask(ApiKey.CREATE_PARTITIONS, version, request)
        return [(each.name, each.error_code) for each in response.results]

    async def describe(
        self,
        *resources: tuple[int, str, list[str] | None],
        version: int = 4,
        synonyms: bool = False,
        docs: bool = False,
    ) -> list[DescribeConfigsResult]:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
                for kind, name, keys in resources
            ],
            include_synonyms=synonyms,
            include_documentation=docs,
        )
        response: DescribeConfigsResponse = await self.ask(ApiKey.DESCRIBE_CONFIGS, version, request)
        return response.results

    async def replace(
        self, *resources: tuple[int, str, Mapping[str, str | None]], version: int = 2, validate_only: bool = False
    ) -> AlterConfigsResponse:
        request = AlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
                )
                for kind, name, configs in resources
            ],
            validate_only=validate_only,
        )
        response: AlterConfigsResponse = await self.ask(ApiKey.ALTER_CONFIGS, version, request)
        return response

    async def edit(
        self, kind: int, name: str, *edits: tuple[str, int, str | None], version: int = 1, validate_only: bool = False
    ) -> tuple[int, str | None]:
        configs = [Edit(name=key, config_operation=operation, value=value) for key, operation, value in edits]
        request = IncrementalAlterConfigsRequest(
            resources=[Edits(resource_type=kind, resource_name=name, configs=configs)], validate_only=validate_only
        )
        response: IncrementalAlterConfigsResponse = await self.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request)
        (only,) = response.responses
        if (only.resource_type, only.resource_name) != (kind, name):
            raise AssertionError(f"an answer about {only.resource_type} {only.resource_name!r}")
        return only.error_code, only.error_message


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> CreatableTopic:
    """Underscores in the names of settings stand for dots."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def on_stage(story: Callable[[Stage], Awaitable[None]], settings: BrokerSettings | None = None) -> None:
    """Live the story on a broker of its own."""

    async def live() -> None:
        files = SimulatedFiles()
        tree = open_tree(files)
        try:
            given = settings_from({"log.dirs": "/data"}) if settings is None else settings
            stage = Stage(tree, files, given.with_broker_id(NODE_ID))
            await stage.cluster.start(registration(NODE_ID))
            await story(stage)
        finally:
            await tree.close()

    run(live())
