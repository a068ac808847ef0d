"""SaslHandshake and SaslAuthenticate on a connection that needs no authentication, or has it already.

Before authentication, the gate of the connection serves them (`penstock.broker.authentication`). Here a SaslHandshake
starts the re-authentication of a session that has an end; anything else is not allowed in this state.
"""

from __future__ import annotations

from penstock.broker.request import Answer, Request, Services
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.sasl_authenticate import SaslAuthenticateResponse
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle_handshake(services: Services, request: Request, answer: Answer) -> None:
    message: SaslHandshakeRequest = request.message
    channel = request.channel
    authentication = None if channel is None else channel.authentication
    if authentication is None or not authentication.may_begin_again():
        answer(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
        return
    authentication.begin_again(message.mechanism, request.version, answer)


def handle_authenticate(services: Services, request: Request, answer: Answer) -> None:
    reason = "SaslAuthenticate request received after successful authentication"
    answer(SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=reason))
