"""Quotas of users, client ids and addresses: DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Final

from penstock.broker.errors import DUPLICATE_IN_REQUEST, NO_ERROR, ApiError, api_error_of, duplicates
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.configs import MAX_SETTINGS
from penstock.cluster.controller.entity_configs import EntityChange
from penstock.cluster.entity_configs import DEFAULT, Entity, Settings
from penstock.cluster.errors import ApiException, InvalidRequest
from penstock.security.quotas import QUOTA_KEYS, format_quota, parse_quota
from penstock.wire.schemas import alter_client_quotas, describe_client_quotas
from penstock.wire.schemas.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryDataResult,
)
from penstock.wire.schemas.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    ValueData,
)

_USER: Final = "user"
_CLIENT: Final = "client-id"
_IP: Final = "ip"
_FIELDS: Final = {_USER: "user", _CLIENT: "client", _IP: "ip"}

EXACT: Final = 0
MATCH_DEFAULT: Final = 1
SPECIFIED: Final = 2


# --- description


def handle_describe(services: Services, request: Request, answer: Answer) -> None:
    message: DescribeClientQuotasRequest = request.message
    try:
        matches = _filter(message.components, message.strict)
    except ApiException as error:
        reason = api_error_of(error)
        answer(DescribeClientQuotasResponse(error_code=reason.code, error_message=reason.text, entries=None))
        return
    entries = []
    for entity, settings in services.cluster.image.entities:
        values = _values(settings) if matches(entity) else []
        if values:
            entries.append(describe_client_quotas.EntryData(entity=_described(entity), values=values))
    answer(DescribeClientQuotasResponse(error_message=None, entries=entries))


def _filter(components: Sequence[ComponentData], strict: bool) -> Callable[[Entity], bool]:
    """ApiException."""
    if duplicates(component.entity_type for component in components):
        raise InvalidRequest("the filter names an entity type twice")
    wanted: dict[str, ComponentData] = {}
    for component in components:
        field = _FIELDS.get(component.entity_type)
        if field is None:
            raise InvalidRequest(f"{component.entity_type[:40]!r} is not an entity type; use user, client-id or ip")
        if component.match_type not in (EXACT, MATCH_DEFAULT, SPECIFIED):
            raise InvalidRequest(f"{component.match_type} is not a match type; use 0 (exact), 1 (default) or 2 (any)")
        if component.match_type == EXACT and component.match is None:
            raise InvalidRequest(f"an exact match of {component.entity_type} needs a name")
        wanted[field] = component
    if "ip" in wanted and len(wanted) > 1:
        raise InvalidRequest("an ip cannot be combined with a user or a client-id")

    def matches(entity: Entity) -> bool:
        for field, name in entity._asdict().items():
            component = wanted.get(field)
            if component is None:
                if strict and name is not None:
                    return False
            elif name is None or not _is_match(component, name):
                return False
        return True

    return matches


def _is_match(component: ComponentData, name: str) -> bool:
    if component.match_type == EXACT:
        return name != DEFAULT and name == component.match
    return component.match_type == SPECIFIED or name == DEFAULT


def _values(settings: Settings) -> list[ValueData]:
    found = []
    for key in QUOTA_KEYS:
        value = parse_quota(settings.get(key))
        if value is not None:
            found.append(ValueData(key=key, value=value))
    return found


def _described(entity: Entity) -> list[describe_client_quotas.EntityData]:
    names = {kind: getattr(entity, field) for kind, field in _FIELDS.items()}
    return [
        describe_client_quotas.EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
        for kind, name in names.items()
        if name is not None
    ]


# --- changes


def handle_alter(services: Services, request: Request, answer: Answer) -> None:
    message: AlterClientQuotasRequest = request.message
    long_requests = services.long_requests
    errors: list[ApiError] = []  # of as many entries as were examined

    def respond(failure: ApiError | None = None) -> None:
        rows = (
            EntryDataResult(error_code=error.code, error_message=error.text, entity=entry.entity)
            for entry, error in zip(message.entries, chain(errors, repeat(failure or NO_ERROR)), strict=False)
        )
        long_requests.answer_rows(request.channel, rows, lambda made: answer(AlterClientQuotasResponse(entries=made)))

    changes: dict[int, EntityChange] = {}  # by the number of the entry

    async def alter() -> None:
        async for number, entry in long_requests.each(enumerate(message.entries)):
            error = NO_ERROR
            try:
                entity = _entity(entry.entity)
                changes[number] = EntityChange(entity, _settings(entity, entry.ops))
            except ApiException as problem:
                error = api_error_of(problem)
            errors.append(error)
        twice = await long_requests.duplicates(change.entity for change in changes.values())
        async for number in long_requests.each(list(changes)):
            if changes[number].entity in twice:
                errors[number] = DUPLICATE_IN_REQUEST
                del changes[number]
        controller = services.cluster.require_controller()
        outcomes = await controller.alter_entities(list(changes.values()), validate_only=message.validate_only)
        async for number, outcome in long_requests.each(zip(changes, outcomes, strict=True)):
            errors[number] = api_error_of(outcome)
        respond()

    def fail(error: BaseException) -> None:
        reason = api_error_of(error)
        for number in changes:
            errors[number] = reason
        respond(reason)

    services.spawn(alter(), fail)


def _entity(parts: Sequence[alter_client_quotas.EntityData]) -> Entity:
    """InvalidRequest."""
    names: dict[str, str] = {}
    for part in parts:
        field = _FIELDS.get(part.entity_type)
        if field is None:
            raise InvalidRequest(f"{part.entity_type[:40]!r} is not an entity type; use user, client-id or ip")
        if field in names:
            raise InvalidRequest(f"the entity has two names of type {part.entity_type}")
        if part.entity_name is not None and (not part.entity_name or part.entity_name == DEFAULT):
            raise InvalidRequest(
                f"{part.entity_name!r} is not the name of a {part.entity_type}; null means the default"
            )
        names[field] = DEFAULT if part.entity_name is None else part.entity_name
    if not names:
        raise InvalidRequest("the entity is empty; name a user, a client-id or an ip")
    ip = names.get("ip")
    if ip is not None:
        if len(names) > 1:
            raise InvalidRequest("an ip cannot be combined with a user or a client-id")
        if ip != DEFAULT:
            try:
                names["ip"] = str(ipaddress.ip_address(ip))
            except ValueError:
                raise InvalidRequest(f"{ip[:60]!r} is not an IP address") from None
    return Entity(**names)


def _settings(entity: Entity, ops: Sequence[alter_client_quotas.OpData]) -> dict[str, str | None]:
    """InvalidRequest."""
    if len(ops) > MAX_SETTINGS:
        raise InvalidRequest(f"{len(ops)} quotas of one entity are too many; the limit is {MAX_SETTINGS}")
    if duplicates(op.key for op in ops):
        raise InvalidRequest("the request changes a quota twice")
    settings: dict[str, str | None] = {}
    for op in ops:
        quota = QUOTA_KEYS.get(op.key)
        if quota is None or quota.is_of_address != (entity.ip is not None):
            known = ", ".join(key for key, each in QUOTA_KEYS.items() if each.is_of_address == (entity.ip is not None))
            raise InvalidRequest(f"{op.key[:60]!r} is not a quota of {entity}; its quotas are {known}")
        try:
            settings[op.key] = None if op.remove else format_quota(op.key, op.value)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
    return settings
