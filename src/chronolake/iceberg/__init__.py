"""A thin layer over Iceberg's Java API in PySpark's JVM.

It makes no decisions about rows. All dynamically typed Java objects stay in this package.
"""

from chronolake.iceberg.catalog import (
    COLUMNS_PROPERTY,
    HIDDEN,
    MAIN,
    SCRATCH_SCHEMA,
    Catalog,
    Field,
    IcebergTable,
    columns_from_json,
    columns_to_json,
    java_class_of,
    java_message_of,
    jvm_ended,
    spark_words,
)
from chronolake.iceberg.schema_update import metadata_with_columns
from chronolake.iceberg.store_files import store_options
from chronolake.iceberg.stored_metadata import StoredMetadata, read_metadata

__all__ = [
    "COLUMNS_PROPERTY",
    "HIDDEN",
    "MAIN",
    "SCRATCH_SCHEMA",
    "Catalog",
    "Field",
    "IcebergTable",
    "StoredMetadata",
    "columns_from_json",
    "columns_to_json",
    "java_class_of",
    "java_message_of",
    "jvm_ended",
    "metadata_with_columns",
    "read_metadata",
    "spark_words",
    "store_options",
]
