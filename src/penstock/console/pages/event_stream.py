"""Server-sent events: what they look like, and the response that sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from penstock.console.html import json_text


def event(name: str, data: dict[str, object]) -> str:
    return f"event: {name}\ndata: {json_text(data)}\n\n"


def event_stream(parts_: AsyncIterator[str]) -> Response:
    return StreamingResponse(
        parts_, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
