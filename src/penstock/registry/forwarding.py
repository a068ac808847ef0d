"""Sends a write to the instance that leads, and waits until this instance has replayed it.

The leader's address is in the topic. A request that was forwarded once is not forwarded again. While no leader can be
reached, the request waits; once it may have arrived, it is not repeated, and the client learns that the outcome is not
known. An instance never sends to itself: `forward` ends without an answer when it leads, and the request is served.

Over HTTPS, the leader's certificate is verified: by the authority of the settings; else by the system's and by the
authorities in the instance's own chain file, since the instances of a registry usually have the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import ssl
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.registry.errors import RegistryError, RegistryUnavailable, forwarding_failed, no_leader
from penstock.registry.settings import RegistrySettings
from penstock.registry.topic import TopicReader

FORWARDED: Final = "x-forward"
OFFSET: Final = "x-penstock-offset"
_PASSED_ON: Final = ("content-type", "accept", "authorization")
_THREADS: Final = 16
_RETRY_S: Final = 0.1
_ANSWER_BYTES: Final = 16 * 1024 * 1024
_NO_LEADER: Final = 50004


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes
    offset: int


class _NotSent(Exception):
    """The request did not reach an instance that leads; it can be sent again."""


class Forwarder:
    """Forwards from one instance."""

    def __init__(self, settings: RegistrySettings, reader: TopicReader, is_leader: Callable[[], bool]) -> None:
        self._timeout_s = settings.write_timeout_ms / 1000
        self._reader = reader
        self._is_leader = is_leader
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="registry-forward")
        self._tls = trusting(settings)
        self.own_url = ""

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def forward(self, scope: MutableMapping[str, Any], headers: Mapping[str, str], body: bytes) -> Answer | None:
        """The leader's answer; None if this instance leads now. RegistryError if there is none in time."""
        if self._is_leader():
            return None
        if FORWARDED in headers:
            raise no_leader("this instance does not lead (any more)")
        target = str(scope["penstock.target"])
        passed_on = {name: headers[name] for name in _PASSED_ON if name in headers} | {FORWARDED: "true"}
        reason = "no leader has been elected yet"
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        while asyncio.get_running_loop().time() < deadline_s:
            leader = self._reader.store.leader
            # The topic names this instance before it leads, and after it was restarted at its old address.
            if leader and leader != self.own_url:
                sent = functools.partial(_sent, leader, str(scope["method"]), target, passed_on, body)
                try:
                    return await asyncio.get_running_loop().run_in_executor(
                        self._threads, sent, self._timeout_s, self._tls
                    )
                except _NotSent as error:
                    reason = str(error)
            await asyncio.sleep(_RETRY_S)
            if self._is_leader():
                return None
        raise no_leader(reason)

    async def caught_up(self, offset: int) -> None:
        """Wait until a write that the leader has answered can be read here; its clients may ask for it next."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._reader.wait_for(offset)
        except TimeoutError:
            pass  # it is written, and that is what the answer says


def trusting(settings: RegistrySettings) -> ssl.SSLContext:
    """What forwarding trusts. RegistryUnavailable if the file of the settings has no certificate."""
    if settings.ssl_cafile is not None:
        try:
            return ssl.create_default_context(cafile=settings.ssl_cafile)
        except OSError as error:
            raise RegistryUnavailable(
                f"the authority of the leader, {settings.ssl_cafile}, cannot be used: {error}; "
                "name a file of certificates in PEM"
            ) from error
    context = ssl.create_default_context()
    if settings.ssl_certfile is not None:
        # An instance's own leaf, which is among them, vouches for nobody else: it may not sign.
        with contextlib.suppress(OSError):
            context.load_verify_locations(settings.ssl_certfile)
    return context


def _sent(
    leader: str,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    timeout_s: float,
    tls: ssl.SSLContext,
) -> Answer:
    address = urlsplit(leader)
    try:
        connection = _connection(address.scheme, address.hostname or "", address.port, timeout_s, tls)
        connection.connect()
    except (OSError, ValueError) as error:
        raise _NotSent(f"{leader}: {error}") from error
    try:
        connection.request(method, target, body=body or None, headers=dict(headers))
        response = connection.getresponse()
        data = response.read(_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise forwarding_failed(f"{leader}: {error}; whether it was carried out is not known") from error
    finally:
        connection.close()
    if response.status == RegistryError(_NO_LEADER, "").status and b'"error_code":%d' % _NO_LEADER in data:
        raise _NotSent(f"{leader} does not lead any more")
    offset = response.getheader(OFFSET, "0")
    return Answer(response.status, response.getheader("Content-Type", ""), data, int(offset) if offset.isdigit() else 0)


def _connection(
    scheme: str, host: str, port: int | None, timeout_s: float, tls: ssl.SSLContext
) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)
