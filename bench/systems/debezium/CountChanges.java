import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.List;
import java.util.Properties;

/**
 * Debezium's embedded engine on a slot: counts what it hands out, marks it as processed and keeps nothing. Prints "reached"
 * and the milliseconds since the epoch when it has had all changes. Arguments: a file with the engine's properties, and how
 * many changes there are.
 */
class CountChanges {
  public static void main(String[] args) throws Exception {
    Properties settings = new Properties();
    try (Reader file = Files.newBufferedReader(Path.of(args[0]))) {
      settings.load(file);
    }
    try (DebeziumEngine<?> engine =
        DebeziumEngine.create(Json.class)
            .using(settings)
            .using((isSuccess, message, error) -> System.err.println(message))
            .notifying(new Counter(Long.parseLong(args[1])))
            .build()) {
      engine.run();
    }
  }

  private static class Counter implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private final long changes;
    private long seen = 0;

    Counter(long changes) {
      this.changes = changes;
    }

    @Override
    public void handleBatch(
        List<ChangeEvent<String, String>> batch, DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer)
        throws InterruptedException {
      for (ChangeEvent<String, String> change : batch) committer.markProcessed(change);
      committer.markBatchFinished();
      boolean wasReached = seen >= changes;
      seen += batch.size();
      if (wasReached || seen < changes) return;
      Instant now = Instant.now();
      System.out.println("reached " + (now.getEpochSecond() * 1000.0 + now.getNano() / 1e6));
    }
  }
}
