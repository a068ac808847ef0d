"""A whole cluster in one thread: real brokers and clients on virtual time, simulated networks, disks and trees.

    python -m penstock.testing.simulation --seeds 100

Noun: a run, which one number, its seed, decides down to the last byte.
"""
