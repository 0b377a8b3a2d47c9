"""The lake's Iceberg catalog: it finds, lists, creates, renames and drops tables."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from chronolake.errors import LakeError, TableExistsError
from chronolake.iceberg.durability import sync_files_of_executors
from chronolake.iceberg.table import SCRATCH_SCHEMA, IcebergTable, java_class_of, java_message_of
from chronolake.session import CATALOG
from chronolake.storage import storage_error
from chronolake.types import LAKE_PROPERTY, Column, ColumnType, Kind, TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

_TYPES: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.SHORT: "int",
    Kind.INT: "int",
    Kind.LONG: "long",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.NAIVE_DATE: "date",
    Kind.NAIVE_DATETIME: "timestamp",
    Kind.UTC_DATETIME: "timestamptz",
    Kind.BINARY: "binary",
    Kind.STRING: "string",
    Kind.JSON: "string",
    Kind.XML: "string",
    Kind.NAIVE_TIME: "string",
}


def type_name(column_type: ColumnType) -> str:
    """Return the Iceberg type that columns of a logical type are stored in, without spaces."""
    if column_type.kind is Kind.DECIMAL:
        return f"decimal({column_type.precision},{column_type.scale})"
    return _TYPES[column_type.kind]


class Guard(Protocol):
    """Raises before something is written that this process must not write."""

    @property
    def marks(self) -> Mapping[str, str]:
        """Properties of tables that may be written."""

    def expect_writable(self) -> str | None:
        """Return the identity that tables made now carry, or None; raise if none may be made."""

    def expect_here(self) -> None:
        """Raise if the lake was copied or moved, which explains why files are missing."""

    def expect_inside(self, table: IcebergTable) -> None:
        """Raise if a table must not be written."""


class Catalog:
    """The lake's Iceberg catalog, as the session's JVM sees it."""

    def __init__(self, spark: SparkSession, guard: Guard) -> None:
        self.spark = spark
        self.guard = guard
        self.jvm: Any = spark._jvm  # noqa: SLF001
        # A name's way through the packages of the JVM costs a call for each step.
        self.schema_parser: Any = self.jvm.org.apache.iceberg.SchemaParser
        self._metadata: Any = self.jvm.org.apache.iceberg.TableMetadata
        self._namespaces: Any = self.jvm.org.apache.iceberg.catalog.Namespace
        self._identifiers: Any = self.jvm.org.apache.iceberg.catalog.TableIdentifier
        self._maps: Any = self.jvm.java.util.HashMap
        self._strings: Any = self.jvm.java.lang.String
        session = spark._jsparkSession  # noqa: SLF001
        # A catalog is made from the settings of the thread's active session.
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
        manager = session.sessionState().catalogManager()
        try:
            self._java = manager.catalog(CATALOG).icebergCatalog()
        except (Py4JError, PySparkException) as failure:
            raise storage_error(failure) or LakeError(
                f"The lake's catalog cannot be opened: {java_message_of(failure)}",
                hint="Check the lake's folder and `lake.catalog` in chronolake.yml.",
            ) from failure

    def make_durable(self, metadata: Any, io: Any) -> None:
        """Sync files that a commit of `metadata` refers to, where nobody else does that."""
        if not self.spark.sparkContext.master.startswith("local["):
            sync_files_of_executors(self.spark, metadata, io)

    def _namespace(self, schema: str) -> Any:
        levels = self.spark.sparkContext._gateway.new_array(self._strings, 1)  # noqa: SLF001
        levels[0] = schema
        return self._namespaces.of(levels)

    def builder_from(self, metadata: Any) -> Any:
        """A Java `TableMetadata.Builder` that starts from some metadata."""
        return self._metadata.buildFrom(metadata)

    def identifier(self, name: TableName) -> Any:
        """The Java `TableIdentifier` of a table; a schema is always one level."""
        return self._identifiers.of(self._namespace(name.schema), name.table)

    def find(self, name: TableName) -> IcebergTable | None:
        """The table as it is now, or None.

        Raises:
            LakeLocationError: its metadata is missing, because the lake was copied or moved.
            LakeError: its metadata cannot be read, or the catalog does not answer.
        """
        try:
            return IcebergTable(self, name, self._java.loadTable(self.identifier(name)))
        except (Py4JJavaError, PySparkException) as failure:
            if "NoSuch" in java_class_of(failure):
                return None
            self.guard.expect_here()
            raise self._failed(f"The table {name} cannot be read", failure) from failure

    def load(self, name: TableName) -> IcebergTable:
        """The table as it is now.

        Raises:
            LakeError: it does not exist, or the catalog does not answer.
        """
        table = self.find(name)
        if table is None:
            raise LakeError(
                "The table was dropped meanwhile, or got another name.",
                table=str(name),
                hint="`chronolake tables` lists those that are there.",
            )
        return table

    def tables(self) -> list[TableName]:
        """Every table of the lake, sorted."""
        return sorted(
            name
            for schema in self.schemas()
            if schema != SCRATCH_SCHEMA
            for name in self.tables_in(schema)
        )

    def tables_in(self, schema: str) -> list[TableName]:
        """The tables of one schema; none if there is no such schema."""
        namespace = self._namespace(schema)
        if not self._java.namespaceExists(namespace):
            return []
        found = self._java.listTables(namespace)
        return [TableName(schema, str(identifier.name())) for identifier in found]

    def schemas(self) -> list[str]:
        """Every schema of the lake, and every prefix of one that ends before a dot.

        A JDBC catalog stores a namespace as text joined by dots, so that it reads our one level
        `a.b` back as `b` in `a`: the tree has to be walked, and its levels joined again.
        """
        found: list[str] = []
        waiting = list(self._java.listNamespaces())
        while waiting:
            namespace = waiting.pop()
            found.append(".".join(namespace.levels()))
            waiting += list(self._java.listNamespaces(namespace))
        return found

    def create(
        self,
        name: TableName,
        columns: Sequence[Column],
        *,
        location: str,
        properties: Mapping[str, str],
        partition_by: Sequence[str] = (),
    ) -> None:
        """Create an empty table, and its schema where that is missing.

        Raises:
            TableExistsError: the table exists.
            LakeLocationError: the lake was copied or moved.
        """
        lake_id = self.guard.expect_writable()
        if lake_id is not None:
            properties = {**properties, LAKE_PROPERTY: lake_id}
        schema = self.schema(columns)
        spec = self.jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
        for column in partition_by:
            spec = spec.identity(column)
        builder = self._java.buildTable(self.identifier(name), schema)
        builder = builder.withPartitionSpec(spec.build()).withLocation(location)
        builder = builder.withProperties(self.map(properties))
        for is_last in (False, True):
            self.ensure_schema(name.schema)
            try:
                builder.create()
            except (Py4JJavaError, PySparkException) as failure:
                kind = java_class_of(failure)
                if "AlreadyExists" in kind:
                    raise self._taken(name, "Change it with AlterTable") from failure
                # A call that was cancelled may have removed the empty schema again.
                if is_last or "NoSuchNamespace" not in kind:
                    raise self._failed(f"The table {name} cannot be created", failure) from failure
            else:
                return

    def has_schema(self, schema: str) -> bool:
        """Return whether a schema is there."""
        return bool(self._java.namespaceExists(self._namespace(schema)))

    def drop_schema_if_empty(self, schema: str) -> None:
        """Remove a schema, unless it has tables or views."""
        with suppress(Py4JJavaError, PySparkException):
            self._java.dropNamespace(self._namespace(schema))

    def ensure_schema(self, schema: str) -> None:
        """Create a schema unless it is there; several may try at once."""
        namespace = self._namespace(schema)
        if self._java.namespaceExists(namespace):
            return
        try:
            self._java.createNamespace(namespace, self.map({}))
        except (Py4JJavaError, PySparkException) as failure:
            # Whatever it was, it does not matter if the schema is there now.
            if not self._java.namespaceExists(namespace):
                raise self._failed(f"The schema {schema!r} cannot be made", failure) from failure

    def rename(self, name: TableName, new_name: TableName) -> None:
        """Give a table another name, in one step; its files stay where they are.

        Raises:
            TableExistsError: the new name is taken.
            LakeError: the table does not exist, or the catalog does not answer.
        """
        try:
            self._java.renameTable(self.identifier(name), self.identifier(new_name))
        except (Py4JJavaError, PySparkException) as failure:
            if "AlreadyExists" in java_class_of(failure):
                raise self._taken(new_name, "Drop it first") from failure
            raise self._failed(f"{name} cannot be renamed to {new_name}", failure) from failure

    def drop(self, name: TableName, *, purge: bool) -> bool:
        """Remove a table, with its files if `purge`; False if there was none."""
        self.guard.expect_writable()
        return bool(self._java.dropTable(self.identifier(name), purge))

    def drop_view(self, name: TableName, *, having: str) -> bool:
        """Remove a view that has a property; False if there is none."""
        self.guard.expect_writable()
        identifier = self.identifier(name)
        if not hasattr(self._java, "viewExists") or not self._java.viewExists(identifier):
            return False
        if self._java.loadView(identifier).properties().get(having) is None:
            return False
        return bool(self._java.dropView(identifier))

    def delete_folder(self, table: IcebergTable) -> None:
        """Remove a table's folder and all that is in it, where the store can do that."""
        io = table.java.io()
        if hasattr(io, "deletePrefix"):
            io.deletePrefix(table.location)

    def schema(self, columns: Sequence[Column]) -> Any:
        """A Java `Schema` of nullable columns with the ids 1, 2, …, in the order given.

        One call, however many columns there are.
        """
        fields = [
            {"id": number, "name": column.name, "required": False, "type": type_name(column.type)}
            for number, column in enumerate(columns, start=1)
        ]
        told = {"type": "struct", "schema-id": 0, "fields": fields}
        return self.schema_parser.fromJson(orjson.dumps(told).decode())

    def fields(self, schema: Any) -> list[dict[str, Any]]:
        """The top-level fields of a Java `Schema`, as its JSON has them, in one call."""
        found: list[dict[str, Any]] = orjson.loads(self.schema_parser.toJson(schema))["fields"]
        return found

    def type(self, column_type: ColumnType) -> Any:
        """The Java type that columns of a logical type are stored in."""
        return self.schema([Column("value", column_type)]).findType("value")

    def map(self, items: Mapping[str, str]) -> Any:
        """A Java map of strings."""
        java = self._maps()
        for key, value in items.items():
            java.put(key, value)
        return java

    def list(self, items: Iterable[str]) -> Any:
        """A Java list of strings."""
        java = self.jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return java

    def set(self, items: Iterable[str]) -> Any:
        """A Java set of strings."""
        java = self.jvm.java.util.HashSet()
        for item in items:
            java.add(item)
        return java

    def _taken(self, name: TableName, what: str) -> TableExistsError:
        if self.find(name) is None:
            return TableExistsError(
                "A view has the name.",
                table=str(name),
                hint="Choose another name. `chronolake view TABLE --drop` removes the view "
                "TABLE_current.",
            )
        return TableExistsError(
            "The table exists already.",
            table=str(name),
            hint=f"{what}, or choose another name.",
        )

    @staticmethod
    def _failed(what: str, failure: BaseException) -> LakeError:
        return storage_error(failure) or LakeError(
            f"{what}: {java_message_of(failure)}",
            hint="Check that the catalog and the lake's folder can be reached and written.",
        )
