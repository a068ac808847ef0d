"""Forwarding, as far as it is not a story of several instances (`test_leadership.py`)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme
from tests.registry.api import Api, record
from tests.security.certificates import authority, pem, write_broker, write_ca
from tests.timeouts import PATIENCE_S, until

from penstock.client.consumer import Consumer
from penstock.registry import Registry, RegistrySettings
from penstock.registry.errors import RegistryUnavailable
from penstock.registry.topic import ensure_topic
from penstock.testing.embedded_broker import EmbeddedBroker

Start = Callable[..., tuple[Registry, Api]]


def test_a_forwarded_request_is_answered_by_the_leader_with_its_offset(
    registry: Registry, api: Api, subject: str
) -> None:
    until(lambda: registry.is_leader, "it leads")
    answer = api("POST", f"/subjects/{subject}/versions", record("a"), {"X-Forward": "true"})
    assert answer.status == 200
    assert int(answer.headers["x-penstock-offset"]) > 0


@pytest.fixture
def start(broker: EmbeddedBroker, subject: str, tmp_path: Path) -> Iterator[Start]:
    """Starts an instance with HTTPS; all have a private authority, which the system does not know."""
    tls = ssl.create_default_context(cafile=write_ca(tmp_path))
    with ExitStack() as stack:

        def started(
            certificate: str, authorities: str | None = None, write_timeout_ms: int = 15_000
        ) -> tuple[Registry, Api]:
            instance = Registry(
                broker.address, topic=f"_{subject}", group_id=subject,
                ssl_certfile=certificate, ssl_keyfile=certificate, ssl_cafile=authorities,
                write_timeout_ms=write_timeout_ms,
            )  # fmt: skip
            stack.enter_context(instance)
            return instance, Api(instance.url, tls)

        yield started


def test_instances_forward_over_https_with_the_authority_of_the_settings(start: Start, tmp_path: Path) -> None:
    certificate = write_broker(tmp_path)
    leader, api = start(certificate)
    until(lambda: leader.is_leader, "the first leads")
    _, other = start(certificate, write_ca(tmp_path))
    assert other.register("s", record("a"))["id"] == 1
    assert api.get("/subjects") == other.get("/subjects") == ["s"]


def test_instances_forward_over_https_with_the_authority_in_their_chain_file(start: Start, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(pem(authority().issue_cert("127.0.0.1")) + authority().cert_pem.bytes())
    leader, _ = start(write_broker(tmp_path))
    until(lambda: leader.is_leader, "the first leads")
    assert start(str(chain))[1].register("s", record("a"))["id"] == 1


def test_a_leader_with_a_certificate_of_another_authority_gets_no_request(start: Start, tmp_path: Path) -> None:
    leader, _ = start(write_broker(tmp_path))
    until(lambda: leader.is_leader, "the first leads")
    foreign = write_ca(tmp_path, trustme.CA(), "foreign.pem")
    _, other = start(write_broker(tmp_path), foreign, write_timeout_ms=300)
    answer = other("POST", "/subjects/s/versions", record("a"))
    assert answer.error == 50004
    assert "certificate verify failed" in answer.value["message"]


def test_an_instance_that_is_elected_serves_the_write_that_waited(
    start: Start, broker: EmbeddedBroker, subject: str, tmp_path: Path
) -> None:
    """It does not trust its own certificate, so it could not reach itself."""
    asyncio.run(ensure_topic(RegistrySettings(bootstrap_servers=broker.address, topic=f"_{subject}")))
    with ThreadPoolExecutor(1) as threads:
        with Consumer(
            f"_{subject}", bootstrap_servers=broker.address, group_id=subject,
            partition_assignment_strategy=("cooperative-sticky",),
        ) as other:  # fmt: skip
            other.wait_for_assignment(timeout=PATIENCE_S)
            instance, api = start(write_broker(tmp_path))
            write = threads.submit(api.register, "s", record("a"))
            server = instance._server
            assert server is not None
            until(lambda: server._server.server_state.tasks, "the write waits")
            assert not instance.is_leader
        assert write.result(PATIENCE_S)["id"] == 1


def test_an_authority_that_is_no_certificate_is_reported(broker: EmbeddedBroker, subject: str, tmp_path: Path) -> None:
    wrong = tmp_path / "none.pem"
    for content in (None, b"no certificate"):
        if content is not None:
            wrong.write_bytes(content)
        with pytest.raises(RegistryUnavailable, match=r"the leader, .*none\.pem, cannot be used"):
            Registry(broker.address, topic=f"_{subject}", group_id=subject, ssl_cafile=str(wrong)).start()
