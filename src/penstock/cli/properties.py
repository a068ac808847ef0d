"""Properties of a Kafka client: those of --command-config, --producer-property and --consumer-property.

One file serves all commands, so a property counts where it means something. One that no client has is rejected, with
the nearest that there is; so is a value of the wrong kind, by the name of its property, before anything is tried. What
kind a value is of is read from the annotations of the Python clients. Of TLS the names of librdkafka are understood,
and Kafka's own where the stores are PEM.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

from penstock.cli.output import CommandError

_CONNECTION: Final = (
    "bootstrap.servers", "client.id", "request.timeout.ms", "security.protocol", "ssl.ca.location",
    "ssl.certificate.location", "ssl.endpoint.identification.algorithm", "ssl.key.location", "ssl.key.password",
    "ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.location", "ssl.truststore.type",
)  # fmt: skip
_COMPRESSION: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL")


def client_properties(path: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """The properties of a file, if there is one, and those given besides, which override it."""
    from penstock.cli.cluster import unknown_property

    found = {**({} if path is None else _read(path)), **given}
    known = known_properties() if found else ()
    for name, text in found.items():
        if name not in known:
            raise unknown_property(name, known)
        property_value(name, text)
    return found


def property_value(name: str, text: str) -> Any:
    """The value of a property as the Python clients take it; CommandError names the property whose value is wrong."""
    kinds = _kinds().get(name, (str,))
    if name == "partition.assignment.strategy":
        return _assignors(name, text)
    choices = [*_COMPRESSION] if name == "compression.type" else []
    choices += [str(each) for kind in kinds if get_origin(kind) is Literal for each in get_args(kind)]
    if choices:
        if text not in choices:
            raise CommandError(f"{name} is {text!r}.", f"It can be {_listed(list(dict.fromkeys(choices)))}.")
        return text
    if bool in kinds:
        if text.lower() not in ("true", "false"):
            raise CommandError(f"{name} is {text!r}.", "It can be true or false.")
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
        advice = f"It can be one or more of {', '.join(BUILT_IN)}, separated by commas."
        raise CommandError(f"{name} is {text!r}.", advice) from None
    return names


def _number(name: str, text: str, *, is_whole: bool) -> float:
    try:
        number = int(text) if is_whole or text.lstrip("-").isdigit() else float(text)
    except ValueError:
        kind = "a whole number" if is_whole else "a number"
        unit = " of milliseconds" if name.endswith(".ms") else ""
        raise CommandError(f"{name} is {text!r}.", f"Give {kind}{unit}.") from None
    least = 1 if name.endswith("timeout.ms") else 0
    if name != "compression.level" and not least <= number < float("inf"):
        raise CommandError(f"{name} is {text}.", f"It must be {least} or more.")
    return number


def _listed(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@functools.cache
def _kinds() -> dict[str, tuple[Any, ...]]:
    """Property to the types that the clients' options of that name take."""
    from typing import get_type_hints

    from penstock.client.consumer.settings import ConsumerOptions
    from penstock.client.producer.producer import Producer

    hints = {**get_type_hints(ConsumerOptions), **get_type_hints(Producer.__init__)}
    names = producer_options() | consumer_options()
    return {
        name.replace("_", "."): get_args(hint) if get_origin(hint) not in (None, Literal) else (hint,)
        for name, hint in hints.items()
        if name in names
    }


def _read(path: str) -> dict[str, str]:
    from penstock.broker.settings.errors import UnreadableFile
    from penstock.broker.settings.properties_file import read_properties

    try:
        parsed = read_properties(path)
    except UnreadableFile as error:
        raise CommandError(f"{error}.", "Give a file of NAME=VALUE lines with --command-config.") from None
    if parsed.problems:
        raise CommandError(f"{parsed.problems[0]}.", "Correct that line.")
    return {item.name: item.value.strip() for item in parsed.properties}


def known_properties() -> list[str]:
    """What any client can be told."""
    return sorted({*_CONNECTION, *(name.replace("_", ".") for name in producer_options() | consumer_options())})


def producer_options() -> set[str]:
    from inspect import Parameter, signature

    from penstock.client.producer.producer import Producer

    parameters = signature(Producer.__init__).parameters.values()
    names = {each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    return names - {
        "key", "value", "ssl", "interceptors", "partitioner", "start_timeout_ms", "on_statistics",
        "statistics_interval_ms",
    }  # fmt: skip


def consumer_options() -> set[str]:
    from penstock.client.consumer.settings import ConsumerOptions

    return set(ConsumerOptions.__annotations__) - {
        "ssl", "offset_store", "on_decode_error", "consumer_timeout_ms", "on_statistics", "statistics_interval_ms",
    }  # fmt: skip


def ssl_context(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """What security.protocol and ssl.* ask for; None is plaintext."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise CommandError(
            f"security.protocol is {protocol}, which is not supported.", f"It can be {' or '.join(_PROTOCOLS)}."
        )
    if protocol == "PLAINTEXT":
        return None
    for store in ("ssl.truststore", "ssl.keystore"):
        if f"{store}.location" in properties and properties.get(f"{store}.type", "PEM").upper() != "PEM":
            raise CommandError(f"{store}.type is {properties[f'{store}.type']}.", "Only PEM files can be read.")
    authority = properties.get("ssl.ca.location", properties.get("ssl.truststore.location"))
    certificate = properties.get("ssl.certificate.location", properties.get("ssl.keystore.location"))
    key = properties.get("ssl.key.location")
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key, properties.get("ssl.key.password"))
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(path for path in (authority, certificate, key) if path)
        raise CommandError(
            f"The TLS files ({named}) cannot be used: {error.strerror or error}.",
            "ssl.ca.location, ssl.certificate.location and ssl.key.location name PEM files.",
        ) from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
        context.check_hostname = False
    return context
