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

    def fetched(self, size: int) -> None:
        self._metrics.bytes_out.add(size)
