"""Several instances: one leads, all answer, and what an old leader decided cannot be written any more."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.registry.api import Api, record
from tests.timeouts import PATIENCE_S, until

from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.registry import Registry, RegistrySettings
from penstock.registry.errors import RegistryError
from penstock.registry.leadership import Leadership, NotLeader
from penstock.registry.records import mode_record, noop_record
from penstock.registry.topic import TopicReader, ensure_topic
from penstock.testing.embedded_broker import EmbeddedBroker

V1 = record("page")


@pytest.fixture
def topic() -> str:
    return f"_schemas-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def settings(broker: EmbeddedBroker, topic: str) -> RegistrySettings:
    return RegistrySettings(
        bootstrap_servers=broker.address, topic=topic, group_id=f"group-{topic}", port=0, session_timeout_ms=1_000
    )


@pytest.fixture
def instances(settings: RegistrySettings) -> Iterator[list[Registry]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Registry(settings=settings)) for _ in range(3)]


def leader_of(instances: list[Registry]) -> Registry:
    until(lambda: sum(each.is_leader for each in instances) == 1, "one instance leads")
    return next(each for each in instances if each.is_leader)


def test_every_instance_takes_writes_and_reads_what_it_wrote(instances: list[Registry]) -> None:
    leader_of(instances)
    for number, instance in enumerate(instances):
        api = Api(instance.url)
        found = api.register(f"s-{number}", V1)
        assert found["id"] == 1
        # Written by the leader, and already here.
        assert api.get(f"/subjects/s-{number}/versions") == [1]
        assert api.done("PUT", f"/config/s-{number}", {"compatibility": "FULL"}) == {"compatibility": "FULL"}
        assert api.get(f"/config/s-{number}") == {"compatibilityLevel": "FULL"}
        assert api("POST", f"/subjects/s-{number}/versions", record("page", "site")).error == 409
        assert api.done("DELETE", f"/subjects/s-{number}") == [1]
        assert api.get("/subjects") == []


def test_another_instance_takes_over(instances: list[Registry]) -> None:
    leader = leader_of(instances)
    Api(leader.url).register("before", V1)
    leader.stop()
    left = [each for each in instances if each is not leader]
    for instance in left:
        assert Api(instance.url).register(f"after-{instance.port}", record("site"))["id"] == 2
        assert "before" in Api(instance.url).get("/subjects")
    assert leader_of(left).url == Api(left[0].url).get("/v1/metadata/leader")["leader"]


def test_concurrent_writes_at_all_instances_number_versions_without_gaps(instances: list[Registry]) -> None:
    async def write() -> list[int]:
        calls = [
            asyncio.to_thread(
                Api(instances[number % 3].url).register, "many", record(optional=tuple(f"f{n}" for n in range(number)))
            )
            for number in range(24)
        ]
        return [found["version"] for found in await asyncio.gather(*calls)]

    leader_of(instances)
    assert sorted(asyncio.run(write())) == list(range(1, 25))
    until(lambda: all(len(Api(each.url).get("/subjects/many/versions")) == 24 for each in instances), "all have read")
    ids = {tuple(Api(each.url).get(f"/subjects/many/versions/{n}")["id"] for n in range(1, 25)) for each in instances}
    assert len(ids) == 1
    assert len(set(ids.pop())) == 24


def leads(instance: Leadership) -> bool:
    return instance.is_leader


def test_an_old_leader_is_fenced(settings: RegistrySettings) -> None:
    """Both believe that they lead, as after a long pause of one. Only the later can write."""

    async def story() -> None:
        await ensure_topic(settings)
        reader = TopicReader(settings)
        reading = asyncio.create_task(reader.run())
        old, new = (Leadership(settings, reader, f"http://{name}") for name in ("old", "new"))
        leading = []
        for each in (old, new):
            each._elected.set()
            leading.append(asyncio.create_task(each._lead()))
            async with asyncio.timeout(PATIENCE_S):
                while not each.is_leader:
                    await asyncio.sleep(0.01)
        assert leads(old)  # it has not noticed
        assert reader.store.leader == "http://new"
        with pytest.raises(RegistryError) as failed:
            await old.write([mode_record("a", "READONLY"), mode_record("b", "READONLY")])
        assert failed.value.code == 50001
        assert leads(old) is False
        await new.write([mode_record("c", "IMPORT")])
        assert [reader.store.mode(name) for name in "abc"] == [None, None, "IMPORT"]
        with pytest.raises(NotLeader):
            await old.write([mode_record("a", "READONLY")])
        for task in (*leading, reading):
            task.cancel()
        await asyncio.gather(*leading, reading, return_exceptions=True)

    asyncio.run(story())


def test_what_was_not_committed_is_not_there(settings: RegistrySettings, broker: EmbeddedBroker) -> None:
    """A leader died between writing and committing. The next one ends its transaction."""
    with Registry(settings=settings) as instance:
        Api(instance.url).register("before", V1)
    producer = Producer(broker.address, transactional_id=f"{settings.group_id}-{settings.topic}")
    producer.begin_transaction()
    record_ = mode_record("lost", "READONLY")
    producer.send(settings.topic, record_.value, record_.key).result(PATIENCE_S)
    with Registry(settings=settings) as instance:
        api = Api(instance.url)
        assert api.register("after", V1)["id"] == 1
        assert api("GET", "/mode/lost").error == 40409
    with pytest.raises(Exception, match=r"fenced|epoch|producer"):
        producer.commit_transaction()
    producer.close()


def test_without_a_leader_a_write_says_so_and_reads_go_on(settings: RegistrySettings, broker: EmbeddedBroker) -> None:
    impatient = RegistrySettings(
        bootstrap_servers=settings.bootstrap_servers, topic=settings.topic, group_id=settings.group_id, port=0,
        write_timeout_ms=300,
    )  # fmt: skip
    asyncio.run(ensure_topic(settings))
    with Consumer(settings.topic, bootstrap_servers=broker.address, group_id=settings.group_id) as other:
        other.wait_for_assignment(timeout=PATIENCE_S)
        with Registry(settings=impatient) as instance:
            api = Api(instance.url)
            answer = api("POST", "/subjects/s/versions", V1)
            assert (answer.status, answer.error) == (500, 50004)
            assert api.get("/subjects") == []


def test_a_leader_that_goes_away_in_the_middle_of_a_write_is_reported(
    settings: RegistrySettings, broker: EmbeddedBroker
) -> None:
    """Whether the write was carried out is not known, so it is not sent again."""
    asyncio.run(ensure_topic(settings))
    requests: list[bytes] = []

    def answer_nothing(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer:
            requests.append(peer.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        listening.settimeout(PATIENCE_S)
        leader = threads.submit(answer_nothing, listening)
        with Consumer(settings.topic, bootstrap_servers=broker.address, group_id=settings.group_id) as other:
            other.wait_for_assignment(timeout=PATIENCE_S)
            named = noop_record(f"http://127.0.0.1:{listening.getsockname()[1]}")
            with Producer(broker.address) as producer:
                producer.send(settings.topic, named.value, named.key, partition=0).result(PATIENCE_S)
            with Registry(settings=settings) as instance:
                answer = Api(instance.url)("POST", "/subjects/s/versions", V1)
        leader.result(PATIENCE_S)
    assert (answer.status, answer.error) == (500, 50003)
    assert len(requests) == 1
    assert requests[0].startswith(b"POST /subjects/s/versions")


def test_a_write_that_is_not_committed_in_time_is_reported(
    settings: RegistrySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registry(settings=settings) as instance:
        api = Api(instance.url)
        assert api.register("s", V1)["version"] == 1
        assert instance._service is not None
        leadership = instance._service._leadership
        producer = leadership._producer
        assert producer is not None

        async def never() -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(producer, "commit_transaction", never)
        monkeypatch.setattr(leadership, "_settings", dataclasses.replace(settings, write_timeout_ms=300))
        answer = api("PUT", "/config/s", {"compatibility": "NONE"})
        assert (answer.status, answer.error) == (500, 50002)
        # A new epoch has begun, and what was not committed is not there.
        monkeypatch.undo()
        until(lambda: instance.is_leader, "it leads again")
        assert api("GET", "/config/s").error == 40408


def test_records_are_those_of_confluent(settings: RegistrySettings, broker: EmbeddedBroker) -> None:
    with Registry(settings=settings) as instance:
        api = Api(instance.url)
        api.register("s", V1)
        api.done("PUT", "/config/s", {"compatibility": "FULL"})
        api.done("DELETE", "/subjects/s")
        api.done("DELETE", "/subjects/s?permanent=true")
        url = instance.url
    with Consumer(
        settings.topic, bootstrap_servers=broker.address, auto_offset_reset="earliest",
        isolation_level="read_committed", consumer_timeout_ms=1_000,
    ) as consumer:  # fmt: skip
        found: list[tuple[Any, Any]] = [(each.key, json.loads(each.value or b"null")) for each in consumer]
    assert found[0] == (b'{"keytype":"NOOP","magic":0}', {"leader": url})
    key, value = found[1]
    assert key == b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert {name: value[name] for name in ("subject", "version", "id", "deleted")} == {
        "subject": "s", "version": 1, "id": 1, "deleted": False,
    }  # fmt: skip
    config = b'{"keytype":"CONFIG","subject":"s","magic":0}'
    assert found[2] == (config, {"subject": "s", "compatibilityLevel": "FULL"})
    assert found[3] == (b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', {"subject": "s", "version": 1})
    assert found[4] == (config, None)
    assert found[5] == (key, None)


def test_the_topic_of_confluents_registry_is_understood(settings: RegistrySettings, broker: EmbeddedBroker) -> None:
    """Records as version 8 of that registry writes them."""
    asyncio.run(ensure_topic(settings))
    text = '{"type":"record","name":"View","fields":[]}'
    records: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({"keytype": "NOOP", "magic": 0}, None),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"subject": None, "compatibilityLevel": "NONE"}),
        ({"keytype": "SCHEMA", "subject": "v", "version": 1, "magic": 1},
         {"subject": "v", "version": 1, "id": 41, "md5": "Lx", "guid": "5bb9e5a7-8d0d-5b1c-9d0e-0f0f0f0f0f0f",
          "schema": text, "deleted": False, "ts": 1}),
        ({"keytype": "SCHEMA", "subject": "w", "version": 3, "magic": 1},
         {"subject": "w", "version": 3, "id": 42, "schemaType": "JSON", "references": [], "metadata": None,
          "ruleSet": None, "schema": "{}", "deleted": True}),
        ({"keytype": "MODE", "subject": "v", "magic": 0}, {"subject": "v", "mode": "READONLY"}),
        ({"keytype": "CONTEXT", "tenant": "default", "context": ".c", "magic": 0}, {"tenant": "default"}),
        ({"keytype": "SOMETHING_NEW", "magic": 0}, {"a": 1}),
    ]  # fmt: skip
    with Producer(broker.address) as producer:
        producer.send(settings.topic, b"not JSON", b"neither").result(PATIENCE_S)
        for key, value in records:
            data = None if value is None else json.dumps(value).encode()
            producer.send(settings.topic, data, json.dumps(key).encode()).result(PATIENCE_S)
    with Registry(settings=settings) as instance:
        api = Api(instance.url)
        assert api.get("/schemas/ids/41")["schema"] == text
        assert api.get("/schemas/guids/5bb9e5a7-8d0d-5b1c-9d0e-0f0f0f0f0f0f/ids") == [{"context": ".", "id": 41}]
        assert api.get("/subjects?deletedOnly=true") == ["w"]
        assert api.get("/config") == {"compatibilityLevel": "NONE"}
        assert api.get("/mode/v") == {"mode": "READONLY"}
        assert api.get("/contexts") == [".", ".c"]
        assert api.register("x", V1)["id"] == 43


def test_a_noop_names_the_leader() -> None:
    assert noop_record("http://a:1").value == b'{"leader":"http://a:1"}'
