"""Admin calls about ACLs: who may do what.

ACLs and filters are those of `penstock.security.acls`, which also decides and explains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.admin.core import AdminCore
from penstock.client.errors import PenstockError, error_for
from penstock.security.acls import (
    AclBinding,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    member_of,
)
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.create_acls import AclCreation, CreateAclsRequest
from penstock.wire.schemas.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.wire.schemas.describe_acls import DescribeAclsRequest

_EVERYTHING = AclFilter()


class AclCalls(AdminCore):
    async def describe_acls(
        self, wanted: AclFilter = _EVERYTHING, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """The ACLs that a filter selects, all by default. SECURITY_DISABLED if the brokers have no authorizer."""

        async def ask(left_ms: int) -> list[AclBinding]:
            connection = await self.cluster.to_any()
            request = DescribeAclsRequest(**_filter_fields(wanted))
            answer = await connection.request(ApiKey.DESCRIBE_ACLS, request, timeout_ms=left_ms)
            if answer.error_code:
                raise error_for(answer.error_code, where="the ACLs", detail=answer.error_message)
            found: list[AclBinding] = []
            for resource in answer.resources:
                pattern = _pattern(resource)
                found += [AclBinding(pattern, _entry(each)) for each in resource.acls]
            return sorted(found)

        return await self._retried("describing ACLs", timeout_ms, ask)

    async def create_acls(
        self, acls: Iterable[AclBinding], *, timeout_ms: int | None = None
    ) -> dict[AclBinding, PenstockError | None]:
        """None for each that exists now, or why it does not."""
        wanted = list(dict.fromkeys(acls))

        async def ask(left_ms: int) -> dict[AclBinding, PenstockError | None]:
            connection = await self.cluster.to_controller()
            request = CreateAclsRequest(creations=[_creation(each) for each in wanted])
            answer = await connection.request(ApiKey.CREATE_ACLS, request, timeout_ms=left_ms)
            outcomes: dict[AclBinding, PenstockError | None] = {}
            for acl, result in zip(wanted, answer.results, strict=True):
                outcomes[acl] = _error(result, str(acl))
            _raise_if_all_are_retriable(outcomes.values())
            return outcomes

        return await self._retried("creating ACLs", timeout_ms, ask) if wanted else {}

    async def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout_ms: int | None = None
    ) -> dict[AclFilter, list[AclBinding] | PenstockError]:
        """The ACLs that each filter deleted, or why it did not."""
        wanted = list(dict.fromkeys(filters))

        async def ask(left_ms: int) -> dict[AclFilter, list[AclBinding] | PenstockError]:
            connection = await self.cluster.to_controller()
            request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter_fields(each)) for each in wanted])
            answer = await connection.request(ApiKey.DELETE_ACLS, request, timeout_ms=left_ms)
            outcomes: dict[AclFilter, list[AclBinding] | PenstockError] = {}
            for each, result in zip(wanted, answer.filter_results, strict=True):
                deleted = sorted(AclBinding(_pattern(row), _entry(row)) for row in result.matching_acls)
                failed = next((row for row in result.matching_acls if row.error_code), result)
                outcomes[each] = _error(failed, "the ACLs") or deleted
            _raise_if_all_are_retriable(outcomes.values())
            return outcomes

        return await self._retried("deleting ACLs", timeout_ms, ask) if wanted else {}


def _raise_if_all_are_retriable(outcomes: Iterable[object]) -> None:
    """The controller is moving: nothing was changed, and the same request may succeed elsewhere."""
    errors = [each if isinstance(each, PenstockError) and each.retriable else None for each in outcomes]
    first = errors[0] if errors else None
    if first is not None and None not in errors:
        raise first


def _error(result: Any, where: str) -> PenstockError | None:
    if not result.error_code:
        return None
    return error_for(result.error_code, where=where, detail=result.error_message)


def _creation(acl: AclBinding) -> AclCreation:
    pattern, entry = acl
    return AclCreation(
        resource_type=pattern.type,
        resource_name=pattern.name,
        resource_pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _pattern(row: Any) -> ResourcePattern:
    return ResourcePattern(
        member_of(ResourceType, row.resource_type), row.resource_name, member_of(PatternType, row.pattern_type)
    )


def _entry(row: Any) -> AclEntry:
    operation, permission = member_of(Operation, row.operation), member_of(Permission, row.permission_type)
    return AclEntry(row.principal, row.host, operation, permission)
