import java.util.Collections;
import java.util.Properties;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.ConsumerTimeoutException;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * The high-level consumer of Kafka 0.9, with one stream: connect, group, consumer id, topic, session timeout in ms.
 *
 * <p>Every record is a line of its partition, offset and value, written before its offset is committed.
 */
public final class ZooKeeperMember {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("zookeeper.connect", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("consumer.id", arguments[2]);
        settings.put("zookeeper.session.timeout.ms", arguments[4]);
        settings.put("zookeeper.connection.timeout.ms", "60000");
        settings.put("auto.offset.reset", "smallest");
        settings.put("auto.commit.enable", "false");
        settings.put("rebalance.max.retries", "100");
        settings.put("rebalance.backoff.ms", "300");
        settings.put("consumer.timeout.ms", "100");
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
        String topic = arguments[3];
        ConsumerIterator<byte[], byte[]> records =
                connector.createMessageStreams(Collections.singletonMap(topic, 1)).get(topic).get(0).iterator();
        boolean isCommitted = true;
        while (true) {
            try {
                MessageAndMetadata<byte[], byte[]> record = records.next();
                System.out.println(record.partition() + " " + record.offset() + " " + new String(record.message()));
                System.out.flush();
                isCommitted = false;
            } catch (ConsumerTimeoutException nothingCame) {
                if (!isCommitted) {
                    connector.commitOffsets();
                    isCommitted = true;
                }
            }
        }
    }
}
