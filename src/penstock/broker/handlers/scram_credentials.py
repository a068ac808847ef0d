"""Users with SCRAM credentials: DescribeUserScramCredentials and AlterUserScramCredentials.

The client salts the password; neither the password nor what it is salted to is stored or logged, only the keys that
verify it. All changes of one user are made or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.broker.errors import NO_ERROR, ApiError, api_error_of, duplicates
from penstock.broker.request import Answer, Request, Services
from penstock.cluster.controller.entity_configs import EntityChange
from penstock.cluster.entity_configs import DEFAULT, Entity, Settings
from penstock.cluster.errors import ResourceNotFound
from penstock.security.credentials import SCRAM_SHA_256, SCRAM_SHA_512
from penstock.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from penstock.wire.schemas.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

MECHANISMS: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
_DIGEST_BYTES: Final = {SCRAM_SHA_256: 32, SCRAM_SHA_512: 64}
_MAX_NAME: Final = 255


# --- description


def handle_describe(services: Services, request: Request, answer: Answer) -> None:
    message: DescribeUserScramCredentialsRequest = request.message
    users = services.cluster.image.users
    names = [each.name for each in message.users or ()]
    twice = duplicates(names)
    if not names:
        names = sorted(name for name, settings in users.items() if _credentials(settings))

    def described(name: str) -> DescribeUserScramCredentialsResult:
        infos = _credentials(users.get(name, {}))
        error = NO_ERROR
        if name in twice:
            error, infos = ApiError(ErrorCode.DUPLICATE_RESOURCE, f"the request names user {name!r} twice"), []
        elif not infos:
            error = ApiError(ErrorCode.RESOURCE_NOT_FOUND, f"user {name!r} has no SCRAM credentials")
        return DescribeUserScramCredentialsResult(
            user=name, error_code=error.code, error_message=error.text, credential_infos=infos
        )

    services.long_requests.answer_rows(
        request.channel,
        map(described, dict.fromkeys(names)),
        lambda results: answer(DescribeUserScramCredentialsResponse(error_message=None, results=results)),
    )


def _credentials(settings: Settings) -> list[CredentialInfo]:
    found = []
    for number, mechanism in MECHANISMS.items():
        try:
            credential = ScramCredential.parse(settings.get(mechanism, ""))
        except ValueError:
            continue
        found.append(CredentialInfo(mechanism=number, iterations=credential.iterations))
    return found


# --- changes


def handle_alter(services: Services, request: Request, answer: Answer) -> None:
    message: AlterUserScramCredentialsRequest = request.message
    named = [(each.name, each.mechanism) for each in message.deletions]
    named += [(each.name, each.mechanism) for each in message.upsertions]
    errors: dict[str, ApiError] = {name: NO_ERROR for name, _ in named}
    errors |= dict.fromkeys(
        (name for name, _ in duplicates(named)),
        ApiError(ErrorCode.DUPLICATE_RESOURCE, "a credential of the user is changed twice in the request"),
    )
    for name, mechanism in named:
        errors[name] = _name_error(name) or _mechanism_error(mechanism) or errors[name]
    for each in message.upsertions:
        if not errors[each.name].code:
            errors[each.name] = _problem_of(each) or NO_ERROR

    def respond() -> None:
        answer(
            AlterUserScramCredentialsResponse(
                results=[
                    AlterUserScramCredentialsResult(user=name, error_code=error.code, error_message=error.text)
                    for name, error in errors.items()
                ]
            )
        )

    async def alter() -> None:
        changes = await _changes(services, message, [name for name, error in errors.items() if not error.code])
        outcomes = await services.cluster.require_controller().alter_entities(changes)
        for change, error in zip(changes, outcomes, strict=True):
            errors[change.entity.user or ""] = api_error_of(error)
        respond()

    def fail(error: BaseException) -> None:
        reason = api_error_of(error)
        errors.update((name, reason) for name, found in errors.items() if not found.code)
        respond()

    services.spawn(alter(), fail)


def _name_error(name: str) -> ApiError | None:
    if not name:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user name is empty")
    if name == DEFAULT or len(name) > _MAX_NAME:
        return ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{name[:40]!r} cannot be a user name; it has up to {_MAX_NAME} letters"
        )
    return None


def _mechanism_error(mechanism: int) -> ApiError | None:
    if mechanism in MECHANISMS:
        return None
    return ApiError(
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        f"{mechanism} is not a SCRAM mechanism; use 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)",
    )


def _problem_of(upsertion: ScramCredentialUpsertion) -> ApiError | None:
    size = _DIGEST_BYTES[MECHANISMS[upsertion.mechanism]]
    reason = None
    if upsertion.iterations < MIN_ITERATIONS:
        reason = f"{upsertion.iterations} iterations are too few; use at least {MIN_ITERATIONS}"
    elif upsertion.iterations > MAX_ITERATIONS:
        reason = f"{upsertion.iterations} iterations are too many; use at most {MAX_ITERATIONS}"
    elif not upsertion.salt:
        reason = "the salt is empty"
    elif len(upsertion.salted_password) != size:
        reason = f"the salted password has {len(upsertion.salted_password)} bytes; it must have {size}"
    return None if reason is None else ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)


async def _changes(
    services: Services, message: AlterUserScramCredentialsRequest, names: Iterable[str]
) -> list[EntityChange]:
    settings: dict[str, dict[str, str | None]] = {name: {} for name in names}
    removed: dict[str, set[str]] = {name: set() for name in settings}
    for deletion in message.deletions:
        if deletion.name in settings:
            mechanism = MECHANISMS[deletion.mechanism]
            settings[deletion.name][mechanism] = None
            removed[deletion.name].add(mechanism)
    async for each in services.long_requests.each(message.upsertions):
        if each.name in settings:
            mechanism = MECHANISMS[each.mechanism]
            salted, salt = bytes(each.salted_password), bytes(each.salt)
            settings[each.name][mechanism] = ScramCredential.from_salted(
                salted, mechanism, each.iterations, salt
            ).format()
    return [
        EntityChange(
            Entity(user=name),
            changed,
            frozenset(removed[name]),
            ResourceNotFound(f"user {name!r} has no such credential to delete"),
        )
        for name, changed in settings.items()
    ]
