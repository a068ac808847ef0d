"""What guards the console: Host, sessions, CSRF tokens, sizes and times of requests, and headers of responses.

- The Host header must name this machine, or a page of another site whose name was pointed here could use the console.
- A session is a random number in a signed cookie, HttpOnly and SameSite. Its CSRF token is a digest of that number, so
  a session without a login needs no memory here.
- Every change is a POST with that token, and its Origin, if the browser sends one, is this host.
- Pages have no inline script or style, and the Content-Security-Policy says so.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.runtime.network import is_host_of

MAX_BODY: Final = 2 * 1024 * 1024
MAX_FIELDS: Final = 1_000
BODY_TIMEOUT_S: Final = 10.0
_COOKIE_CHARS: Final = 200
_NOTICE_S: Final = 60
_MAX_STREAMS: Final = 64
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_NOT_HERE: Final = (
    "The Host header does not name this console. Add the name that you use: penstock console --allow-host NAME, or "
    "penstock.http.hosts of the broker."
)


class Forbidden(Exception):
    """A request that may not be served; the text says why."""

    def __init__(self, text: str, status: int = 403) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Session(NamedTuple):
    """A visitor: a random id, and whether the browser has it already."""

    id: str
    is_new: bool


def new_session() -> Session:
    return Session(secrets.token_urlsafe(24), is_new=True)


class Keys:
    """Signs cookies and tokens with a key that only this process has."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()

    def matches(self, purpose: str, text: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(purpose, text).encode(), signature.encode("utf-8", "replace"))

    # --- sessions

    def session_of(self, request: Request) -> Session:
        """The session of the request's cookie, or a new one."""
        value = _cookies(request).get(cookie_name(request), "")
        session_id, _, signature = value.partition(".")
        if session_id and len(value) <= _COOKIE_CHARS and self.matches("session", session_id, signature):
            return Session(session_id, is_new=False)
        return new_session()

    def session_cookie(self, request: Request, session_id: str) -> str:
        value = f"{session_id}.{self.sign('session', session_id)}"
        return _set_cookie(request, cookie_name(request), value)

    def token_of(self, session_id: str) -> str:
        """The CSRF token of a session."""
        return self.sign("csrf", session_id)

    def check_change(self, request: Request, session: Session, form: dict[str, str]) -> None:
        """Forbidden unless the form was made by a page of this session."""
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
            raise Forbidden("The form comes from another site, so nothing was changed.")
        if session.is_new or not self.matches("csrf", session.id, form.get("csrf", "")):
            raise Forbidden("The form is too old, or cookies are turned off; nothing was changed. Load the page again.")

    # --- notices: one sentence for the next page

    def notice_cookie(self, request: Request, text: str) -> str:
        body = base64.urlsafe_b64encode(f"{int(time.time())}:{text[:600]}".encode()).decode()
        return _set_cookie(request, f"{cookie_name(request)}_n", f"{body}.{self.sign('notice', body)}", _NOTICE_S)

    def notice_of(self, request: Request) -> str:
        body, _, signature = _cookies(request).get(f"{cookie_name(request)}_n", "").partition(".")
        if not body or not self.matches("notice", body, signature):
            return ""
        at, _, text = base64.urlsafe_b64decode(body).decode("utf-8", "replace").partition(":")
        return text if time.time() - int(at) <= _NOTICE_S else ""

    def no_notice(self, request: Request) -> str:
        return _set_cookie(request, f"{cookie_name(request)}_n", "", 0)


def cookie_name(request: Request) -> str:
    """Cookies do not tell ports apart, so consoles of several brokers on one machine need several names."""
    host = request.headers.get("host", "").lower()
    return f"penstock_{hashlib.sha256(host.encode('utf-8', 'replace')).hexdigest()[:10]}"


def _set_cookie(request: Request, name: str, value: str, max_age_s: int | None = None) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    age = "" if max_age_s is None else f"; Max-Age={max_age_s}"
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{age}{secure}"


def _cookies(request: Request) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(request.headers.get("cookie", "")).items()}
    except CookieError:
        return {}


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of a repeated one the last. Forbidden if it is not one, too large or too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Forbidden("Only forms are accepted here.", 415)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise Forbidden(f"A form may have {MAX_BODY // 1024 // 1024} MiB at most.", 413)
    except TimeoutError:
        raise Forbidden("The form took too long to arrive.", 408) from None
    except ClientDisconnect:
        raise Forbidden("The form is incomplete.", 400) from None
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError:
        raise Forbidden("The form is malformed.", 400) from None
    return dict(pairs)


class Guard:
    """The outermost application: checks Host and method, counts open streams, and adds the headers."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        """`hosts` are names of this machine, besides addresses and localhost; None accepts all."""
        self._app = app
        self._hosts = hosts
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if self._hosts is not None and (len(given) != 1 or not is_host_of(given[0], self._hosts)):
            await PlainTextResponse(_NOT_HERE, 421)(scope, receive, guarded)
        elif scope["method"] not in ("GET", "HEAD", "POST"):
            await PlainTextResponse("Only GET, HEAD and POST are supported.", 405)(scope, receive, guarded)
        elif scope["path"].endswith(".events"):
            await self._stream(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams >= _MAX_STREAMS:
            await PlainTextResponse("Too many live views are open; close some.", 503)(scope, receive, send)
            return
        self._streams += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._streams -= 1
