"""Requirements of a lake for Spark: of a session that an application started, and of executors.

A session is checked as a whole, so that the error lists every setting that is missing.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake import jars
from chronolake.errors import LakeError, MissingRequirementError
from chronolake.location import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyspark.sql import SparkSession

EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_EXTENSIONS_KEY: Final = "spark.sql.extensions"
_PACKAGES_KEY: Final = "spark.jars.packages"
#: A class of each object store's client.
CLIENT_CLASSES: Final = {
    "s3": "software.amazon.awssdk.services.s3.S3Client",
    "gs": "com.google.cloud.storage.Storage",
    "abfss": "com.azure.storage.file.datalake.DataLakeFileClient",
}
_API_MODE: Final = "SPARK_API_MODE"
#: Variables with which PySpark connects to a server instead of starting Java.
_CONNECT_VARIABLES: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", _API_MODE)
_ICEBERG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
#: The driver of each kind of JDBC catalog, by the prefix of its URI.
_DRIVER_CLASSES: Final = {
    "jdbc:sqlite:": "org.sqlite.JDBC",
    "jdbc:postgresql:": "org.postgresql.Driver",
}
#: Its jar, whose name contains the version of Spark for which it was built.
_RUNTIME: Final = re.compile(r"iceberg-spark-runtime-(\d+\.\d+)_")
#: Packages of extras that tasks use if the driver has them.
_PACKAGES_OF_TASKS: Final = ("psycopg", "cryptography", "zstandard", "httpx", "grpc")
#: A setting of the JVM: its executors were checked.
_CHECKED: Final = "fs.chronolake_executors_checked"
#: Seconds until executors of a cluster have to start.
_EXECUTOR_SECONDS: Final = 300.0
#: Enough tasks for every executor to run some of them.
_TASKS_PER_CORE: Final = 4
_MOST_TASKS: Final = 1_000
_LOST: Final = re.compile(
    r"masters are unresponsive|SparkContext was shut down|stopped SparkContext|Master removed"
)
_REASONS: Final = (
    re.compile(r"No module named '[^']+'"),
    re.compile(r'Cannot run program "[^"]+"[^\n]*'),
    re.compile(r"Python in worker has different version[^\n]*"),
    re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*"),
)


def has_class(spark: SparkSession, name: str) -> bool:
    """Return whether a class is on the class path of a session's driver."""
    return _find_class(spark, name) is not None


def _find_class(spark: SparkSession, name: str) -> str | None:
    """Return the URL of a class, which contains the name of its jar."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # noqa: SLF001
    found = loader.getResource(f"{name.replace('.', '/')}.class")
    return None if found is None else str(found.toString())


def expect_own_java() -> None:
    """Raise if PySpark would connect this process to a server of Spark Connect.

    Raises:
        LakeError: a variable of the environment selects Spark Connect.
    """
    for name in _CONNECT_VARIABLES:
        value = os.environ.get(name)
        if value is not None and (name != _API_MODE or value.lower() == "connect"):
            raise LakeError(
                f"{name} selects Spark Connect, which has no JVM in this process.",
                hint=f"Unset {name}, or set it for other programs only.",
            )


def expect_usable(spark: SparkSession, *, schemes: Collection[str], catalog_uri: str) -> None:
    """Raise if a session that an application started lacks something that a lake needs.

    Args:
        spark: the session.
        schemes: the schemes of the object stores that are used.
        catalog_uri: the URI of the lake's catalog; empty if it has none.

    Raises:
        LakeError: settings or jars are missing; the error lists them all.
        MissingRequirementError: the version of Spark is not supported.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise LakeError(
            "The Spark session is one of Spark Connect, which has no JVM in this process.",
            hint="Start the session in the driver's process, without `remote` and SPARK_REMOTE.",
        )
    if spark.sparkContext._jsc is None:  # noqa: SLF001 - PySpark has no public API
        raise LakeError("The Spark session is stopped.", hint="Start a new one.")
    if _release(spark.version) != _release(pyspark.__version__):
        raise MissingRequirementError(
            f"The Spark session is of version {spark.version}, and this process has PySpark "
            f"{pyspark.__version__}.",
            hint="Install the version of PySpark that the cluster runs.",
        )
    problems = list(_problems(spark, schemes, catalog_uri))
    if problems:
        settings: dict[str, list[str]] = {}
        for _, key, value in problems:
            settings.setdefault(key, []).append(value)
        raise LakeError(
            "The Spark session lacks what this lake needs:\n"
            + "\n".join(f"- {problem}" for problem, _, _ in problems),
            hint="Start Spark with these settings, or open the lake before anything else starts "
            "Spark:\n" + "\n".join(f"{key}={','.join(settings[key])}" for key in settings),
        )


def _problems(
    spark: SparkSession, schemes: Collection[str], catalog_uri: str
) -> Iterator[tuple[str, str, str]]:
    """Yield what a session lacks, with the setting and the value that provide it."""
    if EXTENSIONS not in (spark.conf.get(_EXTENSIONS_KEY, "") or ""):
        yield f"{_EXTENSIONS_KEY} does not contain Iceberg's", _EXTENSIONS_KEY, EXTENSIONS
    iceberg, *drivers = jars.required(spark.version)
    runtime = _find_class(spark, _ICEBERG_CLASS)
    if runtime is None:
        yield "Iceberg's runtime is not on the class path", _PACKAGES_KEY, iceberg.coordinates
    elif (built := _RUNTIME.search(runtime)) and _release(built[1]) != _release(spark.version):
        problem = f"Iceberg's runtime is for Spark {built[1]}, and not for {spark.version}"
        yield problem, _PACKAGES_KEY, iceberg.coordinates
    elif _release(found := _iceberg_version(spark)) < _release(_version(iceberg)):
        yield f"Iceberg {found} is too old", _PACKAGES_KEY, iceberg.coordinates
    for prefix, name in _DRIVER_CLASSES.items():
        if catalog_uri.startswith(prefix) and not has_class(spark, name):
            (driver,) = (jar for jar in drivers if prefix.split(":")[1] in jar.coordinates)
            problem = "the driver of the catalog is not on the class path"
            yield problem, _PACKAGES_KEY, driver.coordinates
    for scheme in schemes:
        if not has_class(spark, CLIENT_CLASSES[scheme]):
            (client,) = jars.clients([scheme], spark.version)
            what = f"the client for {scheme}:// is not on the class path"
            yield what, _PACKAGES_KEY, client.coordinates


def _version(jar: jars.Jar) -> str:
    return jar.coordinates.rpartition(":")[2]


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _iceberg_version(spark: SparkSession) -> str:
    jvm: Any = spark._jvm  # noqa: SLF001
    return str(jvm.org.apache.iceberg.IcebergBuild.version())


def expect_executors(spark: SparkSession) -> None:
    """Raise if an executor of a cluster cannot run this package's functions; once for a JVM.

    Raises:
        LakeError: no executor has started, or its Python lacks a package or has another version.
    """
    context = spark.sparkContext
    if is_local(context.master):
        return
    hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001
    if hadoop.get(_CHECKED) is not None:
        return
    tasks = min(_MOST_TASKS, _TASKS_PER_CORE * max(2, context.defaultParallelism))
    tag = f"chronolake-{uuid4().hex}"
    wanted = [name for name in _PACKAGES_OF_TASKS if find_spec(name) is not None]
    probe = _probe(version("chronolake"), wanted)

    def run() -> list[str]:
        context.addJobTag(tag)
        found: list[str] = context.parallelize(range(tasks), tasks).map(probe).collect()
        return found

    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(run)
        try:
            problems = sorted(filter(None, job.result(_EXECUTOR_SECONDS)))
        except TimeoutError:
            context.cancelJobsWithTag(tag)
            raise LakeError(
                f"No executor of {context.master} has started in {_EXECUTOR_SECONDS / 60:.0f} "
                "minutes.",
                hint="Check the cluster: whether it is reachable, and whether it has cores and "
                "memory left for this application (`spark.cores.max`, `spark.executor.memory`).",
            ) from None
        except (Py4JError, PySparkException) as failure:
            if _LOST.search(str(failure)):
                raise LakeError(
                    f"The cluster {context.master} does not respond.",
                    hint="Check `spark.master` in chronolake.yml, and the network.",
                ) from failure
            raise _error_of([_reason(failure)]) from failure
    if problems:
        raise _error_of(problems)
    hadoop.set(_CHECKED, "true")


def _probe(own_version: str, packages: Sequence[str]) -> Callable[[int], str]:
    """Return a function that returns what is missing where it runs, or nothing."""

    # A function of a module is sent by its name, which an executor without the package cannot load.
    def run(_: int) -> str:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - in a task
        from importlib.util import find_spec  # noqa: PLC0415
        from socket import gethostname  # noqa: PLC0415
        from sys import executable  # noqa: PLC0415

        where = f"{executable} on {gethostname()}"
        try:
            found = version("chronolake")
        except PackageNotFoundError:
            return f"{where} has no chronolake"
        if found != own_version:
            return f"{where} has chronolake {found} instead of {own_version}"
        missing = [name for name in packages if find_spec(name) is None]
        return f"{where} lacks {', '.join(missing)}" if missing else ""

    return run


def _reason(failure: Exception) -> str:
    text = str(failure)
    for pattern in _REASONS:
        if (found := pattern.search(text)) is not None:
            return found[0]
    return f"a task failed with {type(failure).__name__}"


def _error_of(problems: Sequence[str]) -> LakeError:
    return LakeError(
        f"The executors' Python cannot run Chronolake: {problems[0]}.",
        hint=f"Install chronolake {version('chronolake')}, with the same extras and the same "
        "version of Python, on every machine, and set `spark.pyspark.python` in `spark.conf` to "
        "its Python; or ship an environment with `spark.archives`.",
    )
