"""Replicate data into an Apache Iceberg lakehouse and keep every version of every record."""
