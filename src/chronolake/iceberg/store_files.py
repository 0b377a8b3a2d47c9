"""Reads of Spark from a bucket: a file system over Iceberg's FileIO (`java/StoreFileSystem.java`).

Spark itself has no file system for buckets. This one uses the classes and settings with which
Iceberg reaches the tables' files, on the driver and on executors.
"""

from __future__ import annotations

import threading
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_CLASS: Final = "chronolake.StoreFileSystem"
_SOURCE: Final = ("java", "StoreFileSystem.java")
_PREFIX: Final = "fs.chronolake."
#: A setting of the JVM: the jar with the class was added.
_ADDED: Final = "fs.chronolake_jar"

_lock: Final = threading.Lock()


def store_options(
    spark: SparkSession, location: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the options of a reader of files in a bucket.

    Args:
        spark: the session of the reader.
        location: the URL of a file.
        settings: the settings of Iceberg's FileIO for the bucket, with `io-impl`.
    """
    with _lock:
        _install(spark)
    scheme = location.partition("://")[0]
    return {
        f"fs.{scheme}.impl": _CLASS,
        # Two lakes of one JVM may reach equal buckets of different stores.
        f"fs.{scheme}.impl.disable.cache": "true",
        **{f"{_PREFIX}{name}": value for name, value in settings.items()},
    }


def _install(spark: SparkSession) -> None:
    """Add the class to the driver and to all executors, unless that was done."""
    jvm: Any = spark._jvm  # noqa: SLF001
    hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001
    if hadoop.get(_ADDED) is not None:
        return
    # Spark contains a compiler, for the code that it generates.
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    above = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setParentClassLoader(above)
    compiler.cook(files(__package__).joinpath(*_SOURCE).read_text())
    # The JVM may outlive this process.
    file = jvm.java.io.File.createTempFile("store_file_system_", ".jar")
    file.deleteOnExit()
    jar = Path(str(file.getPath()))
    classes = compiler.getBytecodes()
    with zipfile.ZipFile(jar, "w") as content:
        for name in classes.keySet():
            content.writestr(f"{name.replace('.', '/')}.class", bytes(classes.get(name)))
    # A driver's configurations take their classes from the one that they are copied from.
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, 1)  # noqa: SLF001
    urls[0] = file.toURI().toURL()
    hadoop.setClassLoader(jvm.java.net.URLClassLoader(urls, above))
    spark._jsc.addJar(str(jar))  # noqa: SLF001
    hadoop.set(_ADDED, str(jar))
