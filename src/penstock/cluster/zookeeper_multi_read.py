"""Many nodes in one request: ZooKeeper's MultiRead (3.6 and newer), which kazoo does not know.

    request   for each path: kind 4 (get), not the end, -1; the path; no watch. Then: kind -1, the end, -1
    answer    for each path: kind 4, not the end, 0; data; numbers. Or: kind -1, not the end, error; error. Then the end

Noun: a request in kazoo's form: `type`, `serialize`, `deserialize`.

Rule: a request costs kazoo some hundred microseconds, whatever is in it, so what a cluster reads at its start goes by
the hundred. How many is bounded by what the answer may be, a megabyte for each, and by the length of a request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kazoo.exceptions import EXCEPTIONS, NoNodeError  # type: ignore[import-untyped]

from penstock.cluster.tree import Node

_GET: Final = 4
_END: Final = -1
_NODES_AT_ONCE: Final = 100
_PATHS_BYTES: Final = 512 * 1024
_HEADER: Final = struct.Struct("!iBi")
_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")  # created, changed, two times, version, two versions, owner, ...


class MultiRead:
    """The nodes at these full paths, None where there is none."""

    type: Final = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for path in self._paths:
            name = path.encode()
            parts += (_HEADER.pack(_GET, False, -1), _INT.pack(len(name)), name, b"\0")
        return b"".join((*parts, _HEADER.pack(_END, True, -1)))

    def deserialize(self, answer: bytes, at: int) -> list[Node | None]:
        """Raises the KazooException of a node that cannot be read."""
        nodes: list[Node | None] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(answer, at)
            at += _HEADER.size
            if is_end:
                return nodes
            (number,) = _INT.unpack_from(answer, at)
            at += _INT.size
            if kind != _GET:
                if number != NoNodeError.code:
                    raise EXCEPTIONS[number]()
                nodes.append(None)
                continue
            size = max(number, 0)  # -1 is no data
            created, _, _, _, version, _, _, owner, _, _, _ = _STAT.unpack_from(answer, at + size)
            nodes.append(Node(bytes(answer[at : at + size]), version, created, owner))
            at += size + _STAT.size

    def ask(self, client: Any) -> Any:
        """Give it to a KazooClient, as its own methods do; the AsyncResult."""
        result = client.handler.async_result()
        client._call(self, result)
        return result


def portions(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths in order, in lists of which each fits into a request."""
    portion: list[str] = []
    size = 0
    for path in paths:
        length = len(path.encode())
        if portion and (len(portion) == _NODES_AT_ONCE or size + length > _PATHS_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(path)
        size += length
    if portion:
        yield portion
