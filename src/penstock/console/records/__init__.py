"""Records in the console: read ranges, decode values, search with progress."""
