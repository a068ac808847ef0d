"""The type variables of keys and values: what serializers take, and without them bytes or str."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Plain = bytes | bytearray | memoryview | str

    K = TypeVar("K", default=Plain)
    V = TypeVar("V", default=Plain)
else:
    # Defaults of type variables are for type checkers, and younger than the oldest Python that we run on.
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")
