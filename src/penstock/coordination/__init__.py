"""Groups and the offsets that they commit: decided without I/O, kept as records of `__consumer_offsets`."""
