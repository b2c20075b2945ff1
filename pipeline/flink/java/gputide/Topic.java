package gputide;

import java.util.Properties;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.kafka.shaded.org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.util.Collector;

/** The Kafka topic that a job reads. */
final class Topic {
    private Topic() {}

    /** One record as it lies on the topic. Mutable and public for Flink's serializer of plain objects. */
    public static final class Message {
        public byte[] payload;
        public int partition;
        public long offset;
    }

    /** Reads everything that the topic still has; a restored job goes on where it was. */
    static KafkaSource<Message> source(JsonNode given) {
        Properties properties = new Properties();
        given.get("properties").properties().forEach(each -> properties.setProperty(each.getKey(), each.getValue().asText()));
        return KafkaSource.<Message>builder()
                .setBootstrapServers(given.get("servers").asText())
                .setTopics(given.get("topic").asText())
                .setGroupId(given.get("group").asText())
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setProperties(properties)
                .setDeserializer(new AsItIs())
                .build();
    }

    private static final class AsItIs implements KafkaRecordDeserializationSchema<Message> {
        private static final long serialVersionUID = 1L;

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Message> out) {
            Message message = new Message();
            message.payload = record.value();
            message.partition = record.partition();
            message.offset = record.offset();
            out.collect(message);
        }

        @Override
        public TypeInformation<Message> getProducedType() {
            return TypeInformation.of(Message.class);
        }
    }
}
