"""Spark sessions of a lake: Java, and the settings."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from chronolake import class_archive, jars, sketches, spark_requirements
from chronolake.errors import LakeError, MissingRequirementError
from chronolake.location import is_local
from chronolake.masking import holds_secret, is_secret
from chronolake.py4j_nodelay import acknowledge_at_once
from chronolake.spark_requirements import EXTENSIONS
from chronolake.types import RELIED_ON

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager


CATALOG: Final = "chronolake"
#: The Spark catalog of tables whose changes are not published yet (`chronolake.iceberg.pending`).
PENDING_CATALOG: Final = "chronolake_pending"

_JAVA_HOMES: Final = (
    "/usr/lib/jvm/*17*",
    "/usr/lib/jvm/*21*",
    "/Library/Java/JavaVirtualMachines/*",
)
_JAVA_VERSIONS: Final = ("17", "21")

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
#: PySpark itself ignores this setting of `spark-submit` in a process that it did not start.
_EXECUTOR_PYTHON: Final = "spark.pyspark.python"
_PYTHON: Final = "PYSPARK_PYTHON"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
#: A variable with jars that follow Spark's own on the class path.
_APPENDED_PATH: Final = "SPARK_DIST_CLASSPATH"
_SPARK_HOME: Final = "SPARK_HOME"
_CLASSIC_SESSION: Final = "org.apache.spark.sql.classic.SparkSession"
_CLOSEABLE: Final = "java.io.Closeable"
#: Variables with options for every JVM.
_OPTION_VARIABLES: Final = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
)
#: The variables from which PySpark takes the address of a JVM that runs.
_PORT: Final = "PYSPARK_GATEWAY_PORT"
_SECRET: Final = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - a name
#: For work of a few seconds: compiled code that is optimized further, and a collector with threads
#: of its own, take more processor time than they save.
_SMALL_WORK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

#: For a JVM that stays between commands. The default collector, G1, extends the heap to several GiB
#: while other processes delay its pauses, and makes it smaller only after a complete cycle, which
#: is rare.
_LONG_RUNNING: Final = (
    "-XX:+UseParallelGC",
    "-XX:GCTimeRatio=9",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=40",
)

# Settings of the process, which cannot change once the JVM runs.
_STATIC: Final[dict[str, str]] = {
    "spark.app.name": "chronolake",
    "spark.sql.extensions": EXTENSIONS,
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Shuffle and spill files contain decrypted rows, which must not be stored unencrypted.
    "spark.io.encryption.enabled": "true",
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
    "spark.cleaner.periodicGC.interval": "10min",
    # Pages have checksums that detect corruption on any storage.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.python.daemon.module": "chronolake.spark_worker_daemon",
    # By default Spark's cache of generated code has 100 entries: with a few tables in turns, every
    # batch would compile all of its code again.
    "spark.sql.codegen.cache.maxEntries": "5000",
    # Every sort, aggregate and broadcast allocates at least one page of memory. The default is up
    # to 64 MiB, of which a batch of a hundred rows needs some kilobytes.
    "spark.buffer.pageSize": "2m",
    # The JVM compiles the code of every statement. When its code cache is full, it stops compiling
    # and can even fail; the size without optimisations is 48 MiB, which fill in half a minute.
    JAVA_OPTIONS: "-XX:ReservedCodeCacheSize=512m",
}

#: Settings that Spark reads while its JVM starts; all others can be set later.
_AT_START: Final = (
    "spark.master",
    "spark.driver.",
    "spark.jars",
    "spark.files",
    "spark.archives",
    "spark.submit.",
    "spark.pyspark.",
    "spark.yarn.",
    "spark.kubernetes.",
    "spark.kerberos.",
    # Hadoop caches its first file system with the settings of that time.
    "spark.hadoop.fs.permissions.",
)

# Without a cluster, no other machine needs the driver. Spark's ports have no password, and by
# default they are open on the machine's network address.
_LOOPBACK: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

#: A container sees its own limit there (cgroup v2).
_CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")

_WRITES_CHECKSUMS: Final = "org.apache.hadoop.fs.ChecksumFileSystem"

# Settings of a session; every lake has its own.
_SESSION: Final[dict[str, str]] = {
    **RELIED_ON,
    "spark.sql.defaultCatalog": CATALOG,
    # Maximum size of batches that are sent to Python, so that large cells do not add up.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 2**20),
    # Cached rows are needed only for one batch: choosing a compression for each column takes more
    # time than the space is worth.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
    # Another process may have written in the meantime, so the catalog is always queried.
    f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
    # Every statement of a batch reads the same manifests, which never change.
    f"spark.sql.catalog.{CATALOG}.io.manifest.cache-enabled": "true",
    f"spark.sql.catalog.{PENDING_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
    f"spark.sql.catalog.{PENDING_CATALOG}.catalog-impl": (
        "org.apache.iceberg.inmemory.InMemoryCatalog"
    ),
    f"spark.sql.catalog.{PENDING_CATALOG}.cache-enabled": "true",
    # A write may take any time.
    f"spark.sql.catalog.{PENDING_CATALOG}.cache.expiration-interval-ms": "-1",
    # Spark passes such keys to Hadoop's readers; an application's own session lacks the default.
    "parquet.page.verify-checksum.enabled": "true",
}

#: Settings that change what statements mean, such as `spark.sql.files.ignoreCorruptFiles`. Spark
#: passes those of `spark-defaults.conf` and of an application to every session.
_MEANINGFUL: Final = ("spark.sql.", "spark.wap.")
#: Catalogs of an application, which statements of `Lake.sql` may name.
_CATALOGS: Final = "spark.sql.catalog."

#: Settings for statements that pass wide rows through many steps. To infer filters, Spark keeps all
#: conditions that follow from equal columns: 2^n conditions for an expression over n columns that
#: are each renamed.
_WIDE: Final[dict[str, str]] = {"spark.sql.constraintPropagation.enabled": "false"}

#: Settings for work of a known moderate size: there is nothing to adapt to, and without adaptive
#: execution, stages run one after another without the driver.
_MODERATE: Final[dict[str, str]] = {"spark.sql.adaptive.enabled": "false"}
_MODERATE_PARTITIONS: Final = 8

#: Settings for a few rows: Spark's optimizations for large data cost more than they save.
_LIGHT: Final[dict[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    **_WIDE,
}


def is_java_running() -> bool:
    """Return whether the JVM of this process runs; a JVM of another process counts as running."""
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - there is no public API
    return process is None or process.poll() is None


class Sessions:
    """The sessions of a lake, on one JVM and with one catalog each; the first use creates one.

    Args:
        base: any session of the JVM.
        settings: the settings of each session by its name.
    """

    def __init__(self, base: SparkSession, settings: Mapping[str, Mapping[str, str]]) -> None:
        self._base = base
        self._settings = settings
        self._created: dict[str, SparkSession] = {}
        self._creating = threading.Lock()

    @property
    def spark(self) -> SparkSession:
        """Return the session for statements of any size."""
        return self._get("spark")

    @property
    def wide(self) -> SparkSession:
        """Return `spark`, but for statements that pass all columns through many steps."""
        return self._get("wide")

    @property
    def moderate(self) -> SparkSession:
        """Return the session for statements over a batch that a few tasks can shuffle."""
        return self._get("moderate")

    @property
    def moderate_wide(self) -> SparkSession:
        """Return `moderate`, but for statements that pass all columns through many steps."""
        return self._get("moderate_wide")

    @property
    def light(self) -> SparkSession:
        """Return the session for a few rows, where planning takes most of the time."""
        return self._get("light")

    @property
    def created(self) -> list[SparkSession]:
        """Return the sessions that were used."""
        return list(self._created.values())

    def cancel_jobs(self) -> None:
        """Cancel the running jobs of all these sessions, but no jobs of other processes."""
        for session in self.created:
            session.sparkContext.cancelJobsWithTag(_job_tag(session))

    def _get(self, name: str) -> SparkSession:
        with self._creating:
            if name not in self._created:
                self._created[name] = self._create(name)
            return self._created[name]

    def _create(self, name: str) -> SparkSession:
        session = _session(self._base, self._settings[name])
        sketches.provide([session])
        if _shared is not None:
            _shared.note_tags([_job_tag(session)])
        return session


def _job_tag(session: SparkSession) -> str:
    """Return the tag that all jobs of a session have."""
    return str(session._jsparkSession.sessionJobTag())  # noqa: SLF001 - PySpark has no public API


#: The sessions of all lakes of this process, if another process owns the JVM.
_started: Final[list[Sessions]] = []


def close_catalogs() -> None:
    """Close the connections of all catalogs of this process's sessions, which it no longer uses."""
    while _started:
        for session in _started.pop().created:
            jvm: Any = session._jvm  # noqa: SLF001
            java: Any = session._jsparkSession  # noqa: SLF001
            loaded = java.sessionState().catalogManager().listCatalogs(jvm.scala.Option.empty())
            if not loaded.contains(CATALOG):
                continue
            catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(java, CATALOG)
            if is_instance_of(session.sparkContext._gateway, catalog, _CLOSEABLE):  # noqa: SLF001
                catalog.close()


def java_home() -> str:
    """Return the folder of a Java 17 or 21.

    Searches `$JAVA_HOME`, then `java` on the path, then the system's usual folders.

    Raises:
        MissingRequirementError: neither version is installed there.
    """
    candidates = [os.environ.get("JAVA_HOME", "")]
    if on_path := shutil.which("java"):
        candidates.append(str(Path(on_path).resolve().parent.parent))
    for pattern in _JAVA_HOMES:
        root, _, name = pattern.rpartition("/")
        candidates += sorted(str(path) for path in Path(root).glob(name))
        candidates += sorted(str(path) for path in Path(root).glob(f"{name}/Contents/Home"))
    for home in filter(None, candidates):
        if _java_version(Path(home)) in _JAVA_VERSIONS:
            return home
    raise MissingRequirementError(
        "Spark needs Java 17 or 21, and none was found.",
        hint="Install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
        "brew install openjdk@17), or set JAVA_HOME.",
    )


def _java_version(home: Path) -> str | None:
    if not (home / "bin" / "java").exists():
        return None
    release = home / "release"
    if release.exists():
        for line in release.read_text().splitlines():
            if line.startswith("JAVA_VERSION="):
                return line.partition("=")[2].strip('"').partition(".")[0]
    done = subprocess.run(  # noqa: S603
        [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, check=False
    )
    words = done.stderr.split('"')
    return words[1].partition(".")[0] if len(words) > 1 else None


def start(
    master: str,
    conf: Mapping[str, str],
    catalog: Mapping[str, str],
    *,
    schemes: Collection[str] = (),
    is_small: bool = False,
    given: SparkSession | None = None,
) -> Sessions:
    """Create the sessions of one lake, on the process's one JVM.

    Args:
        master: Spark's master URL. Only the first call in a process uses it.
        conf: Spark settings of the user; they override the defaults.
        catalog: settings of the Iceberg catalog, without their `spark.sql.catalog.…` prefix.
        schemes: the schemes of the object stores that are used.
        is_small: whether little work is known to follow. Only the first call in a process uses it.
        given: a session of the application to use; None for the one that runs, or a new one.

    Raises:
        MissingRequirementError: Java or a jar is missing.
        LakeError: Spark cannot be started, or the session that runs in this process, or its
            executors, lack something that the lake needs.
    """
    with _discarding_java():
        return _start(master, conf, catalog, schemes=schemes, is_small=is_small, given=given)


def _start(
    master: str,
    conf: Mapping[str, str],
    catalog: Mapping[str, str],
    *,
    schemes: Collection[str],
    is_small: bool,
    given: SparkSession | None,
) -> Sessions:
    running = SparkContext._active_spark_context  # noqa: SLF001
    if given is None:
        spark_requirements.expect_own_java()
    if running is None and given is None:
        base = _launch(master, conf, schemes=schemes, is_small=is_small)
    else:
        base = given or SparkSession.builder.getOrCreate()
    spark_requirements.expect_usable(base, schemes=schemes, catalog_uri=catalog.get("uri", ""))
    spark_requirements.expect_executors(base)
    acknowledge_at_once(base)
    partitions = 2 * base.sparkContext.defaultParallelism
    settings = {
        **_SESSION,
        "spark.sql.shuffle.partitions": str(partitions),
        **{f"spark.sql.catalog.{CATALOG}.{key}": value for key, value in catalog.items()},
    }
    jvm: Any = base._jvm  # noqa: SLF001
    is_static = jvm.org.apache.spark.sql.internal.SQLConf.isStaticConfigKey
    own = {
        key: value
        for key, value in conf.items()
        if key.startswith("spark.sql.") and not is_static(key)
    }
    moderate = {
        **settings,
        **_MODERATE,
        "spark.sql.shuffle.partitions": str(min(partitions, _MODERATE_PARTITIONS)),
    }
    sessions = Sessions(
        base,
        {
            "spark": {**settings, **own},
            "wide": {**settings, **_WIDE, **own},
            "moderate": {**moderate, **own},
            "moderate_wide": {**moderate, **_WIDE, **own},
            "light": {**settings, **_LIGHT, **own},
        },
    )
    if _shared is not None:
        _started.append(sessions)
    return sessions


def _session(base: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a new session with settings, and otherwise with Spark's own defaults."""
    session = base.newSession()
    jvm: Any = session._jvm  # noqa: SLF001
    conf: Any = session._jsparkSession.sessionState().conf()  # noqa: SLF001
    inherited = jvm.java.lang.String.join("\n", conf.settings().keySet()).splitlines()
    # Resolving a name through the JVM's packages costs a call for each part.
    is_static = jvm.org.apache.spark.sql.internal.SQLConf.isStaticConfigKey
    for key in filter(_is_meaningful, inherited):
        if not is_static(key):
            conf.unsetConf(key)
    properties = jvm.java.util.Properties()
    # One call for all settings: each one takes a round trip to the JVM.
    text = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
    properties.load(jvm.java.io.StringReader(text))
    conf.setConf(properties)
    return session


def _is_meaningful(key: str) -> bool:
    """Return whether an inherited setting may change what the statements of a lake mean."""
    if key in _STATIC or not key.startswith(_MEANINGFUL):
        return False
    catalog = key.removeprefix(_CATALOGS).partition(".")[0]
    return not key.startswith(_CATALOGS) or catalog in {CATALOG, PENDING_CATALOG}


def _escaped(text: str) -> str:
    """Return a text for a line of Java's `Properties`."""
    codes = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{codes[i]:02x}{codes[i + 1]:02x}" for i in range(0, len(codes), 2))


@dataclass(frozen=True)
class StartSettings:
    """The settings with which Spark starts, of one lake.

    Attributes:
        values: the settings by name, secret ones included.
        appended: jars at the end of the class path, so that the archive of classes stays valid.
    """

    values: Mapping[str, str] = field(repr=False)
    appended: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which the JVM starts."""
        # Without it, Spark's script starts a Python process to find it.
        home = {_SPARK_HOME: _find_spark_home()}
        if not self.appended:
            return home
        given = filter(None, [os.environ.get(_APPENDED_PATH)])
        return {**home, _APPENDED_PATH: os.pathsep.join([*self.appended, *given])}

    @property
    def for_java(self) -> dict[str, str]:
        """Return those that only count when the JVM starts.

        None is secret, because all users of the machine can read a command line.
        """
        return {key: text for key, text in self.values.items() if _is_for_command_line(key, text)}

    @property
    def fingerprint(self) -> str:
        """Return a hash of the settings, except Java's options, which change no result."""
        relevant = sorted((key, text) for key, text in self.values.items() if key != JAVA_OPTIONS)
        return hashlib.sha256(repr((relevant, self.appended)).encode()).hexdigest()

    @property
    def heap_bytes(self) -> int:
        """Return the maximum size of the JVM's heap in bytes; 0 if its unit is not known."""
        match = re.fullmatch(r"(\d+)([mg])b?", self.values.get("spark.driver.memory", "").lower())
        return int(match[1]) * {"m": 2**20, "g": 2**30}[match[2]] if match else 0


@dataclass(frozen=True)
class SharedJava:
    """A JVM that another process started, for several processes.

    Attributes:
        fingerprint: that of the settings with which it was started (`StartSettings`).
        address: waits until it runs, and returns the port and the secret of its gateway.
        exclusive: returns a context that only one of the processes is in.
        discard: ends it, so that another one is started for the next processes.
        note_tags: is called with the tags of the jobs of this process.
    """

    fingerprint: str
    address: Callable[[], tuple[int, str]]
    exclusive: Callable[[], AbstractContextManager[None]]
    discard: Callable[[], None]
    note_tags: Callable[[list[str]], None]


_shared: SharedJava | None = None


def share(java: SharedJava) -> None:
    """Let this process use a JVM that runs, if its own would be started with equal settings."""
    global _shared  # noqa: PLW0603 - the process has one JVM
    _shared = java


def is_shared() -> bool:
    """Return whether this process may use the JVM of another one."""
    return _shared is not None


def has_own_java() -> bool:
    """Return whether this process has started a JVM."""
    return getattr(SparkContext._gateway, "proc", None) is not None  # noqa: SLF001


@contextmanager
def starting() -> Iterator[None]:
    """Let no other process with the same JVM start its sessions meanwhile."""
    if _shared is None:
        yield
        return
    with _shared.exclusive():
        yield


def start_settings(
    master: str,
    conf: Mapping[str, str],
    home: str,
    *,
    schemes: Collection[str] = (),
    special: Sequence[str] = (),
) -> StartSettings:
    """Return the settings with which Spark starts.

    Args:
        master: Spark's master URL.
        conf: Spark settings of the user; they override the defaults.
        home: the folder of Java.
        schemes: the schemes of the object stores that are used.
        special: options of Java that come before all others.

    Raises:
        MissingRequirementError: a jar is missing.
    """
    values = {
        "spark.master": master,
        **_STATIC,
        **(_LOOPBACK if is_local(master) else {}),
        "spark.driver.memory": f"{_driver_gibibytes()}g",
        **conf,
    }
    found = [str(path) for path in jars.paths(home, schemes=schemes)]
    own, clients = found[: len(jars.required())], found[len(jars.required()) :]
    if is_local(master) and not any(os.pathsep in path for path in found):
        # The archive of classes contains only those of the class path, and Spark copies the jars of
        # `spark.jars` at each start.
        values |= {_CLASS_PATH: os.pathsep.join([*own, *filter(None, [conf.get(_CLASS_PATH)])])}
    else:
        values |= {"spark.jars": ",".join([*found, *filter(None, [conf.get("spark.jars")])])}
        clients = []
    # Java uses the last of duplicate options, and refuses two collectors.
    options = [*special, _STATIC[JAVA_OPTIONS], *filter(None, [conf.get(JAVA_OPTIONS)])]
    return StartSettings({**values, JAVA_OPTIONS: " ".join(options)}, tuple(clients))


def settings_of_java(
    master: str, conf: Mapping[str, str], home: str, *, schemes: Collection[str] = ()
) -> StartSettings:
    """Return the settings with which a JVM starts that several commands will use.

    Args:
        master: Spark's master URL.
        conf: Spark settings of the user; they override the defaults.
        home: the folder of Java.
        schemes: the schemes of the object stores that are used.

    Raises:
        MissingRequirementError: a jar is missing.
    """
    special = class_archive.java_options(home)
    if JAVA_OPTIONS not in conf and not _names_collector():
        special = [*special, *_LONG_RUNNING]
    return start_settings(master, conf, home, schemes=schemes, special=special)


def _launch(
    master: str, conf: Mapping[str, str], *, schemes: Collection[str], is_small: bool
) -> SparkSession:
    # Executors must run an interpreter that has this package.
    if python := conf.get(_EXECUTOR_PYTHON):
        os.environ |= {_PYTHON: python}
    os.environ.setdefault(_PYTHON, sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = home = java_home()
    archive = class_archive.java_options(home)
    small = _SMALL_WORK if is_small and JAVA_OPTIONS not in conf and not _names_collector() else ()
    settings = start_settings(master, conf, home, schemes=schemes, special=[*archive, *small])
    builder = SparkSession.builder
    for name, value in settings.values.items():
        builder = builder.config(name, value)
    shared = _shared
    if shared is not None and shared.fingerprint != settings.fingerprint:
        shared = None
    if shared is not None:
        session = _join(shared, builder)
    else:
        try:
            _start_java(settings)
        except PySparkRuntimeError:
            if not (archive or small):
                raise
            class_archive.discard(home)
            archive = []
            _start_java(start_settings(master, conf, home, schemes=schemes))
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not _has_iceberg(session):
        # A JVM outlives its sessions, and loads jars only at its start.
        session.stop()
        raise LakeError(
            "A Spark session was started in this process without Iceberg.",
            hint="Open the lake before anything else starts Spark.",
        )
    _write_no_checksum_files(session)
    if shared is None and not archive:
        class_archive.create_after_exit(home)
    return session


@contextmanager
def _discarding_java() -> Iterator[None]:
    """End the JVM if the block, which creates the process's Spark context, fails.

    What a failed start leaves behind spoils the next one in the same JVM: a batch was read as
    empty, without an error. So a JVM gets only one attempt.
    """
    has_context = SparkContext._active_spark_context is not None  # noqa: SLF001 - no public API
    try:
        yield
    except (Py4JError, PySparkException) as failure:
        if has_context:
            # It has worked before, or is not ours.
            raise
        reason = _first_line(failure)
        gateway: Any = SparkContext._gateway  # noqa: SLF001
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
        if (process := getattr(gateway, "proc", None)) is not None:
            process.kill()
            process.wait()
        elif gateway is not None and _shared is not None:
            _shared.discard()
        raise LakeError(
            f"Spark could not be started: {reason}",
            hint="Run the command again: it starts another Java. If that fails as well, check "
            "`spark.conf` in chronolake.yml, and the memory of this machine.",
        ) from failure


def _first_line(failure: Exception) -> str:
    java: Any = getattr(failure, "java_exception", None)
    text = str(failure) if java is None else str(java.toString())
    return text.strip().partition("\n")[0]


def _names_collector() -> bool:
    """Return whether options in the environment, which apply to every JVM, name a collector."""
    return any("GC" in os.environ.get(name, "") for name in _OPTION_VARIABLES)


def runs_locally(master: str) -> bool:
    """Return whether Spark's tasks run in this process's own JVM.

    Args:
        master: Spark's master URL. A session that already runs in the process may have another.
    """
    running = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public API for it
    return is_local(master if running is None else running.master)


def _join(java: SharedJava, builder: SparkSession.Builder) -> SparkSession:
    """Return a session in a JVM of another process, with the Spark context that it has or gets."""
    context = connect_to_java(java.address())
    on_interrupt = signal.getsignal(signal.SIGINT)
    if context is not None:
        SparkContext(conf=SparkConf(_jconf=context.getConf()), jsc=context)
    session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        # PySpark's handler cancels the jobs of all processes.
        signal.signal(signal.SIGINT, on_interrupt)
    return session


def connect_to_java(address: tuple[int, str]) -> Any:
    """Connect this process to a JVM of another one.

    Args:
        address: the port and the secret of its gateway.

    Returns:
        Its `JavaSparkContext`; None if it has none yet.
    """
    port, secret = address
    os.environ |= {_PORT: str(port), _SECRET: secret}
    try:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False))  # noqa: SLF001
    finally:
        # Processes that this one starts must not get them.
        del os.environ[_PORT], os.environ[_SECRET]
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    session = getattr(jvm, _CLASSIC_SESSION).getDefaultSession()
    if not session.isDefined():
        return None
    return jvm.JavaSparkContext.fromSparkContext(session.get().sparkContext())


def _start_java(settings: StartSettings) -> None:
    """Start the JVM with few settings, because all users of the machine can read its command line.

    All other settings are sent afterwards, over the connection to the JVM.
    """
    if SparkContext._gateway is None:  # noqa: SLF001 - nothing else starts it with fewer settings
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(settings.for_java.items()))
        before = {name: os.environ.get(name) for name in settings.environment}
        os.environ |= settings.environment
        try:
            SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _is_for_command_line(key: str, value: str) -> bool:
    is_needed = key in _STATIC or key.startswith(_AT_START)
    return is_needed and not is_secret(key, keys=True) and not holds_secret(value)


def _write_no_checksum_files(session: SparkSession) -> None:
    """Make the driver's JVM write local files without Hadoop's checksum files.

    Hadoop starts a process (`chmod`) for every file that it writes, and a batch writes eleven: with
    checksum files, a small batch takes 1.08 times as long. Parquet's pages have their own
    checksums, also on an object store. Executors with their own JVM still write checksum files.
    """
    jvm = session._jvm  # noqa: SLF001
    hadoop = session._jsc.hadoopConfiguration()  # noqa: SLF001
    local = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), hadoop)
    if is_instance_of(session.sparkContext._gateway, local, _WRITES_CHECKSUMS):  # noqa: SLF001
        local.setWriteChecksum(False)


def _has_iceberg(session: SparkSession) -> bool:
    return spark_requirements.has_class(session, EXTENSIONS)


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Make a session this thread's active one.

    Spark reads some settings from the active session and not from the session of a DataFrame:
    without this, a thread's first statement does not distinguish columns that differ only by case.
    """
    sessions = getattr(session._jvm, _CLASSIC_SESSION)  # noqa: SLF001
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _driver_gibibytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(8, min(total, _container_limit() or total) // 3 // 2**30))


def _container_limit() -> int | None:
    """Return the memory that the container of this process may use, or None without a limit."""
    try:
        limit = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return None
    return int(limit) if limit.isdecimal() else None
