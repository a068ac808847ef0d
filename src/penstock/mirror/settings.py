"""The settings of a mirror: dotted names, from a TOML or properties file, a mapping, or the command line.

    name = "offline"
    topics = ["views.*", "clicks"]        # regular expressions for whole names; a text with commas, too
    exclude.topics = "views-test"
    [source.live]                         # `live` is the alias of the source
    bootstrap.servers = "live:9092"
    security.protocol = "SASL_SSL"        # and all other security properties of the clients
    [target]
    bootstrap.servers = "offline:9092"

A table of TOML and a dotted name mean the same. Names are checked, so that a misspelt one is not ignored.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from penstock.client.addresses import parse_bootstrap
from penstock.client.errors import ConfigError
from penstock.client.settings import SASL_PROPERTIES, SSL_PROPERTIES, ClientSettings, options_from_properties

STATE_PREFIX: Final = "penstock.mirror."
"""The state topic of a mirror is this and its name. No mirror copies such topics."""
OWN: Final = "own"
SAME: Final = "same"
MAPPED: Final = "mapped"
SHARED: Final = "shared"
MODES: Final = (OWN, SAME, MAPPED, SHARED)

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
_TIMES: Final = ("request.timeout.ms", "connect.timeout.ms")
_OF_CLUSTERS: Final = frozenset(
    {"bootstrap.servers", "client.id", "security.protocol", *_TIMES, *SASL_PROPERTIES, *SSL_PROPERTIES}
)
_OF_SOURCES: Final = frozenset({"topics", "exclude.topics"})
_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {  # default and least
    "shards": (8, 1),
    "replication.factor": (-1, -1),
    "refresh.interval.ms": (5_000, 10),
    "groups.interval.ms": (5_000, 10),
    "session.timeout.ms": (10_000, 100),
    "max.bytes.per.second": (0, 0),
    "max.gap.offsets": (10_000, 0),
    "max.padding.offsets": (1_000_000_000, 0),
    "transaction.max.bytes": (16 * 1024 * 1024, 1),
    "transaction.interval.ms": (100, 0),
    "fetch.max.bytes": (1024 * 1024, 1),
}
_TEXTS: Final[Mapping[str, str]] = {"name": "mirror", "mode": OWN, "rename": "{topic}"}
_LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "topics": (".*",),
    "exclude.topics": (),
    "groups": (".*",),
    "exclude.groups": (),
}


class Patterns:
    """Names that one of some regular expressions matches as a whole, and none of others."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str], what: str) -> None:
        self._include = [_compiled(text, what) for text in include]
        self._exclude = [_compiled(text, f"exclude.{what}") for text in exclude]

    def match(self, name: str) -> bool:
        """Whether the name is wanted."""
        return any(each.fullmatch(name) for each in self._include) and not any(
            each.fullmatch(name) for each in self._exclude
        )


def _compiled(text: str, what: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{what} has {text!r}, which is not a regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a cluster is reached."""

    bootstrap_servers: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """A source cluster, and which of its topics are mirrored."""

    alias: str
    cluster: ClusterSettings
    topics: Patterns


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """All settings of a mirror. `of` makes them from names and values, `load` from a file."""

    sources: tuple[SourceSettings, ...]
    target: ClusterSettings
    groups: Patterns
    name: str
    mode: str
    target_topic: str
    numbers: Mapping[str, int]

    @property
    def state_topic(self) -> str:
        """The topic in the target that holds positions and what was decided about topics."""
        return STATE_PREFIX + self.name

    def number(self, name: str) -> int:
        """A number by its name in the file, such as `shards`."""
        return self.numbers[name]

    def target_topic_of(self, alias: str, topic: str) -> str:
        """The name of a source's topic in the target."""
        return self.target_topic.format(source=alias, topic=topic)

    @classmethod
    def load(cls, path: str, overrides: Mapping[str, Any] | None = None) -> MirrorSettings:
        """From a .toml file, or from properties. Raises ConfigError, which names the file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            values = flattened(tomllib.loads(text)) if path.endswith(".toml") else _properties(text)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not a TOML file: {error}") from None
        return cls.of({**values, **(overrides or {})})

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> MirrorSettings:
        """From dotted names; nested mappings are flattened. Raises ConfigError."""
        values = flattened(given)
        _check_names(values)
        texts = {name: str(values.get(name, default)) for name, default in _TEXTS.items()}
        if not _NAME.fullmatch(texts["name"]):
            raise ConfigError(f"name is {texts['name']!r}", hint="Use up to 100 letters, digits, dots, - and _")
        if texts["mode"] not in MODES:
            raise ConfigError(f"mode is {texts['mode']!r}; it can be {', '.join(MODES)}")
        _check_template(texts["rename"])
        aliases = sorted({name.split(".")[1] for name in values if name.startswith("source.")})
        if not aliases:
            raise ConfigError("no source cluster is given", hint="Set source.NAME.bootstrap.servers")
        groups = Patterns(_list(values, "groups"), _list(values, "exclude.groups"), "groups")
        return cls(
            sources=tuple(_source(alias, values) for alias in aliases),
            target=_cluster("target", _within(values, "target.")),
            groups=groups,
            name=texts["name"],
            mode=texts["mode"],
            target_topic=texts["rename"],
            numbers={name: _number(values, name) for name in _NUMBERS},
        )


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(flattened(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found


def _properties(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            raise ConfigError(f"line {number} is {stripped!r}", hint="Write name=value")
        found[name.strip()] = value.strip()
    return found


def _check_names(values: Mapping[str, Any]) -> None:
    known = {*_TEXTS, *_LISTS, *_NUMBERS, *(f"target.{name}" for name in _OF_CLUSTERS)}
    for name in values:
        if name in known:
            continue
        parts = name.split(".", 2)
        if parts[0] == "source" and len(parts) == 3 and parts[2] in _OF_CLUSTERS | _OF_SOURCES:
            if not _ALIAS.fullmatch(parts[1]):
                raise ConfigError(f"{parts[1]!r} is not a name of a source", hint="Use letters, digits, - and _")
            continue
        candidates = known | {f"source.{parts[1]}.{each}" for each in _OF_CLUSTERS | _OF_SOURCES if len(parts) > 1}
        near = get_close_matches(name, candidates, n=1)
        raise ConfigError(f"a mirror has no setting {name}", hint=f"Did you mean {near[0]}?" if near else None)


def _check_template(template: str) -> None:
    try:
        shown = template.format(source="s", topic="t")
    except (KeyError, IndexError, ValueError):
        shown = ""
    if not shown or ("{topic}" not in template and template != shown):
        raise ConfigError(f"rename is {template!r}", hint="Write a name with {topic} and {source} in it")


def _within(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def _source(alias: str, values: Mapping[str, Any]) -> SourceSettings:
    own = _within(values, f"source.{alias}.")
    topics = Patterns(
        _list(own, "topics", _list(values, "topics")),
        _list(own, "exclude.topics", _list(values, "exclude.topics")),
        "topics",
    )
    return SourceSettings(alias, _cluster(f"source.{alias}", own), topics)


def _cluster(where: str, values: Mapping[str, Any]) -> ClusterSettings:
    servers = values.get("bootstrap.servers")
    if isinstance(servers, list):
        servers = ",".join(map(str, servers))
    if not servers:
        raise ConfigError(f"{where}.bootstrap.servers is not set", hint="Give the addresses of brokers: HOST:PORT")
    parse_bootstrap(str(servers))
    properties = {name: str(value) for name, value in values.items()}
    options = options_from_properties(properties)
    options["client_id"] = properties.get("client.id", "penstock-mirror")
    for name in _TIMES:
        if name in properties:
            options[name.replace(".", "_")] = _whole(f"{where}.{name}", properties[name], 1)
    ClientSettings(**options).security()  # raises for what does not fit together
    return ClusterSettings(str(servers), options)


def _list(values: Mapping[str, Any], name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
    value = values.get(name)
    if value is None:
        return _LISTS[name] if default is None else default
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(each, str) for each in items):
        raise ConfigError(f"{name} is {value!r}", hint="Give one or more regular expressions")
    return tuple(each.strip() for each in items if each.strip())


def _number(values: Mapping[str, Any], name: str) -> int:
    default, least = _NUMBERS[name]
    return _whole(name, values.get(name, default), least)


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {value!r}, not a whole number") from None
    if isinstance(value, bool) or number < least:
        raise ConfigError(f"{name} is {value}; it must be {least} or more")
    return number
