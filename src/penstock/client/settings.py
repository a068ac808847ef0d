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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from penstock.client.errors import ConfigError

if TYPE_CHECKING:
    from penstock.client.security import Contexts, Login

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


def _check_secret(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name} must be text, not {type(value).__name__}", hint="file:/path and env:NAME work too")


def _secret() -> Any:
    """A field that is neither in `repr` nor in messages."""
    return field(default=None, repr=False, metadata={"check": _check_secret})


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
    security_protocol: str
    sasl_mechanism: str | None
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_jaas_config: str | None
    sasl_oauth_token: Callable[[], str | Awaitable[str]] | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    ssl_truststore_location: str | None
    ssl_truststore_type: str | None
    ssl_truststore_password: str | None
    ssl_truststore_certificates: str | None
    ssl_keystore_location: str | None
    ssl_keystore_type: str | None
    ssl_keystore_password: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_key_password: str | None
    ssl_enabled_protocols: str | None
    ssl_cipher_suites: str | None
    ssl_endpoint_identification_algorithm: str


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
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = _secret()
    sasl_jaas_config: str | None = _secret()
    sasl_oauth_token: Callable[[], str | Awaitable[str]] | None = field(
        default=None, repr=False, metadata=function_of("no arguments that returns a token")
    )
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauthbearer_client_id: str | None = None
    sasl_oauthbearer_client_secret: str | None = _secret()
    sasl_oauthbearer_scope: str | None = None
    ssl_truststore_location: str | None = None
    ssl_truststore_type: str | None = None
    ssl_truststore_password: str | None = _secret()
    ssl_truststore_certificates: str | None = _secret()
    ssl_keystore_location: str | None = None
    ssl_keystore_type: str | None = None
    ssl_keystore_password: str | None = _secret()
    ssl_keystore_key: str | None = _secret()
    ssl_keystore_certificate_chain: str | None = _secret()
    ssl_key_password: str | None = _secret()
    ssl_enabled_protocols: str | None = None
    ssl_cipher_suites: str | None = None
    ssl_endpoint_identification_algorithm: str = "https"

    def __post_init__(self) -> None:
        for option in fields(self):
            if option.init:
                _check(option, getattr(self, option.name))

    @classmethod
    def check_given(cls, options: Mapping[str, Any]) -> None:
        """ConfigError for options that contradict each other, where a default would not."""

    def security(self) -> tuple[Contexts | None, Login | None]:
        """The TLS context and the login of connections; None for those that are not used. ConfigError."""
        if self.security_protocol == "PLAINTEXT" and self.ssl is None and self.sasl_mechanism is None:
            return None, None
        # Imported here because it takes time, and plaintext clients do not need it.
        from penstock.client.security import security_of

        return security_of(self)


# Property to option: Kafka's names, librdkafka's, and those of the Python clients.
SASL_PROPERTIES: Final = {
    "sasl.mechanism": "sasl_mechanism", "sasl.mechanisms": "sasl_mechanism",
    "sasl.jaas.config": "sasl_jaas_config",
    "sasl.username": "sasl_plain_username", "sasl.plain.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password", "sasl.plain.password": "sasl_plain_password",
    "sasl.oauthbearer.token.endpoint.url": "sasl_oauthbearer_token_endpoint_url",
    "sasl.oauthbearer.client.credentials.client.id": "sasl_oauthbearer_client_id",
    "sasl.oauthbearer.client.id": "sasl_oauthbearer_client_id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl_oauthbearer_client_secret",
    "sasl.oauthbearer.client.secret": "sasl_oauthbearer_client_secret",
    "sasl.oauthbearer.scope": "sasl_oauthbearer_scope",
}  # fmt: skip
SSL_PROPERTIES: Final = (
    "ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password", "ssl.truststore.certificates",
    "ssl.keystore.location", "ssl.keystore.type", "ssl.keystore.password", "ssl.keystore.key",
    "ssl.keystore.certificate.chain", "ssl.key.password", "ssl.enabled.protocols", "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
)  # fmt: skip


def options_from_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """The security options of properties with Kafka's names; others are left out."""
    found: dict[str, Any] = {"security_protocol": properties.get("security.protocol", "PLAINTEXT").strip().upper()}
    for name, option in SASL_PROPERTIES.items():
        if name in properties:
            found.setdefault(option, properties[name])
    return found | {name.replace(".", "_"): properties[name] for name in SSL_PROPERTIES if name in properties}


# Arguments that clients take beside their options, and the names that other clients have for them.
_ARGUMENTS: Final = ("key", "value", "bootstrap_servers")
_OTHER_CLIENTS: Final = {
    "key_serializer": "key", "value_serializer": "value", "key_deserializer": "key", "value_deserializer": "value",
    "ssl_cafile": "ssl_truststore_location", "ssl.ca.location": "ssl_truststore_location",
    "ssl_certfile": "ssl_keystore_location", "ssl.certificate.location": "ssl_keystore_location",
    "sasl.username": "sasl_plain_username", "sasl.password": "sasl_plain_password",
}  # fmt: skip


def settings_from(kind: type[S], options: Mapping[str, Any], client: str) -> S:
    """The settings of these options; raises ConfigError for a wrong name or value."""
    known = [option.name for option in fields(kind) if option.init]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        # Kafka and confluent-kafka have linger.ms, kafka-python has value_serializer.
        ours = _OTHER_CLIENTS.get(unknown[0], unknown[0].replace(".", "_"))
        near = [ours] if ours in _ARGUMENTS else get_close_matches(ours, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Its options are {', '.join(sorted(known))}"
        raise ConfigError(f"{client} has no option {', '.join(unknown)}", hint=hint)
    kind.check_given(options)
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
