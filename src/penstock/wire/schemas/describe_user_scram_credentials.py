"""DescribeUserScramCredentials: which users have which SCRAM mechanisms; never the secrets."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema


class UserName(Message):
    name: str = ""


class DescribeUserScramCredentialsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    users: list[UserName] | None = EMPTY


class CredentialInfo(Message):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Message):
    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = EMPTY


class DescribeUserScramCredentialsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = EMPTY
