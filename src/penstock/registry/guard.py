"""What every request passes before the API: the name of this machine, credentials, limits, and the path as it was sent.

The Host header must name this machine (an address, localhost, or a known name): a page from another site whose name
was pointed here can neither read nor change schemas. Paths stay percent-encoded, so that a subject may contain a slash;
`/contexts/.name/...` becomes the path without that prefix, with the context beside it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.registry.settings import RegistrySettings
from penstock.runtime.network import is_host_of

_CONTEXTS: Final = "/contexts/"
_TYPE: Final = b"application/vnd.schemaregistry.v1+json"


class Guard:
    """Wraps the application."""

    def __init__(self, application: ASGIApp, settings: RegistrySettings, hosts: Collection[str]) -> None:
        self._application = application
        self._timeout_s = settings.request_timeout_ms / 1000
        self._hosts = None if "*" in settings.hosts else frozenset(host.lower() for host in hosts)
        given = [f"bearer {settings.token}"] if settings.token else []
        if settings.user is not None and settings.password is not None:
            given.append(f"basic {settings.user}:{settings.password}")
        self._digests = [hashlib.sha256(each.encode()).digest() for each in given]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self._hosts is not None and not is_host_of(headers.get(b"host"), self._hosts):
            text = "the Host header does not name this registry; add the name that you use with --allow-host"
            await _reject(send, 421, text)
            return
        if self._digests and not self._trusts(headers.get(b"authorization", "")):
            await _reject(send, 401, "show a token, or a user and password", challenge=True)
            return
        await self._timed(_with_path(scope), receive, send)

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that takes too long is cut off, wherever the time went."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            async with asyncio.timeout(self._timeout_s):
                await self._application(scope, receive, noted)
        except TimeoutError:
            if not has_begun:
                await _reject(send, 408, f"the request took longer than {self._timeout_s:g} s")

    def _trusts(self, header: str) -> bool:
        scheme, _, value = header.partition(" ")
        shown = f"{scheme.lower()} {value.strip()}".encode("utf-8", "replace")
        if scheme.lower() == "basic":
            try:
                shown = b"basic " + base64.b64decode(value.strip(), validate=True)
            except (binascii.Error, ValueError):
                return False
        digest = hashlib.sha256(shown).digest()
        # All are compared, so that the time says nothing.
        return sum(hmac.compare_digest(digest, each) for each in self._digests) > 0


def _with_path(scope: Scope) -> Scope:
    raw = scope.get("raw_path") or scope["path"].encode("utf-8")
    path = raw.partition(b"?")[0].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    found = {**scope, "path": path, "root_path": "", "penstock.target": path + (f"?{query}" if query else "")}
    if path.startswith(_CONTEXTS):
        context, slash, rest = path.removeprefix(_CONTEXTS).partition("/")
        name = unquote(context).strip(":")
        if slash and rest:
            found |= {"path": f"/{rest}", "penstock.context": name if name.startswith(".") else f".{name}"}
    if len(found["path"]) > 1:
        found["path"] = found["path"].rstrip("/") or "/"
    return found


async def _reject(send: Send, status: int, text: str, *, challenge: bool = False) -> None:
    headers = [(b"content-type", _TYPE), (b"connection", b"close")]
    if challenge:
        headers.append((b"www-authenticate", b'Basic realm="registry", Bearer realm="registry"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error_code": status, "message": text}).encode()})
