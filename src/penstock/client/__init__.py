"""Clients for Penstock and any other Kafka cluster: producer, consumer, admin. One asyncio core, two faces."""
