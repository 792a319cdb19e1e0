import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Runs Debezium's connector, and writes each event's key and value as Kafka Connect would send
 * them: into one file with the schema in every record, into another without.
 *
 * <p>Says "snapshot" when the rows that were there have been read, and ends with the first message
 * that somebody puts into the database's log. The arguments are the database's port and a folder.
 */
public final class Capture {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final BufferedWriter file;
    private final JsonConverter keys = new JsonConverter();
    private final JsonConverter values = new JsonConverter();

    private Capture(Path path, boolean schemas) throws IOException {
        file = Files.newBufferedWriter(path, StandardCharsets.UTF_8);
        keys.configure(Map.of("schemas.enable", schemas), true);
        values.configure(Map.of("schemas.enable", schemas), false);
    }

    /** Runs until the story ends, or something fails. */
    public static void main(String[] arguments) throws IOException {
        Path folder = Path.of(arguments[1]);
        List<Capture> both =
                List.of(
                        new Capture(folder.resolve("with_schemas.jsonl"), true),
                        new Capture(folder.resolve("without.jsonl"), false));
        DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                .using(connector(arguments[0]))
                .notifying(event -> follow(event, both))
                .using((success, message, error) -> System.err.println(message + ": " + error))
                .build()
                .run();
        System.exit(1);
    }

    private static void follow(RecordChangeEvent<SourceRecord> event, List<Capture> both) {
        SourceRecord record = event.record();
        boolean isEnd = record.topic().endsWith(".message");
        try {
            for (Capture each : both) {
                if (isEnd) {
                    each.file.close();
                } else {
                    each.write(record);
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        if (isEnd) {
            // Nothing is left to be tidied up: the database is thrown away.
            Runtime.getRuntime().halt(0);
        }
        if (record.value() instanceof Struct envelope
                && "last".equals(envelope.getStruct("source").getString("snapshot"))) {
            System.out.println("snapshot");
        }
    }

    private void write(SourceRecord record) throws IOException {
        String topic = record.topic();
        Map<String, String> line = new LinkedHashMap<>();
        line.put("table", topic.substring(topic.lastIndexOf('.') + 1));
        line.put("key", text(keys, topic, record.keySchema(), record.key()));
        line.put("value", text(values, topic, record.valueSchema(), record.value()));
        file.write(JSON.writeValueAsString(line));
        file.newLine();
    }

    private static String text(JsonConverter to, String topic, Schema schema, Object value) {
        byte[] bytes = to.fromConnectData(topic, schema, value);
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    /** What a connector must be told; everything else is as it comes. */
    private static Properties connector(String port) {
        Properties told = new Properties();
        told.put("name", "capture");
        told.put("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        told.put("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        told.put("topic.prefix", "capture");
        told.put("plugin.name", "pgoutput");
        // TRUNCATE is not sent by default.
        told.put("skipped.operations", "none");
        told.put("database.hostname", "127.0.0.1");
        told.put("database.port", port);
        told.put("database.user", "capture");
        told.put("database.password", "");
        told.put("database.dbname", "postgres");
        return told;
    }
}
