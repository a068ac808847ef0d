"""Hostile connections to one listener of a broker, many at once, before or after authentication.

A conversation is drawn from the seed and its number: requests in bursts, logins that go wrong anywhere, TLS records and
handshakes that are broken, peers that never read, that stop in the middle of a frame, that leave without a word.
Only what earlier responses taught (`requests.py`) depends on the order in which the broker serves them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, cast

import trustme
from tests.hostile.fuzz.requests import Requests, changed
from tests.security.certificates import pem, write_ca, write_client
from tests.security.secure_broker import PASSWORD, USER
from tests.security.tokens import token

from penstock.security.credentials import Secret
from penstock.security.sasl import AuthenticationError, BearerClient, ClientMechanism, PlainClient, ScramClientMechanism
from penstock.security.tls import client_context
from penstock.wire.errors import WireError
from penstock.wire.framing import encode_request
from penstock.wire.protocol import ApiKey, response_codec
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest
from penstock.wire.types import Message

STATES: Final = ("PLAINTEXT after", "SSL before", "SSL after", "SASL_PLAINTEXT before", "SASL_PLAINTEXT after",
                 "SASL_SSL before", "SASL_SSL after")  # fmt: skip
"""Listener, and whether its clients have authenticated: PLAINTEXT has no authentication, SSL its handshake."""
UNPRIVILEGED: Final = "mallory"

_AT_ONCE: Final = {"before": 64, "after": 24}
_QUIET_S: Final = 0.25
_HELD: Final = 40
_MARK: Final = 0x7F000000
_TRANSCRIPT_BYTES: Final = 200_000
_BEFORE: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA})
_OTHER_PROTOCOLS: Final = (
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, b"*1\r\n$4\r\nPING",
    b"SSH-2.0-x\r\n", bytes(40), b"\x16", b"\x80\x2e\x01\x03",
)  # fmt: skip


def framed(key: ApiKey, version: int, number: int, message: Message) -> bytes:
    chunks = encode_request(key, version, number, "fuzz", message)
    return b"".join(cast("list[bytes]", list(chunks)))


class Peer(asyncio.Protocol):
    """One connection. TLS is done here, so that its records can be changed on their way."""

    def __init__(self, requests: Requests, context: ssl.SSLContext | None) -> None:
        self._requests = requests
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._asked: dict[int, tuple[int, int]] = {}
        self._news = asyncio.Event()
        self.answers: dict[int, bytes] = {}
        self.frames = 0
        self.is_closed = False
        self.name = ""
        self.transcript: deque[bytes] = deque()
        self._transcribed = 0
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost") if context else None
        self.is_secured = False

    # --- callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port = transport.get_extra_info("sockname")[:2]
        self.name = f"{host}:{port}"

    def connection_lost(self, _: Exception | None) -> None:
        self.is_closed = True
        self._news.set()

    def data_received(self, data: bytes) -> None:
        if self.tls is None:
            self._plain(data)
        else:
            self._incoming.write(data)
            self._pump(self.tls)
        self._news.set()

    def _pump(self, tls: ssl.SSLObject) -> None:
        try:
            if not self.is_secured:
                tls.do_handshake()
                self.is_secured = True
            while data := tls.read(65_536):
                self._plain(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self.abort()

    def _plain(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 8:
            size, number = struct.unpack_from(">ii", buffer, start)
            if len(buffer) - start < 4 + size:
                break
            self.frames += 1
            if number >= _MARK:
                self.answers[number] = bytes(buffer[start + 4 : start + 4 + size])
            elif number % 4 == 0 and number in self._asked:
                self._requests.learn(*self._asked[number], bytes(buffer[start + 4 : start + 4 + size]))
            start += 4 + size
        del buffer[:start]

    # --- what conversations do

    async def secure(self) -> bool:
        """Complete the handshake; whether it has succeeded."""
        if self.tls is None:
            return True
        self._pump(self.tls)
        self.flush()
        while not self.is_secured and not self.is_closed:
            if not await self.progress():
                return False
            self.flush()
        self.flush()
        return self.is_secured

    def take_records(self) -> bytes:
        """The TLS records that are to be sent."""
        return self._outgoing.read()

    def flush(self) -> None:
        self.raw(self.take_records())

    def raw(self, data: bytes) -> None:
        if data and self._transport is not None and not self.is_closed and not self._transport.is_closing():
            self._transport.write(data)

    def send(self, data: bytes) -> None:
        if self.is_closed:
            return
        self.transcript.append(data)
        self._transcribed += len(data)
        while self._transcribed > _TRANSCRIPT_BYTES and len(self.transcript) > 1:
            self._transcribed -= len(self.transcript.popleft())
        if self.tls is None:
            self.raw(data)
            return
        with contextlib.suppress(ssl.SSLError):
            self.tls.write(data)
        self.flush()

    def asks(self, number: int, key: int, version: int) -> None:
        self._asked[number] = (key, version)

    async def progress(self) -> bool:
        """Wait until something arrives; False if nothing does."""
        self._news.clear()
        if self.is_closed:
            return False
        try:
            await asyncio.wait_for(self._news.wait(), _QUIET_S)
        except TimeoutError:
            return False
        return not self.is_closed

    async def answer(self, number: int) -> bytes | None:
        while number not in self.answers:
            if not await self.progress():
                return None
        return self.answers.pop(number)

    def stop_reading(self) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@dataclass
class Attack:
    """A run against one listener in one state.

    It continues until the broker has taken `requests`: frames that reached its handlers (`served`, which the caller
    updates) and broken TLS records. Requests behind one that ended its connection do not count.
    """

    ports: Mapping[str, int]
    state: str
    seed: int
    requests: int
    folder: Path
    sent: int = 0
    served: int = 0
    records: int = 0
    conversations: int = 0
    recent: deque[Peer] = field(default_factory=lambda: deque(maxlen=300))

    def __post_init__(self) -> None:
        self.listener, _, self._when = self.state.partition(" ")
        before = self._when == "before"
        self._made = Requests(self.seed, _BEFORE if before else None)
        self._everything = Requests(self.seed) if before else self._made
        self._held: deque[Peer] = deque()
        self._contexts = self._make_contexts() if "SSL" in self.listener else []
        self._token = token(USER, lifetime_s=7 * 86_400)

    def _make_contexts(self) -> list[ssl.SSLContext]:
        """Clients with a certificate, without one, with one of another authority, and with TLS 1.2."""
        self.folder.mkdir(parents=True, exist_ok=True)
        trust = {"ssl.truststore.location": write_ca(self.folder)}
        stranger = self.folder / "stranger.pem"
        stranger.write_bytes(pem(trustme.CA().issue_cert("stranger.example", common_name="stranger")))
        known = {**trust, "ssl.keystore.location": write_client(self.folder, USER)}
        return [
            client_context(trust),
            client_context(known),
            client_context({**trust, "ssl.enabled.protocols": "TLSv1.2"}),
            client_context({**trust, "ssl.keystore.location": str(stranger)}),
        ]

    @property
    def taken(self) -> int:
        return self.served + self.records

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE[self._when]):
                group.create_task(self._attacker())
        for peer in self._held:
            peer.abort()

    async def _attacker(self) -> None:
        while self.taken < self.requests:
            self.conversations += 1
            random = Random(f"{self.seed} {self.conversations}")
            with contextlib.suppress(OSError):
                await self._converse(random)

    async def _converse(self, random: Random) -> None:
        if self._when == "before":
            if self.listener == "SSL" or (self.listener == "SASL_SSL" and random.random() < 0.3):
                await self._break_tls(random)
            else:
                await self._break_login(random)
            return
        peer = await self._connect(random, self._context(random))
        try:
            if await peer.secure() and (not self.listener.startswith("SASL") or await self._log_in(random, peer)):
                for _ in range(random.choice((1, 2, 4, 8))):
                    if not await self._burst(random, peer):
                        break
        finally:
            self._leave(random, peer)

    def _context(self, random: Random) -> ssl.SSLContext | None:
        return random.choices(self._contexts, (6, 3, 1, 0))[0] if self._contexts else None

    async def _connect(self, random: Random, context: ssl.SSLContext | None) -> Peer:
        port = self.ports[self.listener]
        if self.listener == "SSL" and context is not None and random.random() < 0.2:
            port = self.ports["MTLS"]
        # Many addresses of the loopback: one has not enough ports for connections that come and go.
        local = (f"127.0.{random.randrange(1, 5)}.{random.randrange(1, 255)}", 0)
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(lambda: Peer(self._made, context), "127.0.0.1", port, local_addr=local)
        self.recent.append(peer)
        return peer

    def _leave(self, random: Random, peer: Peer) -> None:
        draw = random.random()
        if draw < 0.02 and not peer.is_closed:
            peer.send(struct.pack(">i", random.choice((100, 300_000))) + bytes(50))
            self._held.append(peer)
            if len(self._held) > _HELD:
                self._held.popleft().abort()
        elif draw < 0.1 and peer.tls is not None:
            peer.raw(bytes(changed(random, bytearray(b"\x17\x03\x03\x00\x20" + random.randbytes(32)))))
            peer.close()
        elif draw < 0.5:
            peer.abort()
        else:
            peer.close()

    # --- after authentication

    async def _burst(self, random: Random, peer: Peer) -> bool:
        """Many requests at once; whether the connection still is as it was."""
        self._made.renew(3)
        if random.random() < 0.01:
            peer.stop_reading()
        frames = []
        for _ in range(random.choice((1, 4, 16, 32))):
            self.sent += 1
            number = self.sent % _MARK
            frame, key, version = self._made.frame(random, number, 0.05)
            frames.append(frame)
            peer.asks(number, key, version)
        if random.random() < 0.05:
            cut = random.randrange(1, len(frames[-1]))
            frames[-1:] = [frames[-1][:cut], frames[-1][cut:]]
        mark = _MARK + self.sent % _MARK
        frames.append(framed(ApiKey.API_VERSIONS, 0, mark, ApiVersionsRequest()))
        if random.random() < 0.7:
            peer.send(b"".join(frames))
        else:
            for frame in frames:
                peer.send(frame)
        return await peer.answer(mark) is not None

    async def _log_in(self, random: Random, peer: Peer) -> bool:
        mechanism = self._mechanism(random, PASSWORD)
        name = SaslHandshakeRequest(mechanism=mechanism.name)
        first = SaslAuthenticateRequest(auth_bytes=mechanism.first())
        peer.send(framed(ApiKey.SASL_HANDSHAKE, 1, _MARK, name) + framed(ApiKey.SASL_AUTHENTICATE, 2, _MARK + 1, first))
        for number in range(1, 4):
            answer = await peer.answer(_MARK + number)
            if answer is None:
                return False
            response: SaslAuthenticateResponse
            response, _ = response_codec(ApiKey.SASL_AUTHENTICATE, 2).decode(answer, 5)
            if response.error_code:
                return False
            following = mechanism.next(response.auth_bytes)
            if following is None:
                return True
            more = SaslAuthenticateRequest(auth_bytes=following)
            peer.send(framed(ApiKey.SASL_AUTHENTICATE, 2, _MARK + number + 1, more))
        return True

    def _mechanism(self, random: Random, password: str) -> ClientMechanism:
        """Mostly PLAIN, which costs the least; sometimes in the name of a user who may do nothing."""
        draw = random.random()
        if draw < 0.05:
            return BearerClient(Secret(self._token))
        if draw < 0.1:
            name = random.choice(("SCRAM-SHA-256", "SCRAM-SHA-512"))
            return ScramClientMechanism(name, USER, Secret(password), f"nonce{random.randrange(10**9)}")
        return PlainClient(USER if draw < 0.85 else UNPRIVILEGED, Secret(password))

    # --- before authentication

    async def _break_login(self, random: Random) -> None:
        peer = await self._connect(random, self._context(random))
        try:
            if await peer.secure():
                await self._misuse_sasl(random, peer)
        finally:
            self._leave(random, peer)

    async def _misuse_sasl(self, random: Random, peer: Peer) -> None:
        mechanism = self._mechanism(random, random.choice((PASSWORD, PASSWORD + "x", "")))
        following: bytes | None = mechanism.first()
        version = random.choice((1, 1, 1, 0))
        number, used = _MARK, 0
        for step in range(random.choice((1, 2, 3, 4, 6, 8, 12))):
            draw = random.random()
            number += 1
            if draw < 0.35 and step < 6:
                frame = framed(ApiKey.API_VERSIONS, random.choice((0, 3)), number, ApiVersionsRequest("fuzz", "1"))
            elif draw < 0.5:
                name = mechanism.name if random.random() < 0.8 else random.choice(("GSSAPI", "", "\0", "x" * 500))
                frame = framed(ApiKey.SASL_HANDSHAKE, version, number, SaslHandshakeRequest(mechanism=name))
            elif draw < 0.75 and following is not None:
                data = bytes(changed(random, bytearray(following))) if random.random() < 0.6 else following
                bare = struct.pack(">i", len(data)) + data
                request = SaslAuthenticateRequest(auth_bytes=data)
                used = random.choice((0, 1, 2, 2))
                frame = bare if version == 0 else framed(ApiKey.SASL_AUTHENTICATE, used, number, request)
            elif draw < 0.85:
                frame, _, _ = self._made.frame(random, number, 0.3)
            elif draw < 0.95:
                frame, _, _ = self._everything.frame(random, number, 0.1)
            else:
                frame = random.choice(_OTHER_PROTOCOLS) if draw < 0.97 else random.randbytes(random.randrange(1, 300))
            if random.random() < 0.1:
                frame = bytes(changed(random, bytearray(frame)))
            self.sent += 1
            peer.send(frame)
            if random.random() < 0.5:
                answer = await peer.answer(number)
                if answer is None:
                    return
                with contextlib.suppress(AuthenticationError, WireError):
                    response: SaslAuthenticateResponse
                    response, _ = response_codec(ApiKey.SASL_AUTHENTICATE, used).decode(answer, 4 + (used == 2))
                    following = mechanism.next(response.auth_bytes) or following
        self._made.renew()

    async def _break_tls(self, random: Random) -> None:
        context = random.choice(self._contexts)
        peer = await self._connect(random, context)
        kind = random.randrange(8)
        try:
            if kind == 0:
                self._hostile_raw(peer, random.choice(_OTHER_PROTOCOLS))
            elif kind == 1:
                self._hostile_raw(peer, b"\x16" * random.randrange(2) + random.randbytes(random.randrange(1, 600)))
            elif kind == 2:
                self._hostile_raw(peer, self._everything.frame(random, 1, 0.1)[0])
            elif kind == 3:
                self._hostile_raw(peer, bytes(changed(random, bytearray(_hello(peer)))))
            elif kind == 4:
                hello = _hello(peer)
                self._hostile_raw(peer, hello[: random.randrange(1, len(hello))])
            elif kind == 5:
                self._hostile_raw(peer, _hello(peer))
                for _ in range(random.randrange(1, 6)):
                    self._hostile_raw(peer, _record(random))
            elif kind == 6:
                self._hostile_raw(peer, _hello(peer))
                await peer.progress()
                self._hostile_raw(peer, bytes(changed(random, bytearray(peer.take_records() or b"\x14"))))
            elif await peer.secure():
                for _ in range(random.randrange(1, 6)):
                    self._hostile_raw(peer, _record(random))
            if random.random() < 0.3:
                await peer.progress()
        finally:
            self._leave(random, peer)
        self._everything.renew()

    def _hostile_raw(self, peer: Peer, data: bytes) -> None:
        self.sent += 1
        self.records += not peer.is_closed
        peer.transcript.append(data)
        peer.raw(data)


def _hello(peer: Peer) -> bytes:
    """The first message of a handshake."""
    if peer.tls is None:
        return b""
    with contextlib.suppress(ssl.SSLError):
        peer.tls.do_handshake()
    return peer.take_records()


def _record(random: Random) -> bytes:
    """A TLS record that is not what its peer waits for."""
    content = random.randbytes(random.choice((0, 1, 2, 4, 40, 300)))
    size = random.choice((len(content), len(content), len(content), 0, 16_384, 65_535))
    kind, version = random.choice((20, 21, 22, 23, 24, 0, 255)), random.choice((0x0303, 0x0303, 0x0301, 0, 0xFFFF))
    return struct.pack(">BHH", kind, version, size) + content
