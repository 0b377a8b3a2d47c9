"""Pending tables: changes of a table that only this process sees, until they are published.

Every statement of Spark ends with a commit. Here it commits to an Iceberg transaction, which is
never committed itself: its snapshots become part of the table by one commit of the table's
metadata. Until then the catalog shows nothing of them, and the table's folder has only new files to
which nothing refers.

Spark finds a table by its name in a catalog. The only catalog of Iceberg whose tables can be any
objects is the cache in front of another catalog: the sessions have one in front of an empty
catalog, and pending tables are put into it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from chronolake.iceberg.catalog import HIDDEN, MAIN, IcebergTable
from chronolake.session import PENDING_CATALOG, active
from chronolake.types import TableName, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_BEFORE: Final = "before"
_AFTER: Final = "after"


class PendingTable:
    """A table as it was when a write began, and the same table with the changes of this write.

    Statements of one session can use both until `close`.

    Attributes:
        table: the state with which the write began.
        spark: the session.
    """

    def __init__(self, table: IcebergTable, spark: SparkSession) -> None:
        self.table = table
        self.spark = spark
        # Never that of another write, because Spark compares tables by their names.
        self._name = uuid4().hex
        self._tables: dict[str, Any] = {}

    def before(self, branch: str) -> str:
        """Return the SQL name of a branch without the changes."""
        return self._sql(_BEFORE, branch)

    def after(self, branch: str) -> str:
        """Return the SQL name of a branch with the changes so far, which statements may change."""
        return self._sql(_AFTER, branch)

    @property
    def frozen(self) -> IcebergTable:
        """Return the table without the changes, in a form whose `sql` names this state."""
        sql = self.before(MAIN)
        java = self._tables[_BEFORE]
        return IcebergTable(self.table.catalog, self.table.name, java=java, frozen_as=sql)

    @property
    def name(self) -> TableName:
        """Return the name of the table with the changes, in the catalog of pending tables."""
        self._find(_AFTER)
        return self._name_of(_AFTER)

    @property
    def state(self) -> IcebergTable:
        """Return the table with the changes so far."""
        java = self._tables.get(_AFTER)
        table = self.table
        return table if java is None else IcebergTable(table.catalog, table.name, java=java)

    def add_to(self, builder: Any) -> None:
        """Add the changes to metadata.

        Args:
            builder: a Java `TableMetadata.Builder`; its branches must have the snapshots with which
                the write began.
        """
        now = self.state
        moved = [
            (branch, self.table.branch(branch), now.branch(branch)) for branch in (MAIN, HIDDEN)
        ]
        added = [
            snapshot for _, since, head in moved for snapshot in now.snapshots_since(since, head)
        ]
        for snapshot in sorted(added, key=lambda snapshot: int(snapshot.sequenceNumber())):
            builder.addSnapshot(snapshot)
        for branch, since, head in moved:
            if head != since:
                builder.setBranchSnapshot(head, branch)

    def close(self) -> None:
        """Forget the changes; if they were not published, maintenance removes their files."""
        for version in self._tables:
            table_cache(self.spark).invalidate(self._identifier(version))
        self._tables.clear()

    def _name_of(self, version: str) -> TableName:
        return TableName(version, self._name)

    def _sql(self, version: str, branch: str) -> str:
        self._find(version)
        name = f"{PENDING_CATALOG}.{self._name_of(version).sql}"
        return name if branch == MAIN else f"{name}.{quote(f'branch_{branch}')}"

    def _find(self, version: str) -> Any:
        """Return the Java `Table` of a version; the first use makes it."""
        if version not in self._tables:
            self._tables[version] = java = self._new_table()
            if version == _AFTER and self.table.snapshot_id is None:
                # The first rows have a parent, which those have not with which a table began
                # (`IcebergTable.is_unwritten`).
                java.newFastAppend().commit()
            table_cache(self.spark).put(self._identifier(version), java)
        return self._tables[version]

    def _new_table(self) -> Any:
        """Return a Java `Table` of the state with which the write begins; commits stay in memory.

        A transaction's own table cannot be read, but its operations are like those of any table.
        """
        iceberg = self.table.catalog.jvm.org.apache.iceberg
        name = str(self.table.java.name())
        transaction = iceberg.Transactions.replaceTableTransaction(
            name, self.table.java.operations(), self.table.metadata
        )
        return iceberg.BaseTable(transaction.table().operations(), name)

    def _identifier(self, version: str) -> Any:
        return self.table.catalog.identifier(self._name_of(version))


@contextmanager
def frozen(table: IcebergTable, spark: SparkSession) -> Iterator[IcebergTable]:
    """Yield a table whose state does not change for the statements of a session in this block.

    A plan reads the current state of a table each time that it is executed, and its columns may
    have changed since: a switch of the table's mode does not wait for a long comparison.
    """
    pending = PendingTable(table, spark)
    try:
        yield pending.frozen
    finally:
        pending.close()


def table_cache(spark: SparkSession) -> Any:
    """Return the Java `Cache` of a session's pending tables, by their identifiers."""
    # A catalog is created with the settings of the thread's active session.
    with active(spark):
        manager = spark._jsparkSession.sessionState().catalogManager()  # noqa: SLF001
        catalog = manager.catalog(PENDING_CATALOG).icebergCatalog()
    field = catalog.getClass().getDeclaredField("tableCache")
    field.setAccessible(True)
    return field.get(catalog)
