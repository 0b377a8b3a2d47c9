"""Sources: the places that pipelines read from.

`protocol` defines the interface of all sources, and of those whose change batches land in the
project's own lake. `data_lake` reads a Data Lake v2 that another writer maintains. `postgres/`
reads PostgreSQL by logical replication or by snapshot diff. `jdbc` reads whole tables of any
database over JDBC. `sqlserver/` reads SQL Server's CDC and change tracking.
"""
