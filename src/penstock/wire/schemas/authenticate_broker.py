"""AuthenticateBroker: two brokers of a cluster prove themselves to each other. Private to our brokers, not advertised.

The connecting broker sends its id and a nonce, and is answered with a nonce and a proof. It then sends its own proof
and no nonce; the answer says whether the connection is a broker's from now on. See `penstock.security.broker_proof`.
"""

from typing import ClassVar

from penstock.wire.types import Int16, Int32, Message, Schema


class AuthenticateBrokerRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    broker_id: Int32 = -1
    nonce: bytes = b""
    proof: bytes = b""


class AuthenticateBrokerResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    error_code: Int16 = 0
    broker_id: Int32 = -1
    nonce: bytes = b""
    proof: bytes = b""
