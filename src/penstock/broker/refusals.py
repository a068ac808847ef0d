"""What a client is told of a change that was not made.

Rule: a refusal carries its code and its reason; anything else that was raised is the broker's own matter, and its text
stays in the broker's log. Reasons quote what the client sent, so they are cut to what fits into any version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple, TypeVar

from penstock.broker.error_mapping import error_code_of
from penstock.cluster.errors import NotStarted, Refusal
from penstock.wire.error_codes import ErrorCode

_MAX_CHARACTERS: Final = 4000

Key = TypeVar("Key", bound=Hashable)


class Explanation(NamedTuple):
    """A code, and a reason unless all is well."""

    code: ErrorCode
    text: str | None = None


ALL_WELL: Final = Explanation(ErrorCode.NONE)
NAMED_TWICE: Final = Explanation(ErrorCode.INVALID_REQUEST, "the request names the same thing twice")


def explain(error: BaseException | None) -> Explanation:
    if error is None:
        return ALL_WELL
    if isinstance(error, Refusal):
        return Explanation(error.code, str(error)[:_MAX_CHARACTERS])
    if isinstance(error, NotStarted):
        # Clients look for the controller and try again.
        return Explanation(ErrorCode.NOT_CONTROLLER, "the broker is starting or stopping")
    return Explanation(error_code_of(error), "an error that nobody foresaw; the broker's log tells more")


def repeated(keys: Iterable[Key]) -> frozenset[Key]:
    return frozenset(key for key, count in Counter(keys).items() if count > 1)
