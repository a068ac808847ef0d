"""ApiVersions: the APIs and versions that this broker serves."""

from __future__ import annotations

from penstock.broker.api_table import PRIVATE, apis_of
from penstock.broker.request import Answer, Request, Services
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.api_versions import ApiVersion, ApiVersionsResponse


def handle(services: Services, request: Request, answer: Answer) -> None:
    answer(ApiVersionsResponse(api_keys=_keys(services)))


def unsupported(services: Services) -> ApiVersionsResponse:
    """For a version that is not served: the error and the versions that are. It is sent as version 0."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_keys(services))


def _keys(services: Services) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
        for key, api in apis_of(in_cluster=services.membership_or_none is not None).items()
        if key < PRIVATE
    ]
