import java.io.FileReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams: reads the inputs and writes the output, until SIGTERM. Arguments: a file of settings, the output, the
 * inputs, separated by commas, and the workload: records as they are, or counted in a store. Without lambdas, which the
 * compiler (Janino) does not support.
 */
public final class Contestant {
    static final String STORE = "counts";

    /** Writes the number of a key's records before the rest of the value, into the store and to the output. */
    static final class Counting implements Processor {
        private ProcessorContext context;
        private KeyValueStore store;

        public void init(ProcessorContext context) {
            this.context = context;
            this.store = (KeyValueStore) context.getStateStore(STORE);
        }

        public void process(Record record) {
            byte[] before = (byte[]) store.get(record.key());
            long count = before == null ? 1 : ByteBuffer.wrap(before).getLong() + 1;
            byte[] value = (byte[]) ((byte[]) record.value()).clone();
            ByteBuffer.wrap(value).putLong(count);
            store.put(record.key(), value);
            context.forward(record.withValue(value));
        }

        public void close() {}
    }

    /** A counting processor for each task. */
    static final class CountingSupplier implements ProcessorSupplier {
        private final boolean onDisk;

        CountingSupplier(boolean onDisk) {
            this.onDisk = onDisk;
        }

        public Processor get() {
            return new Counting();
        }

        public Set stores() {
            KeyValueBytesStoreSupplier kept =
                onDisk ? Stores.persistentKeyValueStore(STORE) : Stores.inMemoryKeyValueStore(STORE);
            StoreBuilder store = Stores.keyValueStoreBuilder(kept, Serdes.ByteArray(), Serdes.ByteArray());
            return Collections.singleton(store.withCachingEnabled());
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        FileReader file = new FileReader(arguments[0]);
        settings.load(file);
        file.close();
        StreamsBuilder builder = new StreamsBuilder();
        KStream records = builder.stream(Arrays.asList(arguments[2].split(",")));
        if (arguments[3].startsWith("count")) {
            records = records.process(new CountingSupplier(arguments[3].equals("count on disk")), new String[0]);
        }
        records.to(arguments[1]);
        final KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        final CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                streams.close(Duration.ofSeconds(8));
                ended.countDown();
            }
        });
        streams.start();
        ended.await();
    }
}
