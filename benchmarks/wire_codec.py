"""The codec beside kio and kafka-python: µs to parse and to serialise the same bytes.

Each of the four messages is built once by our codec, read by the others from those bytes, and must come out
of each of them unchanged. Then all take turns, and the best of several rounds counts, which is what is left
when the machine's other work is taken away.

Ours parses from a `bytearray`, as frames are, and serialises to chunks, as a broker sends them: records of 1 KB are
passed on by reference, which the others cannot do.
"""

from __future__ import annotations

import gc
import io
import sys
import timeit
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kafka.protocol.consumer.fetch import FetchRequest as KpFetchRequest
from kafka.protocol.consumer.fetch import FetchResponse as KpFetchResponse
from kafka.protocol.metadata import MetadataResponse as KpMetadataResponse
from kafka.protocol.producer import ProduceRequest as KpProduceRequest
from kio.schema.fetch.v12.request import FetchRequest as KioFetchRequest
from kio.schema.fetch.v12.response import FetchResponse as KioFetchResponse
from kio.schema.metadata.v12.response import MetadataResponse as KioMetadataResponse
from kio.schema.produce.v9.request import ProduceRequest as KioProduceRequest
from kio.serial import entity_reader, entity_writer

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.wire.codec import codec_for
from penstock.wire.schemas import fetch, metadata, produce
from penstock.wire.types import Message

ROUNDS = 7
ROUND_SECONDS = 0.02
OURS, PEER = "penstock", "kio"


class Case(NamedTuple):
    name: str
    version: int
    message: Message
    kio: Any
    kafka_python: Any


def cases() -> list[Case]:
    records = bytes(range(256)) * 4
    topics = [f"activity.page-views.{n:02}" for n in range(50)]
    produce_request = produce.ProduceRequest(
        None,
        -1,
        30_000,
        [produce.TopicProduceData(topics[0], partition_data=[produce.PartitionProduceData(3, records)])],
    )
    fetch_request = fetch.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[
            fetch.FetchTopic(
                topics[0],
                partitions=[fetch.FetchPartition(n, 5, 1_000_000 + n, partition_max_bytes=1 << 20) for n in range(50)],
            )
        ],
    )
    fetch_response = fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topics[0],
                partitions=[
                    fetch.PartitionData(n, 0, 1_000_000, 1_000_000, 0, aborted_transactions=None, records=records)
                    for n in range(50)
                ],
            )
        ],
    )
    metadata_response = metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(n, f"broker-{n}.example.org", 9092, "a") for n in range(3)],
        cluster_id="penstock-bench-cluster",
        controller_id=1,
        topics=[
            metadata.MetadataResponseTopic(
                0,
                topic,
                bytes([n] * 15 + [1]),
                partitions=[
                    metadata.MetadataResponsePartition(0, p, p % 3, 7, [0, 1, 2], [0, 1, 2], []) for p in range(8)
                ],
            )
            for n, topic in enumerate(topics)
        ],
    )
    return [
        Case("Produce request v9, 1 partition, 1 KB", 9, produce_request, KioProduceRequest, KpProduceRequest),
        Case("Fetch request v12, 50 partitions", 12, fetch_request, KioFetchRequest, KpFetchRequest),
        Case("Fetch response v12, 50 partitions", 12, fetch_response, KioFetchResponse, KpFetchResponse),
        Case(
            "Metadata response v12, 50 topics x 8",
            12,
            metadata_response,
            KioMetadataResponse,
            KpMetadataResponse,
        ),
    ]


def actions(case: Case) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """What parses and what serialises a case, by library; each is checked to agree on the bytes."""
    codec = codec_for(type(case.message), case.version)
    message = case.message
    data = codec.encode(message)
    frame = bytearray(data)
    if codec.decode(frame) != (message, len(data)):
        raise AssertionError(f"{case.name}: our own decoder reads another message")

    read, write = entity_reader(case.kio), entity_writer(case.kio)
    kio_message, _ = read(data, 0)

    def kio_serialise() -> bytes:
        out = io.BytesIO()
        write(out, kio_message)
        return out.getvalue()

    decode = case.kafka_python.decode
    kp_message = decode(data, version=case.version)
    kp_message._header = None  # its decoder leaves the slot unset, and its encoder reads it

    def kp_serialise() -> bytes:
        encoded: bytes = kp_message.encode(version=case.version)
        return encoded

    for name, serialise in (("kio", kio_serialise), ("kafka-python", kp_serialise)):
        if bytes(serialise()) != data:
            raise AssertionError(f"{case.name}: {name} writes other bytes")
    return {
        "penstock": (lambda: codec.decode(frame), lambda: codec.encode_chunks(message)),
        "kio": (lambda: read(data, 0), kio_serialise),
        "kafka-python": (lambda: decode(data, version=case.version), kp_serialise),
    }


def _best(contestants: dict[str, Callable[[], Any]]) -> dict[str, Figure]:
    """Best µs per call of each contestant; they take turns in every round."""
    timers = {name: timeit.Timer(call) for name, call in contestants.items()}
    counts = {name: max(1, int(ROUND_SECONDS / max(timer.timeit(3) / 3, 1e-7))) for name, timer in timers.items()}
    rounds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(ROUNDS):
        for name, timer in timers.items():
            gc.collect()
            rounds[name].append(timer.timeit(counts[name]) / counts[name] * 1e6)
    return {name: Figure(min(each), tuple(each)) for name, each in rounds.items()}


def run() -> list[Row]:
    """A row for each message in the tables of parsing and of serialising."""
    parsed: list[Row] = []
    serialised: list[Row] = []
    for case in cases():
        calls = actions(case)
        for rows, table, place in ((parsed, "Parse", 0), (serialised, "Serialise", 1)):
            figures = _best({name: pair[place] for name, pair in calls.items()})
            rows.append(Row(case.name, "µs", Better.LOWER, figures, OURS, PEER, table=table))
    return [*parsed, *serialised]


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain("wire_codec", "The codec beside kio and kafka-python.", arguments)
    notes = [
        f"the best of {ROUNDS} alternating rounds",
        "serialising: ours gives chunks, which pass records on by reference",
    ]
    recording.keep(run(), notes=notes, settings={"rounds": ROUNDS, "round_seconds": ROUND_SECONDS})


if __name__ == "__main__":
    main(sys.argv[1:])
