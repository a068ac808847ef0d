"""A whole cluster in one thread: real brokers and clients on virtual time, simulated network, disks and ZooKeeper.

    python -m penstock.testing.simulation --seeds 100

A run is determined by one number, its seed, down to the last byte.
"""
