"""The audit log of a broker: who logged in, what was denied, who changed what.

Events become JSON lines (`security.audit` decides which). Lines are collected on the event loop, which never waits for
them: another thread writes them to a file, which rotates, and the loop appends them to a topic, if one is named. The
topic needs a partition that this broker leads. Lines wait in memory, at most `MAX_WAITING`; what does not fit is
counted and reported with the next line.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from penstock.broker.authorization_rules import Denial
from penstock.broker.handlers.acls import binding_of, filter_of
from penstock.broker.request import Answer, BrokerState, Request, Services
from penstock.broker.router import error_codes
from penstock.log.errors import InvalidBatch, LogError
from penstock.records import RecordError, encode_batch
from penstock.replication.partition import Partition
from penstock.runtime.files import File, Files
from penstock.runtime.threads import Outcome as WorkOutcome
from penstock.runtime.threads import Workers, WorkersError
from penstock.security.acls import title_of
from penstock.security.audit import MAX_RESOURCES, WINDOW_MS, AuditEvent, AuditLimiter, Outcome, lines_of
from penstock.security.principal import Session
from penstock.wire.protocol import ApiKey, ErrorCode, find_api
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
_BATCH_LINES: Final = 500
_RETRY_S: Final = 5.0
_ACKS_LEADER: Final = 1
_DENIALS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

# Of a request that names more, the others are not counted.
_MAX_COUNTED: Final = 1_000
_NAMES: Final = {int(code): code.name for code in ErrorCode}

# --- what changes are about


def _topics(message: Any, _: int) -> Iterable[str]:
    return (f"Topic {topic.name}" for topic in message.topics)


def _deleted_topics(message: Any, version: int) -> Iterable[str]:
    if version < 6:
        return (f"Topic {name}" for name in message.topic_names)
    return (f"Topic {each.name}" if each.name else f"Topic id {each.topic_id.hex()}" for each in message.topics)


def _settings(message: Any, _: int) -> Iterable[str]:
    """Names of settings, never their values, which may be secret."""
    kinds = {2: "Topic", 4: "Broker", 8: "BrokerLogger", 16: "ClientMetrics", 32: "Group"}
    for resource in message.resources:
        names = ", ".join(sorted(each.name for each in resource.configs)[:MAX_RESOURCES])
        yield f"{kinds.get(resource.resource_type, resource.resource_type)} {resource.resource_name}: {names}"


def _replicas(message: Any, _: int) -> Iterable[str]:
    return (f"Topic {topic.name}" for folder in message.dirs for topic in folder.topics)


def _elections(message: Any, _: int) -> Iterable[str]:
    if message.topic_partitions is None:
        return ("all partitions",)
    return (f"Topic {topic.topic}" for topic in message.topic_partitions)


def _markers(message: Any, _: int) -> Iterable[str]:
    for marker in message.markers:
        end = "commit" if marker.transaction_result else "abort"
        yield from (f"Topic {topic.name}: {end} of producer {marker.producer_id}" for topic in marker.topics)


def _quotas(message: Any, _: int) -> Iterable[str]:
    for entry in message.entries:
        entity = ", ".join(f"{each.entity_type} {each.entity_name or '<default>'}" for each in entry.entity)
        yield f"{entity}: {', '.join(each.key for each in entry.ops)}"


def _credentials(message: Any, _: int) -> Iterable[str]:
    yield from (f"User {each.name}: removed" for each in message.deletions)
    yield from (f"User {each.name}: changed" for each in message.upsertions)


CHANGES: Final[Mapping[int, Callable[[Any, int], Iterable[str]]]] = {
    ApiKey.CREATE_TOPICS: _topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.CREATE_PARTITIONS: _topics,
    ApiKey.DELETE_RECORDS: _topics,
    ApiKey.ALTER_CONFIGS: _settings,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _settings,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _replicas,
    ApiKey.ELECT_LEADERS: _elections,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _topics,
    ApiKey.DELETE_GROUPS: lambda message, _: (f"Group {name}" for name in message.groups_names),
    ApiKey.OFFSET_DELETE: lambda message, _: (
        f"Group {message.group_id}: Topic {each.name}" for each in message.topics
    ),
    # Commits are the normal course of things.
    ApiKey.END_TXN: lambda message, _: () if message.committed else (f"TransactionalId {message.transactional_id}",),
    ApiKey.WRITE_TXN_MARKERS: _markers,
    ApiKey.CREATE_ACLS: lambda message, _: (str(binding_of(each)) for each in message.creations),
    ApiKey.DELETE_ACLS: lambda message, _: (_shown_filter(each) for each in message.filters),
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _credentials,
}
"""The requests that change something, and what they are about."""


def _shown_filter(message: Any) -> str:
    wanted = filter_of(message)
    given = {name: getattr(value, "name", value) for name, value in wanted._asdict().items() if value not in (None, 1)}
    return "ACLs with " + ", ".join(f"{name}={value}" for name, value in given.items()) if given else "all ACLs"


# --- the log


class AuditLog:
    """Events of requests and logins become lines for a `sink`."""

    def __init__(self, services: Services, sink: Callable[[Sequence[bytes]], None]) -> None:
        self._services = services
        self._sink = sink
        self._limiter = AuditLimiter(services.node_id)
        self._is_timer_set = False

    def is_change(self, key: int) -> bool:
        return key in CHANGES

    def login(self, session: Session, mechanism: str, *, succeeded: bool) -> None:
        """Note a login. If it failed, the session has the name that the client claimed."""
        outcome = Outcome.ALLOWED if succeeded else Outcome.FAILED
        self._note(AuditEvent("login", outcome, session, mechanism))

    def denied(self, request: Request, denials: Sequence[Denial]) -> None:
        """Something that a request asked for by name."""
        if request.api_key in CHANGES:
            return  # noted with its response
        distinct = dict.fromkeys(f"{title_of(op)} {title_of(kind)} {name}" for op, kind, name in denials)
        self._request(request, Outcome.DENIED, list(distinct))

    def answered(self, request: Request, answer: Answer, response: Message | None) -> None:
        """The response to a change. It is passed to `answer` even if the event cannot be noted."""
        try:
            codes = set() if response is None else set(error_codes(response))
            about = list(islice(CHANGES[request.api_key](request.message, request.version), _MAX_COUNTED))
            if about or codes & _DENIALS:
                outcome = Outcome.DENIED if codes & _DENIALS else Outcome.FAILED if codes else Outcome.ALLOWED
                self._request(request, outcome, about, tuple(sorted(_NAMES.get(code, str(code)) for code in codes)))
        except Exception:
            logger.exception("audit event lost: api=%s", ApiKey(request.api_key).name)
        answer(response)

    def _request(self, request: Request, outcome: Outcome, resources: list[str], errors: tuple[str, ...] = ()) -> None:
        shown = tuple(islice(resources, MAX_RESOURCES))
        name = find_api(request.api_key).name
        omitted = len(resources) - len(shown)
        self._note(AuditEvent("request", outcome, request.session, name, request.client_id, shown, omitted, errors))

    def _note(self, event: AuditEvent) -> None:
        self._write(self._limiter.admit(event, self._services.clock.now_ms()))
        if not self._is_timer_set and self._limiter.is_waiting:
            self._is_timer_set = True
            self._services.call_later(WINDOW_MS / 1000, self._count)

    def _count(self) -> None:
        """Write what was suppressed, although nothing else happens."""
        self._is_timer_set = False
        self._write(self._limiter.due(self._services.clock.now_ms()))
        if self._limiter.is_waiting:
            self._is_timer_set = True
            self._services.call_later(WINDOW_MS / 1000, self._count)

    def _write(self, records: list[Mapping[str, Any]]) -> None:
        if records:
            self._sink(list(lines_of(records)))


# --- sinks


class RotatingFile:
    """Lines in a file. At `max_bytes` it becomes `<path>.1`, and that `<path>.2`, up to `backups`. Blocking."""

    def __init__(self, files: Files, path: str, max_bytes: int, backups: int) -> None:
        self._files = files
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._file: File | None = None
        self._size = 0

    def open(self) -> None:
        """Create the file, if it does not exist. OSError."""
        self._open()

    def write(self, lines: Sequence[bytes]) -> None:
        """OSError."""
        for part in self._parts(lines):
            file = self._open()
            if self._size and self._size + len(part) > self._max_bytes:
                self._rotate(file)
                file = self._open()
            file.write_at(self._size, part)
            self._size += len(part)

    def _parts(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        """The lines in parts, each as large as fits into the file."""
        part = b""
        for line in lines:
            if part and len(part) + len(line) > max(0, self._max_bytes - self._size):
                yield part
                part = b""
            part += line
        if part:
            yield part

    def _open(self) -> File:
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
            self._size = self._file.size()
        return self._file

    def _rotate(self, file: File) -> None:
        file.close()
        self._file = None
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._backups + 1))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if self._files.exists(newer):
                self._files.rename(newer, older)
        if not self._backups:
            self._files.remove(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None


class FileSink:
    """Hands lines to a thread. While it writes, later lines wait; too many are counted and dropped."""

    def __init__(self, file: RotatingFile, workers: Workers) -> None:
        self._file = file
        self._workers = workers
        self._waiting: deque[bytes] = deque()
        self._is_writing = False
        self._dropped = 0

    def __call__(self, lines: Sequence[bytes]) -> None:
        room = MAX_WAITING - len(self._waiting)
        self._waiting.extend(lines[: max(0, room)])
        self._dropped += max(0, len(lines) - max(0, room))
        self._start()

    def _start(self) -> None:
        if self._is_writing or not self._waiting:
            return
        lines = list(self._waiting)
        self._waiting.clear()
        if self._dropped:
            lines.append(
                b'{"event":"suppressed","reason":"the audit file is too slow","suppressed":%d}\n' % self._dropped
            )
            self._dropped = 0
        self._is_writing = True
        try:
            self._workers.run(lambda: self._file.write(lines), self._written)
        except WorkersError as error:
            self._is_writing = False
            logger.error("audit lines lost: lines=%d error=%s", len(lines), error)

    def _written(self, outcome: WorkOutcome[None]) -> None:
        self._is_writing = False
        if outcome.error is not None:
            logger.error("audit lines lost: error=%s", outcome.error)
        self._start()

    def close(self) -> None:
        """After the workers."""
        if self._waiting:
            self._file.write(list(self._waiting))
            self._waiting.clear()
        self._file.close()


class TopicSink:
    """Appends lines to a partition of a topic that this broker leads. Lines wait until there is one.

    A batch that the log rejects is divided, and a line that is rejected by itself is dropped, so that nothing blocks
    the lines behind it. After any other error the lines are tried again every `_RETRY_S` seconds.
    """

    def __init__(self, services: Services, topic: str) -> None:
        self._services = services
        self._topic = topic
        self._waiting: deque[bytes] = deque()
        self._batch_lines = _BATCH_LINES
        self._dropped = 0
        self._is_creating = False
        self._is_timer_set = False

    def __call__(self, lines: Sequence[bytes]) -> None:
        self._waiting.extend(lines)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1
        self._append()

    def _append(self) -> None:
        """Append a batch of the lines that wait; the others follow."""
        if not self._waiting:
            return
        topic = self._services.cluster.image.topics.get(self._topic)
        if topic is None:
            self._create()
        partition = None if topic is None else self._led(len(topic.partitions))
        if partition is None or not self._append_to(partition):
            self._try_later()
        elif self._waiting:
            self._services.loop.call_soon(self._append)

    def _led(self, partitions: int) -> Partition | None:
        for index in range(partitions):
            partition = self._services.replicas.get(self._topic, index)
            if partition is not None and partition.leadership is not None:
                return partition
        return None

    def _append_to(self, partition: Partition) -> bool:
        """Whether to continue with the next lines."""
        lines = list(islice(self._waiting, self._batch_lines))
        now_ms = self._services.clock.now_ms()
        try:
            batch = encode_batch([(now_ms, None, line.rstrip(b"\n"), ()) for line in lines])
            partition.append(batch, now_ms, _ACKS_LEADER, from_client=False)
        except (InvalidBatch, RecordError) as error:
            if len(lines) > 1:
                self._batch_lines = len(lines) // 2
                return True
            self._dropped += 1
            logger.warning("audit line rejected: topic=%s error=%s", self._topic, error)
        except LogError as error:
            logger.warning("audit lines not appended: topic=%s error=%s", self._topic, error)
            return False
        else:
            self._batch_lines = min(2 * self._batch_lines, _BATCH_LINES)
        for _ in lines:
            self._waiting.popleft()
        self._report_dropped()
        return True

    def _report_dropped(self) -> None:
        if self._dropped:
            logger.warning("audit lines dropped: topic=%s lines=%d", self._topic, self._dropped)
            self._dropped = 0

    def _try_later(self) -> None:
        if not self._is_timer_set and self._services.state is not BrokerState.STOPPING:
            self._is_timer_set = True
            self._services.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._is_timer_set = False
        self._report_dropped()
        self._append()

    def _create(self) -> None:
        if self._is_creating:
            return
        self._is_creating = True

        async def create() -> None:
            await self._services.topic_creation.create([self._topic])
            self._is_creating = False
            if self._topic in self._services.cluster.image.topics:
                self._append()

        def failed(error: BaseException) -> None:
            self._is_creating = False

        self._services.spawn(create(), failed)


def both(sinks: Sequence[Callable[[Sequence[bytes]], None]]) -> Callable[[Sequence[bytes]], None]:
    def write(lines: Sequence[bytes]) -> None:
        for sink in sinks:
            sink(lines)

    return write
