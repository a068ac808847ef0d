"""An issuer of tokens for tests."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

ISSUER = "https://issuer.example"
AUDIENCE = "penstock"


@cache
def signing_key(kid: str = "one") -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


def jwks(*kids: str) -> bytes:
    return json.dumps(KeySet([signing_key(kid) for kid in kids or ("one",)]).as_dict(private=False)).encode()


def write_jwks(folder: Path, *kids: str) -> str:
    """The URL of a file with the public keys."""
    path = folder / "jwks.json"
    path.write_bytes(jwks(*kids))
    return path.as_uri()


def token(name: str = "alice", kid: str = "one", *, lifetime_s: float = 300, **claims: Any) -> str:
    now = int(time.time())
    content = {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + lifetime_s, **claims}
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode({"alg": "RS256", "kid": kid}, content, signing_key(kid))
