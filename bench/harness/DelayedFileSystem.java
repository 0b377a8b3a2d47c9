package chronolake;

import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.Field;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system with the request times of an object store: a file below a folder is
 * read by one request when it is opened, and written by one when it is closed.
 *
 * <p>Compiled at runtime by Janino, which knows no lambdas and no type parameters of variables.
 */
public class DelayedFileSystem extends RawLocalFileSystem {
  private final AtomicLong reads = new AtomicLong();
  private final AtomicLong writes = new AtomicLong();
  private volatile String folder = "/";
  private volatile long millis = 0;

  /** Put an instance under the process's local file system. */
  public DelayedFileSystem under(LocalFileSystem local, String folder) throws Exception {
    initialize(local.getUri(), local.getConf());
    setWorkingDirectory(local.getWorkingDirectory());
    this.folder = folder;
    Field field = FilterFileSystem.class.getDeclaredField("fs");
    field.setAccessible(true);
    field.set(local, this);
    return this;
  }

  /** Set the time of each request from now on. */
  public void delay(long millis) {
    this.millis = millis;
  }

  public long reads() {
    return reads.get();
  }

  public long writes() {
    return writes.get();
  }

  public FSDataInputStream open(Path f, int bufferSize) throws IOException {
    request(f, reads);
    return super.open(f, bufferSize);
  }

  protected OutputStream createOutputStreamWithMode(Path f, boolean append, FsPermission permission)
      throws IOException {
    return new DelayedStream(super.createOutputStreamWithMode(f, append, permission), f);
  }

  private void request(Path f, AtomicLong counter) throws IOException {
    // An object store has no files of checksums.
    if (pathToFile(f).getPath().startsWith(folder) && !f.getName().endsWith(".crc")) {
      counter.incrementAndGet();
      try {
        Thread.sleep(millis);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new IOException("Interrupted during a request.", e);
      }
    }
  }

  private class DelayedStream extends FilterOutputStream {
    private final Path file;
    private boolean isClosed = false;

    DelayedStream(OutputStream stream, Path file) {
      super(stream);
      this.file = file;
    }

    public void write(byte[] bytes, int offset, int length) throws IOException {
      out.write(bytes, offset, length);
    }

    public void close() throws IOException {
      if (!isClosed) {
        isClosed = true;
        super.close();
        request(file, writes);
      }
    }
  }
}
