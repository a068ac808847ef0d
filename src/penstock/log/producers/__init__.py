"""What a partition knows of its producers: idempotence, open transactions, snapshots of both."""
