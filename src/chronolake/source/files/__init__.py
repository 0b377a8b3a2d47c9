"""Sources that are files in a folder or bucket.

`path_template` reads dates and names out of paths, `listing` finds files without Spark, `formats`
reads them with Spark. `records` are files with records or events, `copies` are dated copies of
tables, and `history` is an existing table of versions.
"""
