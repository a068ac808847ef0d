"""Options that all clients have, how options are declared and checked, and the statistics callback.

An option is named twice: in a TypedDict, for the signatures of both faces of a client, and in a frozen dataclass, with
its default and, as metadata, its bounds; its type is checked by the annotation. `settings_from` turns the first into
the second. An invalid value raises ConfigError with its name before anything is connected.

    class ProducerOptions(ClientOptions, total=False):
        linger_ms: float

    class ProducerSettings(ClientSettings):
        linger_ms: float = 0

`metrics()` of a client returns one flat dictionary: counters since it was created, and current values. Counting costs
a few additions per batch or request and nothing per record.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, TypedDict, TypeVar

from penstock.client.errors import ConfigError

Metrics = dict[str, float]
OnStatistics = Callable[[Metrics], object]
S = TypeVar("S", bound="ClientSettings")

_log = logging.getLogger("penstock.metrics")


# --------------------------------------------------------------------------------------------------- checks

_TYPES: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "bool": (bool, "True or False"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "str": (str, "text"),
}


def at_least(least: float) -> dict[str, Any]:
    """Metadata of a field: the smallest value, where that is not 0."""
    return {"least": least}


def one_of(*allowed: object, or_function: bool = False) -> dict[str, Any]:
    """Metadata of a field: the values that it can have."""

    def check(name: str, value: Any) -> None:
        is_allowed = not isinstance(value, bool) and isinstance(value, str | int | None) and value in allowed
        if not is_allowed and not (or_function and callable(value)):
            shown = ", ".join(map(str, allowed))
            raise ConfigError(f"{name} is {value!r}; it can be {shown}{' or a function' if or_function else ''}")

    return {"check": check}


def function_of(what: str) -> dict[str, Any]:
    """Metadata of a field: a function of these arguments, or None."""

    def check(name: str, value: Any) -> None:
        if value is not None and not callable(value):
            raise ConfigError(f"{name} is {value!r}", hint=f"Give a function of {what}")

    return {"check": check}


def _check_ssl(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, tls.SSLContext):
        raise ConfigError(f"{name} is {value!r}, not an ssl.SSLContext", hint="Pass ssl.create_default_context()")


def _check(option: Field[Any], value: Any) -> None:
    """By the metadata, else by the annotation: a number is 0 or more unless the metadata say otherwise."""
    if "check" in option.metadata:
        option.metadata["check"](option.name, value)
        return
    kind, _, alternative = str(option.type).partition(" | ")
    if kind not in _TYPES or alternative not in ("", "None") or (alternative and value is None):
        return
    types, description = _TYPES[kind]
    if not isinstance(value, types) or isinstance(value, bool) != (kind == "bool"):
        raise ConfigError(f"{option.name} must be {description}, not {value!r}")
    least = option.metadata.get("least", 0)
    if isinstance(value, int | float) and not value >= least:
        raise ConfigError(f"{option.name} is {value}; it must be {least} or more")


# --------------------------------------------------------------------------------------------------- common options


class ClientOptions(TypedDict, total=False):
    """What every client takes besides its addresses; `ClientSettings` has the defaults."""

    client_id: str
    request_timeout_ms: int
    connect_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    ssl: tls.SSLContext | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The options of every client with their defaults, which are Kafka's where Kafka has them."""

    client_id: str = "penstock"
    request_timeout_ms: int = field(default=30_000, metadata=at_least(1))
    connect_timeout_ms: int = field(default=10_000, metadata=at_least(1))
    metadata_max_age_ms: int = field(default=300_000, metadata=at_least(1))
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    ssl: tls.SSLContext | None = field(default=None, metadata={"check": _check_ssl})

    def __post_init__(self) -> None:
        for option in fields(self):
            if option.init:
                _check(option, getattr(self, option.name))


def settings_from(kind: type[S], options: Mapping[str, Any], client: str) -> S:
    """The settings of these options; raises ConfigError for a wrong name or value."""
    known = [option.name for option in fields(kind) if option.init]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Its options are {', '.join(sorted(known))}"
        raise ConfigError(f"{client} has no option {', '.join(unknown)}", hint=hint)
    return kind(**options)


# --------------------------------------------------------------------------------------------------- statistics


class StatisticsReporter:
    """Calls `on_statistics(metrics)` every `interval_ms` on an event loop; what it raises is logged."""

    def __init__(self, collect: Callable[[], Metrics], on_statistics: OnStatistics | None, interval_ms: float) -> None:
        self._collect = collect
        self._on_statistics = on_statistics
        self._interval_ms = interval_ms
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Call it on the loop."""
        if self._on_statistics is not None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._report)

    def _report(self) -> None:
        self.start()
        try:
            if self._on_statistics is not None:
                self._on_statistics(self._collect())
        except (Exception, SystemExit):  # noqa: BLE001 - the users' own code: it must not end the client's loop
            _log.exception("a statistics callback raised")

    def stop(self) -> None:
        """Call it on the loop; calling it twice is allowed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
