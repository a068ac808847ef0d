"""Listeners: what is bound, what is advertised, and what is said when that cannot work."""

from __future__ import annotations

import pytest

from penstock.broker.settings import BrokerSettings, InvalidSettings, Listener, settings_from
from penstock.broker.settings.listeners import unreachable_hosts, with_bound_ports


def load(**values: str) -> BrokerSettings:
    names = {name.replace("_", "."): value for name, value in values.items()}
    return settings_from(names, host_name=lambda: "machine.example")


def plaintext(host: str, port: int) -> Listener:
    return Listener("PLAINTEXT", "PLAINTEXT", host, port)


@pytest.mark.parametrize(
    ("text", "bound", "advertised"),
    [
        ("PLAINTEXT://:9092", plaintext("", 9092), plaintext("machine.example", 9092)),
        ("PLAINTEXT://0.0.0.0:9092", plaintext("0.0.0.0", 9092), plaintext("machine.example", 9092)),
        ("PLAINTEXT://[::]:9092", plaintext("::", 9092), plaintext("machine.example", 9092)),
        ("plaintext://Host_1-a.b:1", plaintext("Host_1-a.b", 1), plaintext("Host_1-a.b", 1)),
        ("PLAINTEXT://127.0.0.1:65535", plaintext("127.0.0.1", 65535), plaintext("127.0.0.1", 65535)),
        ("PLAINTEXT://[fe80::1%eth0]:9092", plaintext("fe80::1%eth0", 9092), plaintext("fe80::1%eth0", 9092)),
        ("PLAINTEXT://::1:9092", plaintext("::1", 9092), plaintext("::1", 9092)),
        ("PLAINTEXT://:0", plaintext("", 0), plaintext("machine.example", 0)),
    ],
)
def test_a_listener_is_bound_and_advertised(text: str, bound: Listener, advertised: Listener) -> None:
    settings = load(listeners=text)
    assert settings.listeners == (bound,)
    assert settings.advertised_listeners == (advertised,)


def test_the_default_is_port_9092_on_all_addresses() -> None:
    settings = load()
    assert settings.listeners == (plaintext("", 9092),)
    assert settings.advertised_listeners == (plaintext("machine.example", 9092),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no listener"),
        ("localhost:9092", "NAME://host:port"),
        ("PLAINTEXT://localhost", "NAME://host:port"),
        ("PLAINTEXT://localhost:port", "NAME://host:port"),
        ("PLAINTEXT://a:b:9092", "NAME://host:port"),
        ("PLAINTEXT:/localhost:9092", "NAME://host:port"),
        ("PLAINTEXT://localhost:9092/path", "NAME://host:port"),
        ("://localhost:9092", "a listener's name"),
        ("PLAIN TEXT://localhost:9092", "a listener's name"),
        ("PLAINTEXT://lo calhost:9092", "is not a host"),
        ("PLAINTEXT://h\u00f6st:9092", "is not a host"),
        ("PLAINTEXT://localhost:65536", "0 to 65535"),
        ("PLAINTEXT://localhost:-1", "0 to 65535"),
        ("PLAINTEXT://a:1,", "NAME://host:port"),
        ("PLAINTEXT://a:1,plaintext://b:2", "two listeners are named PLAINTEXT"),
        ("OTHER://a:1", "add OTHER:PLAINTEXT to listener.security.protocol.map"),
        ("PLAINTEXT://" + ":" * 50_000, "NAME://host:port"),
    ],
)
def test_a_bad_listener_is_rejected_with_what_to_write(text: str, words: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(listeners=text)
    (problem,) = caught.value.problems
    assert problem.name == "listeners"
    assert words in problem.reason
    assert len(problem.reason) < 500


def test_two_listeners_may_share_a_port_only_on_different_addresses() -> None:
    protocols = "A:PLAINTEXT,B:PLAINTEXT"
    load(listeners="A://10.0.0.1:9092,B://10.0.0.2:9092", listener_security_protocol_map=protocols)
    load(listeners="A://:0,B://:0", listener_security_protocol_map=protocols)
    for other in ("B://:9092", "B://10.0.0.1:9092"):
        with pytest.raises(InvalidSettings, match="same port"):
            load(listeners=f"A://10.0.0.1:9092,{other}", listener_security_protocol_map=protocols)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"])
def test_all_addresses_cannot_be_advertised(host: str) -> None:
    with pytest.raises(InvalidSettings, match="write a host name or an address") as caught:
        load(listeners="PLAINTEXT://:9092", advertised_listeners=f"PLAINTEXT://{host}:9092")
    assert caught.value.problems[0].name == "advertised.listeners"


def test_what_is_advertised_must_be_listened_on() -> None:
    protocols = "PLAINTEXT:PLAINTEXT,B:PLAINTEXT"
    with pytest.raises(InvalidSettings, match="listeners has no B"):
        load(listener_security_protocol_map=protocols, advertised_listeners="B://b.example:9092")


def test_clients_and_brokers_can_get_different_addresses() -> None:
    settings = load(
        listeners="INSIDE://10.0.0.5:9092,OUTSIDE://0.0.0.0:19092",
        advertised_listeners="INSIDE://10.0.0.5:9092,OUTSIDE://kafka.example.com:443",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        inter_broker_listener_name="inside",
    )
    assert [str(each) for each in settings.advertised_listeners] == [
        "INSIDE://10.0.0.5:9092",
        "OUTSIDE://kafka.example.com:443",
    ]
    assert settings.inter_broker_listener.name == "INSIDE"


def test_brokers_need_a_listener_that_is_advertised() -> None:
    with pytest.raises(InvalidSettings, match="one of PLAINTEXT"):
        load(inter_broker_listener_name="INSIDE")


def test_what_is_left_out_of_an_advertised_listener_is_taken_from_the_listener() -> None:
    settings = load(listeners="PLAINTEXT://10.0.0.5:7000", advertised_listeners="PLAINTEXT://:8000")
    assert settings.advertised_listeners == (plaintext("10.0.0.5", 8000),)
    settings = load(listeners="PLAINTEXT://:7000", advertised_listeners="PLAINTEXT://public.example:0")
    assert settings.advertised_listeners == (plaintext("public.example", 7000),)


def test_a_free_port_is_advertised_once_it_is_known() -> None:
    settings = load(listeners="PLAINTEXT://:0")
    assert with_bound_ports(settings.advertised_listeners, {"PLAINTEXT": 40123}) == (
        plaintext("machine.example", 40123),
    )
    assert with_bound_ports(load().advertised_listeners, {"PLAINTEXT": 1})[0].port == 9092


@pytest.mark.parametrize("text", ["A", "A:", "A:TLS", ":PLAINTEXT", "A:PLAINTEXT,a:SSL", "A B:PLAINTEXT"])
def test_a_bad_map_of_protocols_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(listener_security_protocol_map=text)
    assert caught.value.problems[0].name == "listener.security.protocol.map"


def test_listeners_of_a_metadata_quorum_are_left_out() -> None:
    settings = load(
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        controller_listener_names="CONTROLLER",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    )
    assert settings.listeners == (plaintext("", 9092),)
    assert settings.advertised_listeners == (plaintext("localhost", 9092),)


def test_an_advertised_host_without_an_address_is_worth_a_word() -> None:
    def resolve(host: str, port: int) -> object:
        if host == "known":
            return port
        raise OSError("no such name")

    assert unreachable_hosts([plaintext("known", 1)], resolve) == []
    (doubt,) = unreachable_hosts([plaintext("unknown", 1)], resolve)
    assert "unknown" in doubt
    assert "advertised.listeners" in doubt


@pytest.mark.parametrize(
    ("proxied", "reason"),
    [("OTHER", "'OTHER' is not advertised; it must be one of ONE, PLAINTEXT"), ("plaintext", "add another listener")],
)
def test_a_proxied_listener_is_advertised_and_not_that_of_brokers(proxied: str, reason: str) -> None:
    listeners = {
        "listeners": "PLAINTEXT://:9092,ONE://:9095",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,ONE:PLAINTEXT",
    }
    with pytest.raises(InvalidSettings, match=reason) as caught:
        load(**listeners, penstock_proxy_listeners=proxied)
    assert caught.value.problems[0].name == "penstock.proxy.listeners"
    assert load(**listeners, penstock_proxy_listeners="one").penstock_proxy_listeners == {"ONE"}
