package chronolake;

import java.io.File;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.Field;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.fs.FSError;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.io.FileIO;

/**
 * Hadoop's local file system, which makes the files of Iceberg tables survive a loss of power.
 *
 * <p>A catalog commit makes a table's newest metadata file its state. So before the close of a
 * metadata file returns, that file, all files of the table that were closed before it, and their
 * folders are fsynced, at the same time. Files outside the watched folders are not touched.
 *
 * <p>Compiled at runtime by Janino, which knows no lambdas and no type parameters of variables.
 */
public class SyncedFileSystem extends RawLocalFileSystem {
  private static final int THREADS = 16;
  private static final String METADATA = "/metadata/";
  private static final String DATA = "/data/";

  /** Folders whose tables are synced, each with whether manifest lists count as metadata. */
  private final ConcurrentHashMap watched = new ConcurrentHashMap();

  /** The syncs of closed files that have begun, by the file. */
  private final ConcurrentHashMap waiting = new ConcurrentHashMap();

  /** How long commits have waited for syncs. */
  private final AtomicLong waitedNanos = new AtomicLong();

  /** When this process began, in milliseconds: older snapshots are of others. */
  private final long since = System.currentTimeMillis();

  /** Snapshots of executors in other processes whose files are synced. */
  private final Set added = ConcurrentHashMap.newKeySet();

  /** Folders whose own names are durable. */
  private final Set anchored = ConcurrentHashMap.newKeySet();

  private final ExecutorService threads =
      Executors.newFixedThreadPool(
          THREADS,
          new ThreadFactory() {
            public Thread newThread(Runnable work) {
              Thread thread = new Thread(work, "chronolake-fsync");
              thread.setDaemon(true);
              return thread;
            }
          });

  /** Put an instance under the process's local file system; gives the one that is there. */
  public static SyncedFileSystem under(LocalFileSystem local) throws Exception {
    if (local.getRawFileSystem() instanceof SyncedFileSystem) {
      return (SyncedFileSystem) local.getRawFileSystem();
    }
    SyncedFileSystem synced = new SyncedFileSystem();
    synced.initialize(local.getUri(), local.getConf());
    synced.setWorkingDirectory(local.getWorkingDirectory());
    Field field = FilterFileSystem.class.getDeclaredField("fs");
    field.setAccessible(true);
    field.set(local, synced);
    return synced;
  }

  /**
   * Sync the tables below a folder from now on.
   *
   * @param folder an absolute path
   * @param byManifestList whether a server writes the metadata files: then the last file of a
   *     commit that this process writes is a manifest list
   */
  public void watch(String folder, boolean byManifestList) {
    watched.put(folder, Boolean.valueOf(byManifestList));
  }

  /** Sync the tables below a folder no more. */
  public void ignore(String folder) {
    watched.remove(folder);
  }

  /** How many milliseconds commits of this process have waited for syncs. */
  public long waitedMillis() {
    return waitedNanos.get() / 1000000L;
  }

  /**
   * Sync what executors in other processes have written for a table, with its next commit.
   *
   * @param metadata of the commit
   */
  public void addWrittenElsewhere(TableMetadata metadata, FileIO io) {
    for (Iterator every = metadata.snapshots().iterator(); every.hasNext(); ) {
      Snapshot snapshot = (Snapshot) every.next();
      if (snapshot.timestampMillis() >= since && added.add(Long.valueOf(snapshot.snapshotId()))) {
        addAll(snapshot.addedDataFiles(io));
        addAll(snapshot.addedDeleteFiles(io));
      }
    }
  }

  private void addAll(Iterable files) {
    for (Iterator every = files.iterator(); every.hasNext(); ) {
      String path = new Path(((ContentFile) every.next()).location()).toUri().getPath();
      String table = tableOf(path);
      if (table != null && folderOf(path) != null) {
        begin(path);
      }
    }
  }

  protected OutputStream createOutputStreamWithMode(Path f, boolean append, FsPermission permission)
      throws IOException {
    OutputStream stream = super.createOutputStreamWithMode(f, append, permission);
    String path = pathToFile(f).getPath();
    String folder = folderOf(path);
    String table = folder == null ? null : tableOf(path);
    return table == null ? stream : new SyncedStream(stream, path, folder, table);
  }

  public boolean delete(Path p, boolean recursive) throws IOException {
    String path = pathToFile(p).getPath();
    if (folderOf(path) != null) {
      // Another folder may get the name.
      for (Iterator every = anchored.iterator(); every.hasNext(); ) {
        String known = (String) every.next();
        if (known.equals(path) || known.startsWith(path + "/")) {
          every.remove();
        }
      }
    }
    return super.delete(p, recursive);
  }

  private String folderOf(String path) {
    for (Iterator every = watched.keySet().iterator(); every.hasNext(); ) {
      String folder = (String) every.next();
      if (path.startsWith(folder + "/")) {
        return folder;
      }
    }
    return null;
  }

  /** The folder of the table that a file belongs to; null: it is not a table's. */
  private static String tableOf(String path) {
    int at = Math.max(path.lastIndexOf(METADATA), path.lastIndexOf(DATA));
    return at < 0 ? null : path.substring(0, at);
  }

  /** Begin to sync a file that was closed; the next commit of its table waits for that. */
  private void begin(String path) {
    waiting.put(path, threads.submit(forced(path, StandardOpenOption.WRITE)));
  }

  private boolean completesCommit(String path, String folder) {
    if (path.endsWith(".metadata.json")) {
      return true;
    }
    Boolean byManifestList = (Boolean) watched.get(folder);
    return byManifestList != null
        && byManifestList.booleanValue()
        && path.substring(path.lastIndexOf('/') + 1).startsWith("snap-");
  }

  /** Wait until all files of a table that were closed are durable, and the folders they are in. */
  private void complete(String table, String folder) throws IOException {
    // Two commits may wait for one file: it stays there until it is durable. A table may adopt the
    // files of one that was made in a folder of its own.
    Map begun = new HashMap();
    for (Iterator every = waiting.entrySet().iterator(); every.hasNext(); ) {
      Map.Entry entry = (Map.Entry) every.next();
      if (((String) entry.getKey()).startsWith(table + "/")) {
        begun.put(entry.getKey(), entry.getValue());
      }
    }
    Set folders = new TreeSet();
    Set found = new TreeSet();
    for (Iterator every = begun.keySet().iterator(); every.hasNext(); ) {
      String parent = new File((String) every.next()).getParent();
      folders.add(parent);
      // Up to the watched folder, which is durable itself.
      while (!parent.equals(folder) && !anchored.contains(parent) && found.add(parent)) {
        parent = new File(parent).getParent();
        folders.add(parent);
      }
    }
    List running = new ArrayList();
    running.addAll(begun.values());
    for (Iterator every = folders.iterator(); every.hasNext(); ) {
      running.add(threads.submit(forced((String) every.next(), StandardOpenOption.READ)));
    }
    IOException failure = null;
    for (Iterator every = running.iterator(); every.hasNext(); ) {
      try {
        ((Future) every.next()).get();
      } catch (ExecutionException e) {
        failure = new IOException(e.getCause().getMessage(), e.getCause());
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        failure = new IOException("Interrupted while files were synced.", e);
      }
    }
    // A file whose sync has failed is not tried again, for its pages may be gone: what refers to it
    // fails now, and is written again under other names.
    waiting.keySet().removeAll(begun.keySet());
    if (failure != null) {
      throw failure;
    }
    anchored.addAll(found);
  }

  private static Callable forced(final String path, final OpenOption option) {
    return new Callable() {
      public Object call() throws IOException {
        try {
          FileChannel channel =
              FileChannel.open(new File(path).toPath(), new OpenOption[] {option});
          try {
            channel.force(true);
          } finally {
            channel.close();
          }
        } catch (NoSuchFileException gone) {
          // What a failed commit or its task has removed, no commit refers to.
          return null;
        } catch (IOException e) {
          String reason = String.valueOf(e.getMessage());
          boolean isFolder = option == StandardOpenOption.READ;
          if (isFolder && (reason.equals("Invalid argument") || reason.contains("not supported"))) {
            // Some network file systems sync the names with the files.
            return null;
          }
          throw new IOException(path + ": " + reason, e);
        }
        return null;
      }
    };
  }

  /** A file of a table on its way. */
  private class SyncedStream extends FilterOutputStream {
    private final String path;
    private final String folder;
    private final String table;
    private boolean isClosed = false;

    SyncedStream(OutputStream stream, String path, String folder, String table) {
      super(stream);
      this.path = path;
      this.folder = folder;
      this.table = table;
    }

    public void write(int value) throws IOException {
      write(new byte[] {(byte) value}, 0, 1);
    }

    public void write(byte[] bytes, int offset, int length) throws IOException {
      try {
        out.write(bytes, offset, length);
      } catch (FSError e) {
        throw new IOException(path + ": " + e.getCause().getMessage(), e);
      } catch (IOException e) {
        throw new IOException(path + ": " + e.getMessage(), e);
      }
    }

    public void close() throws IOException {
      if (isClosed) {
        return;
      }
      isClosed = true;
      super.close();
      begin(path);
      if (completesCommit(path, folder)) {
        long began = System.nanoTime();
        complete(table, folder);
        waitedNanos.addAndGet(System.nanoTime() - began);
      }
    }
  }
}
