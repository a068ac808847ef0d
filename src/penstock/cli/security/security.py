"""`penstock security`: sets up TLS, users and ACLs for a cluster with one command.

    penstock-security/ca.pem, ca.key        the authority: clients trust ca.pem; ca.key signs, keep it safe
    penstock-security/broker.pem            private key and certificate of the brokers
    penstock-security/server.properties     settings for `penstock server start --config`
    penstock-security/admin.properties      the admin's login, for --command-config and other Kafka clients
    penstock-security/admin.password        the same password alone, for `sasl_plain_password="file:..."`

The admin may do everything; others may do what ACLs allow them. The first broker that starts stores the admin's
credential in the metadata tree, where `penstock users` manages it from then on.

Files with secrets can be read by their owner only. Nothing is overwritten.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from penstock.cli.output import CommandError, Output, printable

MECHANISM: Final = "SCRAM-SHA-512"
SERVER_FILE: Final = "server.properties"
_LISTENER: Final = "SASL_SSL"
_BROKER_USER: Final = "broker"
_PASSWORD_BYTES: Final = 24
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


class AlreadyThere(CommandError):
    """A file that would be overwritten."""

    exit_code = 1
    code = "EXISTS"


@dataclass(frozen=True, slots=True)
class SecurityFolder:
    """The files of a secure cluster."""

    path: Path
    user: str = "admin"

    @property
    def server_properties(self) -> Path:
        return self.path / SERVER_FILE

    @property
    def client_properties(self) -> Path:
        return self.path / f"{self.user}.properties"

    @property
    def password(self) -> Path:
        return self.path / f"{self.user}.password"

    @property
    def authority(self) -> Path:
        return self.path / "ca.pem"

    @property
    def exists(self) -> bool:
        return self.server_properties.exists()

    def create(self, hosts: Sequence[str], port: int) -> None:
        """Make the authority, the certificate, the users and the settings. CommandError if a file exists."""
        import datetime

        from penstock.security.authority import CertificateAuthority

        now = datetime.datetime.now(datetime.UTC)
        made = CertificateAuthority.create("Penstock authority", now)
        try:
            broker = made.issue("broker", hosts, now)
        except ValueError as error:
            raise CommandError(f"Cannot issue a certificate for {', '.join(hosts)}: {error}.") from None
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        files = {
            self.authority: (made.pem.certificate, _PUBLIC),
            self.path / "ca.key": (made.pem.key, _PRIVATE),
            self.path / "broker.pem": (broker.key + broker.certificate, _PRIVATE),
            self.client_properties: (self._client_text(password, hosts[0], port).encode(), _PRIVATE),
            self.password: (f"{password}\n".encode(), _PRIVATE),
            # Last: it shows that the folder is complete.
            self.server_properties: (self._server_text(password, hosts, port).encode(), _PRIVATE),
        }
        self._write(files)

    def _write(self, files: dict[Path, tuple[bytes, int]]) -> None:
        there = [path for path in files if path.exists()]
        if there:
            raise AlreadyThere(
                f"{printable(str(there[0]))} exists already.",
                "Choose another --folder, or move the files away; a new authority makes old certificates useless.",
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path, (content, mode) in files.items():
                # Exclusive, because another process may do the same.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with open(descriptor, "wb") as file:
                    file.write(content)
        except OSError as error:
            raise CommandError(
                f"Cannot write {error.filename}: {error.strerror}.", "Choose another --folder."
            ) from None

    def _server_text(self, password: str, hosts: Sequence[str], port: int) -> str:
        from penstock.security.credentials import format_jaas
        from penstock.security.scram import DEFAULT_ITERATIONS, SALT_BYTES, InitialUsers, ScramCredential

        def credential(text: str) -> str:
            salt = secrets.token_bytes(SALT_BYTES)
            return ScramCredential.make(text, MECHANISM, DEFAULT_ITERATIONS, salt).format()

        broker = secrets.token_urlsafe(_PASSWORD_BYTES)
        # The brokers' own user is in the login module: they log in to each other before the tree can be asked.
        login = {"username": _BROKER_USER, "password": broker, f"user_{_BROKER_USER}": credential(broker)}
        home = self.path.absolute()
        properties = {
            "listeners": f"{_LISTENER}://0.0.0.0:{port}",
            "advertised.listeners": f"{_LISTENER}://{_bracketed(hosts[0])}:{port}",
            "security.inter.broker.protocol": _LISTENER,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(home / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(home / "ca.pem"),
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{_LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config": format_jaas("SCRAM", login),
            "authorizer.class.name": "penstock",
            # The last one is a broker that uses its certificate on a listener with ssl.client.auth=required.
            "super.users": f"User:{self.user};User:{_BROKER_USER};User:CN={_BROKER_USER},O=Penstock",
            # If they use ZooKeeper: what they keep there is theirs.
            "zookeeper.auth.user": _BROKER_USER,
            "zookeeper.auth.password": broker,
            "zookeeper.set.acl": "true",
            "penstock.initial.users": InitialUsers({self.user: {MECHANISM: credential(password)}}).format(),
        }
        title = "# Settings of brokers with TLS, users and ACLs, made by `penstock security init`.\n"
        return title + properties_text(properties)

    def _client_text(self, password: str, host: str, port: int) -> str:
        from penstock.security.credentials import format_jaas

        properties = {
            "bootstrap.servers": f"{_bracketed(host)}:{port}",
            "security.protocol": _LISTENER,
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": format_jaas("SCRAM", {"username": self.user, "password": password}),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.absolute()),
        }
        return f"# The login of {self.user}, made by `penstock security init`.\n{properties_text(properties)}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def properties_text(properties: Mapping[str, str]) -> str:
    """The lines of a properties file."""
    escapes = str.maketrans({"\\": "\\\\", "\n": "\\n"})
    return "".join(f"{name}={value.translate(escapes)}\n" for name, value in properties.items())


def write_private(path: Path, content: bytes) -> None:
    """A new file that only its owner can read. AlreadyThere, CommandError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
        with open(descriptor, "wb") as file:
            file.write(content)
    except FileExistsError:
        raise AlreadyThere(f"{printable(str(path))} exists already.", "Move it away, or choose another name.") from None
    except OSError as error:
        raise CommandError(f"Cannot write {printable(str(path))}: {error.strerror}.", "Choose another place.") from None


def first_steps(login: Path, address: str | None = None) -> list[str]:
    """The commands that add a user, let it write to and read from a topic, and use its login."""
    user, topic = "alice", "greetings"
    admin = f"--command-config {shlex.quote(str(login))}" + ("" if address is None else f" -b {address}")
    own = f"--command-config {user}.properties"
    return [
        f"penstock users add {user} --login-file {user}.properties {admin}",
        f"penstock acls add -p User:{user} --producer --consumer -t {topic} -g {topic}-readers {admin}",
        f"echo hello | penstock produce {topic} {own}",
        f"penstock consume {topic} --group {topic}-readers --from-beginning --exit {own}",
        f"penstock acls explain User:{user} delete --topic {topic} {admin}",
    ]


_FOLDER_OPTION: Final = click.option(
    "--folder", default="penstock-security", show_default=True, metavar="FOLDER", help="Folder of the files."
)


@click.group(short_help="Set up TLS, users and ACLs: init, certificate.")
def security() -> None:
    """Set up TLS, users and ACLs."""


@security.command("init")
@_FOLDER_OPTION
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME",
    help="Name or address by which clients reach the brokers; the first one is advertised. Can be repeated.  [default: "
    "this machine's name]",
)  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65_535), default=9093, show_default=True, help="Port for clients.")
@click.option("--user", default="admin", show_default=True, metavar="NAME", help="Name of the first user.")
def init(folder: str, hosts: tuple[str, ...], port: int, user: str) -> None:
    """Create a certificate authority, a certificate for the brokers, an admin, and settings for both sides.

    The admin may do everything, other users what ACLs allow them. Start a broker with `penstock server start --config
    FOLDER/server.properties`, and use it with any command and `--command-config FOLDER/admin.properties`. Existing
    files are never overwritten.

    \b
    Exit code: 0  done
               1  a file exists already
               2  invalid options, or the folder cannot be written
    """
    if not user.isascii() or not user.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise CommandError(f"{user!r} cannot be used in the name of a file.", "Use letters, digits, '.', '-' and '_'.")
    if user == _BROKER_USER:
        raise CommandError(f"{user!r} is the name of the brokers' own user.", "Choose another --user.")
    names = tuple(dict.fromkeys((*(hosts or (socket.gethostname(),)), *_LOCAL)))
    made = SecurityFolder(Path(folder), user)
    made.create(names, port)
    output = Output()
    where = printable(folder)
    output.line(
        f"Created a certificate authority, a certificate for {', '.join(names)} and the user {user} in {where}."
    )
    output.line()
    output.line(f"  penstock server start --config {where}/{SERVER_FILE}")
    output.line()
    output.line("Then add a user and let it write and read:")
    output.line()
    for line in first_steps(made.client_properties):
        output.line(f"  {line}")
    output.line()
    output.line(f"Clients need ca.pem and a login such as {user}.properties. Keep ca.key safe: it signs certificates.")
    output.flush()


@security.command("certificate")
@click.argument("name")
@_FOLDER_OPTION
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Host of a broker; without it, for a client.")
def certificate(name: str, folder: str, hosts: tuple[str, ...]) -> None:
    """Issue another certificate with the authority of `init`, as FOLDER/NAME.pem.

    With --host it is for a broker, else for a client of a listener with ssl.client.auth=required. The user's name
    there is the distinguished name, unless ssl.principal.mapping.rules shortens it.
    """
    import datetime

    from penstock.security.authority import CertificateAuthority

    home = Path(folder)
    if not name or os.path.basename(name) != name or name.startswith("."):
        raise CommandError(f"{name!r} cannot be used as the name of a file.", "Use a name without '/'.")
    try:
        authority = CertificateAuthority.load((home / "ca.key").read_bytes(), (home / "ca.pem").read_bytes())
        issued = authority.issue(name, hosts, datetime.datetime.now(datetime.UTC))
    except OSError as error:
        raise CommandError(
            f"Cannot read the authority: {error.filename}: {error.strerror}.", "Make it with `penstock security init`."
        ) from None
    except ValueError as error:
        raise CommandError(f"Cannot issue a certificate for {name!r}: {error}.") from None
    write_private(home / f"{name}.pem", issued.key + issued.certificate)
    output = Output()
    output.line(f"Wrote {printable(str(home / name))}.pem with the key and the certificate.")
    output.flush()
