"""The id under which a producer's batches are numbered, from the cluster."""

from __future__ import annotations

from typing import Final

from penstock.client.cluster import ClusterClient
from penstock.client.errors import error_for
from penstock.client.producer.sequences import ProducerId
from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest

_HIGHEST_VERSION: Final = 5
_NO_TRANSACTIONS_MS: Final = 2**31 - 1


async def ask_producer_id(cluster: ClusterClient, timeout_ms: int) -> ProducerId:
    """A new id, from any broker; raises what stands in the way."""
    connection = await cluster.to_any()
    version = connection.version_of(ApiKey.INIT_PRODUCER_ID, at_most=_HIGHEST_VERSION)
    response = await connection.request(
        ApiKey.INIT_PRODUCER_ID,
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTIONS_MS),
        timeout_ms=timeout_ms,
        version=version,
    )
    if response.error_code:
        raise error_for(response.error_code, where=f"a producer id from {connection.node}")
    return ProducerId(response.producer_id, response.producer_epoch)
