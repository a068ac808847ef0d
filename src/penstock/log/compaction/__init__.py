"""Compaction: keeping the last record of each key, in rounds that a cleaner runs beside the event loop."""
