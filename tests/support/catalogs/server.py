"""Iceberg's REST catalog for tests, a real server over a JDBC catalog in SQLite.

Its jars are downloaded once into a cache folder, by the resolver that Spark contains.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen
from uuid import uuid4

import pyspark
import pytest

from chronolake import env, jars
from chronolake.session import java_home
from support.servers import free_port, running
from support.store.server import ACCESS_KEY, SECRET_KEY, S3Server

_ICEBERG: Final = "1.11.0"
_JETTY: Final = "12.1.12"
#: That of the client of S3 among Spark's jars, which lacks the HTTP client of this Iceberg.
_SDK: Final = "2.54.17"
_MAIN: Final = "org.apache.iceberg.rest.RESTCatalogServer"
_START_SECONDS: Final = 60
_GROUP: Final = "org.apache.iceberg"
_IVY: Final = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="catalog"/>
  <dependencies>
    <dependency org="{_GROUP}" name="iceberg-open-api" rev="{_ICEBERG}" transitive="false">
      <artifact name="iceberg-open-api" type="jar" ext="jar" m:classifier="test-fixtures"/>
    </dependency>
    <dependency org="{_GROUP}" name="iceberg-core" rev="{_ICEBERG}" conf="default">
      <artifact name="iceberg-core" type="jar" ext="jar"/>
      <artifact name="iceberg-core" type="jar" ext="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="{_GROUP}" name="iceberg-aws" rev="{_ICEBERG}" conf="default->master"/>
    <dependency org="dev.failsafe" name="failsafe" rev="3.3.2" conf="default"/>
    <dependency org="software.amazon.awssdk" name="url-connection-client" rev="{_SDK}"
      transitive="false"/>
    <dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="{_JETTY}"
      conf="default"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-server" rev="{_JETTY}"
      conf="default"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-gzip" rev="{_JETTY}"
      conf="default"/>
  </dependencies>
</ivy-module>
"""
#: What the server needs of Spark's own jars.
_OF_SPARK: Final = ("hadoop-client-*", "log4j-*", "commons-logging-*", "slf4j-api-*")


@dataclass(frozen=True)
class RestCatalogServer:
    """A running server.

    Attributes:
        port: its port on this machine.
        warehouse: where it stores tables whose location a client does not choose.
    """

    port: int
    warehouse: str

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _libraries() -> Path | None:
    """Return the folder of the server's jars, downloaded if needed; None if that is impossible."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chronolake-tests"
    folder = cache / f"rest-catalog-{_ICEBERG}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "rest-catalog.lock").open("a") as lock:
        # Other test processes wait for the first one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            place = cache / uuid4().hex
            place.mkdir()
            try:
                _resolve(place)
                (place / "lib").rename(folder)
            except (subprocess.CalledProcessError, FileNotFoundError):
                return None
            finally:
                shutil.rmtree(place, ignore_errors=True)
    return folder


def _resolve(place: Path) -> None:
    """Download the jars to a folder's `lib`."""
    file = place / "ivy.xml"
    file.write_text(_IVY)
    settings = os.environ.get(env.IVY_SETTINGS)
    (ivy,) = _spark_jars("ivy-*")
    subprocess.run(
        [
            _java(),
            *("-cp", str(ivy), "org.apache.ivy.Main", "-ivy", str(file)),
            *("-cache", str(place / "cache")),
            *(("-settings", settings) if settings else ()),
            *("-retrieve", str(place / "lib/[artifact]-[revision](-[classifier]).[ext]")),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _java() -> str:
    return f"{java_home()}/bin/java"


def _spark_jars(*patterns: str) -> list[Path]:
    folder = Path(pyspark.__file__).parent / "jars"
    return [file for pattern in patterns for file in folder.glob(f"{pattern}.jar")]


def properties_on_s3(s3: S3Server, bucket: str) -> dict[str, str]:
    """Return properties of a catalog in a bucket that passes on its credentials."""
    return {
        "warehouse": f"{bucket}/warehouse",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": s3.endpoint,
        "client.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "include-credentials": "true",
    }


@contextmanager
def rest_catalog(
    folder: Path, properties: Mapping[str, str] | None = None
) -> Iterator[RestCatalogServer]:
    """Run a server whose database and tables are in a folder.

    The test is skipped if it cannot be downloaded.

    Args:
        folder: an existing folder.
        properties: properties of the server's own catalog.
    """
    libraries = _libraries()
    if libraries is None:
        pytest.skip("the REST catalog of tests cannot be downloaded")
    port = free_port()
    catalog = {
        "rest.port": str(port),
        "uri": f"jdbc:sqlite:{folder}/rest.db?journal_mode=WAL&busy_timeout=30000",
        "warehouse": f"file://{folder}/warehouse",
        "http-client.type": "urlconnection",
        # The database accepts one writer.
        "clients": "1",
        **(properties or {}),
    }
    named = {
        f"CATALOG_{name.upper().replace('-', '__').replace('.', '_')}": value
        for name, value in catalog.items()
    }
    others = [*jars.paths(java_home(), schemes=["s3"]), *_spark_jars(*_OF_SPARK)]
    # Iceberg's own classes are those of the server.
    others = [file for file in others if "iceberg-spark-runtime" not in file.name]
    path = ":".join([f"{libraries}/*", *map(str, others)])
    with (
        (folder / "rest.log").open("w") as log,
        running(
            [_java(), "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", path, _MAIN],
            lambda: urlopen(f"http://127.0.0.1:{port}/v1/config", timeout=5).close(),
            environment={**os.environ, **named},
            output=log,
            seconds=_START_SECONDS,
        ),
    ):
        yield RestCatalogServer(port, catalog["warehouse"])


if __name__ == "__main__":
    _libraries()
