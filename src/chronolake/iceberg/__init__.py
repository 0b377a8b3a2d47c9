"""The thin layer over Iceberg's Java API that PySpark carries.

Nothing here decides anything about rows. Everything dynamic about Java objects stays in this
package.
"""

from chronolake.iceberg.catalog import Catalog, type_name
from chronolake.iceberg.table import (
    COLUMNS_PROPERTY,
    HIDDEN,
    MAIN,
    SCRATCH_SCHEMA,
    Field,
    IcebergTable,
    columns_from_json,
    columns_to_json,
    java_class_of,
    java_message_of,
    spark_words,
)

__all__ = [
    "COLUMNS_PROPERTY",
    "HIDDEN",
    "MAIN",
    "SCRATCH_SCHEMA",
    "Catalog",
    "Field",
    "IcebergTable",
    "columns_from_json",
    "columns_to_json",
    "java_class_of",
    "java_message_of",
    "spark_words",
    "type_name",
]
