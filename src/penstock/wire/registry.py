"""The APIs that have a schema: their versions, their header versions, and the way to their codecs.

This table alone is cheap to import; the module of an API is imported when its codec is first asked for.
What a broker chooses to serve, and advertises, is a subset of this and the broker's own matter.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.wire.api_keys import ApiKey
from penstock.wire.errors import UnknownApi, UnknownVersion
from penstock.wire.versions import VersionRange

if TYPE_CHECKING:
    from penstock.wire.compiler import Codec
    from penstock.wire.types import Message


class Api(NamedTuple):
    """One API: its known versions, and those of them that are flexible (compact lengths, tagged fields)."""

    key: ApiKey
    versions: VersionRange
    flexible: VersionRange

    @property
    def name(self) -> str:
        """The name as Kafka spells it in messages: DescribeConfigs."""
        return "".join(word.capitalize() for word in self.key.name.split("_"))

    def request_header_version(self, version: int) -> int:
        if version in self.flexible:
            return 2
        # The oldest request of all was defined before headers had a client id.
        return 0 if self.key is ApiKey.CONTROLLED_SHUTDOWN and version == 0 else 1

    def response_header_version(self, version: int) -> int:
        # Only its answer tells a client which versions there are, so it must be readable without that.
        return 1 if version in self.flexible and self.key is not ApiKey.API_VERSIONS else 0

    def check(self, version: int, correlation_id: int | None = None) -> None:
        """Raises UnknownVersion unless there is a schema for the version."""
        lowest, highest = self.versions
        if not lowest <= version <= highest:
            raise UnknownVersion(self.name, version, lowest, highest, api_key=self.key, correlation_id=correlation_id)

    @property
    def request(self) -> type[Message]:
        return self._message("Request")

    @property
    def response(self) -> type[Message]:
        return self._message("Response")

    def _message(self, side: str) -> type[Message]:
        module = import_module(f"penstock.wire.schemas.{self.key.name.lower()}")
        message: type[Message] = getattr(module, self.name + side)
        return message


def _api(key: ApiKey, versions: str, flexible: str) -> Api:
    return Api(key, VersionRange.parse(versions), VersionRange.parse(flexible))


_ROWS: Final = (
    _api(ApiKey.PRODUCE, "0-13", "9+"),
    _api(ApiKey.FETCH, "0-18", "12+"),
    _api(ApiKey.LIST_OFFSETS, "0-11", "6+"),
    _api(ApiKey.METADATA, "0-13", "9+"),
    _api(ApiKey.LEADER_AND_ISR, "0-7", "4+"),
    _api(ApiKey.STOP_REPLICA, "0-4", "2+"),
    _api(ApiKey.UPDATE_METADATA, "0-8", "6+"),
    _api(ApiKey.CONTROLLED_SHUTDOWN, "0-3", "3+"),
    _api(ApiKey.OFFSET_COMMIT, "0-10", "8+"),
    _api(ApiKey.OFFSET_FETCH, "0-10", "6+"),
    _api(ApiKey.FIND_COORDINATOR, "0-6", "3+"),
    _api(ApiKey.JOIN_GROUP, "0-9", "6+"),
    _api(ApiKey.HEARTBEAT, "0-4", "4+"),
    _api(ApiKey.LEAVE_GROUP, "0-5", "4+"),
    _api(ApiKey.SYNC_GROUP, "0-5", "4+"),
    _api(ApiKey.DESCRIBE_GROUPS, "0-6", "5+"),
    _api(ApiKey.LIST_GROUPS, "0-5", "3+"),
    _api(ApiKey.SASL_HANDSHAKE, "0-1", "none"),
    _api(ApiKey.API_VERSIONS, "0-4", "3+"),
    _api(ApiKey.CREATE_TOPICS, "0-7", "5+"),
    _api(ApiKey.DELETE_TOPICS, "0-6", "4+"),
    _api(ApiKey.DELETE_RECORDS, "0-2", "2+"),
    _api(ApiKey.INIT_PRODUCER_ID, "0-6", "2+"),
    _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "0-4", "4+"),
    _api(ApiKey.ADD_PARTITIONS_TO_TXN, "0-5", "3+"),
    _api(ApiKey.ADD_OFFSETS_TO_TXN, "0-4", "3+"),
    _api(ApiKey.END_TXN, "0-5", "3+"),
    _api(ApiKey.WRITE_TXN_MARKERS, "0-2", "1+"),
    _api(ApiKey.TXN_OFFSET_COMMIT, "0-5", "3+"),
    _api(ApiKey.DESCRIBE_ACLS, "0-3", "2+"),
    _api(ApiKey.CREATE_ACLS, "0-3", "2+"),
    _api(ApiKey.DELETE_ACLS, "0-3", "2+"),
    _api(ApiKey.DESCRIBE_CONFIGS, "0-4", "4+"),
    _api(ApiKey.ALTER_CONFIGS, "0-2", "2+"),
    _api(ApiKey.ALTER_REPLICA_LOG_DIRS, "0-2", "2+"),
    _api(ApiKey.DESCRIBE_LOG_DIRS, "0-5", "2+"),
    _api(ApiKey.SASL_AUTHENTICATE, "0-2", "2+"),
    _api(ApiKey.CREATE_PARTITIONS, "0-3", "2+"),
    _api(ApiKey.DELETE_GROUPS, "0-2", "2+"),
    _api(ApiKey.ELECT_LEADERS, "0-2", "2+"),
    _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", "1+"),
    _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", "0+"),
    _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "0", "0+"),
    _api(ApiKey.OFFSET_DELETE, "0", "none"),
    _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", "1+"),
    _api(ApiKey.ALTER_CLIENT_QUOTAS, "0-1", "1+"),
    _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0", "0+"),
    _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0", "0+"),
    _api(ApiKey.ALTER_PARTITION, "0-3", "0+"),
    _api(ApiKey.DESCRIBE_CLUSTER, "0-2", "0+"),
    _api(ApiKey.DESCRIBE_PRODUCERS, "0", "0+"),
    _api(ApiKey.DESCRIBE_TRANSACTIONS, "0", "0+"),
    _api(ApiKey.LIST_TRANSACTIONS, "0-2", "0+"),
    _api(ApiKey.ALLOCATE_PRODUCER_IDS, "0", "0+"),
    _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", "0+"),
    _api(ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", "0+"),
    _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0", "0+"),
    _api(ApiKey.PUSH_IMAGE, "0", "0+"),
)

APIS: Final[dict[int, Api]] = {int(api.key): api for api in _ROWS}

_request_codecs: Final[dict[tuple[int, int], Codec[Any]]] = {}
_response_codecs: Final[dict[tuple[int, int], Codec[Any]]] = {}


def find_api(api_key: int) -> Api:
    """The API of a number; raises UnknownApi if there is no schema for it."""
    api = APIS.get(api_key)
    if api is None:
        raise UnknownApi(api_key)
    return api


def request_codec(api_key: int, version: int) -> Codec[Any]:
    """The codec of an API's request; raises UnknownApi or UnknownVersion."""
    codec = _request_codecs.get((api_key, version))
    if codec is None:
        codec = _request_codecs[api_key, version] = _compiled(find_api(api_key), version, "Request")
    return codec


def response_codec(api_key: int, version: int) -> Codec[Any]:
    """The codec of an API's response; raises UnknownApi or UnknownVersion."""
    codec = _response_codecs.get((api_key, version))
    if codec is None:
        codec = _response_codecs[api_key, version] = _compiled(find_api(api_key), version, "Response")
    return codec


def _compiled(api: Api, version: int, side: str) -> Codec[Any]:
    from penstock.wire.compiler import codec_for

    api.check(version)
    return codec_for(api.request if side == "Request" else api.response, version)
