"""Our data source beside Spark's stock Kafka connector, and beside what Spark's Python transport can carry at all."""
