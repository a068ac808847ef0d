"""TLS contexts from Kafka's `ssl.*` settings, for brokers and clients.

Keys and certificates come from PEM (one file, or the settings themselves) or PKCS#12. Java's own JKS format is not
read; the error says how to convert it. Private keys never reach the disk: OpenSSL reads them from a file in memory.

`ReloadingContext` follows the files: `reload` looks at their times and sizes and loads them again if they changed. A
file that cannot be used keeps the old context and gives one warning, not one for each look.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

logger = logging.getLogger(__name__)

MAX_STORE_BYTES: Final = 4 * 1024 * 1024
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TYPES: Final = ("PEM", "PKCS12", "JKS")
_PEM: Final = b"-----BEGIN "
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
# OpenSSL offers all of them or none.
_TLS_1_3_SUITES: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"})
_SUITES: Final = {
    f"TLS_{exchange}_WITH_{java}": f"{exchange.replace('_', '-')}-{openssl}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for java, openssl in (
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}


class TlsError(ValueError):
    """TLS settings that cannot be used; the message names the setting and says what to do."""


# -------------------------------------------------------------------------------------------------------------- stores


@dataclass(frozen=True, slots=True)
class Store:
    """A key store or trust store, as the settings that start with `prefix` describe it."""

    prefix: str
    type: str
    location: str
    password: str | None = field(repr=False)
    inline_key: str = field(repr=False)
    inline_certificates: str = field(repr=False)
    key_password: str | None = field(repr=False)

    @classmethod
    def key_store(cls, settings: Mapping[str, str]) -> Store:
        return cls(
            "ssl.keystore",
            settings.get("ssl.keystore.type", "").strip().upper(),
            settings.get("ssl.keystore.location", "").strip(),
            settings.get("ssl.keystore.password") or None,
            settings.get("ssl.keystore.key", "").strip(),
            settings.get("ssl.keystore.certificate.chain", "").strip(),
            settings.get("ssl.key.password") or None,
        )

    @classmethod
    def trust_store(cls, settings: Mapping[str, str]) -> Store:
        return cls(
            "ssl.truststore",
            settings.get("ssl.truststore.type", "").strip().upper(),
            settings.get("ssl.truststore.location", "").strip(),
            settings.get("ssl.truststore.password") or None,
            "",
            settings.get("ssl.truststore.certificates", "").strip(),
            None,
        )

    @property
    def is_given(self) -> bool:
        return bool(self.location or self.inline_key or self.inline_certificates)

    def check(self) -> None:
        """TlsError for settings that contradict each other."""
        if self.type and self.type not in _TYPES:
            raise TlsError(f"{self.prefix}.type is {self.type!r}; it must be PEM or PKCS12")
        if self.location and (self.inline_key or self.inline_certificates):
            raise TlsError(f"{self.prefix}.location and the certificates themselves are both set; set one of them")
        if not self.location and bool(self.inline_key) != bool(self.inline_certificates) and self._holds_key:
            raise TlsError("ssl.keystore.key and ssl.keystore.certificate.chain must be set together")

    @property
    def _holds_key(self) -> bool:
        return self.prefix == "ssl.keystore"

    def load(self) -> tuple[bytes, bytes, str | None]:
        """(private key, certificates, password of the key), all PEM. TlsError."""
        self.check()
        if not self.location:
            return _pem_text(self.inline_key), _pem_text(self.inline_certificates), self.key_password
        data = self._read()
        if data.startswith(_JKS):
            raise TlsError(self._jks())
        if data.lstrip().startswith(_PEM):
            return self._from_pem(data.lstrip())
        if self.type == "PEM":
            raise TlsError(f"{self.prefix}.location: {self.location} is not a PEM file, it has no -----BEGIN")
        return self._from_pkcs12(data)

    def _read(self) -> bytes:
        try:
            with open(self.location, "rb") as file:
                data = file.read(MAX_STORE_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TlsError(f"{self.prefix}.location: cannot read {self.location}: {reason}") from None
        if len(data) > MAX_STORE_BYTES:
            raise TlsError(f"{self.prefix}.location: {self.location} is larger than {MAX_STORE_BYTES} bytes")
        return data

    def _jks(self) -> str:
        return (
            f"{self.prefix}.location: {self.location} is a JKS store, which is not supported. Convert it with "
            f"`keytool -importkeystore -srckeystore {self.location} -destkeystore {self.location}.p12 -deststoretype "
            f"PKCS12` and set {self.prefix}.location={self.location}.p12 and {self.prefix}.type=PKCS12"
        )

    def _from_pem(self, data: bytes) -> tuple[bytes, bytes, str | None]:
        keys, certificates = [], []
        for block in _pem_blocks(data):
            head = block.split(b"\n", 1)[0]
            if b"PRIVATE KEY" in head:
                keys.append(block)
            elif b"CERTIFICATE" in head and b"REQUEST" not in head:
                certificates.append(block)
        if not certificates:
            raise TlsError(f"{self.prefix}.location: {self.location} has no certificate")
        if self._holds_key and len(keys) != 1:
            raise TlsError(
                f"{self.prefix}.location: {self.location} has {len(keys)} private keys; put one private key and its "
                "certificates into the file"
            )
        return b"".join(keys), b"".join(certificates), self.key_password

    def _from_pkcs12(self, data: bytes) -> tuple[bytes, bytes, str | None]:
        # Imported here because it takes time and most files are PEM.
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

        password = None if self.password is None else self.password.encode()
        try:
            store: PKCS12KeyAndCertificates = load_pkcs12(data, password)
        except ValueError:
            raise TlsError(
                f"{self.prefix}.location: {self.location} cannot be opened: it is not PKCS#12, or "
                f"{self.prefix}.password is wrong"
            ) from None
        entries = ([store.cert] if store.cert is not None else []) + list(store.additional_certs)
        if not entries:
            raise TlsError(f"{self.prefix}.location: {self.location} has no certificate")
        certificates = b"".join(entry.certificate.public_bytes(Encoding.PEM) for entry in entries)
        if not self._holds_key:
            return b"", certificates, None
        if store.key is None:
            raise TlsError(f"{self.prefix}.location: {self.location} has no private key")
        return store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), certificates, None


def _pem_blocks(data: bytes) -> Iterator[bytes]:
    lines: list[bytes] = []
    for line in data.splitlines():
        text = line.strip()
        if text.startswith(_PEM):
            lines = []
        lines.append(text)
        if text.startswith(b"-----END "):
            yield b"\n".join(lines) + b"\n"
            lines = []


def _pem_text(text: str) -> bytes:
    """A PEM text from a setting, which may be on one line: its parts are then separated by blanks."""
    if "\n" in text or not text:
        return text.encode() + b"\n" * bool(text)
    lines = []
    for part in text.replace("-----", "\n-----\n").split("\n"):
        word = part.strip()
        if word.startswith(("BEGIN ", "END ")):
            lines.append(f"-----{word}-----")
        elif word and word != "-----":
            lines += word.split()
    return ("\n".join(lines) + "\n").encode()


# ------------------------------------------------------------------------------------------------------------ contexts


def server_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """The context of a listener with these `ssl.*` settings. TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, settings)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    key_store, trust_store = Store.key_store(settings), Store.trust_store(settings)
    if not key_store.is_given:
        raise TlsError(
            "a TLS listener needs a certificate: set ssl.keystore.location to a PEM file with the private key and its "
            "certificates"
        )
    _load_key(context, key_store)
    wanted = settings.get("ssl.client.auth", "").strip().lower() or "none"
    if wanted not in CLIENT_AUTH:
        raise TlsError(f"ssl.client.auth is {wanted!r}; it must be none, requested or required")
    if trust_store.is_given:
        _load_trusted(context, trust_store)
    elif wanted != "none":
        raise TlsError(
            f"ssl.client.auth={wanted} needs ssl.truststore.location: the certificates of the authorities that sign "
            "clients' certificates"
        )
    context.verify_mode = CLIENT_AUTH[wanted]
    return context


def client_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """The context of a client with these `ssl.*` settings. Without a trust store, the system's is used. TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_protocols(context, settings)
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise TlsError(f"ssl.endpoint.identification.algorithm is {algorithm!r}; it must be https or empty")
    context.check_hostname = algorithm == "https"
    context.verify_mode = ssl.CERT_REQUIRED
    key_store, trust_store = Store.key_store(settings), Store.trust_store(settings)
    if trust_store.is_given:
        _load_trusted(context, trust_store)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if key_store.is_given:
        _load_key(context, key_store)
    return context


def _set_protocols(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    text = settings.get("ssl.enabled.protocols", "").strip() or ",".join(PROTOCOLS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PROTOCOLS]
    if unknown or not names:
        raise TlsError(f"ssl.enabled.protocols is {text!r}; it must be TLSv1.2, TLSv1.3 or both")
    versions = {PROTOCOLS[name] for name in names}
    suites = [name.strip() for name in settings.get("ssl.cipher.suites", "").split(",") if name.strip()]
    if suites:
        versions = _set_suites(context, suites, versions)
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_suites(context: ssl.SSLContext, suites: list[str], versions: set[ssl.TLSVersion]) -> set[ssl.TLSVersion]:
    """Set the suites of TLS 1.2; the versions that are left."""
    newer = set(suites) & _TLS_1_3_SUITES
    older = [_SUITES.get(name, name) for name in suites if name not in _TLS_1_3_SUITES]
    if newer and newer != _TLS_1_3_SUITES:
        missing = ", ".join(sorted(_TLS_1_3_SUITES - newer))
        raise TlsError(f"ssl.cipher.suites: the suites of TLS 1.3 can only be chosen together; add {missing}")
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise TlsError(f"ssl.cipher.suites: OpenSSL has none of {', '.join(older)}") from None
    left = {version for version in versions if (newer if version is ssl.TLSVersion.TLSv1_3 else older)}
    if not left:
        raise TlsError("ssl.cipher.suites has no suite of the versions in ssl.enabled.protocols")
    return left


def _load_key(context: ssl.SSLContext, store: Store) -> None:
    key, chain, password = store.load()
    where = store.location or "ssl.keystore.key"

    def ask() -> str:
        # Without a function OpenSSL would ask on the terminal.
        if password is None:
            raise TlsError(f"{where}: the private key is encrypted; set ssl.key.password")
        return password

    with _readable(key + chain) as path:
        try:
            context.load_cert_chain(path, password=ask)
        except TlsError:
            raise
        except ssl.SSLError as error:
            unread = "ssl.key.password is wrong" if b"ENCRYPTED" in key else "it cannot be read"
            reason = _KEY_REASONS.get(error.reason or "", error.reason or unread)
            raise TlsError(f"{where}: the private key or its certificates cannot be used: {reason}") from None
        except OSError as error:
            raise TlsError(f"{where}: the private key or its certificates cannot be used: {error}") from None


_KEY_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "the first certificate is not that of the private key",
    "BAD_DECRYPT": "ssl.key.password is wrong",
    "BAD_PASSWORD_READ": "ssl.key.password is wrong",
}


def _load_trusted(context: ssl.SSLContext, store: Store) -> None:
    _, certificates, _ = store.load()
    try:
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        where = store.location or "ssl.truststore.certificates"
        raise TlsError(f"{where}: the certificates cannot be used: {error}") from None


@contextlib.contextmanager
def _readable(data: bytes) -> Iterator[str]:
    """A path from which OpenSSL reads `data`: in memory where the system has that, else a private temporary file."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("penstock-tls", os.MFD_CLOEXEC)
        path, is_file = f"/proc/self/fd/{descriptor}", False
    else:
        descriptor, path = tempfile.mkstemp(prefix="penstock-")
        is_file = True
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield path
    finally:
        os.close(descriptor)
        if is_file:
            os.unlink(path)


# -------------------------------------------------------------------------------------------------------------- reload

Stamp = tuple[tuple[str, int, int, int], ...]


class ReloadingContext:
    """A context that follows its files. `make` is `server_context` or `client_context`; it may raise TlsError."""

    def __init__(self, settings: Mapping[str, str], make: Callable[[Mapping[str, str]], ssl.SSLContext]) -> None:
        self._settings = dict(settings)
        self._make = make
        self._files = tuple(
            path
            for name in ("ssl.keystore.location", "ssl.truststore.location")
            if (path := self._settings.get(name, "").strip())
        )
        self._stamp = self._look()
        self._context = make(self._settings)

    def __repr__(self) -> str:
        return f"<ReloadingContext of {', '.join(self._files) or 'settings'}>"

    def __call__(self) -> ssl.SSLContext:
        """The context for new connections."""
        return self._context

    def _look(self) -> Stamp:
        stamps = []
        for path in self._files:
            try:
                found = os.stat(path)
            except OSError:
                stamps.append((path, -1, -1, -1))
            else:
                stamps.append((path, found.st_mtime_ns, found.st_size, found.st_ino))
        return tuple(stamps)

    def reload(self) -> bool:
        """Load the files again if they changed; whether there is a new context. It may be called on any thread."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        # A file that is not usable is not tried again before it changes.
        self._stamp = stamp
        try:
            self._context = self._make(self._settings)
        except TlsError as error:
            logger.warning("certificates not reloaded, the old ones stay in use: error=%s", error)
            return False
        logger.info("certificates reloaded: files=%s", ",".join(self._files))
        return True
