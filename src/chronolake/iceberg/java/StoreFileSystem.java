package chronolake;

import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.RangeReadable;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.io.SupportsPrefixOperations;

/**
 * A read-only Hadoop file system over Iceberg's FileIO.
 *
 * <p>Spark's own readers reach a bucket through it with the classes and credentials of the tables'
 * files. Its settings begin with PREFIX in the Hadoop configuration of one read.
 *
 * <p>Compiled at runtime by Janino, which knows no lambdas and no type parameters of variables.
 */
public class StoreFileSystem extends FileSystem {
  public static final String PREFIX = "fs.chronolake.";
  private static final long BLOCK_BYTES = 128L << 20;

  /** One FileIO for all files with the same settings, because it holds connections. */
  private static final ConcurrentHashMap FILE_IO = new ConcurrentHashMap();

  private URI uri;
  private FileIO io;

  public void initialize(URI name, Configuration conf) throws IOException {
    super.initialize(name, conf);
    setConf(conf);
    uri = URI.create(name.getScheme() + "://" + name.getAuthority());
    Map settings = new TreeMap();
    for (Iterator entries = conf.iterator(); entries.hasNext(); ) {
      Map.Entry entry = (Map.Entry) entries.next();
      String key = (String) entry.getKey();
      if (key.startsWith(PREFIX)) {
        settings.put(key.substring(PREFIX.length()), entry.getValue());
      }
    }
    synchronized (FILE_IO) {
      io = (FileIO) FILE_IO.get(settings);
      if (io == null) {
        String kind = (String) settings.get("io-impl");
        io = CatalogUtil.loadFileIO(kind, new HashMap(settings), conf);
        FILE_IO.put(settings, io);
      }
    }
  }

  public String getScheme() {
    return uri.getScheme();
  }

  public URI getUri() {
    return uri;
  }

  public Path getWorkingDirectory() {
    return new Path(uri.toString() + "/");
  }

  public void setWorkingDirectory(Path folder) {}

  public long getDefaultBlockSize(Path path) {
    return BLOCK_BYTES;
  }

  private String location(Path path) {
    return uri.toString() + path.toUri().getPath();
  }

  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    return new FSDataInputStream(new Content(io.newInputFile(location(path))));
  }

  public FileStatus getFileStatus(Path path) throws IOException {
    String location = location(path);
    if (path.isRoot()) {
      return folder(path);
    }
    try {
      InputFile file = io.newInputFile(location);
      if (file.exists()) {
        return new FileStatus(file.getLength(), false, 1, BLOCK_BYTES, 0, path);
      }
      Iterable below = ((SupportsPrefixOperations) io).listPrefix(location + "/");
      if (below.iterator().hasNext()) {
        return folder(path);
      }
    } catch (RuntimeException failure) {
      throw new IOException(failure.getMessage() + ": " + location, failure);
    }
    throw new FileNotFoundException(location);
  }

  private static FileStatus folder(Path path) {
    return new FileStatus(0, true, 1, BLOCK_BYTES, 0, path);
  }

  /** Only files are listed: Chronolake names every file that Spark reads. */
  public FileStatus[] listStatus(Path path) throws IOException {
    FileStatus status = getFileStatus(path);
    if (status.isDirectory()) {
      throw new UnsupportedOperationException("Folders of a bucket are not listed: " + path);
    }
    return new FileStatus[] {status};
  }

  public FSDataOutputStream create(
      Path path,
      FsPermission permission,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    throw readOnly();
  }

  public FSDataOutputStream append(Path path, int bufferSize, Progressable progress)
      throws IOException {
    throw readOnly();
  }

  public boolean rename(Path from, Path to) throws IOException {
    throw readOnly();
  }

  public boolean delete(Path path, boolean recursive) throws IOException {
    throw readOnly();
  }

  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    throw readOnly();
  }

  private static IOException readOnly() {
    return new IOException("This file system is read-only.");
  }

  /** The bytes of an object. A stream opens at its first read, at the place that is wanted. */
  private static class Content extends FSInputStream {
    private final InputFile file;
    private SeekableInputStream stream;
    private long position;

    Content(InputFile file) {
      this.file = file;
    }

    private SeekableInputStream stream() throws IOException {
      try {
        if (stream == null) {
          stream = file.newStream();
        }
        if (stream.getPos() != position) {
          stream.seek(position);
        }
        return stream;
      } catch (NotFoundException failure) {
        throw gone(failure);
      }
    }

    private FileNotFoundException gone(NotFoundException failure) {
      FileNotFoundException error = new FileNotFoundException(file.location());
      error.initCause(failure);
      return error;
    }

    public int read() throws IOException {
      int found = stream().read();
      if (found >= 0) {
        position++;
      }
      return found;
    }

    public int read(byte[] buffer, int offset, int length) throws IOException {
      int found = stream().read(buffer, offset, length);
      if (found > 0) {
        position += found;
      }
      return found;
    }

    public void readFully(long from, byte[] buffer, int offset, int length) throws IOException {
      if (length == 0) {
        return;
      }
      SeekableInputStream open = stream == null ? file.newStream() : stream;
      stream = open;
      if (open instanceof RangeReadable) {
        try {
          ((RangeReadable) open).readFully(from, buffer, offset, length);
        } catch (NotFoundException failure) {
          throw gone(failure);
        }
        return;
      }
      long before = position;
      position = from;
      int done = 0;
      while (done < length) {
        int found = read(buffer, offset + done, length - done);
        if (found < 0) {
          throw new EOFException(file.location());
        }
        done += found;
      }
      position = before;
    }

    public void seek(long to) throws IOException {
      position = to;
    }

    public long getPos() throws IOException {
      return position;
    }

    public boolean seekToNewSource(long target) throws IOException {
      return false;
    }

    public void close() throws IOException {
      if (stream != null) {
        stream.close();
      }
    }
  }
}
