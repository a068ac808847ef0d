"""The measurements of `penstock perf`: running them, counts, rates, percentiles and the progress bar.

The percentile p is the smallest measured value that at least p percent of all values do not exceed.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.connection import Cluster, consumer_options, producer_options
from penstock.cli.output import JSON, Output
from penstock.client.consumer import Consumer, TopicPartition
from penstock.client.errors import TimedOut
from penstock.client.producer import Delivery, Producer, RecordMetadata
from penstock.runtime.quantities import human_bytes

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
_MB: Final = 1024 * 1024
_UPDATE_S: Final = 0.1


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of sorted values."""
    return values[max(0, math.ceil(percent / 100 * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Measurement:
    what: str
    topic: str
    records: int
    data_bytes: int
    seconds: float
    latencies_ms: Sequence[float] = ()
    failed: int = 0

    @property
    def per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    def show(self, output: Output, output_format: str) -> None:
        values = sorted(self.latencies_ms)
        if output_format == JSON:
            output.json(self._document(values), indent=2)
            output.flush()
            return
        rate = f"{self.per_second:,.0f} records/s, {self.data_bytes / max(self.seconds, 1e-9) / _MB:,.2f} MB/s"
        output.line(
            f"{self.what}: {self.records:,} records, {human_bytes(self.data_bytes)} in {self.seconds:.2f} s: "
            + output.style(rate, bold=True)
        )
        if values:
            parts = [f"p{percent:g} {percentile(values, percent):.2f}" for percent in PERCENTILES]
            mean = sum(values) / len(values)
            output.line(
                f"latency, ms: mean {mean:.2f}, {', '.join(parts)}, max {values[-1]:.2f} ({len(values):,} measured)"
            )
        if self.failed:
            output.line(output.style(f"{self.failed:,} records were not acknowledged.", "red"))
        output.flush()

    def _document(self, values: Sequence[float]) -> dict[str, object]:
        document: dict[str, object] = {
            "test": self.what,
            "topic": self.topic,
            "records": self.records,
            "failed": self.failed,
            "bytes": self.data_bytes,
            "seconds": round(self.seconds, 6),
            "recordsPerSecond": round(self.per_second, 1),
            "megabytesPerSecond": round(self.data_bytes / max(self.seconds, 1e-9) / _MB, 3),
        }
        if values:
            document["latencyMs"] = {
                "mean": round(sum(values) / len(values), 4),
                **{f"p{percent:g}": round(percentile(values, percent), 4) for percent in PERCENTILES},
                "max": round(values[-1], 4),
                "measured": len(values),
            }
        return document


@contextmanager
def progress(total: int | None, what: str) -> Iterator[Callable[[int], None]]:
    """A function to call with the number done; shows a bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)
        begun = time.monotonic()
        last = 0.0

        def update(done: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _UPDATE_S:
                last = now
                bar.update(task, completed=done, description=f"{done / max(now - begun, 0.001):,.0f} records/s")

        yield update


class Pace:
    """Limits the rate: `wait` returns when record `number` is due."""

    def __init__(self, per_second: float) -> None:
        self._interval_s = 1 / per_second if per_second else 0.0
        self._begun = time.perf_counter()

    def wait(self, number: int) -> None:
        if not self._interval_s:
            return
        early_s = self._begun + number * self._interval_s - time.perf_counter()
        # A sleep overshoots by a tenth of a millisecond: what is nearer than one is sent now.
        if early_s > 0.001:
            time.sleep(early_s)


_SAMPLES: Final = 100
_FEW: Final = 20_000
_VALUES: Final = 64
_LOOK_EVERY: Final = 1_000
_BATCH: Final = 50_000
_EXIT_NOT_ALL: Final = 1


def _values(size: int, is_random: bool) -> list[bytes]:
    """Several different values, so that compression is neither trivial nor impossible."""
    if is_random:
        return [os.urandom(size) for _ in range(_VALUES)]
    words = b"the quick brown fox jumps over the lazy dog, page view of user %d; "
    return [((words % number) * (size // len(words) + 1))[:size] for number in range(_VALUES)]


def measure_producing(cluster: Cluster, topic: str, options: dict[str, Any], output_format: str) -> int:
    settings = cluster.options_for("penstock-perf", producer_options(), dict(options["producer_property"]))
    settings.setdefault("max_block_ms", cluster.request_timeout_ms)
    settings.setdefault("linger_ms", options["linger_ms"])
    settings.setdefault("acks", options["acks"])
    settings.setdefault("compression_type", options["compression"])
    if options["batch_bytes"] is not None:
        settings["batch_size"] = options["batch_bytes"]
    count, size = options["records"], options["record_size"]
    values = _values(size, options["is_random"])
    every = 1 if count <= _FEW else _SAMPLES
    latencies: list[float] = []
    last: list[Delivery] = []
    with Producer[Any, bytes](cluster.servers, **settings) as producer, progress(count, "producing") as show:
        producer.partitions_for(topic)
        pace = Pace(options["throughput"])
        begun = time.perf_counter()
        for number in range(count):
            pace.wait(number)
            if number % every:
                producer.send(topic, values[number % _VALUES])
            else:
                last.append(_timed(producer, topic, values[number % _VALUES], latencies))
                if not number % _LOOK_EVERY:
                    show(number)
        producer.flush()
        seconds = time.perf_counter() - begun
    failures = [error for delivery in last if (error := delivery.exception(0)) is not None]
    if failures:
        # All of a batch share its fate, so the share of the samples is that of the records.
        failed = max(len(failures), round(count * len(failures) / len(last)))
        print_error(failures[0], output_format)
    else:
        failed = 0
    stored = count - failed
    Measurement("produce", topic, stored, stored * size, seconds, latencies, failed).show(Output(), output_format)
    return _EXIT_NOT_ALL if failed else 0


def _timed(producer: Producer[Any, bytes], topic: str, value: bytes, latencies: list[float]) -> Delivery:
    sent = time.perf_counter()
    delivery = producer.send(topic, value)
    delivery.add_done_callback(lambda _: latencies.append((time.perf_counter() - sent) * 1000))
    return delivery


def print_error(error: BaseException, output_format: str) -> None:
    from penstock.cli.connection import show_failures
    from penstock.cli.output import CommandError
    from penstock.client.errors import PenstockError

    show_failures([error if isinstance(error, PenstockError) else CommandError(f"{error}.")], output_format)


def measure_consuming(cluster: Cluster, topic: str, options: dict[str, Any], output_format: str) -> int:
    settings = cluster.options_for("penstock-perf", consumer_options(), dict(options["consumer_property"]))
    settings |= {"group_id": options["group"], "auto_offset_reset": "earliest", "allow_auto_create_topics": False}
    wanted, timeout_ms = options["records"], options["timeout_ms"]
    records = size = 0
    begun = ended = time.perf_counter()
    with Consumer[bytes, bytes](topic, bootstrap_servers=cluster.servers, **settings) as consumer:
        if wanted is None:
            there = [TopicPartition(topic, index) for index in consumer.partitions_for_topic(topic)]
            ends, begins = consumer.end_offsets(there), consumer.beginning_offsets(there)
            wanted = sum(ends.values()) - sum(begins.values())
            timeout_ms = min(timeout_ms, 2_000) if options["group"] is None else timeout_ms
        with progress(wanted, "consuming") as show:
            while records < wanted:
                batch = next(consumer.batches(min(_BATCH, wanted - records), timeout_ms=timeout_ms), None)
                if batch is None:
                    break
                count, amount = _decoded(batch, options["kind"])
                records, size = records + count, size + amount
                ended = time.perf_counter()
                show(records)
    Measurement("consume", topic, records, size, ended - begun).show(Output(), output_format)
    return _EXIT_NOT_ALL if records < (options["records"] or 0) else 0


def _decoded(batch: Any, kind: str) -> tuple[int, int]:
    """The number of records, and of bytes of keys and values."""
    if kind == "arrow":
        table = batch.to_arrow()
        return table.num_rows, sum(table.column(name).nbytes for name in ("key", "value"))
    found = batch.records
    return len(found), sum(len(record.value or b"") + len(record.key or b"") for record in found)


def _acknowledged(delivery: Delivery, timeout_ms: int) -> RecordMetadata:
    try:
        return delivery.result(timeout_ms / 1000)
    except TimeoutError as error:
        raise TimedOut(str(error)) from None


def measure_latency(cluster: Cluster, topic: str, options: dict[str, Any], output_format: str) -> int:
    count, size = options["records"], options["record_size"]
    (value, *_) = _values(size, False)
    latencies: list[float] = []
    producing = {**cluster.connecting("penstock-perf"), "acks": options["acks"], "linger_ms": 0}
    reading = {**cluster.connecting("penstock-perf"), "auto_offset_reset": "latest", "fetch_min_bytes": 1}
    begun = time.perf_counter()
    with Producer[Any, bytes](cluster.servers, max_block_ms=cluster.request_timeout_ms, **producing) as producer:
        where = _acknowledged(producer.send(topic, value), cluster.request_timeout_ms)
        consumer = (
            Consumer[bytes, bytes](bootstrap_servers=cluster.servers, **reading) if options["end_to_end"] else None
        )
        try:
            if consumer is not None:
                consumer.assign([(topic, where.partition)])
                consumer.seek((topic, where.partition), max(where.offset, 0) + 1)
            with progress(count, "measuring") as show:
                pace = Pace(options["throughput"])
                begun = time.perf_counter()
                for number in range(count):
                    pace.wait(number)
                    sent = time.perf_counter()
                    delivery = producer.send(topic, value, partition=where.partition)
                    if consumer is None:
                        _acknowledged(delivery, cluster.request_timeout_ms)
                    elif not consumer.poll(cluster.request_timeout_ms, 1):
                        raise TimedOut(f"record {number} was not read within {cluster.request_timeout_ms} ms")
                    latencies.append((time.perf_counter() - sent) * 1000)
                    show(number)
        finally:
            if consumer is not None:
                consumer.close()
    seconds = time.perf_counter() - begun
    what = "end-to-end latency" if options["end_to_end"] else "latency"
    Measurement(what, topic, count, count * size, seconds, latencies).show(Output(), output_format)
    return 0
