"""The partitions of a broker: who leads them, what is replicated, who waits for more."""
