"""Who may read metrics: this machine, and others with a token or a password."""

from __future__ import annotations

import base64
import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penstock.broker.http import HttpCredentials, HttpRequest
from penstock.broker.settings import settings_from
from penstock.config_def import InvalidSettings
from penstock.testing import Broker

TOKEN = "a-long-token-that-nobody-guesses"
PASSWORD = "pässword:with:colons"
OTHERS = ("10.0.0.1", "192.168.1.7", "2001:db8::1", "", "nonsense", "::ffff:10.0.0.1")


def asked(**headers: str) -> HttpRequest:
    return HttpRequest("GET", "/metrics", "", 1, {name.replace("_", "-"): value for name, value in headers.items()})


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_needs_no_credentials_unless_it_passes_a_request_on(peer: str) -> None:
    credentials = HttpCredentials(TOKEN)
    assert credentials.trusts(asked(), peer)
    for header in ("x_forwarded_for", "forwarded", "via", "x_real_ip"):
        assert not credentials.trusts(asked(**{header: "10.0.0.1"}), peer)


@pytest.mark.parametrize("peer", OTHERS)
def test_other_machines_need_the_token_or_the_password(peer: str) -> None:
    credentials = HttpCredentials(TOKEN, "prometheus", PASSWORD)
    assert credentials.trusts(asked(authorization=f"Bearer {TOKEN}"), peer)
    assert credentials.trusts(asked(authorization=f"bearer  {TOKEN} "), peer)
    assert credentials.trusts(asked(authorization=basic("prometheus", PASSWORD)), peer)


@pytest.mark.parametrize(
    "header",
    [
        "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}", "Basic !!!",
        "Basic " + "A" * 100_000, basic("prometheus", "wrong"), basic("other", PASSWORD), basic("", ""),
        basic("prometheus", ""), "Digest x", f"Bearer prometheus:{PASSWORD}", "Bearer \udcff",
    ],
)  # fmt: skip
def test_whatever_else_is_shown_is_not_enough(header: str) -> None:
    assert not HttpCredentials(TOKEN, "prometheus", PASSWORD).trusts(asked(authorization=header), "10.0.0.1")


def test_without_credentials_other_machines_are_not_trusted_unless_all_are() -> None:
    for header in ("", "Bearer ", "Bearer None", basic("None", "None"), basic("", "")):
        assert not HttpCredentials().trusts(asked(authorization=header), "10.0.0.1")
        assert not HttpCredentials(user="u").trusts(asked(authorization=header), "10.0.0.1")
        assert not HttpCredentials("").trusts(asked(authorization=header), "10.0.0.1")
    assert HttpCredentials(allow_anonymous=True).trusts(asked(), "10.0.0.1")


def test_secrets_are_in_no_representation() -> None:
    text = {
        "log.dirs": "/d",
        "penstock.http.token": TOKEN,
        "penstock.http.user": "u",
        "penstock.http.password": "s3cret",
    }
    settings = settings_from(text)
    assert TOKEN not in repr(settings)
    assert "s3cret" not in repr(settings)
    assert TOKEN not in repr(vars(HttpCredentials(TOKEN)))


@pytest.mark.parametrize("name", ["user", "password"])
def test_a_user_needs_a_password_and_the_other_way_round(name: str) -> None:
    with pytest.raises(InvalidSettings, match=r"needs penstock\.http\.password"):
        settings_from({"log.dirs": "/d", f"penstock.http.{name}": "x"})


def test_a_broker_serves_its_state_to_all_and_the_rest_to_those_it_knows(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = str(tmp_path_factory.mktemp("data"))
    with Broker(folder, http_port=0, settings={"penstock.http.token": TOKEN}) as broker:
        port = broker.broker.http_port

        def get(path: str, **headers: str) -> tuple[int, str, str]:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            try:
                with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=named)) as answer:
                    return answer.status, answer.read().decode(), ""
            except HTTPError as error:
                return error.code, error.read().decode(), error.headers.get("WWW-Authenticate", "")

        forwarded = {"X_Forwarded_For": "10.0.0.1"}
        assert get("/metrics")[0] == 200
        status, text, challenge = get("/metrics", **forwarded)
        assert status == 401
        assert "penstock.http.token" in text
        assert challenge.startswith("Bearer")
        assert get("/metrics", **forwarded, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get("/nowhere", **forwarded)[0] == 401
        status, text, _ = get("/health", **forwarded)
        assert (status, json.loads(text)) == (200, {"status": "ok"})
        assert "version" in json.loads(get("/health")[1])
        assert get("/metrics", Host="evil.example", Authorization=f"Bearer {TOKEN}")[0] == 421
