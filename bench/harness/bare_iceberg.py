"""The least that a program with Spark and Iceberg does: create a table, and insert five rows.

python bare_iceberg.py FOLDER JARS [JAVA_OPTIONS]
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    folder, jars, options = sys.argv[1], sys.argv[2], "".join(sys.argv[3:])
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", jars)
        .config("spark.driver.extraJavaOptions", options)
        .config("spark.sql.extensions", extensions)
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "hadoop")
        .config("spark.sql.catalog.lake.warehouse", folder)
        .getOrCreate()
    )
    spark.sql("CREATE TABLE lake.shop.customers (id INT, name STRING) USING iceberg")
    spark.sql("INSERT INTO lake.shop.customers VALUES (1,'a'), (2,'b'), (3,'c'), (4,'d'), (5,'e')")
    spark.stop()


if __name__ == "__main__":
    main()
