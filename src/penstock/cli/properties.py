"""The file of --command-config: properties of a Kafka client.

Rule: one file serves all commands, so a property counts where it means something; one that no client has is refused,
with the nearest that there is. Of TLS the names of librdkafka are understood, and Kafka's own where the stores are PEM.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from penstock.cli.output import CommandError

_CONNECTION: Final = (
    "bootstrap.servers", "client.id", "request.timeout.ms", "security.protocol", "ssl.ca.location",
    "ssl.certificate.location", "ssl.endpoint.identification.algorithm", "ssl.key.location", "ssl.key.password",
    "ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.location", "ssl.truststore.type",
)  # fmt: skip
_PROTOCOLS: Final = ("PLAINTEXT", "SSL")


def client_properties(path: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """The properties of a file, if there is one, and those given besides, which override it."""
    from penstock.cli.cluster import unknown_property

    found = {**({} if path is None else _read(path)), **given}
    known = known_properties() if found else ()
    for name in found:
        if name not in known:
            raise unknown_property(name, known)
    return found


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
    return names - {"key", "value", "ssl", "interceptors", "partitioner", "start_timeout_ms"}


def consumer_options() -> set[str]:
    from penstock.client.consumer.settings import ConsumerOptions

    return set(ConsumerOptions.__annotations__) - {"ssl", "offset_store", "on_decode_error", "consumer_timeout_ms"}


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
