"""What can be read: each kind of source in a room of its own.

`protocol` says what every source tells of its streams, and what those do that keep no lake of their
own: they bring record versions, which land in ours. `data_lake` is a Data Lake v2 that someone else
writes; `postgres/` reads PostgreSQL's log, or its tables as a whole, as `jdbc/` does it with any
database; `sqlserver/` reads what SQL Server keeps of changes.
"""
