"""AlterUserScramCredentials: storing and removing salted SCRAM passwords."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema


class ScramCredentialDeletion(Message):
    name: str = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message):
    name: str = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: bytes = b""
    salted_password: bytes = b""


class AlterUserScramCredentialsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    deletions: list[ScramCredentialDeletion] = EMPTY
    upsertions: list[ScramCredentialUpsertion] = EMPTY


class AlterUserScramCredentialsResult(Message):
    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""


class AlterUserScramCredentialsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = EMPTY
