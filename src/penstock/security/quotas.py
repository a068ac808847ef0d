"""Quotas: how much of a broker a user, a client id or an address may use, and how long to hold it back. Pure.

A quota holds for what it is set for, or for all that have none of their own. Of several the most specific counts, in
Kafka's order:

    user + client id, user + default client id, user, default user + client id, default user + default client id,
    default user, client id, default client id

A user's quota is shared by all of its client ids; one with a client id, named or default, is each client id's own.

Rates are measured over 11 windows of 1 s (quota.window.num, quota.window.size.seconds). A client over its quota is
held back for as long as the excess takes at the rate of the quota. Changes by the controller are limited by a token
bucket, which may be overdrawn once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

Settings = Mapping[str, str]
T = TypeVar("T")

DEFAULT: Final = "<default>"
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_MAX_ENTITIES: Final = 10_000
_MAX_INTEGER: Final = 2**53
_EPSILON: Final = 1e-6


class QuotaKey(NamedTuple):
    is_integer: bool
    is_of_address: bool = False


QUOTA_KEYS: Final = {
    PRODUCER_BYTE_RATE: QuotaKey(is_integer=True),
    CONSUMER_BYTE_RATE: QuotaKey(is_integer=True),
    REQUEST_PERCENTAGE: QuotaKey(is_integer=False),
    CONTROLLER_MUTATION_RATE: QuotaKey(is_integer=False),
    CONNECTION_CREATION_RATE: QuotaKey(is_integer=True, is_of_address=True),
}


def parse_quota(text: str | None) -> float | None:
    """A stored quota; None if there is none, or if it is not a positive number."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def format_quota(key: str, value: float) -> str:
    """A quota as it is stored. ValueError."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{key} is {value}; it must be more than 0. Remove the quota to set no limit")
    if not QUOTA_KEYS[key].is_integer:
        return str(float(value))
    if value > _MAX_INTEGER or abs(value - round(value)) > _EPSILON:
        raise ValueError(f"{key} is {value}; it must be a whole number up to {_MAX_INTEGER}")
    return str(round(value))


# --- rates


class Rate:
    """What one entity used in the last windows."""

    __slots__ = ("_samples", "_total", "_window_ms", "_windows")

    def __init__(self, windows: int, window_ms: float) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._samples: deque[tuple[float, float]] = deque()  # when a window began, and what was used in it
        self._total = 0.0

    def record(self, amount: float, now_ms: float) -> None:
        self._expire(now_ms)
        if self._samples and now_ms - self._samples[-1][0] < self._window_ms:
            began_ms, used = self._samples[-1]
            self._samples[-1] = began_ms, used + amount
        else:
            self._samples.append((now_ms, amount))
        self._total += amount

    def throttle_ms(self, quota: float, now_ms: float) -> float:
        """How long the excess over `quota` per second takes at that rate; 0 if it is not exceeded."""
        self._expire(now_ms)
        if not self._samples:
            return 0.0
        # A rate over less than all windows but the last one would be too high after a pause.
        full = (self._windows - 1) * self._window_ms
        elapsed_ms = now_ms - self._samples[0][0]
        if elapsed_ms < full:
            elapsed_ms = full + elapsed_ms % self._window_ms
        return max(0.0, self._total * 1000 / quota - elapsed_ms)

    def is_idle_at(self, now_ms: float) -> bool:
        """Whether nothing was used in the windows."""
        self._expire(now_ms)
        return not self._samples

    def _expire(self, now_ms: float) -> None:
        oldest_ms = now_ms - self._windows * self._window_ms
        while self._samples and self._samples[0][0] <= oldest_ms:
            self._total -= self._samples.popleft()[1]


class TokenBucket:
    """Tokens arrive at `rate` per second, up to a bucket of `burst`. It may be overdrawn by one taking."""

    __slots__ = ("_at_ms", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, now_ms: float) -> None:
        self.rate = rate
        self.burst = burst
        self._tokens = burst
        self._at_ms = now_ms

    def take(self, amount: float, now_ms: float, *, force: bool = False) -> bool:
        """Take tokens unless the bucket is overdrawn; with `force` even then. Returns whether they were taken."""
        self._fill(now_ms)
        if self._tokens < 0 and not force:
            return False
        self._tokens -= amount
        return True

    def throttle_ms(self, now_ms: float) -> float:
        """Until it is not overdrawn any more."""
        self._fill(now_ms)
        return max(0.0, -self._tokens / self.rate * 1000)

    def _fill(self, now_ms: float) -> None:
        self._tokens = min(self.burst, self._tokens + max(0.0, now_ms - self._at_ms) / 1000 * self.rate)
        self._at_ms = now_ms


# --- entities


class Limit(NamedTuple):
    """A quota, and who shares it: a user, a client id or both; "" for what does not matter."""

    quota: float
    user: str
    client: str


class QuotaTable:
    """The quotas that are set, by key."""

    def __init__(
        self,
        users: Mapping[str, Settings],
        clients: Mapping[str, Settings],
        user_clients: Mapping[tuple[str, str], Settings],
        ips: Mapping[str, Settings],
    ) -> None:
        self._quotas: dict[str, dict[tuple[str | None, str | None], float]] = {key: {} for key in QUOTA_KEYS}
        for user, settings in users.items():
            self._add((user, None), settings)
        for client, settings in clients.items():
            self._add((None, client), settings)
        for pair, settings in user_clients.items():
            self._add(pair, settings)
        self._by_ip = {
            ip: quota
            for ip, settings in ips.items()
            if (quota := parse_quota(settings.get(CONNECTION_CREATION_RATE))) is not None
        }

    def _add(self, entity: tuple[str | None, str | None], settings: Settings) -> None:
        for key, quotas in self._quotas.items():
            quota = parse_quota(settings.get(key))
            if quota is not None:
                quotas[entity] = quota

    def __bool__(self) -> bool:
        """Whether there is any quota of users or client ids."""
        return any(self._quotas.values())

    @property
    def has_addresses(self) -> bool:
        return bool(self._by_ip)

    def limit(self, key: str, user: str, client: str) -> Limit | None:
        """The quota that counts for requests of this user with this client id; None if there is none."""
        quotas = self._quotas[key]
        if not quotas:
            return None
        for who in (user, DEFAULT):
            for what in (client, DEFAULT):
                found = quotas.get((who, what))
                if found is not None:
                    return Limit(found, user, client)
            found = quotas.get((who, None))
            if found is not None:
                return Limit(found, user, "")
        for what in (client, DEFAULT):
            found = quotas.get((None, what))
            if found is not None:
                return Limit(found, "", client)
        return None

    def connections_per_s(self, ip: str) -> float | None:
        return self._by_ip.get(ip, self._by_ip.get(DEFAULT))


class Quotas:
    """The quotas of one broker, and what was used of them."""

    def __init__(self, windows: int = 11, window_ms: float = 1000) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._table = QuotaTable({}, {}, {}, {})
        self._rates: dict[tuple[str, str, str], Rate] = {}
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._connections: dict[str, Rate] = {}
        self.is_active = False
        """Whether there is a quota of a user or client id."""
        self.limits_addresses = False

    def set_table(self, table: QuotaTable) -> None:
        """What was used counts on under the new quotas."""
        self._table = table
        self.is_active = bool(table)
        self.limits_addresses = table.has_addresses

    def record(self, key: str, user: str, client: str, amount: float, now_ms: float) -> float:
        """Count what was used; returns for how many milliseconds the connection is to be held back."""
        limit = self._table.limit(key, user, client)
        if limit is None:
            return 0.0
        rate = self._rate(self._rates, (key, limit.user, limit.client), now_ms)
        rate.record(amount, now_ms)
        return rate.throttle_ms(limit.quota, now_ms)

    def throttle_ms(self, key: str, user: str, client: str, now_ms: float) -> float:
        """The same for what was counted before."""
        limit = self._table.limit(key, user, client)
        rate = None if limit is None else self._rates.get((key, limit.user, limit.client))
        return 0.0 if limit is None or rate is None else rate.throttle_ms(limit.quota, now_ms)

    def max_bytes(self, key: str, user: str, client: str) -> int | None:
        """What may be used at once without exceeding the quota for longer than the windows; None if unlimited."""
        limit = self._table.limit(key, user, client)
        return None if limit is None else max(1, int(limit.quota * self._windows * self._window_ms / 1000))

    def mutations(self, user: str, client: str, now_ms: float) -> TokenBucket | None:
        """The bucket for changes by the controller; None if they are not limited."""
        limit = self._table.limit(CONTROLLER_MUTATION_RATE, user, client)
        if limit is None:
            return None
        key, burst = (limit.user, limit.client), limit.quota * self._windows * self._window_ms / 1000
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate != limit.quota:
            if len(self._buckets) >= _MAX_ENTITIES:
                self._buckets.clear()
            bucket = self._buckets[key] = TokenBucket(limit.quota, burst, now_ms)
        return bucket

    def connected(self, ip: str, now_ms: float) -> bool:
        """Count a new connection of an address; whether it is within its quota."""
        quota = self._table.connections_per_s(ip)
        if quota is None:
            return True
        rate = self._rate(self._connections, ip, now_ms)
        if rate.throttle_ms(quota, now_ms) > 0:
            return False
        rate.record(1, now_ms)
        return True

    def _rate(self, rates: dict[T, Rate], key: T, now_ms: float) -> Rate:
        rate = rates.get(key)
        if rate is None:
            if len(rates) >= _MAX_ENTITIES:
                # Client ids are chosen by clients: there may be any number of them.
                for each in [each for each, found in rates.items() if found.is_idle_at(now_ms)]:
                    del rates[each]
                if len(rates) >= _MAX_ENTITIES:
                    rates.clear()
            rate = rates[key] = Rate(self._windows, self._window_ms)
        return rate
