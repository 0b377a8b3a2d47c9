"""SQL Server as a source, over JDBC.

`change_tracking` reads the present state of rows that change tracking reports as changed. `cdc`
reads every change that change data capture has stored. `statements` contains the SQL and what both
methods share. `database` chooses the method.

Experimental: the code was written from the vendor's documentation of these functions, and is tested
with results as documented there. It has not been run against a server (docs/sqlserver.md).
"""
