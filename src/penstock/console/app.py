"""The application: routes, visits, and what becomes of errors.

A handler takes a visit and returns a response. Before it runs, the visitor has a session, is logged in if the cluster
has logins, and a change has passed the CSRF check and is allowed here. Errors of brokers become a page that says what
failed and what to do.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.client.errors import (
    AuthorizationError,
    BootstrapError,
    PenstockError,
    UnknownGroup,
    UnknownTopic,
    UnknownTransactionalId,
    UnsupportedVersion,
)
from penstock.console.accounts import Account, Accounts, ConsoleOptions
from penstock.console.cluster.state import Snapshot
from penstock.console.records.decoding import Registry
from penstock.console.security import Forbidden, Guard, Keys, Session, form_of

if TYPE_CHECKING:
    from penstock.console.cluster.zookeeper_groups import ZooKeeperGroups

_log = logging.getLogger(__name__)

FIRST_SNAPSHOT_S: Final = 3.0
_THREADS: Final = 32
_UNKNOWN: Final = (UnknownTopic, UnknownGroup, UnknownTransactionalId)


@dataclass(slots=True)
class Visit:
    """One request: who asks, with which account, and the fields of its query or form."""

    console: Console
    request: Request
    session: Session
    account: Account
    form: Mapping[str, str] = field(default_factory=dict)
    notice: str = ""

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def csrf(self) -> str:
        return self.console.keys.token_of(self.session.id)

    @property
    def may_change(self) -> bool:
        return not self.console.options.read_only

    async def snapshot(self) -> Snapshot:
        return await self.account.collector.first(FIRST_SNAPSHOT_S)

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """A number of the query; the default if it is missing or none."""
        try:
            return max(least, min(most, int(self.query.get(name, ""))))
        except ValueError:
            return default

    def command(self, *words: str | None) -> str:
        """A `penstock` command for this cluster, ready for a shell."""
        given = [word for word in words if word is not None]
        return shlex.join(["penstock", *given, "-b", self.account.servers, *self.console.options.words])

    def go(self, path: str, notice: str = "") -> Response:
        """Go on to a page, which shows the notice."""
        response = RedirectResponse(path, 303)
        if notice:
            response.headers.append("set-cookie", self.console.keys.notice_cookie(self.request, notice))
        return response


Handler = Callable[[Visit], Awaitable[Response]]


class Invalid(Exception):
    """Input that cannot be used: the text says what and why."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


class NotThere(Exception):
    """A page about something that does not exist."""


class Console:
    """The application and what it holds: keys, accounts, a registry."""

    def __init__(self, options: ConsoleOptions, *, registry: Registry | None = None) -> None:
        self.options = options
        self.keys = Keys()
        self.accounts = Accounts(options)
        self.registry = registry or (Registry(options.registry_url) if options.registry_url else None)
        self.zookeeper_groups: ZooKeeperGroups | None = None
        if options.zookeeper is not None:
            from penstock.console.cluster.zookeeper_groups import ZooKeeperGroups

            self.zookeeper_groups = ZooKeeperGroups(options.zookeeper)
        self.app: ASGIApp = Guard(self._routed(), options.hosts)

    def _routed(self) -> Starlette:
        from penstock.console.pages import (
            acls,
            audit,
            brokers,
            export,
            groups,
            login,
            overview,
            records,
            tables,
            topics,
            transactions,
            users,
            zookeeper_groups,
        )
        from penstock.console.static_files import static_file

        routes = [Route("/static/{name}", static_file, methods=["GET"])]
        for module in (
            overview,
            topics,
            records,
            export,
            groups,
            zookeeper_groups,
            tables,
            brokers,
            transactions,
            users,
            acls,
            audit,
        ):
            for path, handler in module.PAGES.items():
                routes.append(Route(path, self._page(handler), methods=["GET"]))
            for path, handler in module.CHANGES.items():
                routes.append(Route(path, self._change(handler), methods=["POST"]))
        routes.append(Route("/login", self._page(login.page, open_=True), methods=["GET"]))
        routes.append(Route("/login", self._change(login.log_in, open_=True), methods=["POST"]))
        routes.append(Route("/logout", self._change(login.log_out, open_=True), methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={404: self._missing}, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        # Threads mostly wait: for a first snapshot, a command, ZooKeeper. By default two cores have only 6.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "penstock-console-page"))
        yield
        await self.accounts.close()
        if self.zookeeper_groups is not None:
            await asyncio.to_thread(self.zookeeper_groups.close)

    async def _missing(self, request: Request, _: Exception) -> Response:
        from penstock.console.pages.layout import plain_page

        return plain_page("Page not found", f"There is no page at {request.url.path}.", 404)

    def _page(self, handler: Handler, *, open_: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            session = self.keys.session_of(request)
            visit = self._visit(request, session, {}, open_=open_)
            if visit is None:
                response: Response = RedirectResponse(_login_path(request), 303)
            else:
                visit.notice = self.keys.notice_of(request)
                response = await self._handled(handler, visit)
                if visit.notice:
                    response.headers.append("set-cookie", self.keys.no_notice(request))
            if session.is_new:
                response.headers.append("set-cookie", self.keys.session_cookie(request, session.id))
            return response

        return serve

    def _change(self, handler: Handler, *, open_: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            from penstock.console.pages.layout import plain_page

            session = self.keys.session_of(request)
            try:
                form = await form_of(request)
                self.keys.check_change(request, session, form)
                visit = self._visit(request, session, form, open_=open_)
                if visit is None:
                    raise Forbidden("Your session has ended; nothing was changed. Log in again.", 401)
                if self.options.read_only and not open_:
                    raise Forbidden("This console is read-only, so nothing was changed.")
            except Forbidden as error:
                return plain_page("Not done", error.text, error.status)
            return await self._handled(handler, visit)

        return serve

    def _visit(self, request: Request, session: Session, form: Mapping[str, str], *, open_: bool) -> Visit | None:
        account = self.accounts.of(session.id)
        if account is None and open_:
            account = self.accounts.nobody
        return None if account is None else Visit(self, request, session, account, form)

    async def _handled(self, handler: Handler, visit: Visit) -> Response:
        from penstock.console.pages.layout import problem_page

        try:
            return await handler(visit)
        except Invalid as error:
            return problem_page(visit, "This cannot be done", error.text, error.hint, 400)
        except NotThere as error:
            return problem_page(visit, "Not found", str(error), "", 404)
        except PenstockError as error:
            return problem_page(visit, _title(error), error.message, error.hint, _status(error))
        except Exception:  # noqa: BLE001 - a bug in one part must not end the console
            _log.exception("console request failed: path=%s", visit.request.url.path)
            return problem_page(visit, "Internal error", "The console failed; its log has the reason.", "", 500)


def _login_path(request: Request) -> str:
    from penstock.console.html import with_query

    after = request.url.path if request.method == "GET" and not request.url.path.endswith(".events") else "/"
    return with_query("/login", to=after if after != "/" else None)


def _title(error: PenstockError) -> str:
    if isinstance(error, BootstrapError):
        return "The cluster cannot be reached"
    if isinstance(error, AuthorizationError):
        return "You may not do this"
    if isinstance(error, _UNKNOWN):
        return "Not found"
    if isinstance(error, UnsupportedVersion):
        return "These brokers cannot do this"
    return "The brokers report an error"


def _status(error: PenstockError) -> int:
    if isinstance(error, BootstrapError):
        return 503
    if isinstance(error, AuthorizationError):
        return 403
    return 404 if isinstance(error, _UNKNOWN) else 502 if error.retriable else 400


def checked_int(text: str, what: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """A number of a form; Invalid says what is wrong with it."""
    try:
        found = int(text.strip().replace(",", "").replace("_", ""))
    except ValueError:
        raise Invalid(f"{what} is {text!r}, which is not a whole number.") from None
    if not least <= found <= most:
        raise Invalid(f"{what} is {found}; it must be {least:,} to {most:,}.")
    return found


def needed(form: Mapping[str, Any], name: str, what: str) -> str:
    """A field that must not be empty."""
    text = str(form.get(name, "")).strip()
    if not text:
        raise Invalid(f"{what} is missing.")
    return text
