"""SQL Server as a source, over JDBC.

`change_tracking` reads the present state of rows that change tracking reports as changed. `cdc`
reads every change that change data capture has stored. `statements` contains the SQL and what both
methods share. `database` chooses the method.

The code was written from the vendor's documentation of these functions, and is tested with results
as documented there: no server was available.
"""
