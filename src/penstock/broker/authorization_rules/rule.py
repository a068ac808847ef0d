"""What a row of the table is made of: what the whole request needs, which of its elements are permitted, what of the
response is shown.

Long requests and responses are examined in slices: the generators here yield after every `SLICE` elements.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.coordination.responses import error_response
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.security.principal import Session
from penstock.wire.protocol import ErrorCode
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.authorization import Authorizer
    from penstock.broker.request import Services

SLICE: Final = 500
"""Elements that are examined before other requests are served."""

_FEW: Final = 32

_O, _R = Operation, ResourceType
TOPIC_FAILED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CODES: Final = {
    _R.TOPIC: TOPIC_FAILED,
    _R.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    _R.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    _R.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Denial(NamedTuple):
    operation: Operation
    kind: ResourceType
    name: str


class Access:
    """What the sender of one request may do. What it asked for and may not do is noted in `denied`."""

    __slots__ = ("_authorize", "_authorizer", "denied", "services", "session")

    def __init__(self, authorizer: Authorizer, services: Services, session: Session) -> None:
        self._authorizer = authorizer
        self._authorize = authorizer.authorize
        self.services = services
        self.session = session
        self.denied: list[Denial] = []

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        allowed = self._authorize(self.session, operation, kind, name)
        if not allowed and len(self.denied) < SLICE:
            self.denied.append(Denial(operation, kind, name))
        return allowed

    def sees(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """The same for what the sender did not ask for by name."""
        return self._authorize(self.session, operation, kind, name)

    def may_any(self, operation: Operation, kind: ResourceType) -> bool:
        return self._authorizer.authorize_any(self.session, operation, kind)

    def on_cluster(self, operation: Operation) -> bool:
        return self.may(operation, _R.CLUSTER, CLUSTER_NAME)

    def operations(self, kind: ResourceType, name: str) -> int:
        return self._authorizer.authorized_operations(self.session, kind, name)


class Prepared(NamedTuple):
    """The request for the handler, None if nothing is left of it; and elements to add to an array of the response, with
    their places."""

    message: Any
    answered: str = ""
    ready: Sequence[Any] = ()
    places: Sequence[int] = ()
    """The places of the elements in the request, if the handler answers each of the others once, in order."""


def _always(message: Any, version: int) -> bool:
    return True


Needs = Callable[[Access, Any, int], ErrorCode]
Reject = Callable[[Any, ErrorCode, int], Message]
Prepare = Callable[[Access, Any, int], Generator[None, None, Prepared]]
Complete = Callable[[Access, Any, Any, int], Generator[None, None, None]]
Permits = Callable[[Access, Any, int], Callable[[str], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    needs: Needs | None = None
    """What the whole request needs: the error if it is missing, else NONE."""
    reject: Reject = error_response
    """The response to a request that is denied as a whole."""
    prepare: Prepare | None = None
    """What of it is permitted."""
    complete: Complete | None = None
    """What of the response is hidden or added."""
    completes: Callable[[Any, int], bool] = _always
    """Whether that is something, for this request."""
    permits: Permits | None = None
    """For Fetch, whose sessions name more topics than the request: which of them it may read."""
    always_served: bool = False
    """Whether the handler is called even if nothing is permitted."""


def needs_all(*needs: tuple[Operation, ResourceType, Callable[[Any], str | None]]) -> Needs:
    """All of these; a resource whose name is None is not needed."""

    def check(access: Access, message: Any, _: int) -> ErrorCode:
        for operation, kind, name_of in needs:
            name = name_of(message)
            if name is not None and not access.may(operation, kind, name):
                return CODES[kind]
        return ErrorCode.NONE

    return check


def needs_cluster(operation: Operation) -> Needs:
    return needs_all((operation, _R.CLUSTER, lambda _: CLUSTER_NAME))


def needs_group(operation: Operation) -> Needs:
    return needs_all((operation, _R.GROUP, lambda message: message.group_id))


WRITES_TRANSACTION: Final = (_O.WRITE, _R.TRANSACTIONAL_ID, lambda message: message.transactional_id)


class ByElement:
    """Each element of an array is permitted or answered by itself."""

    __slots__ = ("_answered", "_array", "_check", "_deny")

    def __init__(
        self,
        array: str,
        answered: str,
        check: Callable[[Access, Any], ErrorCode],
        deny: Callable[[Any, ErrorCode], Any],
    ) -> None:
        self._array = array
        self._answered = answered
        self._check = check
        self._deny = deny

    def permits_all(self, access: Access, message: Any) -> bool:
        """Whether all of a few elements are permitted, which is the usual case."""
        items = getattr(message, self._array)
        if items is None or len(items) > _FEW:
            return False
        for item in items:
            if self._check(access, item):
                access.denied.clear()
                return False
        return True

    def __call__(self, access: Access, message: Any, _: int) -> Generator[None, None, Prepared]:
        kept: list[Any] = []
        ready: dict[int, Any] = {}
        for place, item in enumerate(getattr(message, self._array) or ()):
            code = self._check(access, item)
            if code:
                ready[place] = self._deny(item, code)
            else:
                kept.append(item)
            if place % SLICE == SLICE - 1:
                yield
        if not ready:
            return Prepared(message)
        rest = msgspec.structs.replace(message, **{self._array: kept}) if kept else None
        return Prepared(rest, self._answered, list(ready.values()), list(ready))


def on_topic(operation: Operation, name: str = "name") -> Callable[[Access, Any], ErrorCode]:
    def check(access: Access, item: Any) -> ErrorCode:
        return ErrorCode.NONE if access.may(operation, _R.TOPIC, getattr(item, name)) else TOPIC_FAILED

    return check


def on_name(operation: Operation, kind: ResourceType) -> Callable[[Access, Any], ErrorCode]:
    def check(access: Access, name: str) -> ErrorCode:
        return ErrorCode.NONE if access.may(operation, kind, name) else CODES[kind]

    return check


def partition_rows(
    row: Callable[..., Any], indexes: Iterable[int], code: ErrorCode, key: str = "partition_index"
) -> list[Any]:
    return [row(**{key: index}, error_code=code) for index in indexes]


def answered_once(prepare: Prepare) -> Prepare:
    """Elements that are named twice are answered once."""

    def prepare_once(access: Access, message: Any, version: int) -> Generator[None, None, Prepared]:
        prepared = yield from prepare(access, message, version)
        return prepared._replace(ready=list({each.name: each for each in prepared.ready}.values()), places=())

    return prepare_once


def visible_of(
    access: Access, items: Iterable[Any], operation: Operation, kind: ResourceType, name: str
) -> Generator[None, None, list[Any]]:
    found = []
    for number, item in enumerate(items, 1):
        if access.sees(operation, kind, getattr(item, name)):
            found.append(item)
        if not number % SLICE:
            yield
    return found


def reject_with_code(response: Callable[..., Message]) -> Reject:
    return lambda _, code, __: response(error_code=code)


def reject_with_code_and_text(response: Callable[..., Message]) -> Reject:
    return lambda _, code, __: response(error_code=code, error_message=code.meaning)


OPEN: Final = Rule()
"""Every client that may connect may ask this."""


def by_topic_partition(operation: Operation, topic_row: Callable[..., Any], row: Callable[..., Any]) -> ByElement:
    """Topics with partitions that have an index, as most requests name them."""
    return ByElement(
        "topics",
        "topics",
        on_topic(operation),
        lambda topic, code: topic_row(
            name=topic.name, partitions=partition_rows(row, (each.partition_index for each in topic.partitions), code)
        ),
    )
