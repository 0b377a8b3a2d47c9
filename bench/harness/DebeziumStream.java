import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.ChangeEventFormat;
import io.debezium.embedded.Connect;
import io.debezium.engine.RecordChangeEvent;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Reads records of a MySQL server with Debezium's engine until a number of them has arrived, and
 * prints the seconds since the program began and since the first record.
 *
 * Arguments: port, folder of the offset, snapshot mode, tables, number of records.
 */
public class DebeziumStream {
  private static long first;
  private static long count;

  public static void main(String[] words) throws Exception {
    long begin = System.nanoTime();
    long wanted = Long.parseLong(words[4]);
    Properties set = new Properties();
    set.setProperty("name", "shop");
    set.setProperty("connector.class", "io.debezium.connector.mysql.MySqlConnector");
    set.setProperty("topic.prefix", "shop");
    set.setProperty("database.hostname", "127.0.0.1");
    set.setProperty("database.port", words[0]);
    set.setProperty("database.user", "root");
    set.setProperty("database.password", "");
    set.setProperty("database.server.id", "4712");
    set.setProperty("database.include.list", "shop");
    set.setProperty("table.include.list", words[3]);
    set.setProperty("snapshot.mode", words[2]);
    set.setProperty("include.schema.changes", "false");
    set.setProperty("tombstones.on.delete", "false");
    set.setProperty("decimal.handling.mode", "string");
    set.setProperty("max.batch.size", "8192");
    set.setProperty("max.queue.size", "32768");
    set.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
    set.setProperty("offset.storage.file.filename", words[1] + "/offset");
    set.setProperty(
        "schema.history.internal", "io.debezium.storage.file.history.FileSchemaHistory");
    set.setProperty("schema.history.internal.file.filename", words[1] + "/schemas");
    Thread main = Thread.currentThread();
    DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
        DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
            .using(set)
            .notifying(
                (List<RecordChangeEvent<SourceRecord>> records,
                    DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                  if (first == 0 && !records.isEmpty()) {
                    first = System.nanoTime();
                  }
                  for (RecordChangeEvent<SourceRecord> record : records) {
                    committer.markProcessed(record);
                  }
                  committer.markBatchFinished();
                  count += records.size();
                  if (count >= wanted) {
                    long end = System.nanoTime();
                    System.out.println("SECONDS " + (end - begin) / 1e9 + " " + (end - first) / 1e9);
                    System.out.flush();
                    main.interrupt();
                  }
                })
            .build();
    ExecutorService executor = Executors.newSingleThreadExecutor();
    executor.execute(engine);
    try {
      Thread.sleep(Long.MAX_VALUE);
    } catch (InterruptedException done) {
      engine.close();
      executor.shutdownNow();
      System.exit(0);
    }
  }
}
