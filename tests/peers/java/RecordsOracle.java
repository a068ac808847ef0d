import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.CloseableIterator;

import java.nio.ByteBuffer;

/**
 * Record batches as Apache Kafka reads and writes them, in all three formats. Of a Kafka before 4, which no longer
 * writes the first two.
 */
public final class RecordsOracle {
    private static final int CAPACITY = 1 << 20;

    private RecordsOracle() {
    }

    public static void main(String[] args) throws Exception {
        Lines.converse(RecordsOracle::answer);
    }

    private static JsonNode answer(JsonNode question) throws Exception {
        String about = question.get("about").asText();
        switch (about) {
            case "read":
                return read(Lines.bytes(question.get("hex")));
            case "write":
                return Lines.JSON.textNode(Lines.hex(write(question)));
            default:
                throw new IllegalArgumentException("a question about " + about);
        }
    }

    private static ArrayNode read(ByteBuffer buffer) throws Exception {
        ArrayNode batches = Lines.JSON.arrayNode();
        MemoryRecords all = MemoryRecords.readableRecords(buffer);
        int bytes = 0;
        for (MutableRecordBatch batch : all.batches()) {
            batch.ensureValid();
            bytes += batch.sizeInBytes();
            describe(batch, batches.addObject());
        }
        if (bytes != buffer.limit())
            throw new IllegalStateException((buffer.limit() - bytes) + " bytes are left over");
        return batches;
    }

    private static void describe(MutableRecordBatch batch, ObjectNode node) {
        node.put("magic", batch.magic());
        node.put("size", batch.sizeInBytes());
        node.put("base_offset", batch.baseOffset());
        node.put("last_offset", batch.lastOffset());
        node.put("codec", batch.compressionType().id);
        node.put("timestamp_type", batch.timestampType().id);
        node.put("max_timestamp", batch.maxTimestamp());
        node.put("leader_epoch", batch.partitionLeaderEpoch());
        node.put("producer_id", batch.producerId());
        node.put("producer_epoch", batch.producerEpoch());
        node.put("base_sequence", batch.baseSequence());
        node.put("last_sequence", batch.lastSequence());
        node.put("transactional", batch.isTransactional());
        node.put("control", batch.isControlBatch());
        node.put("crc", batch.checksum());
        node.put("count", batch.countOrNull());
        ArrayNode records = node.putArray("records");
        // Decompressed as a consumer does it, not as an index does, which skips values.
        try (CloseableIterator<Record> each = batch.streamingIterator(BufferSupplier.NO_CACHING)) {
            while (each.hasNext()) {
                record(each.next(), batch.isControlBatch(), records.addObject());
            }
        }
    }

    private static void record(Record record, boolean control, ObjectNode node) {
        record.ensureValid();
        node.put("offset", record.offset());
        node.put("timestamp", record.timestamp());
        node.put("key", Lines.hex(record.key()));
        node.put("value", Lines.hex(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            byte[] value = header.value();
            headers.addArray().add(header.key()).add(value == null ? null : Lines.hex(ByteBuffer.wrap(value)));
        }
        if (control) {
            ControlRecordType type = ControlRecordType.parse(record.key());
            node.put("marker", type.name());
            if (type == ControlRecordType.COMMIT || type == ControlRecordType.ABORT)
                node.put("coordinator_epoch", EndTransactionMarker.deserialize(record).coordinatorEpoch());
        }
    }

    private static ByteBuffer write(JsonNode question) {
        JsonNode about = question.get("batch");
        boolean control = about.get("control").asBoolean();
        TimestampType stamped = TimestampType.forName(about.get("log_append_time").isNull() ? "CreateTime"
            : "LogAppendTime");
        ByteBufferOutputStream out = new ByteBufferOutputStream(CAPACITY);
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(out, (byte) about.get("magic").asInt(),
            Compression.of(CompressionType.forId(about.get("codec").asInt())).build(), stamped,
            about.get("base_offset").asLong(), about.get("log_append_time").asLong(-1),
            about.get("producer_id").asLong(), (short) about.get("producer_epoch").asInt(),
            about.get("base_sequence").asInt(), about.get("transactional").asBoolean(), control,
            about.get("leader_epoch").asInt(), CAPACITY);
        for (JsonNode record : question.get("records")) {
            long timestamp = record.get("timestamp").asLong();
            if (control) {
                ControlRecordType type = ControlRecordType.valueOf(record.get("marker").asText());
                builder.appendEndTxnMarker(timestamp,
                    new EndTransactionMarker(type, record.get("coordinator_epoch").asInt()));
            } else {
                builder.appendWithOffset(record.get("offset").asLong(), timestamp,
                    Lines.bytesOrNull(record.get("key")), Lines.bytesOrNull(record.get("value")), headers(record));
            }
        }
        return builder.build().buffer();
    }

    private static Header[] headers(JsonNode record) {
        JsonNode listed = record.get("headers");
        Header[] headers = new Header[listed.size()];
        for (int i = 0; i < headers.length; i++)
            headers[i] = new RecordHeader(listed.get(i).get(0).asText(), Lines.bytesOrNull(listed.get(i).get(1)));
        return headers;
    }
}
