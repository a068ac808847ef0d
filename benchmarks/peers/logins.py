"""Logins and single questions on bare sockets: the same code for every broker.

The hash of a password is kept, which RFC 5802 allows: hashing it for each login takes milliseconds of the client's CPU.
"""

from __future__ import annotations

import base64
import functools
import os
import socket
from typing import Any, Final

from benchmarks.peers.servers import ServerFailed, request_frame
from penstock.security.scram import ScramClient, salted_password
from penstock.wire.framing import decode_response
from penstock.wire.protocol import ApiKey, response_codec
from penstock.wire.schemas.sasl_authenticate import SaslAuthenticateRequest
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest

_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_NONCE_BYTES: Final = 24
_salted: Final = functools.cache(salted_password)


def log_in(connection: socket.socket, mechanism: str, username: str, password: str) -> None:
    """Authenticate with SCRAM. Raises ServerFailed, ScramError, OSError."""
    _answered(connection, ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, SaslHandshakeRequest(mechanism))
    nonce = base64.b64encode(os.urandom(_NONCE_BYTES)).decode()
    client = ScramClient(mechanism, username, password, nonce, _salted)
    client.check(_said(connection, client.final(_said(connection, client.first()))))


def _said(connection: socket.socket, token: bytes) -> bytes:
    request = SaslAuthenticateRequest(token)
    answer: bytes = _answered(connection, ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, request).auth_bytes
    return answer


def _answered(connection: socket.socket, api: ApiKey, version: int, message: Any) -> Any:
    response = ask(connection, api, version, request_frame(api, version, message))
    if response.error_code:
        raise ServerFailed(f"{api.name} was answered with error {response.error_code}")
    return response


def ask(connection: socket.socket, api: ApiKey, version: int, frame: bytes) -> Any:
    """The response to an encoded request. Raises ServerFailed at the end of the stream, WireError, OSError."""
    connection.sendall(frame)
    size = int.from_bytes(_exactly(connection, 4), "big")
    answer = _exactly(connection, size)
    _, position = decode_response(api, version, answer)
    response, _ = response_codec(api, version).decode(answer, position)
    return response


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ServerFailed("the broker closed the connection")
        data += more
    return data
