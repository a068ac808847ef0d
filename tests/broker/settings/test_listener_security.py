"""Security settings of listeners: what applies to which, and what is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.settings import (
    BrokerSettings,
    InvalidSettings,
    Source,
    check_changeable,
    describe_broker,
    settings_from,
)
from penstock.broker.settings.broker_settings import Given, listener_security
from penstock.broker.settings.listener_security import ListenerSecurity
from penstock.security.credentials import format_jaas

PLAIN = format_jaas("PLAIN", {"user_alice": "hunter2"})


def load(**changes: str) -> BrokerSettings:
    return settings_from({name.replace("__", "."): value for name, value in changes.items()})


def security(settings: BrokerSettings, name: str) -> ListenerSecurity:
    return settings.security(next(each for each in settings.listeners if each.name == name))


def test_a_listener_overrides_a_setting_and_a_mechanism_overrides_the_listener() -> None:
    settings = load(
        listeners="SASL_PLAINTEXT://:1,OTHER://:2",
        listener__security__protocol__map="SASL_PLAINTEXT:SASL_PLAINTEXT,OTHER:SASL_PLAINTEXT",
        sasl__enabled__mechanisms="PLAIN",
        sasl__jaas__config=PLAIN,
        connections__max__reauth__ms="1",
        listener__name__other__connections__max__reauth__ms="2",
        listener__name__other__plain__connections__max__reauth__ms="3",
        listener__name__OTHER__sasl__enabled__mechanisms="plain",
    )
    name = "connections.max.reauth.ms"
    first, other = security(settings, "SASL_PLAINTEXT"), security(settings, "OTHER")
    assert (first.value(name), first.value(name, "PLAIN")) == (1, 1)
    assert (other.value(name), other.value(name, "PLAIN"), other.value(name, "OAUTHBEARER")) == (2, 3, 2)
    assert other.mechanisms == ("PLAIN",)
    assert "hunter2" not in f"{first!r} {settings!r}"


def test_values_of_one_listener_are_checked_like_those_of_all() -> None:
    assert "none, requested, required" in invalid(listener__name__x__ssl__client__auth="perhaps")


def test_certificates_of_clients_that_log_in_are_wanted_only_by_their_own_listener() -> None:
    base = {
        "listeners": "SASL_SSL://:1,SSL://:2",
        "sasl__enabled__mechanisms": "PLAIN",
        "sasl__jaas__config": PLAIN,
        "ssl__keystore__location": "/broker.pem",
        "ssl__client__auth": "required",
    }
    settings = load(**base)
    assert security(settings, "SSL").tls()["ssl.client.auth"] == "required"
    assert security(settings, "SASL_SSL").tls()["ssl.client.auth"] == "none"
    own = load(**base, listener__name__sasl_ssl__ssl__client__auth="requested")
    assert security(own, "SASL_SSL").tls()["ssl.client.auth"] == "requested"


@pytest.mark.parametrize(
    "name",
    [
        "sasl.jaas.config",
        "sasl.oauthbearer.jwks.endpoint.url",
        "listener.name.plaintext.ssl.keystore.location",
        "LISTENER.NAME.x.scram-sha-512.sasl.jaas.config",
        "listener.name.x.sasl.oauthbearer.token.endpoint.url",
    ],
)
def test_credentials_and_urls_cannot_be_changed_by_a_request(name: str) -> None:
    """The classes of CVE-2025-27817 and CVE-2025-27818, on brokers."""
    assert "restart" in (check_changeable(name) or "")
    settings = settings_from({})
    with pytest.raises(InvalidSettings, match="cannot be changed"):
        settings.with_changes({name: "com.evil.Module required;"})


def test_security_settings_in_the_dynamic_layers_of_a_tree_do_not_count() -> None:
    settings = settings_from({})
    name = "listener.name.plaintext.sasl.jaas.config"
    planted = Given(name, PLAIN, PLAIN, Source.DYNAMIC_BROKER, "tree")
    layers = settings.layers.with_dynamic({name: planted}, cluster_wide=False)
    assert name not in listener_security(layers, settings.listeners[0]).given


def test_secrets_are_not_described() -> None:
    settings = load(sasl__jaas__config=PLAIN, ssl__key__password="hunter2")
    rows = {row.name: row for row in describe_broker(settings)}
    assert rows["sasl.jaas.config"].value is rows["ssl.key.password"].value is None
    assert rows["sasl.jaas.config"].is_sensitive
    assert rows["ssl.client.auth"].source is Source.DEFAULT


def test_brokers_use_the_listener_of_a_protocol_or_a_name() -> None:
    base = {
        "listeners": "PLAINTEXT://:1,SASL_PLAINTEXT://:2",
        "sasl__enabled__mechanisms": "PLAIN",
        "sasl__jaas__config": PLAIN,
    }
    assert load(**base).inter_broker_listener.name == "PLAINTEXT"
    chosen = load(**base, security__inter__broker__protocol="SASL_PLAINTEXT")
    assert chosen.inter_broker_listener.name == "SASL_PLAINTEXT"
    both = invalid(
        **base, security__inter__broker__protocol="SASL_PLAINTEXT", inter__broker__listener__name="PLAINTEXT"
    )
    assert "set only one of the two" in both


def invalid(**changes: str) -> str:
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    with pytest.raises(InvalidSettings) as raised:
        settings_from({"log.dirs": "/tmp/x", **settings})
    return str(raised.value)


def test_a_secure_listener_without_its_settings_is_rejected() -> None:
    assert "ssl.keystore.location: listener SSL uses TLS and needs a certificate" in invalid(listeners="SSL://:1")
    assert "sasl.enabled.mechanisms: listener SASL_PLAINTEXT uses SASL" in invalid(listeners="SASL_PLAINTEXT://:1")
    text = invalid(listeners="SASL_PLAINTEXT://:1", sasl__enabled__mechanisms="GSSAPI")
    assert "'GSSAPI' is not supported; supported: PLAIN, SCRAM-SHA-256" in text
    text = invalid(listeners="SASL_PLAINTEXT://:1", sasl__enabled__mechanisms="PLAIN")
    assert "listener.name.sasl_plaintext.plain.sasl.jaas.config: PLAIN has no users" in text
    text = invalid(listeners="SASL_PLAINTEXT://:1", sasl__enabled__mechanisms="OAUTHBEARER")
    assert "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url" in text
    text = invalid(
        listeners="SASL_PLAINTEXT://:1",
        sasl__enabled__mechanisms="SCRAM-SHA-256",
        zookeeper__connect="z:1",
    )
    assert "sasl.mechanism.inter.broker.protocol: brokers use listener SASL_PLAINTEXT; set it to one of" in text


def test_errors_about_settings_do_not_show_secrets(tmp_path: Path) -> None:
    text = invalid(
        listeners="SASL_PLAINTEXT://:1",
        sasl__enabled__mechanisms="PLAIN",
        sasl__jaas__config='com.evil.Module required password="hunter2";',
    )
    assert "com.evil.Module" in text
    assert "hunter2" not in text
