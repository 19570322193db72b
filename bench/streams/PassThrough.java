import java.io.FileReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * Kafka Streams: writes every record of the inputs to the output, until SIGTERM. Arguments: a file of settings, the
 * output, and the inputs, separated by commas. Without lambdas, which the compiler (Janino) does not support.
 */
public final class PassThrough {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        FileReader file = new FileReader(arguments[0]);
        settings.load(file);
        file.close();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(Arrays.asList(arguments[2].split(","))).to(arguments[1]);
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
