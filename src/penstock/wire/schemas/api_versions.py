"""ApiVersions: what a broker serves, asked before anything else is known.

Its answer has header version 0 whatever its own version is, since the asker cannot know yet. Version 4
differs from 3 only in which feature ranges a broker may state.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, ignorable, tagged, versions


class ApiVersionsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="3+")

    client_software_name: Annotated[str, versions("3+"), ignorable] = ""
    client_software_version: Annotated[str, versions("3+"), ignorable] = ""


class ApiVersion(Message):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    name: str = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Message):
    name: str = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="3+")

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = EMPTY
    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    supported_features: Annotated[list[SupportedFeatureKey], tagged(0, "3+"), ignorable] = EMPTY
    finalized_features_epoch: Annotated[Int64, tagged(1, "3+"), ignorable] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], tagged(2, "3+"), ignorable] = EMPTY
    zk_migration_ready: Annotated[bool, tagged(3, "3+"), ignorable] = False
