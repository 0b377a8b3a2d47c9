"""A thin layer over Iceberg's Java API in PySpark's JVM.

It makes no decisions about rows. All dynamically typed Java objects stay in this package.
"""

from chronolake.iceberg.catalog import (
    COLUMNS_PROPERTY,
    HIDDEN,
    MAIN,
    Catalog,
    Field,
    IcebergTable,
    columns_from_json,
    columns_to_json,
    hide_values,
    java_class_of,
    java_message_of,
    jvm_ended,
    spark_words,
)
from chronolake.iceberg.foreign_table import read_snapshot
from chronolake.iceberg.pending import PendingTable, frozen
from chronolake.iceberg.rest import catalog_error
from chronolake.iceberg.schema_update import metadata_with_columns, schema_of_replacement
from chronolake.iceberg.store_files import store_options
from chronolake.iceberg.stored_metadata import StoredMetadata, metadata_of, read_metadata

__all__ = [
    "COLUMNS_PROPERTY",
    "HIDDEN",
    "MAIN",
    "Catalog",
    "Field",
    "IcebergTable",
    "PendingTable",
    "StoredMetadata",
    "catalog_error",
    "columns_from_json",
    "columns_to_json",
    "frozen",
    "hide_values",
    "java_class_of",
    "java_message_of",
    "jvm_ended",
    "metadata_of",
    "metadata_with_columns",
    "read_metadata",
    "read_snapshot",
    "schema_of_replacement",
    "spark_words",
    "store_options",
]
