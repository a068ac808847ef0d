"""DescribeCluster: id, controller and brokers of the cluster."""

from __future__ import annotations

from penstock.broker.request import Answer, Request, Services
from penstock.wire.schemas.describe_cluster import DescribeClusterBroker, DescribeClusterResponse


def handle(services: Services, request: Request, answer: Answer) -> None:
    image = services.cluster.image
    brokers = [
        DescribeClusterBroker(broker_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in services.live_brokers()
    ]
    answer(DescribeClusterResponse(cluster_id=image.cluster_id, controller_id=image.controller_id, brokers=brokers))
