import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

import java.lang.reflect.Field;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;

/**
 * The layout of a generated message class in one version: its fields in wire order, tagged ones last and by tag, each
 * with name, type, whether it may be null, and the value it has in a new message.
 */
final class Layouts {
    private Layouts() {
    }

    static ArrayNode struct(Class<?> type, Schema schema) throws ReflectiveOperationException {
        Object fresh = type.getDeclaredConstructor().newInstance();
        ArrayNode fields = Lines.JSON.arrayNode();
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields) {
                for (Map.Entry<?, ?> entry : tagged((TaggedFields) bound.def.type).entrySet()) {
                    fields.add(field((org.apache.kafka.common.protocol.types.Field) entry.getValue(),
                        (Integer) entry.getKey(), fresh));
                }
            } else {
                fields.add(field(bound.def, -1, fresh));
            }
        }
        return fields;
    }

    private static Map<?, ?> tagged(TaggedFields section) throws ReflectiveOperationException {
        Field inner = TaggedFields.class.getDeclaredField("fields");
        inner.setAccessible(true);
        return new TreeMap<>((Map<?, ?>) inner.get(section));
    }

    private static ObjectNode field(org.apache.kafka.common.protocol.types.Field declared, int tag, Object fresh)
        throws ReflectiveOperationException {
        Field field = member(fresh.getClass(), declared.name);
        ObjectNode node = Lines.JSON.objectNode();
        node.put("name", declared.name).put("tag", tag);
        node.put("nullable", declared.type.isNullable());
        Type element = declared.type.arrayElementType().orElse(null);
        Type plain = element == null ? declared.type : element;
        node.put("array", element != null);
        if (plain instanceof Schema) {
            node.set("struct", struct(element == null ? field.getType() : elementClass(field), (Schema) plain));
        } else {
            node.put("type", plain.toString());
        }
        if (element != null)
            node.put("wrapping", declared.type.getClass().getSimpleName());
        node.set("default", value(field.get(fresh)));
        return node;
    }

    /** What a List&lt;T&gt; holds, or a collection class of the message's own. */
    private static Class<?> elementClass(Field field) {
        java.lang.reflect.Type type = field.getGenericType();
        if (!(type instanceof ParameterizedType))
            type = field.getType().getGenericSuperclass();
        return (Class<?>) ((ParameterizedType) type).getActualTypeArguments()[0];
    }

    private static JsonNode value(Object value) {
        if (value == null)
            return Lines.JSON.nullNode();
        if (value instanceof String)
            return Lines.JSON.textNode((String) value);
        if (value instanceof Boolean)
            return Lines.JSON.booleanNode((Boolean) value);
        if (value instanceof Double)
            return Lines.JSON.numberNode((Double) value);
        if (value instanceof Number)
            return Lines.JSON.numberNode(((Number) value).longValue());
        if (value instanceof byte[])
            return Lines.JSON.textNode(HexFormat.of().formatHex((byte[]) value));
        if (value instanceof ByteBuffer)
            return Lines.JSON.textNode(Lines.hex((ByteBuffer) value));
        if (value instanceof Uuid) {
            Uuid uuid = (Uuid) value;
            ByteBuffer bytes = ByteBuffer.allocate(16);
            bytes.putLong(uuid.getMostSignificantBits()).putLong(uuid.getLeastSignificantBits());
            return Lines.JSON.textNode(Lines.hex(bytes.flip()));
        }
        if (value instanceof Collection)
            return Lines.JSON.arrayNode(((Collection<?>) value).size());
        return Lines.JSON.objectNode();
    }

    /** The member of a schema's field: is_kraft_controller is isKRaftController. */
    private static Field member(Class<?> type, String snake) throws NoSuchFieldException {
        for (Field field : type.getDeclaredFields()) {
            if (field.getName().equalsIgnoreCase(snake.replace("_", ""))) {
                field.setAccessible(true);
                return field;
            }
        }
        throw new NoSuchFieldException(type.getName() + " for " + snake);
    }
}
