"""The ids of schemas in front of keys and values, where a topic demands them (`confluent.value.schema.validation`).

A key or value begins with byte 0 and the id of a schema, four bytes big endian, that the registry has under the
subject `topic-key` or `topic-value`. Null is valid: a tombstone has no schema. What the registry said is remembered, a
yes for an hour and a no for seconds. Small requests with known ids are checked on the event loop; the others on threads
of their own, so that a registry that is slow or away delays only topics that need it. For a second after a failure it
is not asked again, and nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.errors import SchemaRegistryAway
from penstock.config_def import InvalidSettings, Problem
from penstock.log.errors import InvalidBatch
from penstock.log.settings import LogSettings
from penstock.log.validation import Budget, LongValidation, Validated
from penstock.records import Buffer, CorruptBatch, payload_of
from penstock.runtime.clock import Clock
from penstock.security.credentials import CredentialsError, resolve

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings

_log = logging.getLogger(__name__)

Ask = Callable[[int, str], bool]
"""Whether a schema with this id is registered under this subject. OSError, PenstockError."""

FRAME_BYTES: Final = 5
ASKED_MAX: Final = 32
"""Ids that one batch may make the broker ask for."""
_VALID_MS: Final = 60 * 60 * 1000
_INVALID_MS: Final = 5_000
_AWAY_MS: Final = 1_000
_LOG_MS: Final = 60_000
_REMEMBERED_MAX: Final = 100_000
_REASONS_MAX: Final = 10_000
_TIMEOUT_S: Final = 2.0
_MAGIC: Final = 0


class _Verdict(NamedTuple):
    is_valid: bool
    until_ms: float


class SchemaIds:
    """What a broker knows about the ids of a registry. Used by the event loop and by worker threads."""

    def __init__(self, ask: Ask | None, clock: Clock, registry: str = "") -> None:
        """Without `ask` there is no registry: topics that need one accept nothing but nulls."""
        self._ask = ask
        self._clock = clock
        self._registry = registry
        self._verdicts: dict[tuple[str, int], _Verdict] = {}
        self._lock = threading.Lock()
        self._away_until_ms = 0.0
        self._away_reason = ""
        self._logged_ms: float | None = None
        self._rejected = 0

    def check(self, topic: str, settings: LogSettings, validated: Validated, budget: Budget, *, on_loop: bool) -> None:
        """InvalidBatch names the records without a valid id. SchemaRegistryAway if the registry cannot be asked;
        LongValidation only if `on_loop`."""
        if on_loop:
            budget.loop_schema_bytes -= validated.found.end
            if budget.loop_schema_bytes < 0 or any(header.codec for header in validated.found.headers):
                raise LongValidation
        fields = [
            _Judge(self, topic, field, position, on_loop)
            for position, field in enumerate(("key", "value"))
            if (settings.value_schema_validation if field == "value" else settings.key_schema_validation)
        ]
        faults: list[tuple[int, str]] = []
        most = max(1, budget.record_errors)
        for index, frames in enumerate(_frames(validated)):
            for judge in fields:
                frame = frames[judge.position]
                reason = None if frame is None else judge.reason(frame)
                if reason is not None:
                    faults.append((index, reason))
            if len(faults) >= most:
                break
        if faults:
            named = faults[: budget.record_errors]
            budget.record_errors -= len(named)
            count = sum(header.record_count for header in validated.found.headers)
            index, reason = faults[0]
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            raise InvalidBatch(f"record {index} of {count} is rejected: {reason}{more}", named)

    def known(self, subject: str, schema_id: int) -> bool | None:
        """Whether an id is valid; None if the registry has to be asked."""
        found = self._verdicts.get((subject, schema_id))
        return None if found is None or found.until_ms <= self._clock.monotonic_ms() else found.is_valid

    def asked(self, subject: str, schema_id: int) -> bool:
        """The registry's answer. SchemaRegistryAway."""
        known = self.known(subject, schema_id)  # another thread may have asked meanwhile
        if known is not None:
            return known
        if self._ask is None:
            raise InvalidBatch("schema ids cannot be checked: this broker has no confluent.schema.registry.url")
        if self._clock.monotonic_ms() < self._away_until_ms:
            raise self._away()
        from penstock.client.errors import PenstockError

        try:
            is_valid = self._ask(schema_id, subject)
        except (OSError, PenstockError) as error:
            self._away_reason = " ".join(str(error).split())
            self._away_until_ms = self._clock.monotonic_ms() + _AWAY_MS
            raise self._away() from error
        with self._lock:
            if len(self._verdicts) >= _REMEMBERED_MAX:
                self._verdicts.clear()
            until_ms = self._clock.monotonic_ms() + (_VALID_MS if is_valid else _INVALID_MS)
            self._verdicts[subject, schema_id] = _Verdict(is_valid, until_ms)
        return is_valid

    def _away(self) -> SchemaRegistryAway:
        """The error for the client, and a line in the log, one in a minute."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._rejected += 1
            if self._logged_ms is None or now_ms - self._logged_ms >= _LOG_MS:
                _log.error(
                    "schema registry cannot be asked, so records of topics that need valid schema ids are rejected: "
                    "url=%s rejected_batches=%d error=%s", self._registry, self._rejected, self._away_reason,
                )  # fmt: skip
                self._logged_ms, self._rejected = now_ms, 0
        return SchemaRegistryAway("schema ids cannot be checked: the schema registry does not answer; try again later")


class _Judge:
    """The keys or the values of one batch. Each frame is judged once."""

    def __init__(self, ids: SchemaIds, topic: str, field: str, position: int, on_loop: bool) -> None:
        self.position = position
        self._ids = ids
        self._field = field
        self._subject = f"{topic}-{field}"
        self._on_loop = on_loop
        self._reasons: dict[bytes, str | None] = {}
        self._asked = 0

    def reason(self, frame: bytes) -> str | None:
        """Why a key or value that begins like this is not valid; None if it is."""
        if frame in self._reasons:
            return self._reasons[frame]
        if len(frame) < FRAME_BYTES or frame[0] != _MAGIC:
            reason: str | None = f"the {self._field} does not begin with the id of a schema"
        else:
            reason = self._reason_of_id(int.from_bytes(frame[1:], "big"))
        if len(self._reasons) < _REASONS_MAX:
            self._reasons[frame] = reason
        return reason

    def _reason_of_id(self, schema_id: int) -> str | None:
        is_valid = self._ids.known(self._subject, schema_id)
        if is_valid is None:
            if self._on_loop:
                raise LongValidation
            self._asked += 1
            if self._asked > ASKED_MAX:
                raise SchemaRegistryAway(
                    f"the batch has more than {ASKED_MAX} schema ids that the broker does not know yet; try again"
                )
            is_valid = self._ids.asked(self._subject, schema_id)
        return None if is_valid else f"schema {schema_id} is not registered under {self._subject}"


def _frames(validated: Validated) -> Iterator[tuple[bytes | None, bytes | None]]:
    """How the key and the value of each record begin; None for null.

    In Python, since the kernel would hold the event loop for as long as it takes to read millions of records.
    """
    for header in validated.found.headers:
        try:
            plain, position, _ = payload_of(validated.batches, header)
        except CorruptBatch as error:
            raise InvalidBatch(error.reason) from None
        for _ in range(header.record_count):
            length, position = _varint(plain, position)
            after = position + length
            position += 1  # attributes
            for _ in range(2):  # deltas of time and offset
                while plain[position] & 0x80:
                    position += 1
                position += 1
            size, position = _varint(plain, position)
            key = None if size < 0 else bytes(plain[position : position + min(size, FRAME_BYTES)])
            size, position = _varint(plain, position + max(size, 0))
            yield key, None if size < 0 else bytes(plain[position : position + min(size, FRAME_BYTES)])
            position = after


def _varint(plain: Buffer, position: int) -> tuple[int, int]:
    """A zigzag number of a validated record, and where it ends."""
    byte = plain[position]
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        position += 1
        byte = plain[position]
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), position + 1


# ---------------------------------------------------------------------------------------------- the registry


def schema_ids(settings: BrokerSettings, clock: Clock) -> SchemaIds:
    """Those of the registry that a broker's settings name."""
    url = settings.confluent_schema_registry_url
    return SchemaIds(None if url is None else _asking(settings, url), clock, url or "")


def _asking(settings: BrokerSettings, url: str) -> Ask:
    # What asks is imported by brokers that have a registry.
    import ssl

    from penstock.client.errors import RegistryRequestFailed
    from penstock.client.serializers.registry_client import RegistryClient

    name, tls = "confluent.basic.auth.user.info", None
    try:
        user, _, password = resolve(settings.confluent_basic_auth_user_info or "").partition(":")
        name = "confluent.ssl.truststore.location"
        if settings.confluent_ssl_truststore_location is not None:
            tls = ssl.create_default_context(cafile=settings.confluent_ssl_truststore_location)
    except (CredentialsError, OSError) as error:  # SSLError is an OSError
        raise InvalidSettings([Problem(settings.where(name), name, str(error))]) from None
    client = RegistryClient(
        url, user=user or None, password=password or None, ssl=tls, timeout_s=_TIMEOUT_S, retries=0, cached=0
    )

    def ask(schema_id: int, subject: str) -> bool:
        try:
            found = client.request("GET", f"/schemas/ids/{schema_id}/subjects")
        except RegistryRequestFailed as error:
            if error.status == 404:
                return False
            raise
        return isinstance(found, list) and subject in found

    return ask
