"""The thin layer over Iceberg's Java API that PySpark carries.

Nothing here decides anything about rows. Everything dynamic about Java objects stays in this
package.
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
    spark_words,
    type_name,
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
