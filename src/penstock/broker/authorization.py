"""The authorizer of a broker, and how requests pass it on their way to their handlers.

A request is split before its handler: what is permitted goes to the handler, what is denied is answered here, and the
two responses are merged. `authorization_rules` says what each API needs. Requests for the controller are authorized by
the broker that receives them; the controller trusts the broker that passes them on.

The first slice of the work is done at once. What takes longer, such as a request that names ten thousand topics,
continues as a long request, and the connection's next requests wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.authorization_rules import RULES, SLICE, Access, ByElement, Denial, Prepared, Rule
from penstock.broker.fetch_session import is_unknown
from penstock.broker.request import (
    LONG_BYTES,
    Answer,
    Channel,
    CloseConnection,
    Encoded,
    Handler,
    Request,
    Services,
    Split,
    serve_parts,
    split,
)
from penstock.cluster.image import ClusterImage
from penstock.security.acls import AclAuthorizer, Explanation, Operation, ResourceType
from penstock.security.principal import Session
from penstock.wire.protocol import ApiKey, find_api, response_codec
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.audit import AuditLog
    from penstock.broker.settings import BrokerSettings
    from penstock.wire.schemas.fetch import FetchRequest
    from penstock.wire.schemas.produce import ProduceRequest

logger = logging.getLogger(__name__)

_NO_LIMIT: Final = 2**31
_MAX_KNOWN_TOPICS: Final = 1_000


class Authorizer:
    """Decides by the ACLs of the cluster image."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._rules = AclAuthorizer(settings.super_users, allow_without_acls=settings.allow_everyone_if_no_acl_found)
        self.authorize = self._rules.authorize
        """Whether a session may do something to a resource. A bound method: it is called for every request."""

    def follow(self, _: ClusterImage, image: ClusterImage) -> None:
        """A listener of images."""
        self._rules.use(image.acls)

    def known_topics(self, session: Session) -> KnownTopics:
        return KnownTopics(self._rules, session)

    def authorize_any(self, session: Session, operation: Operation, kind: ResourceType) -> bool:
        return self._rules.authorize_any(session, operation, kind)

    def authorized_operations(self, session: Session, kind: ResourceType, name: str) -> int:
        return self._rules.authorized_operations(session, kind, name)

    def explain(self, session: Session, operation: Operation, kind: ResourceType, name: str) -> Explanation:
        return self._rules.explain(session, operation, kind, name)


class KnownTopics:
    """Topics that one session may write to and read from, as far as it has asked: the short way of Produce and Fetch.

    Other ACLs make it start again. `denied` is what it may not read and has asked for since it was last emptied.
    """

    __slots__ = ("_acls", "_readable", "_rules", "_writable", "denied", "session")

    def __init__(self, rules: AclAuthorizer, session: Session) -> None:
        self._rules = rules
        self.session = session
        self.denied: list[Denial] = []
        self._start_again()

    def _start_again(self) -> None:
        self._acls = self._rules.acls
        self._writable: set[str] = set()
        self._readable: set[str] = set()

    def may_write(self, topic: str) -> bool:
        if self._acls is not self._rules.acls:
            self._start_again()
        return topic in self._writable or self._decide(Operation.WRITE, topic, self._writable)

    def may_read(self, topic: str) -> bool:
        """Also the name of an id that nobody knows, which is answered as such."""
        if self._acls is not self._rules.acls:
            self._start_again()
        if topic in self._readable or is_unknown(topic) or self._decide(Operation.READ, topic, self._readable):
            return True
        if len(self.denied) < SLICE:
            self.denied.append(Denial(Operation.READ, ResourceType.TOPIC, topic))
        return False

    def _decide(self, operation: Operation, topic: str, known: set[str]) -> bool:
        allowed = self._rules.authorize(self.session, operation, ResourceType.TOPIC, topic)
        if allowed and len(known) < _MAX_KNOWN_TOPICS:
            known.add(topic)
        return allowed


class AccessControl:
    """The router passes requests through it if there is an authorizer, an audit log, or both.

    Produce and Fetch have a short way each, because they are served in some 20 us: a function call more is 0.3 %.
    """

    def __init__(self, authorizer: Authorizer | None, audit: AuditLog | None = None) -> None:
        self._authorizer = authorizer
        self._audit = audit

    def permits(self, channel: Channel, message: FetchRequest) -> Callable[[str], bool] | None:
        """Which topics a consumer's Fetch may read: its fetch session names more of them than the request.

        If not None, the handler asks it, and the request needs no other decision. `fetched` must follow.
        """
        authorizer = self._authorizer
        if authorizer is None or channel.session.is_broker:
            return None
        if message.replica_id >= 0 or message.replica_state.replica_id >= 0:
            return None
        known = channel.known_topics
        if known is None or known.session is not channel.session:
            known = channel.known_topics = authorizer.known_topics(channel.session)
        return known.may_read

    def fetched(self, request: Request, known: KnownTopics) -> None:
        """Note what a Fetch was denied."""
        self._denied(request, known.denied)
        known.denied = []

    def may_produce(self, channel: Channel, message: ProduceRequest) -> bool:
        """Whether a Produce writes to one topic, without a transaction, and may: the rule of Produce in short.

        If so, it needs no other decision; else `guarded` decides.
        """
        topics = message.topic_data
        authorizer = self._authorizer
        if authorizer is None or len(topics) != 1 or message.transactional_id is not None:
            return False
        known = channel.known_topics
        if known is None or known.session is not channel.session:
            known = channel.known_topics = authorizer.known_topics(channel.session)
        return known.may_write(topics[0].name)

    def guarded(self, splits: tuple[Split, ...], request: Request, handle: Handler) -> Handler:
        """The handler as the session of this request may use it for this request."""
        if request.session.is_broker or request.permits is not None:
            return handle
        guarded, key = handle, request.api_key
        if self._authorizer is not None:
            # An API without a row is a mistake, which must not open the broker.
            guarded = partial(self._serve, RULES.get(key) or _UNKNOWN, splits, handle)
        if self._audit is not None and self._audit.is_change(key):
            guarded = partial(self._noted, guarded)
        return guarded

    def _serve(
        self,
        rule: Rule,
        splits: tuple[Split, ...],
        handle: Handler,
        services: Services,
        request: Request,
        answer: Answer,
    ) -> None:
        assert self._authorizer is not None
        access = Access(self._authorizer, services, request.session)
        message, version = request.message, request.version
        if rule.needs is not None:
            code = rule.needs(access, message, version)
            if code:
                self._denied(request, access.denied)
                _close_without_response(request, code.meaning)
                answer(rule.reject(message, code, version))
                return
        if rule.permits is not None:
            handle(services, request._replace(permits=rule.permits(access, message, version)), answer)
            if access.denied:
                self._denied(request, access.denied)
            return
        if rule.complete is not None and rule.completes(message, version):
            answer = partial(_complete, services, request, rule, access, answer)
        prepare = rule.prepare
        if prepare is None or (type(prepare) is ByElement and prepare.permits_all(access, message)):
            handle(services, request, answer)
            return
        _in_slices(
            services,
            request,
            prepare(access, message, version),
            partial(self._pass_on, rule, splits, handle, services, request, access, answer),
        )

    def _pass_on(
        self,
        rule: Rule,
        splits: tuple[Split, ...],
        handle: Handler,
        services: Services,
        request: Request,
        access: Access,
        answer: Answer,
        prepared: Prepared,
    ) -> None:
        """Serve what is permitted, and add the answers to the rest."""
        if access.denied:
            self._denied(request, access.denied)
        if prepared.message is request.message:
            handle(services, request, answer)
            return
        permitted = prepared.message
        if permitted is None and not rule.always_served:
            _close_without_response(request, "every part of it is denied")
            response: Any = find_api(request.api_key).response()
            setattr(response, prepared.answered, list(prepared.ready))
            answer(response)
            return
        # Version 0 of Metadata has no request for no topics.
        version = max(1, request.version) if rule.always_served else request.version
        served = request._replace(message=permitted, version=version)
        if prepared.ready or version != request.version:
            answer = partial(_merge, services, served, prepared, answer)
        parts = split(splits, version, permitted, LONG_BYTES) if rule.always_served else None
        if parts is not None:
            work = partial(serve_parts, services, served, parts, handle, answer)
            services.long_requests.start(request.channel, request.size, work)
        else:
            handle(services, served, answer)

    def _denied(self, request: Request, denied: Sequence[Denial]) -> None:
        if self._audit is not None:
            self._audit.denied(request, denied)
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("denied: principal=%s api=%s", request.session.principal, ApiKey(request.api_key).name)

    def _noted(self, handle: Handler, services: Services, request: Request, answer: Answer) -> None:
        """Note a change when it is answered."""
        assert self._audit is not None
        handle(services, request, partial(self._audit.answered, request, answer))


def _close_without_response(request: Request, reason: str) -> None:
    """A producer that wants no response learns from a closed connection that its records were not written."""
    if request.api_key == ApiKey.PRODUCE and request.message.acks == 0:
        raise CloseConnection(f"records with acks=0 were rejected: {reason}")


def _merge(services: Services, served: Request, prepared: Prepared, answer: Answer, response: Message | None) -> None:
    if response is None:
        # acks=0: what is permitted was written.
        if served.channel is not None:
            served.channel.end(CloseConnection("records with acks=0 were rejected: some topics are denied"))
        answer(None)
        return

    def merged(whole: Any) -> None:
        if prepared.ready:
            rows = getattr(whole, prepared.answered)
            setattr(whole, prepared.answered, with_ready(rows, prepared))
        answer(whole)

    _in_slices(services, served, _decoded(served, response), merged)


def with_ready(rows: Sequence[Any], prepared: Prepared) -> list[Any]:
    """The rows of a handler, with those that were ready before it at their places."""
    if not prepared.places:
        return [*rows, *prepared.ready]
    found: list[Any] = []
    rest = iter(rows)
    for place, row in zip(prepared.places, prepared.ready, strict=True):
        found += islice(rest, place - len(found))
        found.append(row)
    found += rest
    return found


def _complete(
    services: Services, request: Request, rule: Rule, access: Access, answer: Answer, response: Message | None
) -> None:
    if response is None:
        answer(None)
        return
    found = response

    def work() -> Generator[None, None, Message]:
        assert rule.complete is not None
        whole = yield from _decoded(request, found)
        yield from rule.complete(access, request.message, whole, request.version)
        return whole

    _in_slices(services, request, work(), answer)


def _decoded(request: Request, response: Message) -> Generator[None, None, Message]:
    """The message of a response that was encoded before."""
    if type(response) is not Encoded:
        return response
    found: Message
    codec = response_codec(request.api_key, request.version)
    found, _ = yield from codec.decode_slices(response.body, 0, _NO_LIMIT)
    return found


def _in_slices(
    services: Services, request: Request, work: Generator[None, None, Any], done: Callable[[Any], None]
) -> None:
    """Do the work, at once if it takes one slice, and call `done` with what it returns."""
    try:
        next(work)
    except StopIteration as end:
        done(end.value)
        return

    async def rest() -> None:
        await services.long_requests.pause(request.channel)
        done(await services.long_requests.through(work, request.channel))

    services.long_requests.start(request.channel, request.size, rest)


def _reject_all(_: Access, __: Any, ___: int) -> Any:
    raise CloseConnection("the API has no authorization rule")


_UNKNOWN: Final = Rule(needs=_reject_all)
