"""Clients of a Kafka cluster, ours or any other: producer, consumer, admin; one asyncio core and a blocking face."""
