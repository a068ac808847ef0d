"""How a broker authenticates to ZooKeeper, and who may read and change the nodes that it creates.

With `sets_acls`, nodes can be changed by brokers only: by sessions with the same user, or the same certificate. All can
read them, as Kafka's tools do, except those with secrets: the cluster's secret, and the settings of users, which hold
their credentials. A client that can write to the tree controls the cluster, so do not leave it open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE  # type: ignore[import-untyped]

from penstock.cluster.entity_configs import CONFIG, USERS
from penstock.cluster.errors import TreeError
from penstock.cluster.tree.layout import CLUSTER_SECRET
from penstock.security.credentials import CredentialsError, Secret

_SENSITIVE: Final = (f"{CONFIG}/{USERS}", CLUSTER_SECRET)
# What clients other than brokers write: consumers of old versions keep their offsets there.
_OPEN: Final = "/consumers"


class ZooKeeperAuthFailed(TreeError):
    """The settings for the authentication to ZooKeeper cannot be used."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    user: str | None = None
    password: Secret | None = None
    is_sasl: bool = False
    """SASL with DIGEST-MD5 instead of ZooKeeper's own digest authentication."""
    sets_acls: bool = False
    uses_tls: bool = False
    ca_file: str | None = None
    key_file: str | None = None
    """A PEM file with a certificate and its key."""
    key_password: Secret | None = None
    checks_host_name: bool = True

    def client_options(self) -> Mapping[str, Any]:
        """The arguments for kazoo's client. ZooKeeperAuthFailed."""
        if (self.user is None) != (self.password is None):
            raise ZooKeeperAuthFailed("zookeeper.auth.user and zookeeper.auth.password need each other: set both")
        if self.sets_acls and self.user is None and not (self.uses_tls and self.key_file):
            raise ZooKeeperAuthFailed(
                "zookeeper.set.acl=true needs an identity: set zookeeper.auth.user and zookeeper.auth.password, or "
                "zookeeper.ssl.keystore.location"
            )
        return {**self._authentication(), **self._tls()}

    def acl(self, path: str) -> list[Any] | None:
        """Who may use a new node at this path; None: any client."""
        if not self.sets_acls or path == _OPEN or path.startswith(f"{_OPEN}/"):
            return None
        if any(path == each or path.startswith(f"{each}/") for each in _SENSITIVE):
            return list(CREATOR_ALL_ACL)
        return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]

    def _authentication(self) -> dict[str, Any]:
        if self.user is None or self.password is None:
            return {}
        password = _revealed("zookeeper.auth.password", self.password)
        if not self.is_sasl:
            return {"auth_data": [("digest", f"{self.user}:{password}")]}
        if find_spec("puresasl") is None:
            raise ZooKeeperAuthFailed(
                "zookeeper.auth.mechanism=DIGEST-MD5 needs the package pure-sasl: pip install pure-sasl, or use digest"
            )
        return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": self.user, "password": password}}

    def _tls(self) -> dict[str, Any]:
        if not self.uses_tls:
            return {}
        for name, path in (("truststore", self.ca_file), ("keystore", self.key_file)):
            if path is not None and not os.access(path, os.R_OK):
                raise ZooKeeperAuthFailed(f"zookeeper.ssl.{name}.location cannot be read: {path}")
        if self.ca_file is None:
            raise ZooKeeperAuthFailed(
                "zookeeper.ssl.client.enable=true needs zookeeper.ssl.truststore.location, a PEM file with the "
                "authority of the servers' certificates"
            )
        password = (
            None if self.key_password is None else _revealed("zookeeper.ssl.keystore.password", self.key_password)
        )
        return {
            "use_ssl": True,
            "ca": self.ca_file,
            "certfile": self.key_file,
            "keyfile": self.key_file,
            "keyfile_password": password,
            "verify_certs": True,
            "check_hostname": self.checks_host_name,
        }


def _revealed(name: str, secret: Secret) -> str:
    try:
        return secret.reveal()
    except CredentialsError as error:
        raise ZooKeeperAuthFailed(f"{name}: {error}") from None


NO_SECURITY: Final = ZooKeeperSecurity()
