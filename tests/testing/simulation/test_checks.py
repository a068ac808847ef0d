"""What is wrong with a run is found, and what a topic that does not sync may lose is not held against it."""

from __future__ import annotations

from penstock.testing.simulation.checks import findings
from penstock.testing.simulation.history import History, Place, Sent

PLACE = Place("quick", 0)


def stored(*numbers: int) -> tuple[History, dict[Place, list[tuple[int, bytes]]]]:
    """One writer's records, in this order in the log."""
    history = History()
    names = [Sent("writer", PLACE, number) for number in numbers]
    history.sent |= set(names)
    return history, {PLACE: [(offset, name.value(4)) for offset, name in enumerate(names)]}


def test_records_of_a_writer_in_another_order_are_found() -> None:
    history, log = stored(0, 3, 1, 2)
    assert findings(history, log) == [
        "quick-0: at 2 is writer:quick:0:1, after number 3 of the same writer",
        "quick-0: at 3 is writer:quick:0:2, after number 3 of the same writer",
    ]


def test_where_the_sequences_of_writers_may_be_lost_their_order_is_excused_and_nothing_else() -> None:
    history, log = stored(3, 1, 1)
    assert findings(history, log, [PLACE]) == ["quick-0: writer:quick:0:1 is stored twice, at 1 and at 2"]


def test_an_acknowledged_record_that_is_gone_is_found_unless_it_is_excused() -> None:
    history, log = stored(0)
    history.sent.add(Sent("writer", PLACE, 1))
    history.acknowledge(Sent("writer", PLACE, 1), 1)
    assert "quick-0: writer:quick:0:1 was acknowledged at 1 and is lost" in findings(history, log)
    assert findings(history, log, [PLACE]) == []
