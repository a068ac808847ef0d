"""Read-only inspection of log files: dump their contents, verify them."""
