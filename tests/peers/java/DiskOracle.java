import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/**
 * A partition's folder in the hands of the log of an Apache Kafka 4 broker: written by it, or opened and read by it.
 */
public final class DiskOracle {
    private static final int DAY_MS = 24 * 60 * 60 * 1000;
    /** That of transactions whose end does not raise the producer's epoch. */
    private static final short FIRST_TRANSACTION_VERSION = 0;
    private static final int READ_BYTES = 1 << 20;
    private static final KafkaScheduler SCHEDULER = new KafkaScheduler(1);
    private static final BrokerTopicStats STATS = new BrokerTopicStats();

    private DiskOracle() {
    }

    public static void main(String[] args) throws Exception {
        SCHEDULER.startup();
        try {
            Lines.converse(DiskOracle::answer);
        } finally {
            SCHEDULER.shutdown();
        }
    }

    private static JsonNode answer(JsonNode question) throws Exception {
        String about = question.get("about").asText();
        UnifiedLog log = open(question);
        try {
            switch (about) {
                case "write":
                    for (JsonNode step : question.get("steps"))
                        append(log, step);
                    log.flush(true);
                    return state(log, question);
                case "read":
                    return state(log, question);
                default:
                    throw new IllegalArgumentException("a question about " + about);
            }
        } finally {
            log.close();
        }
    }

    private static UnifiedLog open(JsonNode question) throws IOException {
        Map<String, Object> settings = new HashMap<>();
        settings.put(LogConfig.INTERNAL_SEGMENT_BYTES_CONFIG, question.get("segment_bytes").asInt());
        settings.put("index.interval.bytes", question.get("index_interval_bytes").asInt());
        return UnifiedLog.create(new File(question.get("folder").asText()), new LogConfig(settings), 0L,
            question.get("recovery_point").asLong(), SCHEDULER, STATS, clock(question.get("now_ms").asLong()), DAY_MS,
            new ProducerStateManagerConfig(DAY_MS, false), DAY_MS, new LogDirFailureChannel(1),
            question.get("clean").asBoolean(), Optional.empty());
    }

    /** The system's clock, at a fixed time of day. */
    private static Time clock(long nowMs) {
        return (Time) Proxy.newProxyInstance(Time.class.getClassLoader(), new Class<?>[] {Time.class},
            (proxy, method, args) -> {
                if (method.getName().equals("milliseconds"))
                    return nowMs;
                try {
                    return method.invoke(Time.SYSTEM, args);
                } catch (InvocationTargetException error) {
                    throw error.getCause();
                }
            });
    }

    private static void append(UnifiedLog log, JsonNode step) throws IOException {
        MemoryRecords records = MemoryRecords.readableRecords(Lines.bytes(step.get("hex")));
        boolean marker = step.get("marker").asBoolean();
        log.appendAsLeader(records, step.get("epoch").asInt(), marker ? AppendOrigin.COORDINATOR : AppendOrigin.CLIENT,
            RequestLocal.noCaching(), VerificationGuard.SENTINEL, FIRST_TRANSACTION_VERSION);
        log.updateHighWatermark(log.logEndOffset());
    }

    private static ObjectNode state(UnifiedLog log, JsonNode question) throws IOException {
        log.updateHighWatermark(log.logEndOffset());
        ObjectNode state = Lines.JSON.objectNode();
        state.put("start", log.logStartOffset()).put("end", log.logEndOffset());
        state.put("last_stable", log.lastStableOffset());
        ArrayNode segments = state.putArray("segments");
        for (LogSegment segment : log.logSegments()) {
            segment.sanityCheck(false);
            segments.add(segment.baseOffset());
        }
        ArrayNode epochs = state.putArray("epochs");
        log.leaderEpochCache().epochWithOffsets().forEach((epoch, start) -> epochs.addArray().add(epoch).add(start));
        ArrayNode producers = state.putArray("producers");
        log.activeProducers().forEach(producer -> producers.addArray().add(producer.producerId())
            .add(producer.producerEpoch()).add(producer.lastSequence()).add(producer.currentTxnStartOffset()));
        ArrayNode aborted = state.putArray("aborted");
        for (AbortedTxn each : log.collectAbortedTransactions(log.logStartOffset(), log.logEndOffset()))
            aborted.addArray().add(each.producerId()).add(each.firstOffset()).add(each.lastOffset())
                .add(each.lastStableOffset());
        ArrayNode times = state.putArray("times");
        for (JsonNode stamp : question.get("times")) {
            Optional<FileRecords.TimestampAndOffset> found =
                log.fetchOffsetByTimestamp(stamp.asLong(), Optional.empty()).timestampAndOffsetOpt();
            times.add(found.isPresent() ? found.get().offset : -1);
        }
        state.put("hex", contents(log));
        return state;
    }

    /** Every batch, read offset by offset as a fetch would. */
    private static String contents(UnifiedLog log) throws IOException {
        StringBuilder all = new StringBuilder();
        long offset = log.logStartOffset();
        while (offset < log.logEndOffset()) {
            FileRecords read = (FileRecords) log.read(offset, READ_BYTES, FetchIsolation.LOG_END, true).records;
            if (read.sizeInBytes() == 0)
                throw new IllegalStateException("nothing to read at " + offset + " of " + log.logEndOffset());
            ByteBuffer bytes = ByteBuffer.allocate(read.sizeInBytes());
            read.readInto(bytes, 0);
            for (RecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                batch.ensureValid();
                offset = batch.nextOffset();
            }
            all.append(Lines.hex(bytes));
        }
        return all.toString();
    }
}
