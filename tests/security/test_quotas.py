"""Which quota applies to which client, and how long a client that exceeds it is held back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
    Quotas,
    QuotaTable,
    Rate,
    TokenBucket,
    format_quota,
    parse_quota,
)

Entity = tuple[str | None, str | None]


def table(quotas: Mapping[Entity, float], key: str = PRODUCER_BYTE_RATE) -> QuotaTable:
    users = {user: {key: str(value)} for (user, client), value in quotas.items() if user and client is None}
    clients = {client: {key: str(value)} for (user, client), value in quotas.items() if client and user is None}
    both = {(user, client): {key: str(value)} for (user, client), value in quotas.items() if user and client}
    return QuotaTable(users, clients, both, {})


# Kafka's order of precedence, and who shares the quota.
LEVELS: list[tuple[Entity, Limit]] = [
    (("alice", "app"), Limit(1, "alice", "app")),
    (("alice", DEFAULT), Limit(2, "alice", "app")),
    (("alice", None), Limit(3, "alice", "")),
    ((DEFAULT, "app"), Limit(4, "alice", "app")),
    ((DEFAULT, DEFAULT), Limit(5, "alice", "app")),
    ((DEFAULT, None), Limit(6, "alice", "")),
    ((None, "app"), Limit(7, "", "app")),
    ((None, DEFAULT), Limit(8, "", "app")),
]


def test_the_most_specific_quota_counts_in_kafkas_order() -> None:
    left = {entity: limit.quota for entity, limit in LEVELS}
    for entity, expected in LEVELS:
        assert table(left).limit(PRODUCER_BYTE_RATE, "alice", "app") == expected
        del left[entity]
    assert table(left).limit(PRODUCER_BYTE_RATE, "alice", "app") is None
    assert not table(left)
    assert table({("bob", None): 9}).limit(PRODUCER_BYTE_RATE, "alice", "app") is None


@pytest.mark.parametrize("text", [None, "", "many", "-1", "0", "nan", "inf"])
def test_what_is_not_a_positive_number_sets_no_limit(text: str | None) -> None:
    assert parse_quota(text) is None


def test_quotas_are_stored_as_kafka_stores_them() -> None:
    assert format_quota(PRODUCER_BYTE_RATE, 1048576.0) == "1048576"
    assert format_quota(REQUEST_PERCENTAGE, 12.5) == "12.5"
    for key, value in ((PRODUCER_BYTE_RATE, 1.5), (PRODUCER_BYTE_RATE, 0), (REQUEST_PERCENTAGE, -1.0)):
        with pytest.raises(ValueError, match=key):
            format_quota(key, value)


def test_a_rate_is_measured_over_all_windows_and_the_wait_is_as_long_as_the_excess() -> None:
    rate = Rate(11, 1000)
    rate.record(1000, 0)
    assert rate.throttle_ms(100, 0) == 0, "1000 bytes in 10 s are 100 a second"
    rate.record(500, 100)
    assert rate.throttle_ms(100, 100) == pytest.approx(1500 / 100 * 1000 - 10_100)
    assert rate.throttle_ms(100, 11_000) == 0, "the first window has passed"


def test_a_steady_stream_at_twice_the_quota_is_held_back_to_the_quota() -> None:
    rate, now_ms, sent = Rate(11, 1000), 0.0, 0
    while now_ms < 120_000:
        rate.record(1000, now_ms)
        sent += 1000
        now_ms += max(500.0, rate.throttle_ms(1000, now_ms))
    assert sent / 120 == pytest.approx(1000, rel=0.15)


def test_a_bucket_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(2, 20, 0)
    assert bucket.take(50, 0)
    assert not bucket.take(1, 0)
    assert bucket.throttle_ms(0) == pytest.approx(15_000)
    assert bucket.take(1, 0, force=True)
    assert not bucket.take(1, 15_000)
    assert bucket.take(1, 15_500)


def test_what_users_share_is_counted_together_and_what_they_do_not_is_not() -> None:
    quotas = Quotas()
    assert quotas.record(PRODUCER_BYTE_RATE, "alice", "a", 1e9, 0) == 0
    quotas.set_table(table({("alice", None): 100, (None, DEFAULT): 100}))
    assert quotas.is_active is True
    assert quotas.record(PRODUCER_BYTE_RATE, "alice", "a", 1000, 0) == 0
    assert quotas.record(PRODUCER_BYTE_RATE, "alice", "b", 1000, 0) > 0, "the user's clients share it"
    assert quotas.record(PRODUCER_BYTE_RATE, "bob", "a", 1000, 0) == 0
    assert quotas.throttle_ms(PRODUCER_BYTE_RATE, "alice", "c", 0) > 0
    assert quotas.max_bytes(PRODUCER_BYTE_RATE, "alice", "a") == 1100
    assert quotas.max_bytes(REQUEST_PERCENTAGE, "alice", "a") is None


def test_any_number_of_client_ids_takes_a_bounded_amount_of_memory() -> None:
    quotas = Quotas()
    quotas.set_table(table({(None, DEFAULT): 100}))
    for number in range(25_000):
        quotas.record(PRODUCER_BYTE_RATE, "x", f"client-{number}", 1, 0)
    assert len(quotas._rates) <= 10_000


def test_addresses_have_a_rate_of_their_own_or_the_default() -> None:
    quotas = Quotas()
    ips = {"10.0.0.1": {CONNECTION_CREATION_RATE: "1"}, DEFAULT: {CONNECTION_CREATION_RATE: "3"}}
    quotas.set_table(QuotaTable({}, {}, {}, ips))
    assert quotas.limits_addresses
    assert not quotas.is_active
    admitted = [sum(quotas.connected(ip, 0) for _ in range(100)) for ip in ("10.0.0.1", "10.0.0.2")]
    assert admitted == [11, 31]
    assert quotas.connected("10.0.0.1", 12_000)


def test_changes_by_the_controller_have_a_bucket_that_follows_the_quota() -> None:
    quotas = Quotas()
    quotas.set_table(table({("alice", None): 1}, CONTROLLER_MUTATION_RATE))
    bucket = quotas.mutations("alice", "x", 0)
    assert bucket is not None
    assert bucket is quotas.mutations("alice", "y", 0)
    assert (bucket.rate, bucket.burst) == (1, 11)
    assert quotas.mutations("bob", "x", 0) is None
    quotas.set_table(table({("alice", None): 2}, CONTROLLER_MUTATION_RATE))
    changed = quotas.mutations("alice", "x", 0)
    assert changed is not None
    assert changed.rate == 2
