"""How a command reaches a cluster: address options, client properties, TLS, and errors of the client library.

`Cluster` holds the address and the client properties of a command line. One properties file serves all commands, so a
property counts where it means something; one that no client has is rejected with the nearest name, and so is a value
of the wrong type, before anything is sent. Types are read from the annotations of the Python clients. For TLS and SASL
the names of Kafka and of librdkafka are understood; secrets may be `file:/path` or `env:NAME`.

Errors of the client library become two sentences, what failed and what to do on the command line, and an exit code:

    2  invalid options, or a missing package      3  no broker could be reached, or none answered in time
    4  a broker answered and rejected the request
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin

import click

from penstock.cli.completion import DEFAULT_SERVER, PROFILE_VARIABLE, SERVER_VARIABLE, profile_names
from penstock.cli.output import JSON, CommandError, sentence, show_error
from penstock.cli.values import COUNT, Assignment

if TYPE_CHECKING:
    from penstock.client.admin import Admin, AsyncAdmin
    from penstock.client.errors import BootstrapError, PenstockError

EXIT_UNREACHABLE: Final = 3
EXIT_REJECTED: Final = 4
_SERVERS: Final = "bootstrap.servers"
_TIMESTAMPS_SINCE_VERSION: Final = 1
_CONNECTION: Final = (
    "bootstrap.servers", "client.id", "request.timeout.ms", "security.protocol", "ssl.ca.location",
    "ssl.certificate.location", "ssl.endpoint.identification.algorithm", "ssl.key.location", "ssl.key.password",
    "ssl.keystore.location", "ssl.keystore.type", "ssl.keystore.password", "ssl.keystore.key",
    "ssl.keystore.certificate.chain", "ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password",
    "ssl.truststore.certificates", "ssl.enabled.protocols", "ssl.cipher.suites",
)  # fmt: skip
_COMPRESSION: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_Command = TypeVar("_Command", bound=Callable[..., Any])


def client_properties(path: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """The properties of a file, overridden by those given directly, by their current names."""
    from penstock.client.property_names import translated

    found = {**({} if path is None else translated(_read(path))), **translated(given)}
    known = known_properties() if found else ()
    for name, text in found.items():
        if name not in known:
            raise unknown_property(name, known)
        property_value(name, text)
    return found


def property_value(name: str, text: str) -> Any:
    """The value of a property as the Python clients take it. CommandError names the property."""
    kinds = _kinds().get(name, (str,))
    if name == "partition.assignment.strategy":
        return _assignors(name, text)
    choices = [*_COMPRESSION] if name == "compression.type" else []
    choices += [str(each) for kind in kinds if get_origin(kind) is Literal for each in get_args(kind)]
    if choices:
        if text not in choices:
            raise CommandError(f"{name} cannot be {text!r}.", f"Use {_listed(list(dict.fromkeys(choices)))}.")
        return text
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise CommandError(f"{name} cannot be {text!r}.", "Use true or false.")
        return text.lower() == "true"
    if float in kinds or int in kinds:
        return _number(name, text, is_whole=float not in kinds)
    return text


def _assignors(name: str, text: str) -> list[str]:
    from penstock.client.consumer.assignors import BUILT_IN, assignors_from

    names = [each.strip() for each in text.split(",")]
    try:
        assignors_from(names)
    except ValueError:
        hint = f"Use one or more of {', '.join(BUILT_IN)}, separated by commas."
        raise CommandError(f"{name} cannot be {text!r}.", hint) from None
    return names


def _number(name: str, text: str, *, is_whole: bool) -> float:
    try:
        number = int(text) if is_whole or text.lstrip("-").isdigit() else float(text)
    except ValueError:
        kind = "a whole number" if is_whole else "a number"
        unit = " of milliseconds" if name.endswith(".ms") else ""
        raise CommandError(f"{name} cannot be {text!r}.", f"Use {kind}{unit}.") from None
    least = 1 if name.endswith("timeout.ms") else 0
    if name != "compression.level" and not least <= number < float("inf"):
        raise CommandError(f"{name} cannot be {text}.", f"Use {least} or more.")
    return number


def _listed(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@functools.cache
def _kinds() -> dict[str, tuple[Any, ...]]:
    """Property to the types that the clients' options of that name take."""
    from typing import get_type_hints

    from penstock.client.consumer.settings import ConsumerOptions
    from penstock.client.producer.settings import ProducerOptions

    hints = {**get_type_hints(ConsumerOptions), **get_type_hints(ProducerOptions)}
    names = producer_options() | consumer_options()
    return {
        name.replace("_", "."): get_args(hint) if get_origin(hint) not in (None, Literal) else (hint,)
        for name, hint in hints.items()
        if name in names
    }


def _read(path: str) -> dict[str, str]:
    from penstock.config_def import UnreadableFile
    from penstock.properties_file import read_properties

    try:
        parsed = read_properties(path)
    except UnreadableFile as error:
        raise CommandError(f"{error}.", "--command-config needs a file of NAME=VALUE lines.") from None
    if parsed.problems:
        raise CommandError(f"{parsed.problems[0]}.", "Correct that line.")
    return {item.name: item.value.strip() for item in parsed.properties}


def known_properties() -> list[str]:
    """The properties that any client has."""
    from penstock.client.property_names import OF_PRODUCERS
    from penstock.client.settings import SASL_PROPERTIES

    return sorted(
        {
            *_CONNECTION,
            *SASL_PROPERTIES,
            *OF_PRODUCERS,
            *(name.replace("_", ".") for name in producer_options() | consumer_options()),
        }
    )


def producer_options() -> set[str]:
    from penstock.client.producer.settings import ProducerOptions

    return _without_security(ProducerOptions.__annotations__) - {
        "interceptors", "partitioner", "start_timeout_ms", "on_statistics",
        "statistics_interval_ms",
    }  # fmt: skip


def _without_security(names: Iterable[str]) -> set[str]:
    """Without the options that `security_options` gives to every client."""
    return {name for name in names if not _is_security(name)}


def _is_security(name: str) -> bool:
    return name.partition("_")[0] in ("ssl", "sasl", "security")


def consumer_options() -> set[str]:
    from penstock.client.consumer.settings import ConsumerOptions

    return _without_security(ConsumerOptions.__annotations__) - {
        "offset_store", "on_decode_error", "consumer_timeout_ms", "on_statistics", "statistics_interval_ms",
    }  # fmt: skip


def security_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """The options of the Python clients that security.protocol, ssl.* and sasl.* describe. CommandError."""
    context = ssl_context(properties)
    found: dict[str, Any] = {"ssl": context}
    if not _protocol(properties).startswith("SASL_"):
        return found
    from penstock.client.errors import ConfigError
    from penstock.client.security import security_of
    from penstock.client.settings import SASL_PROPERTIES, ClientSettings

    found["security_protocol"] = _protocol(properties)
    for name, option in SASL_PROPERTIES.items():
        if name in properties:
            found.setdefault(option, properties[name])
    try:
        security_of(ClientSettings(**found))
    except ConfigError as error:
        raise CommandError(
            sentence(_in_sasl_properties(error.message)), sentence(_in_sasl_properties(error.hint))
        ) from None
    return found


def _in_sasl_properties(text: str) -> str:
    for name in ("token_endpoint_url", "client_secret", "client_id"):
        text = text.replace(f"sasl_oauthbearer_{name}", f"sasl.oauthbearer.{name.replace('_', '.')}")
    replaced = text.replace("sasl_plain_username", "sasl.username").replace("sasl_plain_password", "sasl.password")
    return (
        replaced.replace("sasl_mechanism", "sasl.mechanism")
        .replace("sasl_jaas_config", "sasl.jaas.config")
        .replace("security_protocol", "security.protocol")
    )


def _protocol(properties: Mapping[str, str]) -> str:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise CommandError(f"security.protocol {protocol} is not supported.", f"Use {_listed(list(_PROTOCOLS))}.")
    return protocol


def ssl_context(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """The TLS context that security.protocol and ssl.* describe; None is plaintext."""
    if not _protocol(properties).endswith("SSL"):
        return None
    for store in ("ssl.truststore", "ssl.keystore"):
        kind = properties.get(f"{store}.type", "PEM").upper()
        if f"{store}.location" in properties and kind not in ("PEM", "PKCS12"):
            raise CommandError(f"{store}.type {kind} is not supported.", "Use PEM or PKCS12.")
    from penstock.client.errors import ConfigError
    from penstock.client.security import context_from

    texts = {name: text for name, text in properties.items() if name.startswith("ssl.")}
    if texts.get("ssl.endpoint.identification.algorithm", "").lower() == "none":
        texts["ssl.endpoint.identification.algorithm"] = ""
    authority = texts.pop("ssl.ca.location", None)
    certificate, key = texts.pop("ssl.certificate.location", None), texts.pop("ssl.key.location", None)
    if authority is not None:
        texts["ssl.truststore.location"] = authority
    try:
        if certificate is not None and key is not None:
            texts["ssl.keystore.certificate.chain"] = _content(certificate)
            texts["ssl.keystore.key"] = _content(key)
        elif certificate is not None:
            texts["ssl.keystore.location"] = certificate
        return context_from(texts)()
    except (ConfigError, OSError) as error:
        raise CommandError(
            f"Cannot use the TLS files: {error}.",
            "ssl.ca.location, ssl.certificate.location and ssl.key.location must be PEM files.",
        ) from None


def _content(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read(1024 * 1024)


class Cluster:
    """A cluster's address and the client properties for it."""

    def __init__(self, servers: str, properties: Mapping[str, str], request_timeout_ms: int) -> None:
        self.servers = servers
        self.properties = dict(properties)
        self.request_timeout_ms = request_timeout_ms

    def admin(self) -> Admin:
        from penstock.client.admin import Admin

        return Admin(self.servers, **self.connecting("penstock-admin"))

    def async_admin(self) -> AsyncAdmin:
        from penstock.client.admin import AsyncAdmin

        return AsyncAdmin(self.servers, **self.connecting("penstock-admin"))

    def check_times(self) -> None:
        """Raise if the cluster cannot look up offsets by time: brokers before 0.10.1 know only times of files."""
        import asyncio

        from penstock.wire.protocol import ApiKey

        async def ask() -> None:
            async with self.async_admin() as admin:
                connection = await admin.cluster.to_any()
                if not connection.supports(ApiKey.LIST_OFFSETS, _TIMESTAMPS_SINCE_VERSION):
                    raise Rejected(
                        f"{connection.node} is too old to look up records by time.",
                        "Use offsets instead; `penstock offsets` shows them.",
                    )

        asyncio.run(ask())

    def connecting(self, client_id: str) -> dict[str, Any]:
        """The options that every client takes."""
        return {
            "client_id": self.properties.get("client.id", client_id),
            "request_timeout_ms": self.request_timeout_ms,
            "connect_timeout_ms": min(10_000, self.request_timeout_ms),
            **security_options(self.properties),
        }

    def options_for(self, client_id: str, known: Iterable[str], given: Mapping[str, str]) -> dict[str, Any]:
        """Client options: those of the file, those that every client takes, overridden by `given`.

        Properties that name a producer's classes are left to `objects_for`.
        """
        from penstock.client.property_names import OF_PRODUCERS, translated

        given = translated(given)
        left_out = OF_PRODUCERS if "acks" in known else ()
        names = {name: name.replace("_", ".") for name in known}
        by_property = {dotted: name for name, dotted in names.items()}
        unknown = [name for name in given if name not in by_property and name not in left_out]
        if unknown:
            raise unknown_property(unknown[0], by_property)

        def values(properties: Mapping[str, str]) -> dict[str, Any]:
            return {
                by_property[name]: property_value(name, text)
                for name, text in properties.items()
                if name in by_property
            }

        return values(self.properties) | self.connecting(client_id) | values(given)

    def producer_property(self, name: str, given: Mapping[str, str]) -> str | None:
        """A property that producers have and their options have not, such as producer.type."""
        from penstock.client.property_names import translated

        return {**self.properties, **translated(given)}.get(name)

    def objects_for(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The options of a producer for the classes that properties name: partitioner.class, callback.handler."""
        import sys

        from penstock.client.properties import producer_objects
        from penstock.client.property_names import CALLBACK_HANDLER, PARTITIONER, translated

        properties = {**self.properties, **translated(given)}
        if PARTITIONER not in properties and CALLBACK_HANDLER not in properties:
            return {}
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last, so that it shadows nothing
        return producer_objects(properties)


def unknown_property(name: str, known: Iterable[str]) -> CommandError:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return CommandError(
        f"Unknown client property {name!r}.",
        f"Did you mean {near[0]}?" if near else f"The properties are {', '.join(sorted(known))}.",
    )


def cluster_command(command: _Command) -> _Command:
    """A command that works on a cluster: adds the options of `Cluster`, passes it first, and reports client errors."""

    @functools.wraps(command)
    def run(
        *args: Any,
        bootstrap_server: str | None,
        profile: str | None,
        zookeeper: str | None,
        command_config: str | None,
        command_property: tuple[tuple[str, str], ...],
        request_timeout_ms: int,
        **params: Any,
    ) -> Any:
        if zookeeper is not None:
            bootstrap_server = zookeeper if zookeeper.startswith("zookeeper://") else f"zookeeper://{zookeeper}"
        servers, properties = resolve_cluster(bootstrap_server, profile, command_config, dict(command_property))
        given_timeout = click.get_current_context().get_parameter_source("request_timeout_ms")
        if given_timeout is not None and given_timeout.name == "DEFAULT":
            request_timeout_ms = _milliseconds(properties.get("request.timeout.ms"), request_timeout_ms)
        with client_errors_reported():
            return command(*args, Cluster(servers, properties, request_timeout_ms), **params)

    for option in _OPTIONS:
        run = option(run)
    return run  # type: ignore[return-value]


def resolve_cluster(
    server: str | None, profile: str | None, command_config: str | None, given: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """The cluster's address and its client properties, by precedence.

    The address is that of --bootstrap-server, else of PENSTOCK_BOOTSTRAP_SERVER unless --profile is given, else that of
    --command-config, else the profile's. The profile in use counts only where nothing else names a cluster.
    """
    properties = client_properties(command_config, given)
    named = profile or os.environ.get(PROFILE_VARIABLE)
    by_variable = os.environ.get(SERVER_VARIABLE)
    if not named and not (server or by_variable or _SERVERS in properties):
        from penstock.cli.profile import in_use

        named = in_use()
    kept: dict[str, str] = {}
    if named:
        from penstock.cli.profile import properties_of

        kept = properties_of(named)
    found = (
        server,
        by_variable if not profile else None,
        properties.get(_SERVERS),
        kept.get(_SERVERS),
        by_variable,
        DEFAULT_SERVER,
    )
    return next(address for address in found if address), {**kept, **properties}


def _milliseconds(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or not int(text):
        raise CommandError(f"request.timeout.ms cannot be {text!r}.", "Use a number of milliseconds above 0.")
    return int(text)


_OPTIONS: Final = (
    click.option(
        "--request-timeout-ms", type=COUNT, default=30_000, show_default=True, metavar="MS",
        help="Time-out of a request.",
    ),
    click.option(
        "-X", "--command-property", type=Assignment(), multiple=True, help="A client property. Can be repeated.",
    ),
    click.option(
        "--command-config", metavar="FILE",
        help="File of client properties, by Kafka's names: client.id, security.protocol, ssl.ca.location.",
    ),
    click.option(
        "--profile", metavar="NAME", shell_complete=profile_names,
        help=f"Profile to use; see `penstock profile`.  [env: {PROFILE_VARIABLE}; default: the one in use]",
    ),
    click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="Find the brokers in ZooKeeper."),
    click.option(
        "-b", "--bootstrap-server", "--bootstrap-servers", "--broker-list", "bootstrap_server",
        metavar="HOST:PORT,...",
        help=f"Address of the cluster.  [env: {SERVER_VARIABLE}; default: the profile's, else {DEFAULT_SERVER}]",
    ),
)  # fmt: skip


class Unreachable(CommandError):
    """No broker could be reached, or none answered in time."""

    exit_code = EXIT_UNREACHABLE
    code = "UNREACHABLE"


class Rejected(CommandError):
    """A broker rejected the request."""

    exit_code = EXIT_REJECTED
    code = "REJECTED"


@contextmanager
def client_errors_reported() -> Iterator[None]:
    """Turn errors of the client library into command errors."""
    from penstock.client.errors import PenstockError

    try:
        yield
    except PenstockError as error:
        raise command_error_for(error) from None


def command_error_for(error: PenstockError) -> CommandError:
    """The error in the words of the command line."""
    from penstock.client.errors import BootstrapError, BrokerError, ConfigError, MissingDependency, TimedOut
    from penstock.client.errors import NotConnected as Lost

    if isinstance(error, BootstrapError):
        return _unreachable(error)
    kind: type[CommandError] = Rejected
    code = error.code.name if error.code is not None else None
    if isinstance(error, ConfigError):
        return CommandError(sentence(_in_properties(error.message)), sentence(hint_for(error)))
    if isinstance(error, MissingDependency):
        return CommandError(sentence(error.message), error.hint, code="MISSING_PACKAGE")
    if isinstance(error, TimedOut | Lost) and not isinstance(error, BrokerError):
        kind = Unreachable
    return kind(sentence(_message_of(error)), sentence(hint_for(error)), code=code)


def error_document(error: PenstockError) -> dict[str, object]:
    """The error in a JSON document: code, message and hint."""
    return command_error_for(error).document()


def show_failures(errors: Iterable[PenstockError | CommandError], output_format: str) -> None:
    """Print what failed among several things, on standard error."""
    for error in errors:
        show_error(
            error if isinstance(error, CommandError) else command_error_for(error), as_json=output_format == JSON
        )


def _message_of(error: PenstockError) -> str:
    """The message; a missing topic is always described the same way."""
    from penstock.client.errors import UnknownTopic

    if isinstance(error, UnknownTopic) and error.where.startswith("topic ") and " " not in error.where[6:]:
        return f"topic {error.where[6:]!r} does not exist ({error.code.name})"
    return error.message


def _unreachable(error: BootstrapError) -> Unreachable:
    """Every address with its cause, and the hint of the first."""
    lines = "; ".join(f"{attempt.address}: {attempt.detail}" for attempt in error.attempts)
    first = error.attempts[0]
    return Unreachable(f"Cannot reach a broker: {lines}.", sentence(hint_for_cause(first.cause.name, first.hint)))


def hint_for_cause(cause: str, hint: str) -> str:
    """What to do about an address that cannot be used, in terms of the command line."""
    return HINTS_BY_CAUSE.get(cause) or _in_properties(hint)


def hint_for(error: PenstockError) -> str:
    """What to do, in terms of the command line; empty if nothing is known to help."""
    from penstock.client.errors import ConfigError, UnknownBroker

    if error.code is not None and error.code.name in _HINTS_BY_CODE:
        return _HINTS_BY_CODE[error.code.name]
    if isinstance(error, ConfigError) and "bootstrap" in error.message:
        return "Write HOST:PORT, several as HOST:PORT,HOST:PORT"
    if error.hint:
        return _in_properties(error.hint)
    if isinstance(error, UnknownBroker):
        return "`penstock brokers` shows the brokers"
    helps = error.retriable or (error.code is not None and error.code.name in _DOCTOR_FINDS)
    return "Run `penstock doctor` to diagnose the cluster" if helps else ""


def _in_properties(text: str) -> str:
    """The text with options of the Python clients as properties: linger_ms is linger.ms."""
    import re

    from penstock.client.settings import ClientSettings

    known = producer_options() | consumer_options() | {"bootstrap_servers", "request_timeout_ms", "connect_timeout_ms"}
    known |= {each.name for each in fields(ClientSettings) if _is_security(each.name)}
    return re.sub(
        r"\b[a-z]+(?:_[a-z]+)+\b",
        lambda word: word[0].replace("_", ".") if word[0] in known else word[0],
        _in_sasl_properties(text),
    )


HINTS_BY_CAUSE: Final = {
    "REFUSED": "Nothing listens on that port. Start a broker with `penstock up`, or name another one with "
    "--bootstrap-server",
    "TLS_REQUIRED": "The port uses TLS. Add -X security.protocol=SSL (or SASL_SSL), or use the plaintext port",
    "TLS_REFUSED": "The port does not use TLS. Remove security.protocol=SSL, or use the TLS port",
    "AUTHENTICATION": "Check sasl.mechanism, sasl.username and sasl.password, or sasl.jaas.config",
    "TLS_CERTIFICATE": "Set ssl.ca.location to the file of the certificate authority, and use the host name in the "
    "certificate",
}
_HINTS_BY_CODE: Final = {
    "TOPIC_ALREADY_EXISTS": "Use --if-not-exists to accept an existing topic",
    "UNKNOWN_TOPIC_OR_PARTITION": "`penstock topics list` shows the topics",
    "UNKNOWN_TOPIC_ID": "`penstock topics list` shows the topics",
    "GROUP_ID_NOT_FOUND": "`penstock groups list` shows the groups",
    "TRANSACTIONAL_ID_NOT_FOUND": "`penstock transactions list` shows the transactional ids",
    "UNSUPPORTED_VERSION": "This needs a newer broker; `penstock brokers versions` shows what the brokers support",
    "REQUEST_TIMED_OUT": "The broker may be overloaded or hung. Raise --request-timeout-ms to give it more time",
    "OFFSET_OUT_OF_RANGE": "`penstock offsets` shows the valid offsets",
    "MESSAGE_TOO_LARGE": "Send smaller batches, compress them, or raise the limit: "
    "penstock configs alter --topic TOPIC --set max.message.bytes=N",
    "NOT_ENOUGH_REPLICAS": "`penstock topics describe --under-min-isr` shows which brokers are missing. "
    "To require fewer: penstock configs alter --topic TOPIC --set min.insync.replicas=N",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "`penstock topics describe --under-min-isr` shows which brokers are missing",
    "UNSUPPORTED_COMPRESSION_TYPE": "The broker is too old for this codec. Choose another --compression",
    "FENCED_INSTANCE_ID": "Give every running member its own group.instance.id",
}
_DOCTOR_FINDS: Final = frozenset(
    {"KAFKA_STORAGE_ERROR", "UNKNOWN_SERVER_ERROR", "BROKER_NOT_AVAILABLE", "CLUSTER_AUTHORIZATION_FAILED"}
)
