"""What `df.write.format("penstock")` can be told, checked before a task starts.

Rule: names are the stock connector's. `kafka.*` goes to the producer where it has such a setting; the rest of Java's
settings change nothing; what the sink decides itself (serializers) is refused, and so is a name that nobody knows.
Spark gives all names in lower case, so they are compared that way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.errors import ConfigError
from penstock.spark.options import TlsOptions, bootstrap_of, check_sink_names, tls_of

_KAFKA: Final = "kafka."
# A task is a burst: a lone record need not wait for others, but batches should be worth their request.
_DEFAULTS: Final = {"linger_ms": 5.0, "client_id": "penstock-spark-sink"}
_REFUSED: Final = {
    "kafka.key.serializer": "Keys are bytes or text, as the column has them",
    "kafka.value.serializer": "Values are bytes or text, as the column has them",
    "kafka.interceptor.classes": "There is no Java producer whose records could be seen",
    "kafka.partitioner.class": "Choose partitions with a column partition",
    "kafka.transactional.id": "The sink is at least once; transactions are not the query's to name",
}
_NOT_OPTIONS: Final = frozenset({"self", "bootstrap_servers", "key", "value", "partitioner", "interceptors", "ssl"})
_OTHER_NAMES: Final = {"kafka.socket.connection.setup.timeout.ms": "connect_timeout_ms"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked, and small enough to travel with every task."""

    bootstrap: str
    topic: str | None
    producer: tuple[tuple[str, Any], ...]
    tls: TlsOptions | None = None

    @property
    def delivery_timeout_s(self) -> float:
        return float(dict(self.producer).get("delivery_timeout_ms", 120_000)) / 1000


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a writer; raises ConfigError, in one line."""
    check_sink_names(given)
    named = {name.lower(): value for name, value in given.items()}
    bootstrap = bootstrap_of(given)
    topic = named.get("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty", hint="Name a topic, or leave it out and have a column topic")
    for name, hint in _REFUSED.items():
        if name in named:
            raise ConfigError(f"option {name} is not supported", hint=hint)
    return SinkOptions(bootstrap, topic, tuple(_producer(named).items()), tls_of(given))


def _producer(named: Mapping[str, str]) -> dict[str, Any]:
    settings = _settings()
    chosen: dict[str, Any] = dict(_DEFAULTS)
    for name, value in named.items():
        keyword = _OTHER_NAMES.get(name, name.removeprefix(_KAFKA).replace(".", "_"))
        if name.startswith(_KAFKA) and keyword in settings:
            chosen[keyword] = _converted(name, value, settings[keyword])
    codec = str(chosen.get("compression_type", "")).lower()
    if codec:
        chosen["compression_type"] = codec
    level = f"kafka.compression.{codec}.level"
    if level in named:
        chosen["compression_level"] = _converted(level, named[level], int)
    _check(chosen)
    return chosen


def _check(chosen: Mapping[str, Any]) -> None:
    """The producer's own judgement, here rather than in every task."""
    from penstock.client.producer.producer import Producer
    from penstock.client.producer.settings import checked_settings

    parameters = inspect.signature(Producer.__init__).parameters
    judged = inspect.signature(checked_settings).parameters
    checked_settings(**{name: chosen.get(name, parameters[name].default) for name in judged})


def _settings() -> dict[str, Callable[[str], Any]]:
    """The producer's keywords, and how text becomes a value of each."""
    from penstock.client.producer.producer import Producer

    parameters = inspect.signature(Producer.__init__).parameters.values()
    return {each.name: _converter(str(each.annotation)) for each in parameters if each.name not in _NOT_OPTIONS}


def _converter(annotation: str) -> Callable[[str], Any]:
    kinds: dict[str, Callable[[str], Any]] = {"bool": _truth, "int": int, "float": float}
    return kinds.get(annotation.partition(" ")[0], str.strip)


def _truth(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(text)
    return text.strip().lower() == "true"


def _converted(name: str, value: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(value)
    except ValueError:
        wanted = {_truth: "true or false", int: "a whole number", float: "a number"}.get(convert, "text")
        raise ConfigError(f"option {name} is {value!r}", hint=f"It must be {wanted}") from None
