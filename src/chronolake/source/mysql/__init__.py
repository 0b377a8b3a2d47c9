"""MySQL and MariaDB as a source: an initial copy of each table, then every change from the log."""
