"""PostgreSQL as a source.

`database` brings what the log says of tables, after a copy of each, and `snapshot_source` what
differs between two reads of them; `selection` says which tables there are.

`messages` reads the parts of the logical replication protocol that describe (relations,
transactions, truncates), `pgoutput` the rows of many messages at once, and `pgoutput` puts them
together: batches of messages into changes of relations, as Arrow columns.
"""
