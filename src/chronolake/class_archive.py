"""The archive of Spark's classes that the JVM starts from (class data sharing).

A JVM that runs Spark reads, parses and verifies thousands of classes. From an archive it maps them
into memory instead, which halves the time of a small command. The archive is created once, by a
background process after the first command that started Spark, and stored beside the jars. The JVM
does not start from an archive of another Java or of other jars, so the file's name contains a hash
of them.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from chronolake import env, jars

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The program that creates an archive. It runs Spark, so it is a module of a higher layer.
_TRAINING: Final = "chronolake.class_training"
_PREFIX: Final = "classes-"
_ENDING: Final = ".jsa"
_OFF: Final = "off"
#: Archives that no command has used for this time are removed.
_UNUSED_SECONDS: Final = 30 * 24 * 3600
#: Time until an archive that could not be created is tried again.
_RETRY_SECONDS: Final = 24 * 3600
#: A damaged archive is not used, and no warning is printed to standard output, which belongs to the
#: command's own output.
_CHECKED: Final = ("-XX:+VerifySharedSpaces", "-Xlog:disable", "-Xlog:all=error:stderr")
#: An archive contains only classes of the jars: every user may use it.
_MODE: Final = 0o644

_scheduled = False


def java_options(java_home: str) -> list[str]:
    """Return the options with which a JVM uses the archive; empty if it does not exist.

    Args:
        java_home: the folder of Java.
    """
    if _is_off():
        return []
    file = archive_file(java_home)
    if not os.access(file, os.R_OK):
        return []
    if not _is_complete(file):
        discard(java_home)
        return []
    with suppress(OSError):
        # Another user's archive, or one of a read-only folder, is used as well.
        os.utime(file)
        os.utime(_size_file(file))
    return [option("SharedArchiveFile", file), *_CHECKED]


def option(name: str, file: Path) -> str:
    """Return an option of Java with a file's path, as Spark reads it from a list of options."""
    text = f"-XX:{name}={file}"
    return f'"{text}"' if " " in text else text


def archive_file(java_home: str) -> Path:
    """Return the path of the archive for a Java and the jars of this installation.

    Args:
        java_home: the folder of Java.
    """
    digest = hashlib.sha256()
    release = Path(java_home, "release")
    spark = Path(pyspark.__file__).parent / "jars"
    files = sorted(spark.glob("*.jar")) + [jars.folder() / jar.file_name for jar in jars.required()]
    digest.update(release.read_bytes() if release.exists() else java_home.encode())
    for file in files:
        with suppress(OSError):
            found = file.stat()
            # The layers of an image store seconds.
            digest.update(f"{file}\0{found.st_size}\0{int(found.st_mtime)}\n".encode())
    return jars.folder() / f"{_PREFIX}{digest.hexdigest()[:16]}{_ENDING}"


def discard(java_home: str) -> None:
    """Remove an archive with which the JVM did not start.

    Args:
        java_home: the folder of Java.
    """
    file = archive_file(java_home)
    with suppress(OSError):
        file.unlink(missing_ok=True)
        _size_file(file).unlink(missing_ok=True)


def create_after_exit(java_home: str) -> None:
    """Create the archive in the background when this process ends, unless it exists.

    Nothing happens in continuous integration (`CI` is set), where the file would be thrown away, or
    if `CHRONOLAKE_CLASS_ARCHIVE` is `off`.

    Args:
        java_home: the folder of Java.
    """
    global _scheduled  # noqa: PLW0603 - a process has one JVM
    if _scheduled or _is_off() or os.environ.get("CI") or not sys.executable:
        return
    if not os.access(jars.folder(), os.W_OK) or not _is_due(archive_file(java_home)):
        return
    _scheduled = True
    atexit.register(_start_training, os.getpid())


def _is_off() -> bool:
    return os.environ.get(env.CLASS_ARCHIVE) == _OFF


def _is_due(file: Path) -> bool:
    """Return whether an archive is missing or truncated, and was not tried in vain recently."""
    if _is_complete(file):
        return False
    try:
        return _failure(file).stat().st_mtime < time.time() - _RETRY_SECONDS
    except OSError:
        return True


def _start_training(parent: int) -> None:
    if os.getpid() != parent:
        # A forked process inherits the handler.
        return
    with suppress(OSError):
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", _TRAINING],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@contextmanager
def record_archive(java_home: str) -> Iterator[Path | None]:
    """Give the path at which a JVM may store an archive, and publish the file afterwards.

    It is None if the archive exists or another process creates it. An error is recorded in a file
    beside the archive, so that not every command repeats it.

    Args:
        java_home: the folder of Java.
    """
    file = archive_file(java_home)
    own = file.with_suffix(f".{os.getpid()}.tmp")
    with file.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        if not _is_due(file):
            yield None
            return
        try:
            yield own
            own.chmod(_MODE)
            size = _size_file(file)
            size.write_text(str(own.stat().st_size), encoding="ascii")
            size.chmod(_MODE)
            # Renamed, so that no JVM sees an incomplete file.
            own.rename(file)
        except BaseException as failure:
            _failure(file).write_text(f"{type(failure).__name__}: {failure}\n")
            raise
        finally:
            own.unlink(missing_ok=True)
        _failure(file).unlink(missing_ok=True)
        _remove_unused(file)


def _is_complete(file: Path) -> bool:
    """Return whether an archive has the size that it was created with.

    Java verifies the content of an archive, but a truncated one ends Java while it verifies.
    """
    try:
        return file.stat().st_size == int(_size_file(file).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False


def _size_file(file: Path) -> Path:
    return file.with_suffix(".size")


def _failure(file: Path) -> Path:
    return file.with_suffix(".failed")


def _remove_unused(current: Path) -> None:
    oldest = time.time() - _UNUSED_SECONDS
    for file in current.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if file.stem != current.stem and file.stat().st_mtime < oldest:
                file.unlink()
