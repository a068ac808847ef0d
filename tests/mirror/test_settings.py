"""Settings of a mirror: names, values and files that are wrong, and what right ones mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.client.errors import ConfigError
from penstock.mirror import MirrorSettings

GOOD = {"source.live.bootstrap.servers": "a:1", "target.bootstrap.servers": "b:2"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target.bootstrap.servers": "b:2"}, "no source cluster is given"),
        ({"source.live.bootstrap.servers": "a:1"}, "target.bootstrap.servers is not set"),
        ({**GOOD, "source.live.bootstrap.servers": ""}, "source.live.bootstrap.servers is not set"),
        ({**GOOD, "topcis": "x"}, "no setting topcis.*Did you mean topics"),
        ({**GOOD, "source.live.securty.protocol": "SSL"}, "Did you mean source.live.security.protocol"),
        ({**GOOD, "source.a b.bootstrap.servers": "a:1"}, "'a b' is not a name of a source"),
        ({**GOOD, "mode": "copy"}, "mode is 'copy'; it can be own, same, mapped, shared"),
        ({**GOOD, "topics": "["}, "topics has '\\[', which is not a regular expression"),
        ({**GOOD, "topics": 5}, "topics is 5"),
        ({**GOOD, "shards": 0}, "shards is 0; it must be 1 or more"),
        ({**GOOD, "shards": "many"}, "shards is 'many', not a whole number"),
        ({**GOOD, "name": "a/b"}, "name is 'a/b'"),
        ({**GOOD, "rename": "{place}"}, "rename is '{place}'"),
        ({**GOOD, "rename": "{source}"}, "rename is '{source}'"),
        ({**GOOD, "target.security.protocol": "TLS"}, "TLS"),
        ({**GOOD, "target.request.timeout.ms": "soon"}, "target.request.timeout.ms is 'soon'"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MirrorSettings.of(given)


def test_a_file_of_toml_and_one_of_properties_mean_the_same(tmp_path: Path) -> None:
    toml, properties = tmp_path / "m.toml", tmp_path / "m.properties"
    toml.write_text(
        'name = "site"\ntopics = ["views.*", "clicks"]\n[source.live]\nbootstrap.servers = "a:1"\n'
        'exclude.topics = "views-test"\n[target]\nbootstrap.servers = ["b:2", "c:3"]\nrequest.timeout.ms = 500\n'
    )
    properties.write_text(
        "# a mirror\nname=site\ntopics=views.*, clicks\nsource.live.bootstrap.servers=a:1\n"
        "source.live.exclude.topics=views-test\ntarget.bootstrap.servers=b:2,c:3\ntarget.request.timeout.ms=500\n"
    )
    for path in (toml, properties):
        found = MirrorSettings.load(str(path), {"shards": 3})
        assert found.state_topic == "penstock.mirror.site"
        assert found.target.bootstrap_servers == "b:2,c:3"
        assert found.target.options["request_timeout_ms"] == 500
        assert found.number("shards") == 3
        [source] = found.sources
        wanted = ("views", "views-1", "clicks", "views-test", "other")
        assert [source.topics.match(topic) for topic in wanted] == [True, True, True, False, False]


@pytest.mark.parametrize("text", ["name = ", "[source", "\xff"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"m\.toml is not a TOML file"):
        MirrorSettings.load(str(path))
    with pytest.raises(ConfigError, match="cannot read"):
        MirrorSettings.load(str(tmp_path / "none.toml"))
    (tmp_path / "m.properties").write_text("only a name\n")
    with pytest.raises(ConfigError, match="line 1"):
        MirrorSettings.load(str(tmp_path / "m.properties"))


def test_security_is_that_of_the_clients_and_is_not_shown() -> None:
    found = MirrorSettings.of(
        {**GOOD, "target.security.protocol": "SASL_PLAINTEXT", "target.sasl.mechanism": "PLAIN",
         "target.sasl.username": "u", "target.sasl.password": "hidden"}
    )  # fmt: skip
    assert found.target.options["sasl_plain_username"] == "u"
    assert "hidden" not in repr(found)


def test_topics_get_their_names_in_the_target() -> None:
    assert MirrorSettings.of(GOOD).target_topic_of("live", "views") == "views"
    settings = MirrorSettings.of({**GOOD, "rename": "{source}.{topic}"})
    assert settings.target_topic_of("live", "views") == "live.views"
