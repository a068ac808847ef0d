"""Groups and the offsets that they commit: decided in `shard` and `groups`, kept as records of `__consumer_offsets`."""
