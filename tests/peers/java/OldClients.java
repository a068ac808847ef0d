import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;

/** The producer and the then new consumer of Apache Kafka 0.9, on demand. */
final class OldClients {
    private static final long POLL_MS = 200;
    private static final long PATIENCE_MS = 120_000;

    private OldClients() {
    }

    public static void main(String[] arguments) throws Exception {
        Lines.converse(question -> switch (question.get("about").asText()) {
            case "produce" -> produce(question);
            case "consume" -> consume(question);
            case "committed" -> committed(question);
            case "topics" -> topics(question);
            default -> throw new IllegalArgumentException("not known: " + question);
        });
    }

    private static Properties settings(JsonNode question) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", question.get("address").asText());
        question.path("settings").properties().forEach(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return settings;
    }

    private static KafkaConsumer<String, String> consumer(JsonNode question) {
        return new KafkaConsumer<>(settings(question), new StringDeserializer(), new StringDeserializer());
    }

    private static String text(JsonNode node) {
        return node == null || node.isNull() ? null : node.asText();
    }

    private static JsonNode produce(JsonNode question) throws Exception {
        ArrayNode offsets = Lines.JSON.arrayNode();
        String topic = question.get("topic").asText();
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(settings(question), new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode each : question.get("records"))
                sent.add(producer.send(new ProducerRecord<>(
                    topic, each.get("partition").asInt(), text(each.get("key")), text(each.get("value")))));
            for (Future<RecordMetadata> one : sent)
                offsets.add(one.get().offset());
        }
        return offsets;
    }

    /** By partition if one is named; else as a member of a group. */
    private static JsonNode consume(JsonNode question) {
        ArrayNode records = Lines.JSON.arrayNode();
        String topic = question.get("topic").asText();
        int count = question.get("count").asInt();
        try (KafkaConsumer<String, String> consumer = consumer(question)) {
            if (question.has("partition")) {
                TopicPartition partition = new TopicPartition(topic, question.get("partition").asInt());
                consumer.assign(List.of(partition));
                if (question.has("offset"))
                    consumer.seek(partition, question.get("offset").asLong());
                else
                    consumer.seekToBeginning(partition);
            } else {
                consumer.subscribe(List.of(topic));
            }
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (records.size() < count && System.currentTimeMillis() < end)
                for (ConsumerRecord<String, String> record : consumer.poll(POLL_MS))
                    records.addObject().put("partition", record.partition()).put("offset", record.offset())
                        .put("key", record.key()).put("value", record.value());
            if (question.path("commit").asBoolean())
                consumer.commitSync();
        }
        return records;
    }

    private static JsonNode committed(JsonNode question) {
        TopicPartition partition =
            new TopicPartition(question.get("topic").asText(), question.get("partition").asInt());
        try (KafkaConsumer<String, String> consumer = consumer(question)) {
            var offset = consumer.committed(partition);
            return offset == null ? Lines.JSON.nullNode() : Lines.JSON.numberNode(offset.offset());
        }
    }

    private static JsonNode topics(JsonNode question) {
        var answer = Lines.JSON.objectNode();
        try (KafkaConsumer<String, String> consumer = consumer(question)) {
            for (Map.Entry<String, List<PartitionInfo>> topic : consumer.listTopics().entrySet())
                answer.put(topic.getKey(), topic.getValue().size());
        }
        return answer;
    }
}
