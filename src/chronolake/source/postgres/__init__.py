"""PostgreSQL as a source.

`messages` reads the parts of the logical replication protocol that describe (relations,
transactions, truncates), `tuples` the rows of many messages at once, and `pgoutput` puts them
together: batches of messages into changes of relations, as Arrow columns.
"""
