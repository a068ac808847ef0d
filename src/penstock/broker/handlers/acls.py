"""DescribeAcls, CreateAcls, DeleteAcls: the ACLs of the cluster.

Every broker describes those of its image; the controller changes them. Without an authorizer the
answer is SECURITY_DISABLED. Long lists are handled in slices.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, Final

from penstock.broker.errors import ApiError, api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.acls import AclDeletion
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
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from penstock.wire.schemas.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.wire.schemas.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

SLICE: Final = 500
_DISABLED: Final = ApiError(ErrorCode.SECURITY_DISABLED, "the broker has no authorizer")


def binding_of(creation: AclCreation) -> AclBinding:
    """Unknown numbers become UNKNOWN, which nothing accepts."""
    pattern = ResourcePattern(
        member_of(ResourceType, creation.resource_type),
        creation.resource_name,
        member_of(PatternType, creation.resource_pattern_type),
    )
    operation = member_of(Operation, creation.operation)
    permission = member_of(Permission, creation.permission_type)
    return AclBinding(pattern, AclEntry(creation.principal, creation.host, operation, permission))


def filter_of(message: Any) -> AclFilter:
    """Of DescribeAcls, or an element of DeleteAcls."""
    return AclFilter(
        member_of(ResourceType, message.resource_type_filter),
        message.resource_name_filter,
        member_of(PatternType, message.pattern_type_filter),
        message.principal_filter,
        message.host_filter,
        member_of(Operation, message.operation),
        member_of(Permission, message.permission_type),
    )


def handle_describe(services: Services, request: Request, answer: Answer) -> None:
    message: DescribeAclsRequest = request.message
    wanted = filter_of(message)
    if services.authorizer is None:
        answer(DescribeAclsResponse(error_code=_DISABLED.code, error_message=_DISABLED.text))
        return
    if wanted.problem is not None:
        answer(DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=wanted.problem))
        return
    acls = services.cluster.image.acls
    if acls.problem is not None:
        text = f"the stored ACLs cannot be read: {acls.problem}"
        answer(DescribeAclsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=text[:4000]))
        return
    work = _described(acls.select(wanted), answer)
    if len(acls) <= SLICE:
        for _ in work:
            pass
    else:
        through = partial(services.long_requests.through, work, request.channel)
        services.long_requests.start(request.channel, request.size, through)


def _described(found: Iterator[AclBinding], answer: Answer) -> Generator[None, None, None]:
    resources: dict[ResourcePattern, DescribeAclsResource] = {}
    for number, (pattern, entry) in enumerate(found, 1):
        resource = resources.get(pattern)
        if resource is None:
            kind, name, pattern_type = pattern
            resource = DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern_type)
            resources[pattern] = resource
        resource.acls.append(
            AclDescription(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
        )
        if not number % SLICE:
            yield
    answer(DescribeAclsResponse(error_message=None, resources=list(resources.values())))


def handle_create(services: Services, request: Request, answer: Answer) -> None:
    message: CreateAclsRequest = request.message

    def respond(errors: list[ApiError]) -> None:
        results = [AclCreationResult(error_code=code, error_message=text) for code, text in errors]
        answer(CreateAclsResponse(results=results))

    if services.authorizer is None:
        respond([_DISABLED] * len(message.creations))
        return

    async def create() -> None:
        wanted = [binding_of(creation) for creation in message.creations]
        errors = await services.cluster.require_controller().create_acls(wanted)
        respond([api_error_of(error) for error in errors])

    services.spawn(create(), lambda error: respond([api_error_of(error)] * len(message.creations)))


def handle_delete(services: Services, request: Request, answer: Answer) -> None:
    message: DeleteAclsRequest = request.message

    def reject(reason: ApiError) -> None:
        row = DeleteAclsFilterResult(error_code=reason.code, error_message=reason.text)
        answer(DeleteAclsResponse(filter_results=[row] * len(message.filters)))

    if services.authorizer is None:
        reject(_DISABLED)
        return

    async def delete() -> None:
        filters = [filter_of(each) for each in message.filters]
        deletions = await services.cluster.require_controller().delete_acls(filters)
        answer(DeleteAclsResponse(filter_results=[_result(deletion) for deletion in deletions]))

    services.spawn(delete(), lambda error: reject(api_error_of(error)))


def _result(deletion: AclDeletion) -> DeleteAclsFilterResult:
    code, text = api_error_of(deletion.error)
    return DeleteAclsFilterResult(
        error_code=code,
        error_message=text,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=pattern.type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for pattern, entry in deletion.deleted
        ],
    )
