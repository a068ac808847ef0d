"""ApiVersions: the APIs, versions and features that this broker serves.

The feature transaction.version is 2 (KIP-890) unless the setting of this name is lower. Clients take over the level
with the highest epoch that they have seen.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.api_table import PRIVATE, Api, apis_of
from penstock.broker.request import Answer, Request, Services
from penstock.coordination.transactions.transaction import VERSION_2
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_TRANSACTIONS: Final = "transaction.version"
_FIRST_VERSION_WITH_RANGES_FROM_0: Final = 4


def handle(services: Services, request: Request, answer: Answer) -> None:
    answer(with_features(services, ApiVersionsResponse(api_keys=_keys(services)), request.version))


def with_features(services: Services, response: ApiVersionsResponse, version: int) -> ApiVersionsResponse:
    """The response with the features. Version 3 cannot state a range that starts at 0."""
    level = services.settings.transactions.version
    if version >= _FIRST_VERSION_WITH_RANGES_FROM_0:
        response.supported_features = [SupportedFeatureKey(name=_TRANSACTIONS, min_version=0, max_version=VERSION_2)]
    response.finalized_features = [
        FinalizedFeatureKey(name=_TRANSACTIONS, max_version_level=level, min_version_level=level)
    ]
    # A lower level is newer than a higher one under the same controller.
    response.finalized_features_epoch = 2 * _controller_epoch(services) + (level < VERSION_2)
    return response


def _controller_epoch(services: Services) -> int:
    # A broker that joins its cluster has no image yet.
    return services.cluster.image.controller_epoch if hasattr(services, "cluster") else 0


def unsupported(services: Services) -> ApiVersionsResponse:
    """The response to a version that is not served: the error, and the versions that are. It is sent as version 0."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_keys(services))


def _max_version(services: Services, key: int, api: Api) -> int:
    if key == ApiKey.INIT_PRODUCER_ID and not services.settings.transactions.two_phase_commit:
        return api.max_version - 1  # the last version is that of two-phase commit
    return api.max_version


def _keys(services: Services) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=api.min_version, max_version=_max_version(services, key, api))
        for key, api in apis_of(in_cluster=services.membership_or_none is not None).items()
        if key < PRIVATE
    ]
