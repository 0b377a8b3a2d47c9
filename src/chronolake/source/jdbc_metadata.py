"""The tables of a database over JDBC with their keys, as its driver reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from chronolake.errors import ConfigurationError
from chronolake.source.jdbc import JdbcReader, driver_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from chronolake.config import JdbcAddress

#: Seconds until a server has to accept the connection.
_LOGIN_SECONDS: Final = 30
#: Schemas of the servers themselves.
_OWN_SCHEMAS: Final = frozenset({"sys", "information_schema", "pg_catalog"})
#: Databases in which only the user's own schema is listed, because there are many others.
_OF_USER: Final = ("jdbc:oracle:", "jdbc:db2:")
#: `java.sql.Types` of integers.
_INTEGERS: Final = frozenset({-6, 5, 4, -5})


@dataclass(frozen=True)
class DatabaseTable:
    """A table of a database.

    Attributes:
        name: its name as it is written in SQL.
        key: its primary key; without one, the columns of a unique index that are never null.
        is_numbered: whether the key is a single integer.
    """

    name: str
    key: tuple[str, ...]
    is_numbered: bool


def list_tables(spark: SparkSession, address: JdbcAddress) -> list[DatabaseTable]:
    """Return the tables that the user sees, without those of the server.

    Raises:
        ConfigurationError: the driver is not known.
        SourceError: the database cannot be reached, or refuses the connection.
    """
    driver = address.driver or driver_of(address.url)
    if driver is None:
        raise ConfigurationError(
            "The driver of the database is not known.", hint="Write the pipeline yourself."
        )
    jvm: Any = spark._jvm  # noqa: SLF001
    try:
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(driver)
        properties = jvm.java.util.Properties()
        for name, value in (("user", address.user), ("password", address.password)):
            if value is not None:
                properties.put(name, value)
        jvm.java.sql.DriverManager.setLoginTimeout(_LOGIN_SECONDS)
        connection = jvm.java.sql.DriverManager.getConnection(address.url, properties)
        try:
            return sorted(_tables(connection, address.url), key=lambda table: table.name)
        finally:
            connection.close()
    except Py4JError as failure:
        raise JdbcReader(address).read_error("The database", failure) from failure


def _tables(connection: Any, url: str) -> Iterator[DatabaseTable]:
    metadata = connection.getMetaData()
    catalog = connection.getCatalog()
    schema = connection.getSchema() if url.startswith(_OF_USER) else None
    rows = [
        (row["TABLE_SCHEM"], row["TABLE_NAME"])
        for row in _rows(
            metadata.getTables(catalog, schema, "%", None),
            "TABLE_SCHEM",
            "TABLE_NAME",
            "TABLE_TYPE",
        )
        if row["TABLE_TYPE"] in {"TABLE", "PARTITIONED TABLE", "BASE TABLE"}
        and (row["TABLE_SCHEM"] or "").lower() not in _OWN_SCHEMAS
    ]
    for own, table in rows:
        columns = {
            row["COLUMN_NAME"]: (row["DATA_TYPE"], row["NULLABLE"])
            for row in _rows(
                metadata.getColumns(catalog, own, _literal(metadata, table), "%"),
                "COLUMN_NAME",
                "DATA_TYPE",
                "NULLABLE",
            )
        }
        parts = _rows(metadata.getPrimaryKeys(catalog, own, table), "KEY_SEQ", "COLUMN_NAME")
        ordered = sorted(parts, key=lambda row: int(row["KEY_SEQ"] or 0))
        key = tuple(str(row["COLUMN_NAME"]) for row in ordered)
        key = key or _unique(metadata, catalog, own, table, columns)
        numbers = {name for name, (kind, _) in columns.items() if int(kind or 0) in _INTEGERS}
        name = table if own is None else f"{own}.{table}"
        yield DatabaseTable(name, key, len(key) == 1 and key[0] in numbers)


def _unique(
    metadata: Any, catalog: Any, schema: Any, table: str, columns: dict[Any, Any]
) -> tuple[str, ...]:
    """Return the columns of the first unique index without a column that may be null."""
    indexes: dict[str, dict[int, str]] = {}
    for row in _rows(
        metadata.getIndexInfo(catalog, schema, table, True, True),
        "INDEX_NAME",
        "ORDINAL_POSITION",
        "COLUMN_NAME",
    ):
        if row["INDEX_NAME"] is not None:
            place = int(row["ORDINAL_POSITION"] or 0)
            indexes.setdefault(row["INDEX_NAME"], {})[place] = row["COLUMN_NAME"] or ""
    for _, found in sorted(indexes.items()):
        names = tuple(found[place] for place in sorted(found))
        if all(columns.get(name, (None, "1"))[1] == "0" for name in names):
            return names
    return ()


def _literal(metadata: Any, name: str) -> str:
    """Return a name as a pattern of names that only it matches."""
    escape = str(metadata.getSearchStringEscape())
    return "".join(f"{escape}{char}" if char in "_%" else char for char in name)


def _rows(found: Any, *columns: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Java `ResultSet`, as texts or None, and close it."""
    try:
        while found.next():
            yield {name: found.getString(name) for name in columns}
    finally:
        found.close()
