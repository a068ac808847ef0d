"""The partitions of a broker: their leaders, what is replicated, and the fetches that wait for new records."""
