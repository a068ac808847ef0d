"""The style sheet and the script: two files, cached by their digest."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

_TYPES: Final = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}


@cache
def content_of(name: str) -> bytes:
    return files("penstock.console").joinpath("static", name).read_bytes()


@cache
def address_of(name: str) -> str:
    """Where a page finds a file: a new digest, a new address."""
    return f"/static/{name}?v={hashlib.sha256(content_of(name)).hexdigest()[:12]}"


async def static_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _TYPES:
        return PlainTextResponse("not found", 404)
    cached = request.query_params.get("v") == address_of(name).rpartition("=")[2]
    lifetime = "public, max-age=31536000, immutable" if cached else "no-cache"
    return Response(content_of(name), media_type=_TYPES[name], headers={"Cache-Control": lifetime})
