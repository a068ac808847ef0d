"""What the two sides of a connection between brokers accept as a proof."""

from __future__ import annotations

import pytest

from penstock.security.broker_proof import (
    NONCE_BYTES,
    SECRET_BYTES,
    AcceptingProof,
    ClusterSecret,
    ConnectingProof,
    ProofError,
)

SECRET = ClusterSecret(b"s" * SECRET_BYTES)
OTHER = ClusterSecret(b"o" * SECRET_BYTES)
A, B = b"a" * NONCE_BYTES, b"b" * NONCE_BYTES


def test_two_brokers_with_one_secret_accept_each_other() -> None:
    connecting, accepting = ConnectingProof(SECRET, 2, 1, A), AcceptingProof(SECRET, 1)
    theirs = accepting.begin(2, connecting.nonce, B)
    assert accepting.finish(connecting.answer(1, B, theirs)) == 2


def test_the_connecting_side_notices_another_secret_another_broker_and_a_reflection() -> None:
    connecting = ConnectingProof(SECRET, 2, 1, A)
    with pytest.raises(ProofError, match="another cluster secret"):
        connecting.answer(1, B, AcceptingProof(OTHER, 1).begin(2, A, B))
    with pytest.raises(ProofError, match="broker 3 answers at the address of broker 1"):
        connecting.answer(3, B, AcceptingProof(SECRET, 3).begin(2, A, B))
    # Broker 3 poses as broker 1 with a proof that is right for itself.
    with pytest.raises(ProofError, match="wrong"):
        connecting.answer(1, B, AcceptingProof(SECRET, 3).begin(2, A, B))
    with pytest.raises(ProofError, match="wrong"):
        connecting.answer(1, B, SECRET.prove(b"connects", 2, 1, (A, B)))
    with pytest.raises(ProofError, match="nonce has 3 bytes"):
        connecting.answer(1, b"abc", b"")


def test_a_proof_is_good_for_one_connection_in_one_direction_between_two_brokers() -> None:
    connecting, accepting = ConnectingProof(SECRET, 2, 1, A), AcceptingProof(SECRET, 1)
    proof = connecting.answer(1, B, accepting.begin(2, A, B))
    assert accepting.finish(proof) == 2
    with pytest.raises(ProofError, match="without a nonce"):
        accepting.finish(proof)
    accepting.begin(2, A, b"c" * NONCE_BYTES)
    with pytest.raises(ProofError, match="claims to be broker 2"):
        accepting.finish(proof)
    accepting.begin(4, A, B)
    with pytest.raises(ProofError, match="claims to be broker 4"):
        accepting.finish(proof)
    reflected = accepting.begin(2, A, B)
    with pytest.raises(ProofError):
        accepting.finish(reflected)


@pytest.mark.parametrize(("broker_id", "nonce"), [(-1, A), (1, A), (2, b""), (2, A + b"x")])
def test_a_first_message_that_no_broker_sends_is_rejected(broker_id: int, nonce: bytes) -> None:
    with pytest.raises(ProofError):
        AcceptingProof(SECRET, 1).begin(broker_id, nonce, B)


def test_a_secret_has_32_bytes_and_shows_none_of_them() -> None:
    assert "s" * 4 not in repr(SECRET)
    with pytest.raises(ValueError, match="32 bytes, not 5"):
        ClusterSecret(b"short")
