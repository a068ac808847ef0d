"""Penstock: a replicated, persistent log that speaks the Kafka protocol, in Python."""

__version__ = "0.1.0"
