"""Snapshots of tables that belong to another program, read from a metadata file.

Spark would read a table in a bucket by its path only with Hadoop's own clients of object stores.
Here the table has Iceberg's FileIO, and Spark finds it by a name in the catalog of pending tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from chronolake.iceberg.pending import table_cache
from chronolake.session import PENDING_CATALOG
from chronolake.types import TableName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_SCHEMA: Final = "foreign"
_FILE_IO: Final = "io-impl"
#: Iceberg's FileIO for folders.
_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopFileIO"


def read_snapshot(
    spark: SparkSession, file: str, settings: Mapping[str, str], snapshot_id: str
) -> DataFrame:
    """Return the rows of a snapshot.

    Args:
        spark: a session.
        file: the location of a metadata file that has the snapshot.
        settings: those of Iceberg's FileIO for a bucket, with `io-impl`; none for a folder.
        snapshot_id: the snapshot.

    Raises:
        Exception: any error of Spark.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    iceberg = jvm.org.apache.iceberg
    properties = jvm.java.util.HashMap()
    for key, value in settings.items():
        properties.put(key, value)
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    io = iceberg.CatalogUtil.loadFileIO(settings.get(_FILE_IO, _HADOOP), properties, hadoop)
    table = iceberg.BaseTable(iceberg.StaticTableOperations(file, io), file)
    name = TableName(_SCHEMA, uuid4().hex)
    identifier = iceberg.catalog.TableIdentifier.parse(f"{name.schema}.{name.table}")
    cache = table_cache(spark)
    cache.put(identifier, table)
    try:
        reader = spark.read.option("versionAsOf", snapshot_id)
        return reader.table(f"{PENDING_CATALOG}.{name.sql}")
    finally:
        # The rows refer to the table itself.
        cache.invalidate(identifier)
