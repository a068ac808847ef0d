"""AuthenticateBroker: the peer of a connection proves that it is a broker of this cluster, and so does this one.

After a wrong proof the connection stays a client's. Wrong proofs are logged, at most once per second.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.request import Answer, Request, Services
from penstock.security.broker_proof import NONCE_BYTES, AcceptingProof, ProofError
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.authenticate_broker import AuthenticateBrokerRequest, AuthenticateBrokerResponse


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: AuthenticateBrokerRequest = request.message
    channel = request.channel
    response = AuthenticateBrokerResponse(broker_id=services.node_id)
    try:
        if channel is None:
            raise ProofError("it has no connection")
        if message.nonce:
            accepting = channel.proof = AcceptingProof(services.cluster.secret, services.node_id)
            response.nonce = services.random.random_bytes(NONCE_BYTES)
            response.proof = accepting.begin(message.broker_id, bytes(message.nonce), response.nonce)
        else:
            proof, channel.proof = channel.proof, None
            if proof is None:
                raise ProofError("it sent a proof without a nonce")
            proof.finish(bytes(message.proof))
            channel.session = replace(channel.session, is_broker=True)
    except ProofError as error:
        services.complain("broker proof", f"peer is not a broker of this cluster: peer={request.peer} error={error}")
        response = AuthenticateBrokerResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, broker_id=services.node_id
        )
    answer(response)
