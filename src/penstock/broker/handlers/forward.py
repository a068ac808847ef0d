"""Forward: requests of clients that only another broker can serve, passed on by the broker that received them.

Those for the controller may be sent to any broker. Those for leaders and coordinators come from proxied listeners
(`penstock.broker.handlers.proxy`). They are served in the client's name, not in the broker's: what the client may not
do, it may not do by way of another broker either.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

from penstock.broker.api_table import API_TABLE, ServedBy
from penstock.broker.errors import api_error_of
from penstock.broker.request import Answer, Handler, Request, Services
from penstock.cluster.broker_links import LinkLost
from penstock.security.principal import Session, parse_principal
from penstock.wire.errors import WireError
from penstock.wire.protocol import ApiKey, ErrorCode, request_codec, response_codec
from penstock.wire.schemas.forward import ForwardRequest, ForwardResponse
from penstock.wire.types import Message

PROXIED: Final = frozenset(
    {
        ApiKey.LIST_OFFSETS,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)
"""What leaders and coordinators serve for clients of other brokers."""


def forwarded(request: Request) -> ForwardRequest:
    """The request as it is sent to the broker that serves it."""
    session = request.session
    return ForwardRequest(
        api_key=request.api_key,
        api_version=request.version,
        client_id=request.client_id,
        principal=str(session.principal),
        groups=sorted(map(str, session.groups)),
        listener=session.listener,
        protocol=session.protocol,
        host=session.host,
        request=request_codec(request.api_key, request.version).encode(request.message),
    )


def response_in(request: Request, answer: Message) -> Message:
    """The response to a forwarded request. LinkLost if there is none."""
    if not isinstance(answer, ForwardResponse) or answer.error_code:
        code = getattr(answer, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR)
        raise LinkLost(f"a forwarded request was rejected with error {code}")
    response: Message
    response, _ = response_codec(request.api_key, request.version).decode(bytes(answer.response))
    return response


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: ForwardRequest = request.message
    key, version = message.api_key, message.api_version
    api = API_TABLE.get(key)
    is_served = api is not None and (api.by is ServedBy.CONTROLLER or key in PROXIED)
    if api is None or not is_served or not api.min_version <= version <= api.max_version:
        answer(ForwardResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    long_requests = services.long_requests

    async def serve() -> None:
        codec = request_codec(key, version)
        body, _ = await long_requests.through(codec.decode_slices(bytes(message.request), 0, api.max_elements))
        client = request._replace(
            api_key=key,
            version=version,
            client_id=message.client_id,
            peer=f"{message.host} through {request.peer}",
            message=body,
            size=len(message.request),
            session=_session(message),
        )
        _handler(api.handler)(services, client, respond)

    async def encode(response: Message) -> None:
        chunks = await long_requests.through(response_codec(key, version).encode_slices(response))
        answer(ForwardResponse(response=b"".join(map(bytes, chunks))))  # type: ignore[arg-type]

    def respond(response: Message | None) -> None:
        if response is None:
            answer(ForwardResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            services.spawn(encode(response), fail)

    def fail(error: BaseException) -> None:
        code = ErrorCode.INVALID_REQUEST if isinstance(error, WireError | ValueError) else api_error_of(error).code
        answer(ForwardResponse(error_code=code))

    services.spawn(serve(), fail)


def _session(message: ForwardRequest) -> Session:
    """The client's. ValueError."""
    return Session(
        principal=parse_principal(message.principal),
        listener=message.listener,
        protocol=message.protocol,
        host=message.host,
        groups=frozenset(map(parse_principal, message.groups)),
    )


@cache
def _handler(handler: Handler | str) -> Handler:
    if not isinstance(handler, str):
        return handler
    module, _, function = handler.partition(".")
    found: Handler = getattr(import_module(f"penstock.broker.handlers.{module}"), function)
    return found
