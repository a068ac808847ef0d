"""Who uses the console: one account without logins, else one for each user, with that user's own Kafka credentials.

The console has no rights of its own. A page asks the brokers as its visitor, and their ACLs decide.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client.addresses import ZooKeeperAddress
from penstock.client.admin import AsyncAdmin
from penstock.client.errors import PenstockError
from penstock.console.cluster.collector import Collector
from penstock.console.warehouse import Warehouse, WarehouseOptions
from penstock.security.credentials import format_jaas, kind_of

_log = logging.getLogger(__name__)

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_MOST_ACCOUNTS: Final = 32
_IDLE_S: Final = 8 * 3600.0
_REQUEST_TIMEOUT_MS: Final = 20_000
_LOGIN_TIMEOUT_MS: Final = 10_000
_LOGINS_AT_ONCE: Final = 4
_FAILED_LOGIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """What a console is started with."""

    servers: str
    client_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of every client: TLS, and a login if all visitors share it."""
    mechanism: str = MECHANISMS[0]
    login: bool = False
    """Whether a visitor has to name a Kafka user."""
    read_only: bool = False
    hosts: frozenset[str] | None = frozenset()
    """Names of this machine, besides addresses and localhost; None accepts all."""
    http_urls: tuple[str, ...] = ()
    http_port: int = 0
    http_token: str | None = None
    registry_url: str = ""
    words: tuple[str, ...] = ()
    """Options that the shown commands need to reach the same cluster."""
    warehouse: WarehouseOptions | None = None
    """The tables that are loaded from this cluster."""
    zookeeper: ZooKeeperAddress | None = None
    """Where consumers up to Kafka 0.9 keep their groups."""
    audit_topic: str = ""
    """The topic of the audit log; brokers say which one it is to those who may see their settings."""


class Account:
    """Clients with one identity, and what they see of the cluster."""

    def __init__(self, options: ConsoleOptions, user: str | None, login: Mapping[str, Any]) -> None:
        self.user = user
        self.servers = options.servers
        self.client_options = {
            "request_timeout_ms": _REQUEST_TIMEOUT_MS,
            "connect_timeout_ms": 5_000,
            **options.client_options,
            **login,
        }
        self.used_at = time.monotonic()
        self.collector = Collector(
            lambda: AsyncAdmin(self.servers, **self.options_for("penstock-console")),
            http_urls=options.http_urls,
            http_port=options.http_port,
            http_token=options.http_token,
        )
        self.warehouse = (
            None if options.warehouse is None else Warehouse(options.warehouse, self.servers, _properties_of(login))
        )
        self._admin: AsyncAdmin | None = None
        self.is_closed = False

    def options_for(self, client_id: str) -> dict[str, Any]:
        return {**self.client_options, "client_id": client_id}

    @property
    def admin(self) -> AsyncAdmin:
        """The client of pages and changes, on the pages' event loop."""
        if self._admin is None:
            self._admin = AsyncAdmin(self.servers, **self.options_for("penstock-console"))
        return self._admin

    async def close(self, *, keep_replays: bool = False) -> None:
        self.is_closed = True
        await asyncio.to_thread(self.collector.close)
        if self.warehouse is not None:
            await asyncio.to_thread(self.warehouse.close, keep_replays=keep_replays)
        if self._admin is not None:
            await self._admin.close()


def _properties_of(login: Mapping[str, Any]) -> dict[str, str]:
    """The client properties of a visitor's login."""
    if not login:
        return {}
    mechanism = login["sasl_mechanism"]
    user = {"username": login["sasl_plain_username"], "password": login["sasl_plain_password"]}
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": format_jaas(kind_of(mechanism), user)}


class Accounts:
    """The accounts of sessions. Without logins all sessions share one."""

    def __init__(self, options: ConsoleOptions) -> None:
        self._options = options
        self._shared = None if options.login else Account(options, None, {})
        self.nobody = self._shared or Account(options, None, {})
        """For the pages that need no login; it never connects."""
        self._by_session: dict[str, Account] = {}
        self._left: list[Warehouse] = []
        """Those of sessions that have ended, whose replays go on."""
        self._logins = asyncio.Semaphore(_LOGINS_AT_ONCE)

    def of(self, session_id: str) -> Account | None:
        """The account of a session; None if it has to log in."""
        if self._shared is not None:
            return self._shared
        account = self._by_session.get(session_id)
        if account is not None:
            if time.monotonic() - account.used_at > _IDLE_S:
                return None
            account.used_at = time.monotonic()
        return account

    async def login(self, session_id: str, user: str, password: str, mechanism: str) -> PenstockError | None:
        """Log a session in; the error if the brokers do not accept it. A failed try takes at least a second."""
        if mechanism not in MECHANISMS:
            mechanism = self._options.mechanism
        login = {
            "sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password,
        }  # fmt: skip
        async with self._logins:
            account = None
            try:
                account = Account(self._options, user, login)
                await account.admin.start(timeout_ms=_LOGIN_TIMEOUT_MS)
            except PenstockError as error:
                if account is not None:
                    await account.close()
                await asyncio.sleep(_FAILED_LOGIN_S)
                return error
        await self.logout(session_id)
        await self._make_room()
        self._by_session[session_id] = account
        return None

    async def _make_room(self) -> None:
        idle = [key for key, each in self._by_session.items() if time.monotonic() - each.used_at > _IDLE_S]
        for key in idle:
            await self.logout(key)
        while len(self._by_session) >= _MOST_ACCOUNTS:
            await self.logout(min(self._by_session, key=lambda key: self._by_session[key].used_at))

    async def logout(self, session_id: str) -> None:
        account = self._by_session.pop(session_id, None)
        if account is None:
            return
        self._left = [each for each in self._left if each.is_replaying]
        if account.warehouse is not None:
            self._left.append(account.warehouse)
        await account.close(keep_replays=True)

    @property
    def is_replaying(self) -> bool:
        """Whether dead letters are tried again for somebody, who may have left."""
        known = [each.warehouse for each in self._all() if each.warehouse is not None]
        return any(each.is_replaying for each in (*known, *self._left))

    def _all(self) -> list[Account]:
        return [*self._by_session.values(), *([self._shared] if self._shared else [])]

    async def close(self) -> None:
        accounts, left = self._all(), self._left
        self._by_session.clear()
        await asyncio.gather(*(each.close() for each in accounts), *(asyncio.to_thread(each.close) for each in left))
