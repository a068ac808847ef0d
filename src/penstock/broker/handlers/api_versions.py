"""ApiVersions: what this broker serves. The router answers versions that nobody knows with version 0 of this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.request import Answer, Request
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.api_versions import ApiVersion, ApiVersionsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

PRIVATE: Final = 30000
"""From this number on, APIs are those of our brokers among themselves."""


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    answer(ApiVersionsResponse(api_keys=_keys(broker)))


def unsupported(broker: Broker) -> ApiVersionsResponse:
    """To a version that is not served: the error, and which versions are."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_keys(broker))


def _keys(broker: Broker) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=served.lowest, max_version=served.highest)
        for key, served in broker.served.items()
        if key < PRIVATE
    ]
