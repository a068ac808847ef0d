"""DescribeCluster: id, controller and brokers of the cluster.

The authorized operations are those of a cluster without an authorizer; `authorization_rules` replaces them.
"""

from __future__ import annotations

from penstock.broker.request import Answer, Request, Services
from penstock.security.acls import OPERATIONS_OF, ResourceType, bits_of
from penstock.wire.schemas.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    image = services.cluster.image
    brokers = [
        DescribeClusterBroker(broker_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in services.live_brokers(request.session.listener)
    ]
    response = DescribeClusterResponse(cluster_id=image.cluster_id, controller_id=image.controller_id, brokers=brokers)
    message: DescribeClusterRequest = request.message
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = bits_of(OPERATIONS_OF[ResourceType.CLUSTER])
    answer(response)
