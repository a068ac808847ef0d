"""How commands reach a cluster, and what they say when it does not do as asked.

Noun: `Cluster`, what the options that all such commands share have said: where it is, and settings for its clients.

Rule: nothing is imported before a command runs. What the client library raises leaves as two sentences, what went wrong
and what to do *on the command line*, with an exit code by its kind:

    2  the options make no sense, or a package is missing     3  no broker could be reached, or none answered in time
    4  a broker answered, and refused
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.completing import DEFAULT_SERVER, PROFILE_VARIABLE, SERVER_VARIABLE, profile_names
from penstock.cli.output import JSON, CommandError, sentence, show_error
from penstock.cli.values import COUNT, Assignment

if TYPE_CHECKING:
    import ssl

    from penstock.client.admin import Admin, AsyncAdmin
    from penstock.client.errors import BootstrapError, PenstockError

EXIT_UNREACHABLE: Final = 3
EXIT_REFUSED: Final = 4
_TIMES_SINCE: Final = 1
_SERVERS: Final = "bootstrap.servers"

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Cluster:
    """Where the cluster is, and how to talk to it."""

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
        """Raise if the cluster cannot tell the offset of a time: before 0.10.1 brokers know times of files only."""
        import asyncio

        from penstock.wire.api_keys import ApiKey

        async def ask() -> None:
            async with self.async_admin() as admin:
                connection = await admin.cluster.to_any()
                if not connection.supports(ApiKey.LIST_OFFSETS, _TIMES_SINCE):
                    raise Refused(
                        f"{connection.node} is too old to find records by their time.",
                        "Its records have no times. Use offsets: `penstock offsets` shows those there are.",
                    )

        asyncio.run(ask())

    def connecting(self, client_id: str) -> dict[str, Any]:
        """The options that every client takes."""
        return {
            "client_id": self.properties.get("client.id", client_id),
            "request_timeout_ms": self.request_timeout_ms,
            "connect_timeout_ms": min(10_000, self.request_timeout_ms),
            "ssl": self._ssl(),
        }

    def options_for(self, client_id: str, known: Iterable[str], given: Mapping[str, str]) -> dict[str, Any]:
        """Client options: those of the file, those that every client takes, and over both what is given by name."""
        names = {name: name.replace("_", ".") for name in known}
        by_property = {dotted: name for name, dotted in names.items()}
        unknown = [name for name in given if name not in by_property]
        if unknown:
            raise unknown_property(unknown[0], by_property)
        from penstock.cli.properties import property_value

        def values(properties: Mapping[str, str]) -> dict[str, Any]:
            return {
                by_property[name]: property_value(name, text)
                for name, text in properties.items()
                if name in by_property
            }

        return values(self.properties) | self.connecting(client_id) | values(given)

    def _ssl(self) -> ssl.SSLContext | None:
        from penstock.cli.properties import ssl_context

        return ssl_context(self.properties)


def unknown_property(name: str, known: Iterable[str]) -> CommandError:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return CommandError(
        f"A client has no property {name!r}.", f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
    )


def cluster_command(command: _Command) -> _Command:
    """A command about a cluster: it gets a `Cluster` first, the options that make it, and its errors told."""

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
        servers, properties = reached(bootstrap_server, profile, command_config, dict(command_property))
        given_timeout = click.get_current_context().get_parameter_source("request_timeout_ms")
        if given_timeout is not None and given_timeout.name == "DEFAULT":
            request_timeout_ms = _milliseconds(properties.get("request.timeout.ms"), request_timeout_ms)
        with errors_told():
            return command(*args, Cluster(servers, properties, request_timeout_ms), **params)

    for option in _OPTIONS:
        run = option(run)
    return run  # type: ignore[return-value]


def reached(
    server: str | None, profile: str | None, command_config: str | None, given: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Where the cluster is and its clients' properties, of all that may say so.

    The address is that of --bootstrap-server, else of PENSTOCK_BOOTSTRAP_SERVER unless --profile is given, else that of
    --command-config, else the profile's. The profile in use counts only where nothing else names a cluster.
    """
    from penstock.cli.properties import client_properties

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
        raise CommandError(f"request.timeout.ms is {text!r}.", "Give a number of milliseconds above 0.")
    return int(text)


_OPTIONS: Final = (
    click.option(
        "--request-timeout-ms", type=COUNT, default=30_000, show_default=True, metavar="MS",
        help="How long an answer is waited for.",
    ),
    click.option(
        "--command-property", type=Assignment(), multiple=True, help="One property more for the client.",
    ),
    click.option(
        "--command-config", metavar="FILE",
        help="Properties for the client, as Kafka has them: client.id, security.protocol, ssl.ca.location ...",
    ),
    click.option(
        "--profile", metavar="NAME", shell_complete=profile_names,
        help=f"A profile: `penstock profile`.  [env: {PROFILE_VARIABLE}; default: the one in use]",
    ),
    click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="Find the brokers through ZooKeeper instead."),
    click.option(
        "-b", "--bootstrap-server", "--bootstrap-servers", "--broker-list", "bootstrap_server",
        metavar="HOST:PORT,...",
        help=f"Where the cluster is.  [env: {SERVER_VARIABLE}; default: the profile's, else {DEFAULT_SERVER}]",
    ),
)  # fmt: skip


class Unreachable(CommandError):
    """No broker could be reached, or none answered in time."""

    exit_code = EXIT_UNREACHABLE
    code = "UNREACHABLE"


class Refused(CommandError):
    """A broker answered, and does not do what was asked for."""

    exit_code = EXIT_REFUSED
    code = "REJECTED"


@contextmanager
def errors_told() -> Iterator[None]:
    """Errors of the client library leave as what went wrong and what to do."""
    from penstock.client.errors import PenstockError

    try:
        yield
    except PenstockError as error:
        raise told(error) from None


def told(error: PenstockError) -> CommandError:
    """The error as the command line says it."""
    from penstock.client.errors import BootstrapError, BrokerError, ConfigError, MissingDependency, TimedOut
    from penstock.client.errors import NotConnected as Lost

    if isinstance(error, BootstrapError):
        return _unreachable(error)
    kind: type[CommandError] = Refused
    code = error.code.name if error.code is not None else None
    if isinstance(error, ConfigError):
        return CommandError(sentence(_in_properties(error.message)), sentence(advice_for(error)))
    if isinstance(error, MissingDependency):
        return CommandError(sentence(error.message), error.hint, code="MISSING_PACKAGE")
    if isinstance(error, TimedOut | Lost) and not isinstance(error, BrokerError):
        kind = Unreachable
    return kind(sentence(_message_of(error)), sentence(advice_for(error)), code=code)


def failure(error: PenstockError) -> dict[str, object]:
    """An error as it stands in a JSON document: code, message and hint."""
    return told(error).document()


def show_failures(errors: Iterable[PenstockError | CommandError], output_format: str) -> None:
    """What could not be done of several things, on standard error."""
    for error in errors:
        show_error(error if isinstance(error, CommandError) else told(error), as_json=output_format == JSON)


def _message_of(error: PenstockError) -> str:
    """What happened; of a topic that does not exist just that, whatever the broker calls it."""
    from penstock.client.errors import UnknownTopic

    if isinstance(error, UnknownTopic) and error.where.startswith("topic ") and " " not in error.where[6:]:
        return f"there is no topic {error.where[6:]!r} ({error.code.name})"
    return error.message


def _unreachable(error: BootstrapError) -> Unreachable:
    """Every address with its cause; the advice of the first."""
    lines = "; ".join(f"{attempt.address}: {attempt.detail}" for attempt in error.attempts)
    first = error.attempts[0]
    return Unreachable(f"No broker was found: {lines}.", sentence(BY_CAUSE.get(first.cause.name, first.hint)))


def advice_for(error: PenstockError) -> str:
    """What to do about it, in options instead of arguments; nothing where nothing is known to help."""
    from penstock.client.errors import ConfigError, UnknownBroker

    if error.code is not None and error.code.name in _BY_CODE:
        return _BY_CODE[error.code.name]
    if isinstance(error, ConfigError) and "bootstrap" in error.message:
        return "Write HOST:PORT, several as HOST:PORT,HOST:PORT"
    if error.hint:
        return _in_properties(error.hint)
    if isinstance(error, UnknownBroker):
        return "`penstock brokers` shows the brokers"
    helps = error.retriable or (error.code is not None and error.code.name in _DOCTOR_FINDS)
    return "Run `penstock doctor` to see whether the cluster is well" if helps else ""


def _in_properties(text: str) -> str:
    """Arguments of the Python clients by the names that properties have: linger_ms is linger.ms."""
    import re

    from penstock.cli.properties import consumer_options, producer_options

    known = producer_options() | consumer_options() | {"bootstrap_servers", "request_timeout_ms", "connect_timeout_ms"}
    return re.sub(
        r"\b[a-z]+(?:_[a-z]+)+\b", lambda word: word[0].replace("_", ".") if word[0] in known else word[0], text
    )


BY_CAUSE: Final = {
    "REFUSED": "Nothing listens there. `penstock up` runs a broker on this machine; another one is named with "
    "--bootstrap-server",
    "TLS_REQUIRED": "The port speaks TLS: put security.protocol=SSL into a file and name it with --command-config, or "
    "use the plaintext port",
    "TLS_REFUSED": "The port does not speak TLS: leave security.protocol=SSL out, or use the TLS port",
    "TLS_CERTIFICATE": "Name the authority with ssl.ca.location in the file of --command-config, and use the host name "
    "that the certificate has",
}
_BY_CODE: Final = {
    "TOPIC_ALREADY_EXISTS": "--if-not-exists accepts a topic that exists",
    "UNKNOWN_TOPIC_OR_PARTITION": "`penstock topics list` shows the topics",
    "UNKNOWN_TOPIC_ID": "`penstock topics list` shows the topics",
    "GROUP_ID_NOT_FOUND": "`penstock groups list` shows the groups",
    "UNSUPPORTED_VERSION": "`penstock brokers versions` shows what the brokers serve; this needs a newer one",
    "REQUEST_TIMED_OUT": "The broker may be overloaded or hung; --request-timeout-ms gives it more time",
    "OFFSET_OUT_OF_RANGE": "`penstock offsets` shows which offsets there are",
    "MESSAGE_TOO_LARGE": "Send less at once, compress, or raise max.message.bytes: "
    "penstock configs alter --topic TOPIC --set max.message.bytes=N",
    "NOT_ENOUGH_REPLICAS": "`penstock topics describe --under-min-isr` shows which brokers are missing; "
    "penstock configs alter --topic TOPIC --set min.insync.replicas=N asks for fewer",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "`penstock topics describe --under-min-isr` shows which brokers are missing",
    "UNSUPPORTED_COMPRESSION_TYPE": "The broker is too old for this codec: choose another --compression",
    "FENCED_INSTANCE_ID": "Give every running member a group.instance.id of its own",
}
_DOCTOR_FINDS: Final = frozenset(
    {"KAFKA_STORAGE_ERROR", "UNKNOWN_SERVER_ERROR", "BROKER_NOT_AVAILABLE", "CLUSTER_AUTHORIZATION_FAILED"}
)
