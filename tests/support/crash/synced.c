/* Records what fsync and fdatasync make durable below $SYNCED_ROOT, in the folder $SYNCED_LOG.
 *
 * Preloaded into a process. Event N is the file N: a header line, `file KEY PATH` or `folder KEY PATH`, and then
 * the content of the file at that time, or a line `f KEY NAME` or `d KEY NAME` for each name in the folder. KEY is
 * an inode with the time of its creation, since file systems use the numbers of inodes again. What
 * nobody has synced is in no event, as after a loss of power. Nothing is really synced. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int key_of(int folder, const char *name, int flags, char *key, size_t size) {
  struct statx found;
  if (statx(folder, name, flags | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &found) != 0)
    return -1;
  snprintf(key, size, "%llu-%lld-%u", (unsigned long long)found.stx_ino,
           (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
  return 0;
}

static void must(int holds, const char *what) {
  if (!holds) {
    perror(what);
    abort();
  }
}

static void write_all(int to, const char *data, size_t size) {
  while (size > 0) {
    ssize_t done = write(to, data, size);
    must(done > 0, "synced.c: write");
    data += done;
    size -= (size_t)done;
  }
}

/* The next number; the lock on the counter is held until its descriptor is closed. */
static long next_number(const char *log, int *counter) {
  char path[PATH_MAX], text[32] = {0};
  snprintf(path, sizeof path, "%s/counter", log);
  *counter = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  must(*counter >= 0, "synced.c: counter");
  flock(*counter, LOCK_EX);
  long number = pread(*counter, text, sizeof text - 1, 0) > 0 ? atol(text) + 1 : 1;
  return number;
}

static void record(int fd) {
  const char *root = getenv("SYNCED_ROOT"), *log = getenv("SYNCED_LOG");
  if (root == NULL || log == NULL) return;
  char link[64], path[PATH_MAX] = {0}, key[96], event[PATH_MAX], header[PATH_MAX + 160], text[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  size_t prefix = strlen(root);
  if (length < (ssize_t)prefix || strncmp(path, root, prefix) != 0) return;
  if (path[prefix] != 0 && path[prefix] != '/') return;
  struct stat kind;
  if (fstat(fd, &kind) != 0 || key_of(fd, "", AT_EMPTY_PATH, key, sizeof key) != 0) return;
  int counter;
  long number = next_number(log, &counter);
  snprintf(event, sizeof event, "%s/%ld", log, number);
  int to = open(event, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  must(to >= 0, "synced.c: event");
  if (S_ISDIR(kind.st_mode)) {
    write_all(to, header, (size_t)snprintf(header, sizeof header, "folder %s %s\n", key, path));
    DIR *folder = opendir(path);
    must(folder != NULL, "synced.c: opendir");
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
      if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
      char child[96], line[PATH_MAX];
      if (key_of(dirfd(folder), entry->d_name, 0, child, sizeof child) != 0) continue;
      int size = snprintf(line, sizeof line, "%c %s %s\n", entry->d_type == DT_DIR ? 'd' : 'f',
                          child, entry->d_name);
      write_all(to, line, (size_t)size);
    }
    closedir(folder);
  } else {
    write_all(to, header, (size_t)snprintf(header, sizeof header, "file %s %s\n", key, path));
    char *data = malloc(1 << 20);
    int from = open(link, O_RDONLY | O_CLOEXEC);
    must(data != NULL && from >= 0, "synced.c: open");
    ssize_t got;
    while ((got = read(from, data, 1 << 20)) > 0) write_all(to, data, (size_t)got);
    close(from);
    free(data);
  }
  close(to);
  pwrite(counter, text, (size_t)snprintf(text, sizeof text, "%ld\n", number), 0);
  close(counter);
}

int fsync(int fd) {
  record(fd);
  return 0;
}

int fdatasync(int fd) {
  record(fd);
  return 0;
}
