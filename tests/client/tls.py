"""A self-signed certificate for 127.0.0.1."""

from __future__ import annotations

import ssl
from pathlib import Path

PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgE54QFLbmh5OKsDaf
nqQL5+luJh3yXWyT9pRTufjHGGmhRANCAARbLF++DSdHBk8tLsj7QhBudiKQNbHk
hhMS2kXcojmTLGkMW7oo4suYVQi4wkOaNK00GOpKHTdkhgONO7ft6fQo
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUaf4OErEk4Ytx+LeIlTeUD7U44nAwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNTE0MzQwNFoYDzIxMjYxMDIy
MTQzNDA0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARbLF++DSdHBk8tLsj7QhBudiKQNbHkhhMS2kXcojmTLGkMW7oo4suY
VQi4wkOaNK00GOpKHTdkhgONO7ft6fQoo28wbTAdBgNVHQ4EFgQUmCJzpkdA24uc
9QQJSspei+Mn1oswHwYDVR0jBBgwFoAUmCJzpkdA24uc9QQJSspei+Mn1oswDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhANuXq3EjYX4G8zdivV5lquxZrvlLEcagtG6mSQFa5uUKAiBp
9vWn9DKAxMmi+fUUN9iNL+6/cvFbARTEIiHRt+5xgA==
-----END CERTIFICATE-----
"""


def server_context(folder: Path) -> ssl.SSLContext:
    path = folder / "server.pem"
    path.write_text(PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def trusting_context() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=PEM[PEM.index("-----BEGIN CERTIFICATE") :])
