"""A test that poses as a broker proves itself as brokers do, with the secret of the broker under test."""

from __future__ import annotations

import os
from typing import Final

from tests.broker.wire_client import WireClient

from penstock.broker.broker import Broker
from penstock.security.broker_proof import NONCE_BYTES, ClusterSecret, ConnectingProof
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.authenticate_broker import AuthenticateBrokerRequest, AuthenticateBrokerResponse

SOME_BROKER: Final = 90


def authenticate(client: WireClient, broker: Broker, broker_id: int = SOME_BROKER) -> WireClient:
    """The same connection, which is a broker's from now on."""
    assert prove(client, broker.cluster.secret, broker.services.node_id, broker_id).error_code == 0
    return client


def prove(client: WireClient, secret: ClusterSecret, to: int, broker_id: int) -> AuthenticateBrokerResponse:
    """Both steps; the answer to the second one."""
    proof = ConnectingProof(secret, broker_id, to, os.urandom(NONCE_BYTES))
    theirs = begin(client, broker_id, proof.nonce)
    ours = proof.answer(theirs.broker_id, bytes(theirs.nonce), bytes(theirs.proof))
    return finish(client, broker_id, ours)


def begin(client: WireClient, broker_id: int, nonce: bytes) -> AuthenticateBrokerResponse:
    request = AuthenticateBrokerRequest(broker_id=broker_id, nonce=nonce)
    answer: AuthenticateBrokerResponse = client.ask(ApiKey.AUTHENTICATE_BROKER, request, 0)
    return answer


def finish(client: WireClient, broker_id: int, proof: bytes) -> AuthenticateBrokerResponse:
    request = AuthenticateBrokerRequest(broker_id=broker_id, proof=proof)
    answer: AuthenticateBrokerResponse = client.ask(ApiKey.AUTHENTICATE_BROKER, request, 0)
    return answer
