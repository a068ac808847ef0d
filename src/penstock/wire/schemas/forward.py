"""Forward: a broker passes a client's request on to the controller. Private to our brokers, not advertised.

`request` and `response` are bodies of the named API and version. The principal is the client's, as authenticated by the
broker that it is connected to; groups and roles are written as principals, `Group:staff`.
"""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Message, Schema


class ForwardRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    api_key: Int16 = 0
    api_version: Int16 = 0
    client_id: str | None = None
    principal: str = ""
    groups: list[str] = EMPTY
    listener: str = ""
    protocol: str = ""
    host: str = ""
    request: bytes = b""


class ForwardResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    error_code: Int16 = 0
    response: bytes = b""
