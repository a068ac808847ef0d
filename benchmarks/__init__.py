"""Benchmarks, each beside its peer in the same run: `make bench`."""
