"""Databases that Spark reads over JDBC."""
