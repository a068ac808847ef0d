import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

/** Transactional producers that do what they are told, and one that reads, processes and writes by itself. */
final class Transactions {
    private static final Map<String, KafkaProducer<String, String>> PRODUCERS = new HashMap<>();
    private static Copier copier;

    private Transactions() {
    }

    public static void main(String[] arguments) throws Exception {
        Lines.converse(question -> switch (question.get("about").asText()) {
            case "open" -> open(question);
            case "begin", "send", "commit", "abort", "close" -> act(question);
            case "copy" -> copy(question);
            case "copied" -> copied(false);
            case "copy-stop" -> copied(true);
            default -> throw new IllegalArgumentException("not known: " + question);
        });
    }

    private static Properties settings(JsonNode question) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", question.get("address").asText());
        question.path("settings").properties().forEach(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return settings;
    }

    private static KafkaProducer<String, String> producer(JsonNode question) {
        Properties settings = settings(question);
        settings.put("transactional.id", question.get("id").asText());
        if (question.has("timeout_ms"))
            settings.put("transaction.timeout.ms", question.get("timeout_ms").asText());
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** Under a name of its own: several may have the same transactional id. */
    private static JsonNode open(JsonNode question) {
        KafkaProducer<String, String> producer = producer(question);
        PRODUCERS.put(question.get("name").asText(), producer);
        producer.initTransactions();
        return Lines.JSON.nullNode();
    }

    /** The simple name of what is thrown; null if nothing is. */
    private static JsonNode act(JsonNode question) throws Exception {
        KafkaProducer<String, String> producer = PRODUCERS.get(question.get("name").asText());
        try {
            switch (question.get("about").asText()) {
                case "begin" -> producer.beginTransaction();
                case "commit" -> producer.commitTransaction();
                case "abort" -> producer.abortTransaction();
                case "close" -> producer.close(Duration.ofSeconds(1));
                default -> producer.send(new ProducerRecord<>(question.get("topic").asText(),
                    question.get("partition").asInt(), null, question.get("value").asText())).get();
            }
        } catch (java.util.concurrent.ExecutionException error) {
            return Lines.JSON.textNode(error.getCause().getClass().getSimpleName());
        } catch (Exception error) {
            return Lines.JSON.textNode(error.getClass().getSimpleName());
        }
        return Lines.JSON.nullNode();
    }

    private static JsonNode copy(JsonNode question) {
        copier = new Copier(question);
        copier.start();
        return Lines.JSON.nullNode();
    }

    private static JsonNode copied(boolean stops) throws Exception {
        if (stops) {
            copier.isOver = true;
            copier.join(60_000);
        }
        ObjectNode answer = Lines.JSON.objectNode().put("transactions", copier.transactions.get());
        copier.failures.forEach(answer.putArray("failures")::add);
        return answer;
    }

    /** What it has read is committed with what it writes; after a failure it starts again. */
    private static final class Copier extends Thread {
        private final JsonNode question;
        private final String source;
        private final String target;
        private final AtomicInteger transactions = new AtomicInteger();
        private final ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();
        private volatile boolean isOver;

        Copier(JsonNode question) {
            this.question = question;
            this.source = question.get("source").asText();
            this.target = question.get("target").asText();
            setDaemon(true);
        }

        @Override
        public void run() {
            while (!isOver) {
                try {
                    copyUntilItFails();
                } catch (Throwable error) {
                    failures.add(error.toString());
                }
            }
        }

        private void copyUntilItFails() throws InterruptedException {
            Properties reading = settings(question);
            reading.put("group.id", question.get("group").asText());
            reading.put("isolation.level", "read_committed");
            reading.put("auto.offset.reset", "earliest");
            reading.put("enable.auto.commit", "false");
            reading.put("session.timeout.ms", "6000");
            reading.put("heartbeat.interval.ms", "1000");
            // The producer first: the transaction of the former one is over when the offsets are read.
            try (KafkaProducer<String, String> producer = producer(question)) {
                producer.initTransactions();
                try (KafkaConsumer<String, String> consumer =
                         new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
                    consumer.subscribe(List.of(source));
                    while (!isOver) {
                        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                        if (!records.isEmpty()) {
                            copyRecords(producer, consumer, records);
                            transactions.incrementAndGet();
                        }
                    }
                }
            }
        }

        private void copyRecords(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> consumer,
            ConsumerRecords<String, String> records
        ) throws InterruptedException {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(target, record.partition(), null, "copy of " + record.value()));
                offsets.put(new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            Thread.sleep(question.path("pause_ms").asLong());
            producer.commitTransaction();
        }
    }
}
