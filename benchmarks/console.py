"""What the web console and the schema registry cost and do, on brokers with few and with many topics.

    first screen    the first visit, which starts the console's process, and later ones; pages of all kinds
    memory          what the broker holds more than before the first visit, and what the console's process holds
    search          through records of 1 KB, uncompressed and in zstd batches, as a browser does it
    latency         of produce, acks=1, one record at a time: nobody at the console, five open first screens and two
                    visitors at two pages a second, and somebody who searches
    registry        schemas registered and fetched by id, over one connection and over eight

Everything goes over the HTTP ports that users have. Rounds take turns, and each starts with another condition. There
is no peer: no other registry and no other console can be installed from PyPI. Goals bound the figures themselves, and
the latency is compared with that of the same broker without visitors.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from benchmarks import results
from benchmarks.clients.rounds import Outcome, Outcomes
from benchmarks.peers.servers import HOST, Flushing, Server, free_ports
from benchmarks.peers.workloads import ACKS_LEADER, RawProducer
from benchmarks.results import Better, Figure, Row, in_turn
from penstock.client.admin import Admin, AsyncAdmin, TopicSpec
from penstock.client.cluster_metadata import TopicPartition

PENSTOCK: Final = "Penstock"
NOBODY, VISITED, SEARCHED = "nobody there", "console in use", "search running"
PLAIN, ZSTD = "uncompressed", "zstd"
BY_TEXT, BY_PATH = "text", "JSON path"
GOAL_MB: Final = 15.0
GOAL_LATENCY: Final = 1.05
GB: Final = 1_000_000_000
RECORD_BYTES: Final = 1000
NEEDLE: Final = "needle-in-the-haystack"
_FEW: Final = 100
_STREAMS, _VISITORS, _PAGES_PER_S = 5, 2, 2.0
_PARTITIONS: Final = 4
_POOL: Final = 5000
_CONNECTIONS: Final = 8
_AT_ONCE: Final = 500
_SETTLE_S: Final = 2.0
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 600.0
_WARM_UP: Final = 2000
_SPARE_BYTES: Final = 3 * GB
_UNKNOWN: Final = "Reading the cluster"
_NOTES: Final = (
    "The browsers are processes on the same machine. The first visit starts the console's process.",
    "Memory of the broker: resident memory after the visits, with five open event streams, less that before the first "
    "visit, on a broker that was just started.",
    "Search: MB of records, before compression, and MB of the log as it is on the disk. The log is read from the page "
    "cache as far as the machine's memory goes.",
    "Schema registry: `penstock registry start` beside one broker; every registration is a new schema of a new "
    "subject, and a transaction. There is no peer: no other registry can be installed from PyPI.",
)

# ---------------------------------------------------------------------------------------------- the broker


class Place(NamedTuple):
    """A data folder, and what is in it."""

    folder: Path
    topics: int
    groups: int


@contextmanager
def running(folder: Path) -> Iterator[tuple[Server, int]]:
    """`penstock server start` on a folder, with its console; and its HTTP port."""
    folder.mkdir(parents=True, exist_ok=True)
    port, http_port = free_ports(2)
    command = [
        *(sys.executable, "-m", "penstock", "server", "start", "--data-dir", str(folder / "data")),
        *("--listen", f"{HOST}:{port}", "--http-port", str(http_port), "--log-level", "warning"),
    ]
    with Server(PENSTOCK, command, port, folder, Flushing({}, {})) as server:
        yield server, http_port


def fill_with_topics(server: Server, topics: int, groups: int) -> None:
    """Topics with a record each, and groups that are one record behind."""
    names = [topic_name(number) for number in range(topics)]
    with Admin(server.address) as admin:
        for first in range(0, topics, _AT_ONCE):
            admin.create_topics(names[first : first + _AT_ONCE], timeout_ms=int(_PATIENCE_S * 1000))
    child("send_one_each", address=server.address, topics=names)
    asyncio.run(_make_groups(server.address, groups, topics))


async def _make_groups(address: str, groups: int, topics: int) -> None:
    async with AsyncAdmin(address) as admin:
        for first in range(0, groups, _AT_ONCE):
            await asyncio.gather(
                *(
                    admin.set_group_offsets(group_name(number), {TopicPartition(topic_name(number % topics), 0): 0})
                    for number in range(first, min(groups, first + _AT_ONCE))
                )
            )


def topic_name(number: int) -> str:
    return f"topic-{number:05}"


def group_name(number: int) -> str:
    return f"group-{number:05}"


def console_of(pid: int) -> int | None:
    """The process of the console that the broker `pid` has started."""
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for found in listing.read_text().split():
                if b"console" in Path(f"/proc/{found}/cmdline").read_bytes():
                    return int(found)
    return None


def end_console(pid: int) -> None:
    """End the console of the broker `pid`, if it runs: the next visit starts another one."""
    found = console_of(pid)
    if found is None:
        return
    os.kill(found, signal.SIGTERM)
    until(lambda: memory_mb(found) is None, f"the console {found} has ended")


def memory_mb(pid: int, field: str = "VmRSS") -> float | None:
    """None if there is no such process, or it has ended."""
    with suppress(OSError):
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return None if found is None else int(found[1]) * 1024 / 1e6
    return None


def until(is_true: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_true():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"timed out: {what}")
        time.sleep(_LOOK_S)


# ---------------------------------------------------------------------------------------------- a browser


class Browser:
    """Asks for pages over one connection each, and keeps cookies."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cookies: dict[str, str] = {}

    def get(self, path: str) -> str:
        """A page. RuntimeError unless it is there."""
        with closing(self.open(path)) as answer:
            return str(answer.read().decode())

    def open(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=_PATIENCE_S)
        cookies = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        connection.request("GET", path, headers={"Connection": "close", **({"Cookie": cookies} if cookies else {})})
        answer = connection.getresponse()
        for line in answer.headers.get_all("set-cookie") or []:
            name, _, value = line.partition(";")[0].partition("=")
            self._cookies[name] = value
        if answer.status != http.client.OK:
            raise RuntimeError(f"{path}: status {answer.status}: {answer.read(500)!r}")
        return answer

    def timed_ms(self, path: str) -> float:
        began = time.perf_counter()
        self.get(path)
        return (time.perf_counter() - began) * 1000

    def first_screen_s(self) -> tuple[float, float]:
        """Until the first answer, and until one that shows the cluster."""
        began = time.perf_counter()
        page = self.get("/")
        answered_s = time.perf_counter() - began
        deadline_s = time.monotonic() + _PATIENCE_S
        while _UNKNOWN in page:
            if time.monotonic() > deadline_s:
                raise RuntimeError("the first screen shows no cluster")
            page = self.get("/")
        return answered_s, time.perf_counter() - began


def events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The data of an event stream, event by event."""
    for line in lines:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def paths(topics: int, groups: int, seed: int = 0) -> Iterator[str]:
    """Pages of all kinds, of topics and groups all over the lists."""
    chance = random.Random(seed)
    while True:
        topic, group = topic_name(chance.randrange(topics)), group_name(chance.randrange(groups))
        yield "/"
        yield "/topics?" + urlencode({"sort": "rate", "page": 1 + chance.randrange(max(1, topics // 50))})
        yield "/topics?" + urlencode({"q": topic[:-2]})
        yield f"/topics/{topic}"
        yield f"/topics/{topic}/settings"
        yield f"/topics/{topic}/records"
        yield "/groups?" + urlencode({"page": 1 + chance.randrange(max(1, groups // 50))})
        yield "/groups/show?" + urlencode({"name": group})
        yield "/brokers"


# ---------------------------------------------------------------------------------------------- first screen, memory


def visit_round(place: Place, visits: int) -> Outcome:
    """A broker that was just started is visited for the first time, and then by five open first screens and one visitor
    who reads pages of all kinds."""
    with running(place.folder) as (server, http_port), ExitStack() as stack:
        time.sleep(_SETTLE_S)
        before_mb = server.rss_mb()
        browser = Browser(http_port)
        answered_s, shown_s = browser.first_screen_s()
        for _ in range(_STREAMS):
            stream = stack.enter_context(closing(Browser(http_port).open("/overview.events")))
            next(events(iter(stream.readline, b"")))
        again = [browser.timed_ms("/") for _ in range(max(1, visits // 4))]
        pages = [browser.timed_ms(path) for path in itertools.islice(paths(place.topics, place.groups), visits)]
        time.sleep(_SETTLE_S)
        console = console_of(broker_pid(server))
        if console is None:
            raise RuntimeError("the broker has no console")
        return {
            "answered_s": answered_s, "shown_s": shown_s,
            "again_p50": percentile(again, 0.5), "again_p95": percentile(again, 0.95),
            "pages_p50": percentile(pages, 0.5), "pages_p95": percentile(pages, 0.95), "slowest": max(pages),
            "broker_mb": server.rss_mb() - before_mb,
            "console_mb": memory_mb(console) or 0.0, "console_peak_mb": memory_mb(console, "VmHWM") or 0.0,
        }  # fmt: skip


def broker_pid(server: Server) -> int:
    return server._process.pid


# ---------------------------------------------------------------------------------------------- search


class Haystack(NamedTuple):
    """A topic that is searched. Its last record has the needle."""

    topic: str
    records: int
    log_bytes: int


def fill_haystack(server: Server, folder: Path, codec: str, total_bytes: int) -> Haystack:
    topic = f"search-{codec}"
    with Admin(server.address) as admin:
        admin.create_topic(TopicSpec(topic, _PARTITIONS))
    count = max(_PARTITIONS, total_bytes // RECORD_BYTES)
    child("fill", address=server.address, topic=topic, codec="none" if codec == PLAIN else codec, count=count)
    log_bytes = sum(file.stat().st_size for file in (folder / "data").rglob("*.log") if topic in file.parent.name)
    return Haystack(topic, count, log_bytes)


def search(http_port: int, haystack: Haystack, kind: str) -> Outcome:
    """A whole search, as the page does it: seconds, rates, and the longest time without progress."""
    query = {"text": NEEDLE} if kind == BY_TEXT else {"text": NEEDLE, "where": "json", "path": "user.id"}
    began = last = time.perf_counter()
    longest_s = 0.0
    end: dict[str, Any] = {"end": "none"}
    path = f"/topics/{haystack.topic}/search.events?{urlencode(query)}"
    with closing(Browser(http_port).open(path)) as stream:
        for step in events(iter(stream.readline, b"")):
            longest_s = max(longest_s, (now := time.perf_counter()) - last)
            end, last = step, now
    took_s = last - began
    if end["end"] != "complete" or end["matched"] != 1:
        raise RuntimeError(f"the search in {haystack.topic} did not find the one record: {end}")
    return {
        "records": haystack.records * RECORD_BYTES / 1e6 / took_s,
        "log": haystack.log_bytes / 1e6 / took_s,
        "silence_ms": longest_s * 1000,
    }


# ---------------------------------------------------------------------------------------------- latency of produce


@contextmanager
def condition(name: str, server: Server, http_port: int, place: Place, haystack: Haystack | None) -> Iterator[None]:
    """Nobody at the console, with its process ended; or visitors, who have seen the cluster already."""
    if name == NOBODY:
        end_console(broker_pid(server))
        yield
        return
    given: dict[str, Any] = {"port": http_port, "topics": place.topics, "groups": place.groups}
    if name == SEARCHED and haystack is not None:
        given["search"] = haystack.topic
    with visitors(given):
        yield


@contextmanager
def visitors(given: Mapping[str, Any]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.console", "visit", json.dumps(given)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if process.stdout is None or process.stdout.readline().strip() != "ready":
            raise RuntimeError("the visitors did not reach the console")
        yield
        if process.poll() is not None:
            raise RuntimeError("the visitors left before the end")
    finally:
        process.kill()
        process.communicate()


def produce_round(server: Server, topic: str, seconds: float) -> Outcome:
    with RawProducer(server, topic, ACKS_LEADER) as producer:
        warm = producer.round_trips(_WARM_UP)
        found = producer.round_trips(max(_WARM_UP, int(seconds * 1e6 / warm.p50_us)))
    return {"p50": found.p50_us, "p99": found.p99_us}


# ---------------------------------------------------------------------------------------------- registry


@contextmanager
def registry_of(server: Server) -> Iterator[str]:
    """`penstock registry start` beside a broker, and its address."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "penstock", "registry", "start", "-b", server.address, "--port", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    address = f"{HOST}:{port}"
    try:
        until(lambda: process.poll() is not None or _is_leader(address), "the registry leads")
        yield address
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


def _is_leader(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
    with suppress(OSError, ValueError), closing(connection):
        connection.request("GET", "/v1/metadata/leader")
        return bool(json.loads(connection.getresponse().read()).get("is_leader"))
    return False


def registry_round(address: str, number: int, count: int) -> Outcome:
    found: Outcome = {}
    for connections in (1, _CONNECTIONS):
        run = f"{number}-{connections}"
        written = child("ask", address=address, run=run, count=count, connections=connections, ids=[])
        read = child(
            "ask", address=address, run=run, count=count * 10, connections=connections, ids=written["ids"]
        )  # fmt: skip
        for name, part in (("register", written), ("fetch", read)):
            found |= {f"{name}_{connections}_{field}": part[field] for field in ("rate", "p50", "p99")}
    return found


# ---------------------------------------------------------------------------------------------- processes of their own


def child(name: str, **arguments: Any) -> Any:
    """What one of `PROCESSES` prints. RuntimeError if it fails. The arguments may be long: they go over its input."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.console", name], input=json.dumps(arguments), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def send_one_each(address: str, topics: Sequence[str]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000, "log_level": 0})
    for topic in topics:
        producer.produce(topic, b'{"user": {"id": "somebody"}}', key=b"k")
    if producer.flush(_PATIENCE_S):
        raise RuntimeError("not everything was acknowledged")


def fill(address: str, topic: str, codec: str, count: int) -> None:
    """Records of 1 KB: JSON, of which half is random text."""
    from confluent_kafka import Producer

    chance = random.Random(0)
    pool = [_record(f"user-{number}", chance) for number in range(_POOL)]
    producer = Producer(
        {
            "bootstrap.servers": address, "compression.type": codec, "batch.size": 1_000_000, "linger.ms": 100,
            "batch.num.messages": 10_000, "queue.buffering.max.kbytes": 200_000, "log_level": 0,
        }
    )  # fmt: skip
    for number in range(count):
        value = pool[number % _POOL] if number < count - 1 else _record(NEEDLE, chance)
        while True:
            try:
                producer.produce(topic, value, partition=number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(_PATIENCE_S):
        raise RuntimeError("not everything was acknowledged")


def _record(user: str, chance: random.Random) -> bytes:
    document = {"user": {"id": user}, "page": "/shop/item", "noise": chance.randbytes(250).hex(), "words": ""}
    words = "the same words again and again, " * (RECORD_BYTES // 30)
    return json.dumps({**document, "words": words[: RECORD_BYTES - len(json.dumps(document))]}).encode()


def visit(port: int, topics: int, groups: int, search: str = "") -> None:
    """Until it is killed: five open first screens and two visitors, or somebody who searches."""
    Browser(port).first_screen_s()

    def watch() -> None:
        with closing(Browser(port).open("/overview.events")) as stream:
            for _ in events(iter(stream.readline, b"")):
                pass

    def read(seed: int) -> None:
        browser = Browser(port)
        for path in paths(topics, groups, seed):
            browser.get(path)
            time.sleep(1 / _PAGES_PER_S)

    def look_for() -> None:
        query = urlencode({"text": NEEDLE, "where": "json", "path": "user.id"})
        while True:
            with closing(Browser(port).open(f"/topics/{search}/search.events?{query}")) as stream:
                for _ in events(iter(stream.readline, b"")):
                    pass

    work: list[Callable[[], None]] = [look_for]
    if not search:
        work = [*([watch] * _STREAMS), *(lambda seed=seed: read(seed) for seed in range(_VISITORS))]
    failed = threading.Event()

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        finally:
            failed.set()

    for each in work:
        threading.Thread(target=guarded, args=(each,), daemon=True).start()
    print("ready", flush=True)
    failed.wait()
    raise SystemExit("a visitor failed")


def ask(address: str, run: str, count: int, connections: int, ids: Sequence[int]) -> dict[str, Any]:
    """Register new schemas, or fetch those with `ids`: the rate of all connections, and the times of requests in ms."""
    times_ms: list[float] = []
    made: list[int] = []

    def one(number: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
        with closing(connection):
            connection.connect()
            for index in range(number, count, connections):
                began = time.perf_counter()
                if ids:
                    connection.request("GET", f"/schemas/ids/{ids[index % len(ids)]}")
                else:
                    body = json.dumps({"schema": json.dumps(_schema(run, index))})
                    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
                    connection.request("POST", f"/subjects/bench-{run}-{index}/versions", body, kind)
                answer = connection.getresponse()
                document = json.loads(answer.read())
                times_ms.append((time.perf_counter() - began) * 1000)
                if answer.status != http.client.OK:
                    raise RuntimeError(f"the registry rejected a request: {document}")
                if not ids:
                    made.append(document["id"])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(connections)]
    began = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    took_s = time.perf_counter() - began
    if len(times_ms) != count:
        raise RuntimeError(f"{count - len(times_ms)} of {count} requests were not answered")
    return {
        "rate": count / took_s, "p50": percentile(times_ms, 0.5), "p99": percentile(times_ms, 0.99), "ids": made,
    }  # fmt: skip


def _schema(run: str, number: int) -> dict[str, Any]:
    fields = [{"name": f"field{index}", "type": ["null", "string"], "default": None} for index in range(20)]
    return {"type": "record", "name": f"View{number}", "namespace": f"bench.r{run.replace('-', '_')}", "fields": fields}


PROCESSES: Final[dict[str, Callable[..., Any]]] = {
    "send_one_each": send_one_each, "fill": fill, "visit": visit, "ask": ask,
}  # fmt: skip

# ---------------------------------------------------------------------------------------------- the run


class Load(NamedTuple):
    topics: int
    groups: int
    gigabytes: float
    rounds: int
    seconds: float
    visits: int
    schemas: int


class Figures(NamedTuple):
    """Outcomes by what they are about: a number of topics, a haystack and a kind of search, a condition."""

    visits: Outcomes
    searches: Outcomes
    latency: Outcomes
    registry: Outcomes


def run(load: Load, folder: Path) -> Figures:
    figures = Figures(Outcomes(), Outcomes(), Outcomes(), Outcomes())
    few = Place(folder / "few", _FEW, min(_FEW, load.groups))
    many = Place(folder / "many", load.topics, load.groups)
    for place in (few, many):
        say(f"making {place.topics:,} topics and {place.groups:,} groups")
        with running(place.folder) as (server, _):
            fill_with_topics(server, place.topics, place.groups)
        for number in range(load.rounds):
            say(f"first screen and memory, {place.topics:,} topics: round {number + 1}")
            figures.visits.add(place.folder.name, visit_round(place, load.visits))
    with running(many.folder) as (server, http_port):
        measure_latency(figures, (NOBODY, VISITED), server, http_port, many, None, load)
    with running(few.folder) as (server, http_port):
        haystacks = []
        for codec in (PLAIN, ZSTD):
            say(f"writing {load.gigabytes:g} GB, {codec}")
            haystacks.append(fill_haystack(server, few.folder, codec, int(load.gigabytes * GB)))
        measure_latency(figures, (NOBODY, VISITED, SEARCHED), server, http_port, few, haystacks[0], load)
        works = [(codec, each, kind) for codec, each in zip((PLAIN, ZSTD), haystacks, strict=True)
                 for kind in (BY_TEXT, BY_PATH)]  # fmt: skip
        for number in range(load.rounds):
            for codec, haystack, kind in in_turn(works, number):
                say(f"search, {codec}, {kind}: round {number + 1}")
                figures.searches.add(f"{codec} {kind}", search(http_port, haystack, kind))
        end_console(broker_pid(server))
        with registry_of(server) as address:
            for number in range(load.rounds):
                say(f"registry: round {number + 1}")
                figures.registry.add(PENSTOCK, registry_round(address, number, load.schemas))
    return figures


def measure_latency(
    figures: Figures, names: Sequence[str], server: Server, http_port: int, place: Place,
    haystack: Haystack | None, load: Load,
) -> None:  # fmt: skip
    for number in range(load.rounds):
        for name in in_turn(names, number):
            say(f"latency, {place.topics:,} topics, {name}: round {number + 1}")
            with condition(name, server, http_port, place, haystack):
                figures.latency.add(
                    f"{place.folder.name} {name}", produce_round(server, topic_name(0), load.seconds)
                )  # fmt: skip


def say(text: str) -> None:
    print(f"console: {text}", file=sys.stderr, flush=True)


def rows(figures: Figures, load: Load) -> list[Row]:
    found: list[Row] = []

    def add(
        table: str, work: str, unit: str, columns: Mapping[str, Figure], better: Better | None = Better.LOWER,
        goal: float | None = None, peer: str | None = None,
    ) -> None:  # fmt: skip
        subject = VISITED if peer is not None else next(iter(columns))
        found.append(Row(work, unit, better, columns, subject, peer, goal, table))

    places = {f"{load.topics:,} topics": "many", f"{_FEW:,} topics": "few"}
    for work, unit, field in (
        ("first visit, which starts the process: first answer", "s", "answered_s"),
        ("first visit: until the cluster is shown", "s", "shown_s"),
        ("first screen again: p50", "ms", "again_p50"), ("first screen again: p95", "ms", "again_p95"),
        ("pages of all kinds: p50", "ms", "pages_p50"), ("pages of all kinds: p95", "ms", "pages_p95"),
        ("pages of all kinds: the slowest", "ms", "slowest"),
    ):  # fmt: skip
        add("First screen and pages", work, unit, figures.visits.figures(places, field))
    for work, field, goal in (
        ("the broker: what the console adds", "broker_mb", GOAL_MB),
        ("the console's own process", "console_mb", None), ("the same, at its peak", "console_peak_mb", None),
    ):  # fmt: skip
        add("Memory", work, "MB", figures.visits.figures(places, field), goal=goal)
    for kind in (BY_TEXT, BY_PATH):
        columns = {codec: f"{codec} {kind}" for codec in (PLAIN, ZSTD)}
        table = f"Search through {load.gigabytes:g} GB of records"
        add(table, f"by {kind}: records", "MB/s", figures.searches.figures(columns, "records"), Better.HIGHER)
        add(table, f"by {kind}: bytes of the log", "MB/s", figures.searches.figures(columns, "log"), Better.HIGHER)
        add(table, f"by {kind}: longest time without a report of progress", "ms",
            figures.searches.figures(columns, "silence_ms"))  # fmt: skip
    for topics, place in places.items():
        columns = {name: f"{place} {name}" for name in (VISITED, SEARCHED, NOBODY)}
        for part in ("p50", "p99"):
            latency = figures.latency.figures(columns, part)
            add("Latency of produce, acks=1, one record at a time", f"{topics}: {part}", "µs", latency,
                goal=GOAL_LATENCY, peer=NOBODY)  # fmt: skip
    columns = {PENSTOCK: PENSTOCK}
    for name, what in (("register", "register a new schema"), ("fetch", "fetch a schema by id")):
        for connections in (1, _CONNECTIONS):
            work = f"{what}, {connections} connection{'s' if connections > 1 else ''}"
            key = f"{name}_{connections}"
            add("Schema registry", work, "requests/s", figures.registry.figures(columns, f"{key}_rate"), Better.HIGHER)
            for part in ("p50", "p99"):
                add("Schema registry", f"{work}: {part}", "ms", figures.registry.figures(columns, f"{key}_{part}"))
    return found


def fitting(gigabytes: float, folder: Path, recording: results.Recording) -> float:
    """What fits on the disk, uncompressed and with zstd, which needs less than half as much again."""
    room = max(0.0, shutil.disk_usage(folder).free - _SPARE_BYTES) / 1.5 / GB
    if room >= gigabytes:
        return gigabytes
    recording.lacks(f"only {room:.1f} of {gigabytes:g} GB fit on the disk")
    return max(0.01, room)


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("console", "The web console and the schema registry: time, memory, search, latency.")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="records that are searched, uncompressed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each latency is measured")
    parser.add_argument("--visits", type=int, default=450, help="pages that are timed in each round")
    parser.add_argument("--schemas", type=int, default=300, help="schemas that are registered in each round, twice")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for the brokers' data")
    options = parser.parse_args(arguments)
    if options.topics <= _FEW:
        parser.error(f"--topics is {options.topics}; it must be more than {_FEW}, the number of the other broker")
    recording = results.begin("console", parser, options, arguments, irrelevant=("folder",))
    # A terminated run takes its brokers along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    options.folder.mkdir(parents=True, exist_ok=True)
    load = Load(
        options.topics, options.groups, fitting(options.gigabytes, options.folder, recording), options.rounds,
        options.seconds, options.visits, options.schemas,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="console-", dir=options.folder) as folder:
        figures = run(load, Path(folder))
    recording.keep(rows(figures, load), notes=_NOTES)


if __name__ == "__main__":
    chosen = sys.argv[1]
    if chosen in PROCESSES:
        asked = json.loads(sys.argv[2] if len(sys.argv) > 2 else sys.stdin.read())
        print(json.dumps(PROCESSES[chosen](**asked)))
    else:
        main(sys.argv[1:])
