"""What moves in and out of a topic, counted where it happens."""

from __future__ import annotations

from penstock.broker.metrics import TopicMetrics


class TopicFigures:
    """A topic's counters, in the words of produce and fetch."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: TopicMetrics) -> None:
        self._metrics = metrics

    def produced(self, size: int, records: int) -> None:
        self._metrics.bytes_in.add(size)
        self._metrics.messages_in.add(records)

    def produce_requested(self) -> None:
        self._metrics.produce_requests.add()

    def produce_failed(self, size: int) -> None:
        """A request was refused for one partition of the topic or more, with this many bytes."""
        self._metrics.failed_produce_requests.add()
        self._metrics.bytes_rejected.add(size)

    def fetch_requested(self) -> None:
        self._metrics.fetch_requests.add()

    def fetch_failed(self) -> None:
        self._metrics.failed_fetch_requests.add()

    def fetched(self, size: int) -> None:
        self._metrics.bytes_out.add(size)
