"""Audit events: what a line holds, and what is left out when there are too many."""

from __future__ import annotations

import json

from penstock.security.audit import MAX_KINDS, AuditEvent, AuditLimiter, Outcome, lines_of
from penstock.security.principal import Principal, Session

ALICE = Session(Principal("User", "alice"), listener="SASL_SSL", host="10.0.0.1")
NOW_MS = 1_700_000_000_123


def denied(action: str = "Produce", session: Session = ALICE) -> AuditEvent:
    return AuditEvent("request", Outcome.DENIED, session, action, "app", ("Write Topic views",))


def test_a_line_says_who_did_what_from_where_and_how_it_ended() -> None:
    member = Session(ALICE.principal, "SASL_SSL", host="10.0.0.1", groups=frozenset({Principal("Group", "ops")}))
    [line] = lines_of(AuditLimiter(3).admit(denied(session=member), NOW_MS))
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123Z",
        "broker": 3,
        "event": "request",
        "outcome": "denied",
        "action": "Produce",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "listener": "SASL_SSL",
        "groups": ["Group:ops"],
        "client_id": "app",
        "resources": ["Write Topic views"],
    }


def test_names_cannot_forge_lines_or_fill_the_disk() -> None:
    forged = denied()._replace(client_id='x"}\n{"event":"login"', resources=("Topic " + "a" * 100_000,))
    [line] = lines_of(AuditLimiter(1).admit(forged, NOW_MS))
    assert line.count(b"\n") == 1
    assert len(line) < 1_000
    assert json.loads(line)["client_id"] == 'x"}\n{"event":"login"'


def test_a_flood_is_cut_and_counted() -> None:
    limiter = AuditLimiter(1, burst=5)
    written = [record for _ in range(1_000) for record in limiter.admit(denied(), NOW_MS)]
    assert len(written) == 5
    assert limiter.due(NOW_MS + 10) == []
    [count] = limiter.due(NOW_MS + 1_000)
    assert (count["suppressed"], count["principal"], count["action"]) == (995, "User:alice", "Produce")
    assert "resources" not in count
    assert not limiter.is_waiting
    assert len(limiter.admit(denied(), NOW_MS + 1_001)) == 1


def test_one_flood_does_not_hide_another_event() -> None:
    limiter = AuditLimiter(1, burst=2)
    for _ in range(100):
        limiter.admit(denied(), NOW_MS)
    assert len(limiter.admit(denied("CreateTopics"), NOW_MS)) == 1
    bob = Session(Principal("User", "bob"), host="10.0.0.2")
    assert len(limiter.admit(denied(session=bob), NOW_MS)) == 1


def test_many_kinds_of_events_are_bounded_together() -> None:
    limiter = AuditLimiter(1, burst_of_all=10)
    sessions = [Session(Principal("User", f"u{number}")) for number in range(MAX_KINDS + 500)]
    written = [record for session in sessions for record in limiter.admit(denied(session=session), NOW_MS)]
    assert len(written) == 10
    counts = limiter.due(NOW_MS + 2_000)
    assert sum(count["suppressed"] for count in counts) == MAX_KINDS + 500 - 10
    assert not limiter.is_waiting


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    limiter = AuditLimiter(1, burst=1)
    limiter.admit(denied(), NOW_MS)
    limiter.admit(denied(), NOW_MS)
    records = limiter.admit(denied(), NOW_MS - 3_600_000)
    assert [record.get("suppressed") for record in records] == [1, None]
