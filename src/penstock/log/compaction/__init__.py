"""Log compaction: keeping the last record of each key, off the event loop."""
