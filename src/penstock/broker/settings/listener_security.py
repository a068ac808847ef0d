"""Security settings of listeners: `ssl.*`, `sasl.*`, and what overrides them for one listener or mechanism.

    ssl.keystore.location=/etc/penstock/broker.pem
    listener.name.clients.ssl.client.auth=required
    listener.name.clients.scram-sha-512.sasl.jaas.config=...

A listener's value is the one with its name and the mechanism, else the one with its name, else the plain one. Names of
listeners and mechanisms are in lower case there, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.broker.settings.listeners import PROTOCOLS, Listener
from penstock.config_def import ConfigType, Definition, Importance, Value
from penstock.security.credentials import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    SCRAM_MECHANISMS,
    CredentialsError,
    Login,
    kind_of,
    parse_jaas,
    resolve,
)
from penstock.security.distinguished_name import MappingRuleError, PrincipalMapper
from penstock.security.oauth import OAuthError, OAuthSettings, check_url
from penstock.security.scram import ScramCredential
from penstock.security.tls import CLIENT_AUTH, Store, TlsError
from penstock.security.tls import PROTOCOLS as TLS_PROTOCOLS

_STRING, _LIST, _INT, _LONG = ConfigType.STRING, ConfigType.LIST, ConfigType.INT, ConfigType.LONG
_PASSWORD, _LOW, _HIGH = ConfigType.PASSWORD, Importance.LOW, Importance.HIGH
PREFIX: Final = "listener.name."
JAAS: Final = "sasl.jaas.config"
CLIENT_AUTHENTICATION: Final = "ssl.client.auth"
ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"
BETWEEN_BROKERS: Final = "sasl.mechanism.inter.broker.protocol"
JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"

SECURITY: Final = (
    # --- TLS
    Definition("ssl.keystore.type", _STRING, None, "Format of the key store: PEM or PKCS12. If not set, it is found "
               "out from the file."),
    Definition("ssl.keystore.location", _STRING, None, "File with the private key of the listener and its "
               "certificates.", _HIGH),
    Definition("ssl.keystore.password", _PASSWORD, None, "Password of a PKCS12 key store.", _HIGH),
    Definition("ssl.keystore.key", _PASSWORD, None, "The private key itself, PEM.", _HIGH),
    Definition("ssl.keystore.certificate.chain", _PASSWORD, None, "The certificates of that key, PEM.", _HIGH),
    Definition("ssl.key.password", _PASSWORD, None, "Password of the private key.", _HIGH),
    Definition("ssl.truststore.type", _STRING, None, "Format of the trust store: PEM or PKCS12. If not set, it is "
               "found out from the file."),
    Definition("ssl.truststore.location", _STRING, None, "File with the certificates of the authorities to trust.",
               _HIGH),
    Definition("ssl.truststore.password", _PASSWORD, None, "Password of a PKCS12 trust store.", _HIGH),
    Definition("ssl.truststore.certificates", _PASSWORD, None, "The certificates of the authorities to trust, PEM.",
               _HIGH),
    Definition(CLIENT_AUTHENTICATION, _STRING, "none", "Whether clients need a certificate: none, requested or "
               "required.", one_of=tuple(CLIENT_AUTH)),
    Definition("ssl.enabled.protocols", _LIST, tuple(TLS_PROTOCOLS), "Versions of TLS.", one_of=tuple(TLS_PROTOCOLS)),
    Definition("ssl.cipher.suites", _LIST, (), "Cipher suites, by their names in Java or OpenSSL. If not set, those of "
               "OpenSSL.", _LOW),
    Definition("ssl.endpoint.identification.algorithm", _STRING, "https", "Whether other brokers' certificates must "
               "have their host name (https) or not (empty).", _LOW, one_of=("https", "HTTPS", "")),
    Definition("ssl.principal.mapping.rules", _STRING, "DEFAULT", "Rules that map the distinguished name of a client's "
               "certificate to a short name.", _LOW),
    # --- SASL
    Definition(ENABLED_MECHANISMS, _LIST, (), f"SASL mechanisms of a listener: {', '.join(MECHANISMS)}."),
    Definition(BETWEEN_BROKERS, _STRING, None, "SASL mechanism between brokers."),
    Definition(JAAS, _PASSWORD, None, "Login module with the broker's own user name and password, and the users that "
               "PLAIN accepts."),
    Definition("sasl.server.max.receive.size", _INT, 524_288, "Maximum size of a request before authentication, in "
               "bytes.", min=1_024),
    Definition("connections.max.reauth.ms", _LONG, 0, "Time after which a client must authenticate again, in "
               "milliseconds; 0 is never, unless its token expires.", min=0),
    Definition("connection.failed.authentication.delay.ms", _INT, 100, "Delay of the response to a failed login, in "
               "milliseconds.", _LOW, min=0, max=60_000),
    Definition("penstock.authentication.timeout.ms", _INT, 15_000, "Time that a client has to authenticate, in "
               "milliseconds. Not a setting of Kafka.", _LOW, min=1),
    # --- OAUTHBEARER
    Definition(JWKS_URL, _STRING, None, "URL of the keys that sign tokens: https, http or file."),
    Definition("sasl.oauthbearer.jwks.endpoint.refresh.ms", _LONG, 3_600_000, "How often the keys are fetched, in "
               "milliseconds.", _LOW, min=1_000),
    Definition("sasl.oauthbearer.expected.issuer", _STRING, None, "Issuer that tokens must have.", _LOW),
    Definition("sasl.oauthbearer.expected.audience", _LIST, (), "Audiences of which tokens must have one.", _LOW),
    Definition("sasl.oauthbearer.sub.claim.name", _STRING, "sub", "Claim with the user's name.", _LOW),
    Definition("sasl.oauthbearer.scope.claim.name", _STRING, "scope", "Claim with the scopes.", _LOW),
    Definition("sasl.oauthbearer.clock.skew.seconds", _INT, 30, "How much clocks may differ, in seconds.", _LOW, min=0,
               max=3_600),
    Definition("sasl.oauthbearer.token.endpoint.url", _STRING, None, "URL from which this broker gets tokens for other "
               "brokers."),
    Definition("penstock.oauthbearer.groups.claim.name", _STRING, None, "Claim with the user's groups, which ACLs can "
               "name as Group:name. Not a setting of Kafka.", _LOW),
    Definition("penstock.oauthbearer.roles.claim.name", _STRING, None, "Claim with the user's roles, which ACLs can "
               "name as Role:name; a path such as realm_access.roles is followed. Not a setting of Kafka.", _LOW),
    Definition("security.inter.broker.protocol", _STRING, None, "Protocol between brokers, instead of "
               "inter.broker.listener.name.", one_of=PROTOCOLS),
)  # fmt: skip
_BY_NAME: Final = {each.name: each for each in SECURITY}


def prefixed_definition(name: str) -> Definition | None:
    """What a name like listener.name.clients.ssl.client.auth sets; None for other names."""
    if not name.startswith(PREFIX):
        return None
    return next((each for each in SECURITY if name.endswith(f".{each.name}") and len(name) > len(PREFIX) + 1), None)


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The security settings of one listener. `given` are those that were set, by their full names."""

    listener: Listener
    given: Mapping[str, Value] = field(repr=False)

    @property
    def uses_tls(self) -> bool:
        return self.listener.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.listener.protocol.startswith("SASL_")

    def value(self, name: str, mechanism: str = "") -> Any:
        """The value that applies to this listener, and to one of its mechanisms."""
        prefix = f"{PREFIX}{self.listener.name.lower()}."
        names = (f"{prefix}{mechanism.lower()}.{name}",) if mechanism else ()
        for each in (*names, prefix + name, name):
            if each in self.given:
                return self.given[each]
        return _BY_NAME[name].default

    def tls(self) -> dict[str, str]:
        """The `ssl.*` settings as texts, with secrets from files and the environment. CredentialsError."""
        texts = {}
        for definition in SECURITY:
            value = self.value(definition.name) if definition.name.startswith("ssl.") else None
            if value is None:
                continue
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            texts[definition.name] = resolve(text) if definition.is_sensitive else text
        if self.uses_sasl and f"{PREFIX}{self.listener.name.lower()}.{CLIENT_AUTHENTICATION}" not in self.given:
            # As in Kafka: clients that log in need a certificate only if their own listener says so.
            texts[CLIENT_AUTHENTICATION] = "none"
        return texts

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(each.upper() for each in self.value(ENABLED_MECHANISMS))

    def login(self, mechanism: str) -> Login | None:
        """The login module of a mechanism; None if there is none. CredentialsError."""
        text = self.value(JAAS, mechanism)
        if not text:
            return None
        login = parse_jaas(text)
        if login.kind != kind_of(mechanism):
            raise CredentialsError(f"the login module of {mechanism} is that of {login.kind}")
        return login

    def oauth(self) -> OAuthSettings:
        """The rules that tokens must satisfy. OAuthError."""
        url = self.value(JWKS_URL, OAUTHBEARER)
        if not url:
            raise OAuthError(f"OAUTHBEARER needs {JWKS_URL}: the URL of the keys that sign tokens")
        check_url(JWKS_URL, url)

        def value(name: str) -> Any:
            return self.value(name, OAUTHBEARER)

        return OAuthSettings(
            url,
            value("sasl.oauthbearer.expected.issuer"),
            value("sasl.oauthbearer.expected.audience"),
            value("sasl.oauthbearer.sub.claim.name"),
            value("sasl.oauthbearer.scope.claim.name"),
            value("sasl.oauthbearer.clock.skew.seconds"),
            value("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            value("penstock.oauthbearer.groups.claim.name"),
            value("penstock.oauthbearer.roles.claim.name"),
        )

    # --- checks

    def problems(self) -> Iterator[tuple[str, str]]:
        """(setting, reason) of whatever cannot be used, without reading files."""
        if self.uses_tls:
            yield from self._tls_problems()
        if self.uses_sasl:
            yield from self._sasl_problems()

    def _tls_problems(self) -> Iterator[tuple[str, str]]:
        texts = {name: "x" if _BY_NAME[name].is_sensitive else text for name, text in self._tls_texts()}
        key_store = Store.key_store(texts)
        try:
            key_store.check()
            Store.trust_store(texts).check()
        except TlsError as error:
            yield "ssl.keystore.location", str(error)
        if not key_store.is_given:
            yield "ssl.keystore.location", f"listener {self.listener.name} uses TLS and needs a certificate"
        try:
            PrincipalMapper(self.value("ssl.principal.mapping.rules"))
        except MappingRuleError as error:
            yield "ssl.principal.mapping.rules", str(error)

    def _tls_texts(self) -> Iterator[tuple[str, str]]:
        for definition in SECURITY:
            value = self.value(definition.name)
            if definition.name.startswith("ssl.") and isinstance(value, str):
                yield definition.name, value

    def _sasl_problems(self) -> Iterator[tuple[str, str]]:
        name = self.listener.name
        if not self.mechanisms:
            yield ENABLED_MECHANISMS, f"listener {name} uses SASL; set it to some of {', '.join(MECHANISMS)}"
        for mechanism in self.mechanisms:
            if mechanism not in MECHANISMS:
                yield ENABLED_MECHANISMS, f"{mechanism!r} is not supported; supported: {', '.join(MECHANISMS)}"
                continue
            try:
                login = self.login(mechanism)
                if mechanism == OAUTHBEARER:
                    self.oauth()
            except (CredentialsError, OAuthError) as error:
                yield JWKS_URL if isinstance(error, OAuthError) else JAAS, str(error)
                continue
            if mechanism == PLAIN and (login is None or not login.users()):
                key = f"{PREFIX}{name.lower()}.plain.{JAAS}"
                yield key, 'PLAIN has no users; add options such as user_alice="password" to the login module'
            elif mechanism in SCRAM_MECHANISMS and login is not None:
                yield from self._scram_problems(mechanism, login)

    def _scram_problems(self, mechanism: str, login: Login) -> Iterator[tuple[str, str]]:
        for user, credential in login.users().items():
            try:
                ScramCredential.parse(credential.reveal())
            except (ValueError, CredentialsError) as error:
                yield f"{PREFIX}{self.listener.name.lower()}.{mechanism.lower()}.{JAAS}", f"user_{user}: {error}"

    def inter_broker_problems(self) -> Iterator[tuple[str, str]]:
        """The same, for the listener that other brokers connect to."""
        if not self.uses_sasl:
            return
        mechanism = self.between_brokers
        if mechanism not in self.mechanisms:
            enabled = ", ".join(self.mechanisms)
            yield BETWEEN_BROKERS, f"brokers use listener {self.listener.name}; set it to one of {enabled}"
            return
        try:
            login = self.login(mechanism)
        except CredentialsError:
            return  # reported with the listener
        if login is None or (mechanism != OAUTHBEARER and not (login.username and login.password)):
            key = f"{PREFIX}{self.listener.name.lower()}.{mechanism.lower()}.{JAAS}"
            yield key, "brokers need a user name and a password for each other: username=... password=..."

    @property
    def between_brokers(self) -> str:
        """The mechanism that brokers use; empty if none is set."""
        return (self.value(BETWEEN_BROKERS) or "").upper()
