"""Admin calls about users with passwords (SCRAM), and about quotas.

A password leaves this process only salted. The broker keeps neither it nor its salted form, only keys that verify it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.client.admin.core import AdminCore
from penstock.client.errors import ConfigError, PenstockError, error_for
from penstock.security.credentials import SCRAM_SHA_256, SCRAM_SHA_512
from penstock.security.quotas import QUOTA_KEYS
from penstock.security.scram import DEFAULT_ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, SALT_BYTES, salted_password
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from penstock.wire.schemas.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.wire.schemas.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from penstock.wire.schemas.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

MECHANISMS: Final = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}
_NAMES: Final = {number: name for name, number in MECHANISMS.items()}
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


class UserDescription(msgspec.Struct, frozen=True):
    """A user with SCRAM credentials: the iterations of each mechanism."""

    name: str
    mechanisms: Mapping[str, int]


class QuotaEntity(msgspec.Struct, frozen=True):
    """Whom a quota is for. `DEFAULT_ENTITY` as a name: all that have none of their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> dict[str, str]:
        names = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: name for kind, name in names.items() if name is not None}

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name}" for kind, name in self.parts().items())


DEFAULT_ENTITY: Final = "<default>"


class Quota(msgspec.Struct, frozen=True):
    """The quotas of one entity, by name, such as producer_byte_rate."""

    entity: QuotaEntity
    values: Mapping[str, float]


class UserCalls(AdminCore):
    async def describe_users(
        self, names: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, UserDescription | PenstockError]:
        """These users, or all that have SCRAM credentials."""
        wanted = None if names is None else [UserName(name) for name in dict.fromkeys(names)]
        if wanted is not None and not wanted:
            return {}

        async def ask(left_ms: int) -> dict[str, UserDescription | PenstockError]:
            connection = await self.cluster.to_any()
            request = DescribeUserScramCredentialsRequest(users=wanted)
            answer = await connection.request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request, timeout_ms=left_ms)
            if answer.error_code:
                raise error_for(answer.error_code, where="users", detail=answer.error_message)
            return {
                each.user: error_for(each.error_code, where=f"user {each.user}", detail=each.error_message)
                if each.error_code
                else UserDescription(
                    each.user,
                    {_NAMES.get(info.mechanism, "unknown"): info.iterations for info in each.credential_infos},
                )
                for each in answer.results
            }

        return await self._retried("describing users", timeout_ms, ask)

    async def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanism: str = SCRAM_SHA_512,
        iterations: int = DEFAULT_ITERATIONS,
        timeout_ms: int | None = None,
    ) -> None:
        """Add a user, or change the password of one. Another mechanism of the user keeps its own."""
        if mechanism not in MECHANISMS:
            raise ConfigError(f"{mechanism!r} is not a SCRAM mechanism", hint=f"Use one of {', '.join(MECHANISMS)}")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ConfigError(
                f"iterations={iterations} is out of range", hint=f"Use {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        if not user or not password:
            raise ConfigError("the user name or the password is empty")
        salt = os.urandom(SALT_BYTES)
        salted = await asyncio.to_thread(salted_password, password, mechanism, iterations, salt)
        upsertion = ScramCredentialUpsertion(
            name=user, mechanism=MECHANISMS[mechanism], iterations=iterations, salt=salt, salted_password=salted
        )
        await self._alter_credentials(AlterUserScramCredentialsRequest(upsertions=[upsertion]), timeout_ms)

    async def delete_user(
        self, user: str, mechanisms: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Delete the credentials of a user, of these mechanisms or of all. Quotas and ACLs stay."""
        if mechanisms is None:
            found = (await self.describe_users([user], timeout_ms=timeout_ms))[user]
            if isinstance(found, PenstockError):
                raise found
            mechanisms = found.mechanisms
        deletions = [ScramCredentialDeletion(name=user, mechanism=MECHANISMS.get(each, 0)) for each in mechanisms]
        await self._alter_credentials(AlterUserScramCredentialsRequest(deletions=deletions), timeout_ms)

    async def _alter_credentials(self, request: AlterUserScramCredentialsRequest, timeout_ms: int | None) -> None:
        async def ask(left_ms: int) -> None:
            connection = await self.cluster.to_controller()
            answer = await connection.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, timeout_ms=left_ms)
            for each in answer.results:
                if each.error_code:
                    raise error_for(each.error_code, where=f"user {each.user}", detail=each.error_message)

        await self._retried("changing a user", timeout_ms, ask)

    async def describe_quotas(
        self, matching: QuotaEntity | None = None, *, strict: bool = False, timeout_ms: int | None = None
    ) -> list[Quota]:
        """All quotas, or those of entities with these names; with `strict` of entities that have no others."""
        parts = {} if matching is None else matching.parts()
        components = [
            ComponentData(kind, _SPECIFIED if name == "*" else _DEFAULT if name == DEFAULT_ENTITY else _EXACT,
                          None if name in ("*", DEFAULT_ENTITY) else name)
            for kind, name in parts.items()
        ]  # fmt: skip

        async def ask(left_ms: int) -> list[Quota]:
            connection = await self.cluster.to_any()
            request = DescribeClientQuotasRequest(components=components, strict=strict)
            answer = await connection.request(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, timeout_ms=left_ms)
            if answer.error_code:
                raise error_for(answer.error_code, where="quotas", detail=answer.error_message)
            found = []
            for entry in answer.entries or ():
                names = {
                    each.entity_type.replace("-", "_"): DEFAULT_ENTITY if each.entity_name is None else each.entity_name
                    for each in entry.entity
                }
                found.append(Quota(QuotaEntity(**names), {each.key: each.value for each in entry.values}))
            return sorted(found, key=lambda each: str(each.entity))

        return await self._retried("describing quotas", timeout_ms, ask)

    async def alter_quota(
        self,
        entity: QuotaEntity,
        changes: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set quotas of an entity; None removes one."""
        unknown = [key for key in changes if key not in QUOTA_KEYS]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is not a quota", hint=f"Use one of {', '.join(QUOTA_KEYS)}")
        if not entity.parts():
            raise ConfigError("the quota has no entity", hint="Name a user, a client_id or an ip")
        names = [EntityData(kind, None if name == DEFAULT_ENTITY else name) for kind, name in entity.parts().items()]
        ops = [OpData(key, value or 0.0, remove=value is None) for key, value in changes.items()]

        async def ask(left_ms: int) -> None:
            connection = await self.cluster.to_controller()
            request = AlterClientQuotasRequest([EntryData(names, ops)], validate_only=validate_only)
            answer = await connection.request(ApiKey.ALTER_CLIENT_QUOTAS, request, timeout_ms=left_ms)
            for each in answer.entries:
                if each.error_code != ErrorCode.NONE:
                    raise error_for(each.error_code, where=f"quotas of {entity}", detail=each.error_message)

        await self._retried("changing quotas", timeout_ms, ask)
