"""DescribeCluster: id, controller and brokers of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.request import Answer, Request
from penstock.wire.schemas.describe_cluster import DescribeClusterBroker, DescribeClusterResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    image = broker.cluster.image
    brokers = [
        DescribeClusterBroker(broker_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in broker.live_brokers()
    ]
    answer(DescribeClusterResponse(cluster_id=image.cluster_id, controller_id=image.controller_id, brokers=brokers))
