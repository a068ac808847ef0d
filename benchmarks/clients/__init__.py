"""Our clients beside confluent-kafka, aiokafka and kafka-python, against the same broker."""
