"""Clients made from a properties file, also from one that was written for Kafka 0.7 or 0.8.

    producer = producer_from_properties("producer.properties")
    consumer = consumer_from_properties({"zk.connect": "zk1:2181", "groupid": "feed"}, "views")

Properties have Kafka's names; `linger.ms` is the option `linger_ms`. Names of Kafka 0.7 and 0.8 are translated
(`zk.connect`, `broker.list`, `queue.time`, `groupid`, ...); if the current name is set too, it applies. Properties that
name classes (`serializer.class`, `partitioner.class`, `callback.handler`, `event.handler`) take `module:name` of a
Python class or function, or one of Kafka's classes that exist here.

`batch.size` is bytes. In a file with `producer.type` it is a number of messages, as it was in 0.7. A name that no
client has raises ConfigError, with the nearest one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.settings import ConsumerOptions, ConsumerSettings
from penstock.client.errors import ConfigError
from penstock.client.producer.interceptors import ProducerInterceptor
from penstock.client.producer.producer import Producer
from penstock.client.producer.queued_producer import EventHandler, QueuedProducer
from penstock.client.producer.settings import (
    ProducerOptions,
    ProducerSettings,
    RandomPartitioner,
    RoundRobinPartitioner,
)
from penstock.client.property_names import (
    BROKERS,
    CALLBACK_HANDLER,
    ENQUEUE_TIMEOUT,
    EVENT_HANDLER,
    KEY_SERIALIZER,
    OF_PRODUCERS,
    PARTITIONER,
    PRODUCER_TYPE,
    QUEUE_MESSAGES,
    QUEUE_SIZE,
    SERIALIZER,
    SERVERS,
    ZOOKEEPER,
    translated,
)
from penstock.client.serializers.base import Bytes, Text
from penstock.client.settings import SASL_PROPERTIES, SSL_PROPERTIES, options_from_properties
from penstock.config_def import UnreadableFile, shown
from penstock.plugin import UnusableName, load_callable
from penstock.properties_file import read_properties

Properties = str | os.PathLike[str] | Mapping[str, str]

_KAFKA_ENCODERS: Final[Mapping[str, Callable[[], Any]]] = {
    "StringEncoder": Text, "StringSerializer": Text, "DefaultEncoder": Bytes, "ByteArraySerializer": Bytes,
    "NullEncoder": Bytes,
}  # fmt: skip
_KAFKA_PARTITIONERS: Final[Mapping[str, Callable[[], Any]]] = {
    "DefaultPartitioner": lambda: None, "UniformStickyPartitioner": lambda: None,
    "RoundRobinPartitioner": RoundRobinPartitioner, "roundrobin": RoundRobinPartitioner,
    "RandomPartitioner": RandomPartitioner, "random": RandomPartitioner,
}  # fmt: skip
_KAFKA_HANDLERS: Final[Mapping[str, Callable[[], Any]]] = {"DefaultEventHandler": EventHandler}


def _read(source: Properties) -> dict[str, str]:
    if isinstance(source, Mapping):
        return {str(name): str(text) for name, text in source.items()}
    try:
        parsed = read_properties(os.fspath(source))
    except UnreadableFile as error:
        raise ConfigError(str(error), hint="It must be a file of name=value lines") from error
    if parsed.problems:
        raise ConfigError(str(parsed.problems[0]), hint="Correct that line")
    return {each.name: each.value.strip() for each in parsed.properties}


# --- clients


def producer_from_properties(source: Properties, **options: Any) -> Producer[Any, Any] | QueuedProducer:
    """The producer that a file, or a mapping, describes; `options` of the Python client override it.

    With `producer.type=async` and an `event.handler` it is a `QueuedProducer`, else a `Producer`; one with
    `producer.type=sync` sends without delay, and you wait for its deliveries. Raises ConfigError.
    """
    properties = translated(_read(source))
    kind = properties.get(PRODUCER_TYPE, "sync" if EVENT_HANDLER in properties else "async")
    if kind not in ("sync", "async"):
        raise ConfigError(f"{PRODUCER_TYPE} is {shown(kind)!r}", hint="Use sync or async")
    if kind == "sync" and EVENT_HANDLER in properties:
        raise ConfigError(f"{EVENT_HANDLER} needs {PRODUCER_TYPE}=async", hint="Only that has a queue of events")
    servers, found = _options(properties, ProducerOptions, ProducerSettings)
    found |= producer_objects(properties)
    for name, option in ((SERIALIZER, "value"), (KEY_SERIALIZER, "key")):
        if name in properties:
            found[option] = _made(name, properties[name], _KAFKA_ENCODERS, keep_functions=True)
    if kind == "sync":
        found["linger_ms"] = 0
    if EVENT_HANDLER not in properties:
        return Producer(options.pop("bootstrap_servers", servers), **(found | options))
    queue = {
        "event_handler": _made(EVENT_HANDLER, properties[EVENT_HANDLER], _KAFKA_HANDLERS),
        "queue_time_ms": found.pop("linger_ms", None),
        "batch_messages": _whole(properties, QUEUE_MESSAGES),
        "queue_size": _whole(properties, QUEUE_SIZE),
        "enqueue_timeout_ms": None if (wait := _whole(properties, ENQUEUE_TIMEOUT)) is None or wait < 0 else wait,
    }
    found |= {name: value for name, value in queue.items() if value is not None}
    return QueuedProducer(options.pop("bootstrap_servers", servers), **(found | options))


def consumer_from_properties(source: Properties, *topics: str, **options: Any) -> Consumer[Any, Any]:
    """The consumer of these topics that a file, or a mapping, describes; `options` override it. Raises ConfigError."""
    properties = translated(_read(source))
    servers, found = _options(properties, ConsumerOptions, ConsumerSettings)
    return Consumer(*topics, **({"bootstrap_servers": servers} | found | options))


def producer_objects(properties: Mapping[str, str]) -> dict[str, Any]:
    """The partitioner and interceptors that properties name, as options of a producer. Raises ConfigError."""
    found: dict[str, Any] = {}
    if PARTITIONER in properties:
        found["partitioner"] = _made(PARTITIONER, properties[PARTITIONER], _KAFKA_PARTITIONERS, keep_functions=True)
    if CALLBACK_HANDLER in properties:
        interceptor = _made(CALLBACK_HANDLER, properties[CALLBACK_HANDLER], {})
        if not isinstance(interceptor, ProducerInterceptor):
            raise ConfigError(
                f"{CALLBACK_HANDLER}: {properties[CALLBACK_HANDLER]} is not a ProducerInterceptor",
                hint="Name a subclass of penstock.ProducerInterceptor",
            )
        found["interceptors"] = [interceptor]
    return found


def _made(name: str, text: str, known: Mapping[str, Callable[[], Any]], *, keep_functions: bool = False) -> Any:
    """The object that a property names: one of Kafka's by its last name, or that of `module:name`."""
    if ":" not in text:
        last = text.rpartition(".")[2]
        if last in known:
            return known[last]()
        names = ", ".join(known) or "none"
        raise ConfigError(
            f"{name} is {shown(text)!r}, which is not a class of Penstock",
            hint=f"Write module:name of a Python class, or one of these of Kafka: {names}",
        )
    try:
        found = load_callable(text)
    except UnusableName as error:
        raise ConfigError(f"{name}: {error}") from error
    if keep_functions and not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"{name}: {text} cannot be created: {error!r}", hint="It is called without arguments"
        ) from error


# --- values


def _options(properties: Mapping[str, str], hints: type, settings: type) -> tuple[str, dict[str, Any]]:
    """The address, and the options of the Python client that properties set. Raises ConfigError."""
    kinds = get_type_hints(hints)
    known = {each.name.replace("_", "."): each.name for each in fields(settings) if each.init}
    both = {*fields(ProducerSettings), *fields(ConsumerSettings)}
    of_the_other = {each.name.replace("_", ".") for each in both} - known.keys()  # one file may serve both
    others = {SERVERS, "security.protocol", *SASL_PROPERTIES, *SSL_PROPERTIES, *OF_PRODUCERS}
    found: dict[str, Any] = {}
    for name, text in properties.items():
        if name in others or name in of_the_other:
            continue
        if name not in known:
            near = get_close_matches(name, [*known, *others], n=1)
            raise ConfigError(
                f"unknown client property {shown(name)!r}", hint=f"Did you mean {near[0]}?" if near else None
            )
        found[known[name]] = _value(name, text.strip(), kinds[known[name]])
    if SERVERS not in properties:
        raise ConfigError(f"{SERVERS} is missing", hint=f"Set it, or {BROKERS[0]} or {ZOOKEEPER[0]} as in Kafka 0.7")
    security = options_from_properties(properties)
    return properties[SERVERS], found | (security if len(security) > 1 or "security.protocol" in properties else {})


def _value(name: str, text: str, kind: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) not in (None, Literal) else (kind,)
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is {shown(text)!r}", hint="Use true or false")
        return text.lower() == "true"
    if int in kinds or float in kinds:
        return _number(name, text, is_whole=float not in kinds)
    if name == "partition.assignment.strategy":
        return [each.strip() for each in text.split(",")]
    return text


def _number(name: str, text: str, *, is_whole: bool) -> float:
    try:
        return int(text) if is_whole or text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise ConfigError(f"{name} is {shown(text)!r}", hint="Use a number") from None


def _whole(properties: Mapping[str, str], name: str) -> int | None:
    return int(_number(name, properties[name].strip(), is_whole=True)) if name in properties else None
