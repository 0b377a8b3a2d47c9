"""The engine's JVM: its start and end, and its use by forks.

Forks share one Spark context. What a fork leaves in the JVM when it ends is cleaned up: objects and
catalogs by the fork itself, and jobs of a fork that was killed by another one.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.java_gateway import GatewayClient, JavaObject
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.serializers import UTF8Deserializer, read_int

from chronolake import session
from chronolake.errors import ChronolakeError, LakeError
from chronolake.lake import spark_conf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chronolake.config import LakeConfig
    from chronolake.session import StartSettings

log = structlog.get_logger(__name__)

_POLL_SECONDS: Final = 0.02
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 10.0
_CANCEL_SECONDS: Final = 30
_PRIVATE_UMASK: Final = 0o077
#: The JVM is replaced when it occupies this much more than its heap may.
_EXCESS_BYTES: Final = 3 * 2**30
#: The JVM is replaced after this number of commands.
_MOST_COMMANDS: Final = 1_000
#: A killed command leaves its objects in the JVM, some MiB: it counts as this number of commands.
_COMMANDS_PER_KILLED: Final = 20
#: Time until a JVM that could not be started is tried again.
_RETRY_SECONDS: Final = 10.0
#: A JVM that ends more often in a row, soon and without a command in between, cannot run here.
_MOST_DEATHS: Final = 3
#: A JVM that ran for this time has worked: `up` may run for years.
_WORKED_SECONDS: Final = 60.0


@dataclass(frozen=True)
class EngineJava:
    """A JVM with Spark that several processes use.

    Attributes:
        settings: the settings with which it was started.
        process: the JVM. It ends when the last process that has its standard input open has ended:
            the engine, or a fork that still runs a command.
        folder: where it stores its address, and where forks store the tags of their jobs.
    """

    settings: StartSettings
    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def start(cls, settings: StartSettings, java_home: str, *, is_private: bool) -> EngineJava:
        """Start a JVM, without waiting for it.

        Args:
            settings: the settings of Spark.
            java_home: the folder of Java.
            is_private: whether only the user may access files that the JVM creates.
        """
        # Not a TemporaryDirectory, which a fork would remove when it ends.
        folder = Path(tempfile.mkdtemp(prefix="chronolake-engine-"))
        command = [str(Path(_find_spark_home(), "bin", "spark-submit"))]
        for key, value in settings.for_java.items():
            command += ["--conf", f"{key}={value}"]
        process = subprocess.Popen(  # noqa: S603
            [*command, "pyspark-shell"],
            env={
                **os.environ,
                **settings.environment,
                "JAVA_HOME": java_home,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "address"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the engine's terminal ends commands, not the JVM that they use.
            start_new_session=True,
            umask=_PRIVATE_UMASK if is_private else -1,
        )
        return cls(settings, process, folder)

    @property
    def is_running(self) -> bool:
        """Return whether the JVM has not ended."""
        return self.process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """Return the memory that the JVM occupies, in bytes; 0 if it is not known."""
        try:
            pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def address(self) -> tuple[int, str]:
        """Wait until the JVM runs; return the port and the secret of its gateway.

        Raises:
            LakeError: it did not start.
        """
        file = self.folder / "address"
        until = time.monotonic() + _START_SECONDS
        while not file.exists():
            # A fork is not the JVM's parent, so `is_running` is not known to it.
            if time.monotonic() > until or not Path(f"/proc/{self.process.pid}").exists():
                raise LakeError(
                    "The engine's Java did not start.",
                    hint="Run the command with --no-engine, which shows why.",
                )
            time.sleep(_POLL_SECONDS)
        with file.open("rb") as stream:
            return read_int(stream), UTF8Deserializer().loads(stream)

    def stop(self) -> None:
        """End the JVM."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def tags_of(self, pid: int) -> list[str]:
        """Return the tags of the jobs of a fork, and forget them."""
        file = self._tags_file(pid)
        try:
            tags = file.read_text(encoding="ascii").split()
        except OSError:
            return []
        file.unlink(missing_ok=True)
        return tags

    def _tags_file(self, pid: int) -> Path:
        return self.folder / f"{pid}.tags"

    def share(self) -> None:
        """Let this process use the JVM if its own would be started with equal settings."""
        session.share(
            session.SharedJava(
                self.settings.fingerprint,
                self.address,
                self._exclusive,
                self._kill,
                self._store_tags,
            )
        )

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)

    def _store_tags(self, tags: list[str]) -> None:
        with self._tags_file(os.getpid()).open("a", encoding="ascii") as file:
            file.write("".join(f"{tag}\n" for tag in tags))

    def cancel_jobs(self, tags: list[str], *, seconds: int = _CANCEL_SECONDS) -> None:
        """Cancel the running jobs of a fork that was killed; end this process if it takes too long.

        Args:
            tags: those of its jobs.
            seconds: the longest time.
        """
        # A JVM that does not respond must not keep the client of the killed command waiting.
        signal.alarm(seconds)
        context = session.connect_to_java(self.address())
        if context is None:
            return
        for tag in tags:
            context.cancelJobsWithTag(tag)


@dataclass
class JavaKeeper:
    """Keeper of a JVM that fits the configuration of a lake.

    Attributes:
        config: returns the current configuration.
        java: the JVM; None if none could be started.
        commands: the number of commands that have used it; killed ones count several times.
    """

    config: Callable[[], LakeConfig]
    java: EngineJava | None = None
    commands: int = 0
    _started_with: LakeConfig | None = None
    _deaths: int = 0
    _started_at: float = 0.0
    _failed_at: float | None = None

    @property
    def is_running(self) -> bool:
        """Return whether a JVM runs."""
        return self.java is not None and self.java.is_running

    @property
    def is_hopeless(self) -> bool:
        """Return whether JVMs ended soon several times in a row, without a command in between."""
        return self._deaths > _MOST_DEATHS

    def note_command(self) -> None:
        """Record that a command uses the JVM."""
        self.commands += 1
        self._deaths = 0

    def note_killed(self) -> None:
        """Record that a command which used the JVM was killed."""
        self.commands += _COMMANDS_PER_KILLED

    def is_replacement_due(self) -> bool:
        """Return whether another JVM should run: this one has ended or grown, or is outdated.

        With an invalid configuration, a JVM that runs stays.
        """
        if self._failed_at is not None and time.monotonic() < self._failed_at + _RETRY_SECONDS:
            return False
        java = self.java
        if java is None or not java.is_running or self.commands >= _MOST_COMMANDS:
            return True
        if java.resident_bytes > java.settings.heap_bytes + _EXCESS_BYTES:
            return True
        try:
            config = self.config()
            if config == self._started_with:
                return False
            is_other = java.settings.fingerprint != self._wanted(config)[0].fingerprint
        except ChronolakeError:
            return False
        if not is_other:
            self._started_with = config
        return is_other

    def replace(self) -> EngineJava | None:
        """Start a JVM in place of the current one, which no process uses.

        Returns:
            The JVM, without waiting for it; None if the configuration is invalid, which commands
            report.
        """
        before = self.java
        if before is not None:
            log.info("engine_restarts_java", memory_bytes=before.resident_bytes)
            has_worked = time.monotonic() - self._started_at > _WORKED_SECONDS
            self._deaths = 0 if before.is_running or has_worked else self._deaths + 1
            before.stop()
        self.java, self.commands = None, 0
        try:
            self._started_with = config = self.config()
            settings, home = self._wanted(config)
        except ChronolakeError as failure:
            log.warning("engine_cannot_start_java", error=failure.message)
            self._failed_at = time.monotonic()
            return None
        self._failed_at = None
        self._started_at = time.monotonic()
        self.java = EngineJava.start(settings, home, is_private=not config.shared)
        return self.java

    def leave(self) -> None:
        """Let the JVM end without waiting for this fork, which does not use it."""
        if self.java is not None and self.java.process.stdin is not None:
            self.java.process.stdin.close()

    def stop(self) -> None:
        """End the JVM."""
        if self.java is not None:
            self.java.stop()

    def _wanted(self, config: LakeConfig) -> tuple[StartSettings, str]:
        """Return the settings of a JVM for a configuration, and the folder of Java.

        Raises:
            MissingRequirementError: Java or a jar is missing.
        """
        home = session.java_home()
        conf = spark_conf(config)
        schemes = config.schemes
        return session.settings_of_java(config.spark.master, conf, home, schemes=schemes), home


def release() -> None:
    """Let the JVM free what this process used, which is about to end."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public API for it
    if gateway is None:
        return
    with suppress(Exception):
        session.close_catalogs()
    gc.collect()
    client: Any = gateway._gateway_client  # noqa: SLF001
    # The thread that does this for the collector does not finish before the process ends.
    waiting = list(getattr(client, "finalizer_deque", ()))
    targets = [entry[1] for entry in waiting if isinstance(entry, tuple)]
    used = [found for found in gc.get_objects() if issubclass(type(found), JavaObject)]
    targets += [found._target_id for found in used]  # noqa: SLF001
    for target in targets:
        GatewayClient.garbage_collect_object(client, target)
