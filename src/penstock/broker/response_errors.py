"""The errors that answers carry, counted on their way out.

Noun: a handler with a counter behind it. Whatever error codes its answer holds, at any depth, are counted for the API;
of a produce, what came of it is counted for the topic too.

Rule: handlers say what happened in their answer and nowhere else, so that no error can be forgotten. Fetch counts its
own, since it goes over its partitions anyway. Names of topics that are not there make no series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec

from penstock.broker.request import Answer, Request
from penstock.broker.served import Handle, Served
from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.types import BUFFERS, Message

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_CODE = "error_code"


def counted(served: Mapping[int, Served]) -> dict[int, Served]:
    """The same table, with counters behind the handlers."""
    return {key: entry if key == ApiKey.FETCH else _behind(key, entry) for key, entry in served.items()}


def _behind(key: int, entry: Served) -> Served:
    return entry._replace(handle=_produce(entry) if key == ApiKey.PRODUCE else _any(key, entry))


def _any(key: int, entry: Served) -> Handle:
    def handle(broker: Broker, request: Request, answer: Answer) -> None:
        def count(message: Message | None) -> None:
            if message is not None:
                for code in error_codes(message):
                    broker.count_error(key, code)
            answer(message)

        entry.handle(broker, request, count)

    return handle


def error_codes(message: msgspec.Struct) -> Iterator[int]:
    """The codes other than NONE in a message and in whatever is nested in it."""
    has_code, nested = _shape(type(message))
    if has_code:
        code: int = getattr(message, _CODE)
        if code:
            yield code
    for name in nested:
        for part in getattr(message, name) or ():
            yield from error_codes(part)


@cache
def _shape(message: type[msgspec.Struct]) -> tuple[bool, tuple[str, ...]]:
    """Whether there is a code in a message, and the arrays of those that have one, somewhere, too."""
    nested = []
    for name, hint in get_type_hints(message).items():
        element = _element(hint)
        if element is not None and any(_shape(element)):
            nested.append(name)
    return _CODE in message.__struct_fields__, tuple(nested)


def _element(hint: Any) -> type[msgspec.Struct] | None:
    """The message that a field is an array of, nullable or not."""
    for each in (hint, *get_args(hint)):
        for argument in get_args(each):
            if isinstance(argument, type) and issubclass(argument, msgspec.Struct):
                return argument
    return None


# --- produce


def _produce(entry: Served) -> Handle:
    def handle(broker: Broker, request: Request, answer: Answer) -> None:
        asked: ProduceRequest = request.message
        for topic in asked.topic_data:
            figures = broker.figures_of(topic.name)
            if figures is not None:
                figures.produce_requested()

        def count(message: Any) -> None:
            if message is not None:
                for topic in message.responses:
                    for outcome in topic.partition_responses:
                        if outcome.error_code:
                            _count_failures(broker, asked, message)
                            answer(message)
                            return
            answer(message)

        entry.handle(broker, request, count)

    return handle


def _count_failures(broker: Broker, asked: ProduceRequest, told: ProduceResponse) -> None:
    for place, topic in enumerate(told.responses):
        failed = [(at, each) for at, each in enumerate(topic.partition_responses) if each.error_code]
        if not failed:
            continue
        for _, outcome in failed:
            broker.count_error(ApiKey.PRODUCE, outcome.error_code)
        figures = broker.figures_of(topic.name)
        if figures is not None:
            sent = asked.topic_data[place].partition_data
            figures.produce_failed(sum(_size(sent[at], outcome) for at, outcome in failed))


def _size(sent: PartitionProduceData, outcome: PartitionProduceResponse) -> int:
    return len(sent.records) if isinstance(sent.records, BUFFERS) and sent.index == outcome.index else 0
