"""SaslAuthenticate: one step of the exchange that the mechanism defines."""

from typing import Annotated, ClassVar

from penstock.wire.types import Int16, Int64, Message, Schema, ignorable, versions


class SaslAuthenticateRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    auth_bytes: bytes = b""


class SaslAuthenticateResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    error_code: Int16 = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: Annotated[Int64, versions("1+"), ignorable] = 0
