import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/**
 * A conversation in lines: a question is one line of JSON, so is its answer, until the input ends.
 * What a question throws is answered as {"error": ...} and the conversation goes on.
 */
final class Lines {
    static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    interface Answering {
        JsonNode answer(JsonNode question) throws Throwable;
    }

    private Lines() {
    }

    static void converse(Answering answering) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // Whatever a library prints must not be taken for an answer.
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode reply = JSON.objectNode();
            try {
                reply.set("answer", answering.answer(mapper.readTree(line)));
            } catch (Throwable error) {
                reply.put("error", error.toString());
                error.printStackTrace();
            }
            out.print(mapper.writeValueAsString(reply));
            out.print('\n');
            out.flush();
        }
    }

    static ByteBuffer bytes(JsonNode hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex.asText()));
    }

    static byte[] bytesOrNull(JsonNode hex) {
        return hex == null || hex.isNull() ? null : HexFormat.of().parseHex(hex.asText());
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null)
            return null;
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
