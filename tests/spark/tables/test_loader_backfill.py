"""Loading a range again: exactly its rows are replaced, in one commit."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence

import pytest
from tests.spark.tables.table_stories import FIRST_MS, VIEWS, World, column, dead, once, places, rows, view
from tests.timeouts import PATIENCE_S

from penstock.client.errors import PenstockError
from penstock.spark.errors import ConcurrentLoad, RangeError
from penstock.spark.tables.delta import BACKFILL, LOAD
from penstock.spark.tables.load_plan import Span, covered_twice, union
from penstock.spark.tables.loader import follow
from penstock.spark.tables.maintenance import compact
from penstock.spark.tables.runner import LocalRunner
from penstock.spark.tables.tasks import Work


@pytest.mark.parametrize("compacted", [False, True])
def test_a_backfill_replaces_exactly_its_offsets_in_one_commit(world: World, compacted: bool) -> None:
    world.views(200)
    opened = world.make(schema=VIEWS, event_time="at")
    loader = world.loader(opened, commit_records=60)
    loader.load_new()
    if compacted:
        compact(opened, LocalRunner(2), least=2)
    before = {file.path for file in opened.store.files()}
    version = opened.store.version
    asked = [Span(0, 13, 57), Span(1, 0, 5)]
    report = loader.load_range(asked, bounded=True)
    assert report.replaced == asked
    assert opened.store.version == version + 1
    note = opened.store.note(version + 1)
    assert note is not None
    assert (note.kind, list(note.spans)) == (BACKFILL, asked)
    assert places(rows(opened)) == once(world.log())
    after = {file.path for file in opened.store.files()}
    assert before - after
    if not compacted:
        assert before & after  # files of other offsets were left alone


def test_a_backfill_since_a_time_then_loads_what_is_new(world: World) -> None:
    for number in range(6):
        world.send([view(number)], partition=0, timestamp_ms=FIRST_MS + number * 1000)
    opened = world.make(schema=VIEWS)
    loader = world.loader(opened)
    loader.load_new()
    world.send([view(6)], partition=0, timestamp_ms=FIRST_MS + 6000)
    report = loader.load_range(loader.since(FIRST_MS + 3000), bounded=False)
    assert report.replaced == [Span(0, 3, 6)]
    assert report.spans == [Span(0, 6, 7)]
    assert places(rows(opened)) == once(world.log())


def test_a_backfill_brings_rows_under_a_declaration_that_changed(world: World) -> None:
    day = 86_400_000
    world.send((json.dumps({"user": "a", "at": FIRST_MS - 5 * day}).encode() for _ in range(4)), timestamp_ms=FIRST_MS)
    opened = world.make(schema=VIEWS, event_time="at", late="dead")
    loader = world.loader(opened)
    loader.load_new()
    assert (rows(opened).num_rows, dead(opened).num_rows) == (0, 4)
    opened.declare(world.declare(schema=VIEWS, event_time="at", late="accept"))
    loader.load_range([Span(span.partition, 0, span.end) for span in opened.coverage([0, 1]).spans], bounded=True)
    assert (rows(opened).num_rows, dead(opened).num_rows) == (4, 0)


def test_a_backfill_moves_rows_to_the_dead_letters_and_only_those_of_its_offsets(world: World) -> None:
    world.send([b"bad", view(1), b"bad", view(3)], partition=0)
    opened = world.make(schema=VIEWS)
    loader = world.loader(opened)
    loader.load_new()
    loader.load_range([Span(0, 2, 4)], bounded=True)
    assert places(dead(opened)) == once([(0, 0), (0, 2)])
    assert places(rows(opened)) == once([(0, 1), (0, 3)])


def test_a_table_that_began_late_is_extended_backwards(world: World) -> None:
    world.send([view(number) for number in range(20)], partition=0)
    opened = world.make(schema=VIEWS, start="latest")
    loader = world.loader(opened)
    loader.load_new()
    world.send([view(20)], partition=0)
    loader.load_new()
    with pytest.raises(RangeError, match="would leave a gap"):
        loader.load_range([Span(0, 3, 8)], bounded=True)
    loader.load_range([Span(0, 3, 20)], bounded=True)
    assert opened.coverage([0]).covered == {0: (3, 21)}
    assert sorted(rows(opened).column("ms").to_pylist()) == list(range(3, 21))


def test_a_first_load_may_begin_anywhere(world: World) -> None:
    world.send([view(number) for number in range(20)], partition=0)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_range([Span(0, 5, 12)], bounded=True)
    assert sorted(rows(opened).column("ms").to_pylist()) == list(range(5, 12))
    world.loader(opened).load_new()
    assert sorted(rows(opened).column("ms").to_pylist()) == list(range(5, 20))


def test_a_backfill_over_live_data_is_seen_as_a_whole_or_not_at_all(world: World) -> None:
    world.views(400)
    opened = world.make(schema=VIEWS)
    loader = world.loader(opened)
    loader.load_new()
    stop = threading.Event()
    seen: list[int] = []
    wrong: list[object] = []

    def read() -> None:
        reader = world.warehouse.open("views")
        while not stop.is_set():
            found = places(rows(reader))
            seen.append(len(found))
            if max(found.values()) > 1 or len(found) < 400:
                wrong.append(found)

    def write() -> None:
        number = 400
        while not stop.is_set():
            world.views(5, first=number)
            number += 5
            time.sleep(0.01)

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            loader.load_range([Span(0, 10, 90), Span(1, 20, 50)], bounded=True)
            loader.load_new()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert seen
    loader.load_new()
    assert places(rows(opened)) == once(world.log())
    assert set(column(rows(opened), "_topic").values()) == {world.topic}


@pytest.mark.long
def test_a_backfill_is_committed_while_a_load_follows_a_producer_that_never_rests(world: World) -> None:
    """Two loads of one table at once, one for what is new and one for a range of the past; both meet dead letters."""
    world.views(400)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    stop = threading.Event()
    failures: list[PenstockError] = []
    rounds = threading.Semaphore(0)

    def write() -> None:
        number = 400
        while not stop.is_set():
            world.send([b"bad", *(view(each) for each in range(number, number + 9))])
            number += 9

    def load() -> None:
        try:
            following = world.loader(world.warehouse.open("views"))
            follow(following, stop, interval_s=0.0, after_round=lambda _: rounds.release())
        except PenstockError as error:
            failures.append(error)

    threads = [threading.Thread(target=write), threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    try:
        past = [Span(span.partition, 3, span.end - 3) for span in opened.coverage([0, 1]).spans]
        loader = world.loader(world.warehouse.open("views"))
        for _ in range(4):
            assert rounds.acquire(timeout=PATIENCE_S)
            assert loader.load_range(past, bounded=True).replaced == past
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert failures == []
    world.loader(opened).load_new()
    log = world.log()
    assert places(rows(opened)) + places(dead(opened)) == once(log)
    assert {place for place, value in log.items() if value == b"bad"} == set(places(dead(opened)))
    for partition, (first, after) in opened.coverage([0, 1]).covered.items():
        assert (first, after) == (0, 1 + max(offset for where, offset in log if where == partition))
    notes = [opened.store.note(version) for version in range(opened.store.version + 1)]
    loads = [span for note in notes if note is not None and note.kind == LOAD for span in note.spans]
    assert covered_twice(loads) == []
    assert union(loads) == opened.coverage([0, 1]).spans
    assert sum(note is not None and note.kind == BACKFILL for note in notes) == 4


def test_a_backfill_whose_table_grew_meanwhile_is_rejected_as_a_whole(world: World) -> None:
    world.views(50)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()

    class GrowsMeanwhile(LocalRunner):
        def run(self, work: Work, payloads: Sequence[bytes]) -> list[bytes]:
            answers = super().run(work, payloads)
            if world.log().keys() == places(rows(opened)).keys():
                world.send([b'{"user": "x", "page": "/"}', b"bad"])
                world.loader(world.warehouse.open("views")).load_new()
            return answers

    with pytest.raises(ConcurrentLoad):
        world.loader(world.warehouse.open("views"), runner=GrowsMeanwhile(1)).load_range([Span(0, 2, 9)], bounded=True)
    assert places(rows(opened)) + places(dead(opened)) == once(world.log())
