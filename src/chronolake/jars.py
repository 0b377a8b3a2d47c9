"""The jars that Spark needs: their versions, the folder that stores them, and their download."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
import structlog

from chronolake import env
from chronolake.errors import MissingRequirementError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Jar:
    """A jar of a Maven registry.

    Attributes:
        coordinates: its Maven coordinates, `group:artifact:version`.
        sha256: the hash of its bytes, in hexadecimal digits.
        size: in bytes.
    """

    coordinates: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """Return the name of its file, as registries name it."""
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


#: The newest Iceberg for each supported version of Spark. Releases after 1.11 do not support
#: Spark 4.0.
_ICEBERG: Final[Mapping[str, Jar]] = {
    "4.0": Jar(
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc",
        47_926_285,
    ),
    "4.1": Jar(
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
        48_309_426,
    ),
}
#: The reader of Avro files for each version of Spark; its patch versions fit each other.
_AVRO: Final[Mapping[str, Jar]] = {
    "4.0": Jar(
        "org.apache.spark:spark-avro_2.13:4.0.2",
        "fd102b6c6754f72f53a01ac882f0da2b1a6f9f02127647ac3e1f0ca951d4433b",
        90_388,
    ),
    "4.1": Jar(
        "org.apache.spark:spark-avro_2.13:4.1.1",
        "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
        92_354,
    ),
}
_DRIVERS: Final = (
    Jar(
        "org.xerial:sqlite-jdbc:3.49.1.0",
        "5c8609d2ca341deb8c6f71778974b5ba4995c7d32d7c7c89d9392a3e72c39291",
        14_317_659,
    ),
    Jar(
        "org.postgresql:postgresql:42.7.7",
        "157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460",
        1_098_916,
    ),
)
#: The clients of object stores, by scheme and version of Spark.
_CLIENTS: Final[Mapping[str, Mapping[str, Jar]]] = {
    "s3": {
        "4.0": Jar(
            "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
            "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f",
            63_613_165,
        ),
        "4.1": Jar(
            "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
            "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
            69_034_612,
        ),
    },
    # Its clients are those of Google; Iceberg 1.12 works with them.
    "gs": dict.fromkeys(
        ("4.0", "4.1"),
        Jar(
            "org.apache.iceberg:iceberg-gcp-bundle:1.11.0",
            "d9248fc76d94d232e153bf760631229cd3b7c6bc3b20f47d4b2caffe011a8a2f",
            64_210_864,
        ),
    ),
    # As for Google: the clients alone, with which the later versions of Iceberg work, too.
    "abfss": dict.fromkeys(
        ("4.0", "4.1"),
        Jar(
            "org.apache.iceberg:iceberg-azure-bundle:1.10.0",
            "f143be94b94bb380e76d1c45ee9a63e143f4a7f813c6aa1ed72f5bfd44f52d05",
            18_687_191,
        ),
    ),
}
_PROGRESS_SECONDS: Final = 0.2
#: What Ivy prints about a registry that does not respond, and about one that lacks a jar.
_REASONS: Final = (
    re.compile(r"Host \S+ not found"),
    re.compile(r"Server access error at url \S+ \(.+\)"),
    re.compile(r"unresolved dependency: [^\],]+"),
)


def required(spark: str = pyspark.__version__) -> tuple[Jar, ...]:
    """Return the jars for a version of Spark.

    Args:
        spark: the version, such as "4.1.4"; by default that of the installed PySpark.

    Raises:
        MissingRequirementError: that version is not supported.
    """
    iceberg = _ICEBERG.get(".".join(spark.split(".")[:2]))
    if iceberg is None:
        raise MissingRequirementError(
            f"Chronolake does not support the installed version of PySpark, {spark}.",
            hint=f"Install PySpark {' or '.join(_ICEBERG)}: pip install --upgrade chronolake",
        )
    return (iceberg, *_DRIVERS, avro_reader(spark))


def avro_reader(spark: str = pyspark.__version__) -> Jar:
    """Return the jar that reads Avro files.

    Args:
        spark: a supported version of Spark.
    """
    return _AVRO[".".join(spark.split(".")[:2])]


def clients(schemes: Iterable[str], spark: str = pyspark.__version__) -> tuple[Jar, ...]:
    """Return the jars for object stores, in addition to `required`.

    Args:
        schemes: the schemes of their URLs.
        spark: the version of Spark.
    """
    version = ".".join(spark.split(".")[:2])
    return tuple(_CLIENTS[scheme][version] for scheme in sorted(schemes))


def folder() -> Path:
    """Return the folder that stores the jars.

    It is `$CHRONOLAKE_JARS`, or `chronolake/jars` in the user's cache folder.
    """
    configured = os.environ.get(env.JARS)
    if configured:
        return Path(configured)
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache or Path.home() / ".cache") / "chronolake" / "jars"


def missing(schemes: Iterable[str] = ()) -> list[Jar]:
    """Return the jars that `paths` would download: those without a file of the right size.

    Args:
        schemes: the schemes of the object stores that are used.

    Raises:
        MissingRequirementError: the installed version of PySpark is not supported.
    """
    return [jar for jar in (*required(), *clients(schemes)) if not _is_complete(jar)]


def _is_complete(jar: Jar) -> bool:
    # The hash was checked on download. A file that somebody copied there may be incomplete.
    try:
        return (folder() / jar.file_name).stat().st_size == jar.size
    except OSError:
        return False


def paths(
    java_home: str,
    progress: Callable[[int], None] | None = None,
    *,
    schemes: Iterable[str] = (),
) -> list[Path]:
    """Return the files of all jars; download missing ones, and check their hashes.

    Spark's own resolver downloads them. `$CHRONOLAKE_IVY_SETTINGS` is the path of an Ivy settings
    file, for example for a mirror.

    Args:
        java_home: the folder of the Java that runs the resolver.
        progress: called several times a second with the number of downloaded bytes.
        schemes: the schemes of the object stores that are used; their jars are the last ones.

    Raises:
        MissingRequirementError: a jar cannot be downloaded, or its hash is not the pinned one.
    """
    schemes = sorted(schemes)
    if jars := missing(schemes):
        log.info("downloading_jars", folder=str(folder()), bytes=sum(jar.size for jar in jars))
        _download(jars, folder(), java_home, progress or (lambda _: None))
    return [folder() / jar.file_name for jar in (*required(), *clients(schemes))]


def _download(
    jars: Sequence[Jar], cache: Path, java_home: str, progress: Callable[[int], None]
) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = tempfile.mkdtemp(dir=cache)
    except OSError as error:
        raise MissingRequirementError(
            f"Spark's jars cannot be stored in {cache}: {error.strerror}.",
            hint=f"Set {env.JARS} to a writable folder.",
        ) from error
    try:
        output = _resolve(jars, Path(work), java_home, progress)
        progress(sum(jar.size for jar in jars))
        for jar in jars:
            _check_and_move(jar, Path(work), cache, output)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _resolve(
    jars: Sequence[Jar], work: Path, java_home: str, progress: Callable[[int], None]
) -> str:
    """Download jars to a folder with Spark's resolver, and return what it prints."""
    settings = os.environ.get(env.IVY_SETTINGS)
    program = [
        "from pyspark.sql import SparkSession",
        "b = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')",
        f"b = b.config('spark.jars.packages', {','.join(jar.coordinates for jar in jars)!r})",
        "b = b.config('spark.jars.excludes', 'org.checkerframework:checker-qual')",
        f"b = b.config('spark.jars.ivy', {str(work)!r})",
        *([f"b = b.config('spark.jars.ivySettings', {settings!r})"] if settings else []),
        "b.getOrCreate().stop()",
    ]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", "\n".join(program)],
            env={**os.environ, "JAVA_HOME": java_home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        try:
            while True:
                try:
                    process.wait(_PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress(_downloaded_bytes(jars, work))
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        return output.read().decode(errors="replace")


def _downloaded_bytes(jars: Sequence[Jar], work: Path) -> int:
    """Return the number of bytes that Ivy has written, including those of incomplete jars."""
    total = 0
    for jar in jars:
        group, artifact, _ = jar.coordinates.split(":")
        total += max(map(_size, (work / "cache" / group / artifact / "jars").glob("*")), default=0)
    return total


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # Ivy renamed it in the meantime
        return 0


def _check_and_move(jar: Jar, work: Path, cache: Path, output: str) -> None:
    file = next((work / "jars").glob(f"*_{jar.file_name}"), None)
    if file is None:
        raise MissingRequirementError(
            f"The jar {jar.coordinates}, which Spark needs, could not be downloaded: "
            f"{_reason(output)}.",
            hint="Check that this machine can reach the Maven registry; set "
            f"{env.IVY_SETTINGS} to use a mirror; or copy {jar.file_name} to {cache}.",
        )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != jar.sha256:
        raise MissingRequirementError(
            f"The downloaded jar {jar.coordinates} is not the pinned one (SHA-256 {digest}).",
            hint="Do not use it. Check the registry or mirror that it was downloaded from.",
        )
    # Renamed, so that processes that start meanwhile never see an incomplete jar.
    file.rename(cache / jar.file_name)


def _reason(output: str) -> str:
    for reason in _REASONS:
        if (match := reason.search(output)) is not None:
            return match[0]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300].rstrip(".") if lines else "no message"
