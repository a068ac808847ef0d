"""What the console knows of a cluster: one snapshot for each login, refreshed in a thread of its own."""
