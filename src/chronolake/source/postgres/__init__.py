"""PostgreSQL as a source.

`database` copies each table and then follows the log by logical replication. `snapshot_source`
reads what differs between two snapshots of a table. `selection` finds the tables that the
configuration selects.

`messages` decodes messages of the logical replication protocol that describe data (relations,
transactions, truncates). `pgoutput` decodes batches of messages to changes of relations, as Arrow
columns.
"""
