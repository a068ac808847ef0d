import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.ResponseHeader;

import java.nio.ByteBuffer;

/**
 * What Apache Kafka's generated classes say of the protocol: its tables, its layouts, and any message as they read it
 * and would write it again.
 */
public final class WireOracle {
    private WireOracle() {
    }

    public static void main(String[] args) throws Exception {
        Lines.converse(WireOracle::answer);
    }

    private static JsonNode answer(JsonNode question) throws Exception {
        String about = question.get("about").asText();
        switch (about) {
            case "apis":
                return apis();
            case "errors":
                return errors();
            case "layout":
                return layout(question);
            case "message":
                return message(question);
            case "request header":
                return requestHeader(question);
            case "response header":
                return responseHeader(question);
            default:
                throw new IllegalArgumentException("a question about " + about);
        }
    }

    private static ArrayNode apis() {
        ArrayNode all = Lines.JSON.arrayNode();
        for (ApiMessageType type : ApiMessageType.values()) {
            short lowest = type.lowestSupportedVersion();
            short highest = type.highestSupportedVersion(true);
            ObjectNode api = all.addObject();
            api.put("key", type.apiKey()).put("name", ApiKeys.forId(type.apiKey()).name());
            api.put("lowest", lowest).put("highest", highest);
            ArrayNode requests = api.putArray("request_headers");
            ArrayNode responses = api.putArray("response_headers");
            for (short version = lowest; version <= highest; version++) {
                requests.add(type.requestHeaderVersion(version));
                responses.add(type.responseHeaderVersion(version));
            }
        }
        return all;
    }

    private static ArrayNode errors() {
        ArrayNode all = Lines.JSON.arrayNode();
        for (Errors error : Errors.values()) {
            ObjectNode one = all.addObject();
            one.put("code", error.code()).put("name", error.name());
            one.put("retriable", error.exception() instanceof RetriableException);
        }
        return all;
    }

    /** A new message of the API and side asked for, or of the class named, which no API sends as such. */
    private static Message subject(JsonNode question) throws Exception {
        if (question.has("class"))
            return (Message) Class.forName("org.apache.kafka.common.message." + question.get("class").asText())
                .getDeclaredConstructor().newInstance();
        ApiMessageType type = ApiMessageType.fromApiKey((short) question.get("key").asInt());
        return question.get("side").asText().equals("request") ? type.newRequest() : type.newResponse();
    }

    private static JsonNode layout(JsonNode question) throws Exception {
        Class<?> type = subject(question).getClass();
        Schema[] schemas = (Schema[]) type.getField("SCHEMAS").get(null);
        return Layouts.struct(type, schemas[question.get("version").asInt()]);
    }

    private static JsonNode message(JsonNode question) throws Exception {
        short version = (short) question.get("version").asInt();
        Message message = subject(question);
        ByteBuffer given = Lines.bytes(question.get("hex"));
        message.read(new ByteBufferAccessor(given), version);
        ObjectNode answer = Lines.JSON.objectNode();
        answer.put("left", given.remaining());
        // Before writing: that takes the bytes out of the message.
        Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
        answer.set("json", (JsonNode) converter.getMethod("write", message.getClass(), short.class, boolean.class)
            .invoke(null, message, version, false));
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(written), cache, version);
        answer.put("room", written.remaining());
        answer.put("hex", Lines.hex(written.flip()));
        return answer;
    }

    private static JsonNode requestHeader(JsonNode question) {
        ByteBuffer frame = Lines.bytes(question.get("hex"));
        RequestHeader header = RequestHeader.parse(frame);
        ObjectNode answer = Lines.JSON.objectNode();
        answer.put("key", header.apiKey().id).put("version", header.apiVersion());
        answer.put("correlation_id", header.correlationId()).put("client_id", header.clientId());
        answer.put("body_at", frame.position());
        return answer;
    }

    private static JsonNode responseHeader(JsonNode question) {
        ByteBuffer frame = Lines.bytes(question.get("hex"));
        ResponseHeader header = ResponseHeader.parse(frame, (short) question.get("version").asInt());
        ObjectNode answer = Lines.JSON.objectNode();
        answer.put("correlation_id", header.correlationId()).put("body_at", frame.position());
        return answer;
    }
}
