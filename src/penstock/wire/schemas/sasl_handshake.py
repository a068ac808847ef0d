"""SaslHandshake: agreeing on the mechanism before authentication.

After version 0 the exchange continues in bare frames, after version 1 inside SaslAuthenticate.
"""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Message, Schema


class SaslHandshakeRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1")

    mechanism: str = ""


class SaslHandshakeResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1")

    error_code: Int16 = 0
    mechanisms: list[str] = EMPTY
