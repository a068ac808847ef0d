"""From an address to a connection that has agreed on versions.

Rule: resolve, connect, TLS if asked for, then ApiVersions in version 3, in 0 if that is refused. Brokers older than
0.10 do not know it: some pass over it in silence, some close the connection. Silence alone proves nothing, so after a
while old requests follow on the same connection: brokers answer in order, so an answer to these and none to ApiVersions
does. Others close connections too, so closing is believed only of a peer that answers an old request and then, asked
for its versions on the same connection, hangs up. Whatever fails says why (`diagnosis.Unusable`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl as tls
from typing import Any, Final, NamedTuple

from penstock.client.addresses import Address
from penstock.client.connection import Connection, IgnoredRequest
from penstock.client.diagnosis import Unusable, connect_failure, handshake_failure
from penstock.client.errors import Cause, NotConnected, PenstockError, UnsupportedVersion
from penstock.client.old_brokers import ERAS, Era
from penstock.client.resolving import resolve
from penstock.wire.api_keys import ApiKey
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.types import Message

SOFTWARE_NAME: Final = "penstock"
_FIRST_TRIED: Final = 3
# How long a broker may be silent before it is asked what only an old one would answer alone.
_SILENCE_MS: Final = 300


class Way(NamedTuple):
    """How connections are opened."""

    client_id: str | None = "penstock"
    connect_timeout_ms: float = 10_000
    request_timeout_ms: float = 30_000
    ssl: tls.SSLContext | None = None


async def open_connection(address: Address, way: Way, *, maybe_old: bool = False) -> Connection:
    """A connection, ready for requests; raises Unusable. `maybe_old` saves the wait where a broker was old before."""
    connection = await _connect(address, way)
    try:
        if await _agreed(connection, address, way, maybe_old=maybe_old):
            return connection
    finally:
        if not connection.versions:
            connection.abort()
    return await _open_old(address, way)


async def _agreed(connection: Connection, address: Address, way: Way, *, maybe_old: bool = False) -> bool:
    """Whether versions are agreed on; False if the peer closed the connection without a byte. Raises Unusable."""
    try:
        await _agree(connection, way, 0 if maybe_old else _SILENCE_MS)
    except UnsupportedVersion as error:
        raise Unusable(str(address), Cause.VERSION, error.message) from error
    except PenstockError as error:
        if isinstance(error, NotConnected) and not connection.first_bytes:
            return False
        raise handshake_failure(address, error, connection.first_bytes) from error
    return True


async def _agree(connection: Connection, way: Way, silence_ms: float) -> None:
    timeout_ms = _handshake_ms(way)
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=_version())
    asked = _sent(connection, ApiKey.API_VERSIONS, request, _FIRST_TRIED, timeout_ms)
    await asyncio.wait((asked,), timeout=silence_ms / 1000)
    if not asked.done():
        era = await _era_of_silent(connection, asked, timeout_ms)
        if era is not None:
            connection.agree(((key, *versions) for key, versions in era.versions.items()), era.name)
            return
    answer: ApiVersionsResponse = await asked
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        answer = await connection.request(ApiKey.API_VERSIONS, ApiVersionsRequest(), version=0, timeout_ms=timeout_ms)
    if answer.error_code:
        raise UnsupportedVersion(connection.node, "ApiVersions", (0, _FIRST_TRIED), None)
    connection.agree((api.api_key, api.min_version, api.max_version) for api in answer.api_keys)
    connection.version_of(ApiKey.METADATA)


async def _era_of_silent(connection: Connection, asked: asyncio.Future[Any], timeout_ms: float) -> Era | None:
    """Ask what every era knows, newest first; None if the broker is none of them, or has answered by now."""
    probes = [_sent(connection, era.probe_key, era.probe, 0, timeout_ms) for era in ERAS]
    # The last is known to all, and by its answer it is known which of the others were passed over.
    await asyncio.wait((asked, probes[-1]), return_when=asyncio.FIRST_COMPLETED)
    answered = [probe.done() and probe.exception() is None for probe in probes]
    if not (asked.done() and isinstance(asked.exception(), IgnoredRequest)):
        return None
    return next((era for era, known in zip(ERAS, answered, strict=True) if known), None)


def _sent(
    connection: Connection, api_key: ApiKey, message: Message, version: int, timeout_ms: float
) -> asyncio.Future[Any]:
    future = connection.send(api_key, message, version=version, timeout_ms=timeout_ms)
    if future is None:
        raise PenstockError("a request that is to be answered has no future")
    future.add_done_callback(_heard)
    return future


def _heard(future: asyncio.Future[Any]) -> None:
    """An answer that is not waited for any more must not be reported as unheard."""
    if not future.cancelled():
        future.exception()


def _version() -> str:
    from penstock import __version__

    return __version__


_CLOSED_TLS_HINT: Final = (
    "It may want a certificate of the client (SSLContext.load_cert_chain; ssl.certificate.location of the command) or "
    "SASL, be starting, or be at its limit of connections"
)


async def _open_old(address: Address, way: Way) -> Connection:
    """A peer that hung up when it was asked for its versions: an old broker, or anything else that hangs up."""
    for era in ERAS:
        connection = await _connect(address, way)
        try:
            if not await _answers(connection, era, way):
                continue
            # It speaks Kafka. If it answers now then it hung up for another reason, or another did, behind a balancer.
            if await _agreed(connection, address, way):
                return connection
        finally:
            if not connection.versions:
                connection.abort()
        connection = await _connect(address, way)
        connection.agree(((key, *versions) for key, versions in era.versions.items()), era.name)
        return connection
    if way.ssl is None and await _speaks_tls(address, way):
        raise Unusable(str(address), Cause.TLS_REQUIRED, "it closes plaintext connections and answers TLS")
    if way.ssl is not None:
        # In TLS 1.3 a server looks at the client's certificate only after the client is done with the handshake.
        closed = "it accepts TLS connections and closes them without an answer"
        raise Unusable(str(address), Cause.CLOSED, closed, _CLOSED_TLS_HINT)
    raise Unusable(str(address), Cause.CLOSED, "it accepts connections and closes them without an answer")


async def _answers(connection: Connection, era: Era, way: Way) -> bool:
    try:
        await connection.request(era.probe_key, era.probe, version=0, timeout_ms=_handshake_ms(way))
    except PenstockError:
        return False
    return True


async def _speaks_tls(address: Address, way: Way) -> bool:
    """Only to say so in an error, so it does not matter whether the certificate is any good."""
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = tls.CERT_NONE
    try:
        connection = await _connect(address, way._replace(ssl=context))
    except Unusable as error:
        return isinstance(error.__cause__, tls.SSLError) and error.cause is not Cause.TLS_REFUSED
    connection.abort()
    return True


def _handshake_ms(way: Way) -> float:
    return min(way.request_timeout_ms, way.connect_timeout_ms)


async def _connect(address: Address, way: Way) -> Connection:
    """A connection on which nothing was said yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + way.connect_timeout_ms / 1000
    failure: BaseException | None = None
    try:
        async with asyncio.timeout_at(deadline):
            hosts = await resolve(address.host, address.port)
    except (OSError, PenstockError) as error:
        raise connect_failure(address, error, way.connect_timeout_ms, with_tls=False) from error
    for number, host in enumerate(hosts):
        connection = Connection(str(address), client_id=way.client_id, loop=loop)
        # A name with several addresses shares the time between them.
        until = loop.time() + (deadline - loop.time()) / (len(hosts) - number)
        try:
            async with asyncio.timeout_at(until):
                await loop.create_connection(
                    lambda made=connection: made,
                    host,
                    address.port,
                    ssl=way.ssl,
                    server_hostname=address.host if way.ssl is not None else None,
                )
        except OSError as error:
            failure = error
        else:
            return connection
        with contextlib.suppress(asyncio.InvalidStateError):
            connection.abort("no connection")
    if failure is None:
        failure = OSError("the name has no address")
    raise connect_failure(address, failure, way.connect_timeout_ms, with_tls=way.ssl is not None) from failure
