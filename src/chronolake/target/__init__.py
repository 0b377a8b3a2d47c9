"""Relational targets: tables of the lake are replicated into PostgreSQL and MySQL databases."""
