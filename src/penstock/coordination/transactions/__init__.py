"""The transaction coordinator: states and records (pure), a shard of them (pure), and the service."""
