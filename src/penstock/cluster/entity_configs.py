"""The settings of users, client ids and addresses: SCRAM credentials and quotas, as Kafka stores them. Pure.

An entity is a user, a client id, a user with a client id, or an address; `DEFAULT` in place of a name stands for all
that have no settings of their own. The documents are at /config/users/<user>, /config/users/<user>/clients/<client>,
/config/clients/<client> and /config/ips/<address>, where names are URL-encoded and the default is "<default>".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

Settings = Mapping[str, str]

DEFAULT: Final = "<default>"
CONFIG: Final = "/config"
USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
ENTITY_KINDS: Final = (USERS, CLIENTS, IPS)


class Entity(NamedTuple):
    """A user, a client id, a user with a client id, or an address. At least one field is set; an address only alone."""

    user: str | None = None
    client: str | None = None
    ip: str | None = None

    def __str__(self) -> str:
        names = zip(("user", "client-id", "ip"), self, strict=True)
        return ", ".join(f"{kind}={name}" for kind, name in names if name is not None)

    @property
    def path(self) -> str:
        parts = [CONFIG]
        if self.ip is not None:
            parts += [IPS, _encoded(self.ip)]
        if self.user is not None:
            parts += [USERS, _encoded(self.user)]
        if self.client is not None:
            parts += [CLIENTS, _encoded(self.client)]
        return "/".join(parts)


def entity_at(path: str) -> Entity | None:
    """The entity whose document is at this path; None if it is something else's."""
    match path.split("/")[1:]:
        case ["config", "users", user]:
            return Entity(user=_decoded(user))
        case ["config", "users", user, "clients", client]:
            return Entity(_decoded(user), _decoded(client))
        case ["config", "clients", client]:
            return Entity(client=_decoded(client))
        case ["config", "ips", ip]:
            return Entity(ip=_decoded(ip))
        case _:
            return None


def _encoded(name: str) -> str:
    """The name as Kafka's Sanitizer encodes it."""
    return DEFAULT if name == DEFAULT else quote(name, safe="").replace("~", "%7E")


def _decoded(name: str) -> str:
    return DEFAULT if name == DEFAULT else unquote(name)


class EntityConfigs:
    """The settings of all entities. It never changes; `with_changes` returns another."""

    __slots__ = ("_configs", "clients", "ips", "user_clients", "users")

    def __init__(self, configs: Mapping[Entity, Settings]) -> None:
        self._configs = configs
        self.users: dict[str, Settings] = {}
        self.clients: dict[str, Settings] = {}
        self.user_clients: dict[tuple[str, str], Settings] = {}
        self.ips: dict[str, Settings] = {}
        for (user, client, ip), settings in configs.items():
            if ip is not None:
                self.ips[ip] = settings
            elif user is not None and client is not None:
                self.user_clients[user, client] = settings
            elif user is not None:
                self.users[user] = settings
            elif client is not None:
                self.clients[client] = settings

    def __repr__(self) -> str:
        # Without the settings, which may be credentials.
        return f"EntityConfigs({len(self._configs)} entities)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntityConfigs) and self._configs == other._configs

    def __hash__(self) -> int:
        return hash(frozenset(self._configs))

    def __iter__(self) -> Iterator[tuple[Entity, Settings]]:
        return iter(self._configs.items())

    def of(self, entity: Entity) -> Settings:
        return self._configs.get(entity, {})

    def with_changes(self, changes: Mapping[Entity, Settings | None]) -> EntityConfigs:
        """A copy with these settings replaced; None removes an entity."""
        configs = {**self._configs, **changes}
        return EntityConfigs({entity: dict(found) for entity, found in configs.items() if found is not None})

    def changes_to(self, new: EntityConfigs) -> dict[Entity, Settings | None]:
        """The argument with which `with_changes` gives `new`."""
        gone = dict.fromkeys(entity for entity in self._configs if entity not in new._configs)
        return gone | {entity: found for entity, found in new if self._configs.get(entity) != found}


NO_ENTITY_CONFIGS: Final = EntityConfigs({})
