"""SQL Server as a source, over JDBC.

`change_tracking` brings rows that change tracking says have changed, as they are when they are
read; `cdc` every change that change data capture has kept; `statements` is what they share,
`database` chooses between them, and `statements` is all the SQL.

Written to the vendor's documentation of these functions, and tested with results as that describes
them: no server was there.
"""
