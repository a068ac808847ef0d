import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Exit;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.Future;

/** The producer, consumer, admin client and command line tools of a recent Apache Kafka, on demand. */
final class NewClients {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long PATIENCE_MS = 30_000;
    // The same for all runs: what is written in Scala prints to the streams that it found at first.
    private static final Printed OUTPUT = new Printed();
    private static final Printed ERRORS = new Printed();

    private NewClients() {
    }

    /** What a tool prints to one of its streams. */
    private static final class Printed extends PrintStream {
        private final ByteArrayOutputStream bytes;

        Printed() {
            this(new ByteArrayOutputStream());
        }

        private Printed(ByteArrayOutputStream bytes) {
            super(bytes, true, StandardCharsets.UTF_8);
            this.bytes = bytes;
        }

        String text() {
            return bytes.toString(StandardCharsets.UTF_8);
        }
    }

    /** What a tool's wish to end this process becomes; some catch it and wish again, the first wish counts. */
    private static final class Ended extends Error {
        static Integer first;

        Ended(int status) {
            super("ended with " + status, null, false, false);
            if (first == null)
                first = status;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((status, message) -> {
            throw new Ended(status);
        });
        Lines.converse(question -> switch (question.get("about").asText()) {
            case "produce" -> produce(question);
            case "consume" -> consume(question);
            case "share" -> share(question);
            case "times" -> times(question);
            case "create" -> create(question);
            case "topics" -> topics(question);
            case "grow" -> grow(question);
            case "configure" -> configure(question);
            case "delete-records" -> deleteRecords(question);
            case "groups" -> groups(question);
            case "delete" -> delete(question);
            case "tool" -> tool(question);
            case "property" -> property(question);
            default -> throw new IllegalArgumentException("not known: " + question);
        });
    }

    private static Properties settings(JsonNode question) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", question.get("address").asText());
        question.path("settings").properties().forEach(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return settings;
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
            for (JsonNode each : question.get("records")) {
                Integer partition = each.has("partition") ? each.get("partition").asInt() : null;
                Long timestamp = each.has("timestamp_ms") ? each.get("timestamp_ms").asLong() : null;
                ProducerRecord<String, String> record =
                    new ProducerRecord<>(topic, partition, timestamp, text(each.get("key")), text(each.get("value")));
                for (JsonNode header : each.path("headers"))
                    record.headers().add(header.get(0).asText(), header.get(1).asText().getBytes(StandardCharsets.UTF_8));
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> one : sent)
                offsets.add(one.get().offset());
        }
        return offsets;
    }

    /** By partition if one is named, from an offset if one is; else as a member of a group. */
    private static JsonNode consume(JsonNode question) {
        ArrayNode records = Lines.JSON.arrayNode();
        String topic = question.get("topic").asText();
        int count = question.get("count").asInt();
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(settings(question), new StringDeserializer(), new StringDeserializer())) {
            if (question.has("partition")) {
                TopicPartition partition = new TopicPartition(topic, question.get("partition").asInt());
                consumer.assign(List.of(partition));
                consumer.seek(partition, question.path("offset").asLong(0));
            } else {
                consumer.subscribe(List.of(topic));
            }
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (records.size() < count && System.currentTimeMillis() < end)
                consumer.poll(POLL).forEach(record -> records.add(shown(record)));
            if (question.path("commit").asBoolean())
                consumer.commitSync();
        }
        return records;
    }

    /** Members join one after the other, all are polled until each has a share; the partitions of each. */
    private static JsonNode share(JsonNode question) {
        ArrayNode shares = Lines.JSON.arrayNode();
        List<KafkaConsumer<String, String>> members = new ArrayList<>();
        try {
            for (int number = 0; number < question.get("members").asInt(); number++) {
                KafkaConsumer<String, String> member =
                    new KafkaConsumer<>(settings(question), new StringDeserializer(), new StringDeserializer());
                member.subscribe(List.of(question.get("topic").asText()));
                members.add(member);
                pollUntilEachHasAShare(members);
            }
            for (KafkaConsumer<String, String> member : members) {
                ArrayNode share = shares.addArray();
                member.assignment().forEach(partition -> share.add(partition.partition()));
            }
        } finally {
            members.forEach(KafkaConsumer::close);
        }
        return shares;
    }

    private static void pollUntilEachHasAShare(List<KafkaConsumer<String, String>> members) {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (members.stream().anyMatch(member -> member.assignment().isEmpty())) {
            if (System.currentTimeMillis() > end)
                throw new IllegalStateException("a member of " + members.size() + " is left without a partition");
            members.forEach(member -> member.poll(Duration.ofMillis(50)));
        }
    }

    private static ObjectNode shown(ConsumerRecord<String, String> record) {
        ObjectNode shown = Lines.JSON.objectNode();
        shown.put("partition", record.partition()).put("offset", record.offset());
        shown.put("key", record.key()).put("value", record.value()).put("timestamp_ms", record.timestamp());
        ArrayNode headers = shown.putArray("headers");
        for (Header header : record.headers())
            headers.addArray().add(header.key()).add(new String(header.value(), StandardCharsets.UTF_8));
        return shown;
    }

    private static JsonNode times(JsonNode question) {
        TopicPartition partition =
            new TopicPartition(question.get("topic").asText(), question.get("partition").asInt());
        ObjectNode answer = Lines.JSON.objectNode();
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(settings(question), new StringDeserializer(), new StringDeserializer())) {
            ArrayNode found = answer.putArray("found");
            for (JsonNode time : question.get("times_ms")) {
                OffsetAndTimestamp at = consumer.offsetsForTimes(Map.of(partition, time.asLong())).get(partition);
                if (at == null)
                    found.addNull();
                else
                    found.addArray().add(at.offset()).add(at.timestamp());
            }
            answer.put("begin", consumer.beginningOffsets(List.of(partition)).get(partition));
            answer.put("end", consumer.endOffsets(List.of(partition)).get(partition));
        }
        return answer;
    }

    private static JsonNode create(JsonNode question) throws Exception {
        try (Admin admin = Admin.create(settings(question))) {
            NewTopic topic = new NewTopic(
                question.get("topic").asText(), Optional.of(question.get("partitions").asInt()), Optional.empty());
            admin.createTopics(List.of(topic)).all().get();
        }
        return Lines.JSON.nullNode();
    }

    private static JsonNode topics(JsonNode question) throws Exception {
        ObjectNode answer = Lines.JSON.objectNode();
        try (Admin admin = Admin.create(settings(question))) {
            Collection<String> names = admin.listTopics().names().get();
            for (var topic : admin.describeTopics(names).allTopicNames().get().values())
                answer.putObject(topic.name()).put("id", topic.topicId().toString())
                    .put("partitions", topic.partitions().size());
        }
        return answer;
    }

    private static JsonNode grow(JsonNode question) throws Exception {
        try (Admin admin = Admin.create(settings(question))) {
            NewPartitions more = NewPartitions.increaseTo(question.get("partitions").asInt());
            admin.createPartitions(Map.of(question.get("topic").asText(), more)).all().get();
        }
        return Lines.JSON.nullNode();
    }

    /** Sets a topic's setting, then tells what it is. */
    private static JsonNode configure(JsonNode question) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, question.get("topic").asText());
        String name = question.get("name").asText();
        try (Admin admin = Admin.create(settings(question))) {
            ConfigEntry entry = new ConfigEntry(name, question.get("value").asText());
            AlterConfigOp set = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
            ConfigEntry told = admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name);
            return Lines.JSON.objectNode().put("value", told.value()).put("source", told.source().toString());
        }
    }

    private static JsonNode deleteRecords(JsonNode question) throws Exception {
        TopicPartition partition =
            new TopicPartition(question.get("topic").asText(), question.get("partition").asInt());
        try (Admin admin = Admin.create(settings(question))) {
            RecordsToDelete before = RecordsToDelete.beforeOffset(question.get("before").asLong());
            return Lines.JSON.numberNode(
                admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition).get().lowWatermark());
        }
    }

    /** What there is to know of one group: listed or not, state, committed offsets by partition. */
    private static JsonNode groups(JsonNode question) throws Exception {
        String group = question.get("group").asText();
        ObjectNode answer = Lines.JSON.objectNode();
        try (Admin admin = Admin.create(settings(question))) {
            answer.put("listed", admin.listGroups().all().get().stream().anyMatch(one -> one.groupId().equals(group)));
            answer.put("state", admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState().toString());
            ObjectNode committed = answer.putObject("committed");
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .forEach((partition, offset) -> committed.put(String.valueOf(partition.partition()), offset.offset()));
        }
        return answer;
    }

    private static JsonNode delete(JsonNode question) throws Exception {
        try (Admin admin = Admin.create(settings(question))) {
            if (question.has("topic"))
                admin.deleteTopics(List.of(question.get("topic").asText())).all().get();
            if (question.has("group"))
                admin.deleteConsumerGroups(List.of(question.get("group").asText())).all().get();
        }
        return Lines.JSON.nullNode();
    }

    /** Sets a property of this process, as -D does: some settings are allowed by these only. */
    private static JsonNode property(JsonNode question) {
        System.setProperty(question.get("name").asText(), question.get("value").asText());
        return Lines.JSON.nullNode();
    }

    /** Runs a tool, by its name in the package of the tools or by its full one; what it prints, and its exit status. */
    private static JsonNode tool(JsonNode question) throws Throwable {
        List<String> arguments = new ArrayList<>();
        question.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        String name = question.get("tool").asText();
        PrintStream output = System.out;
        PrintStream errors = System.err;
        Ended.first = null;
        OUTPUT.bytes.reset();
        ERRORS.bytes.reset();
        System.setOut(OUTPUT);
        System.setErr(ERRORS);
        try {
            Class.forName(name.startsWith("kafka.") ? name : "org.apache.kafka.tools." + name)
                .getMethod("main", String[].class).invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended))
                throw thrown.getCause();
        } finally {
            System.setOut(output);
            System.setErr(errors);
        }
        int status = Ended.first == null ? 0 : Ended.first;
        return Lines.JSON.objectNode().put("status", status).put("output", OUTPUT.text()).put("errors", ERRORS.text());
    }
}
