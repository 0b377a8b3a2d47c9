"""Projects whose lake is in any place and in any catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from chronolake.types import DELETED, START
from support.matrix.sources import RecordSource
from support.processes import KILLED
from support.store.projects import BucketProject
from support.waiting import TIMEOUT

_PIPELINE: Final = "shop"


@dataclass
class StoredProject(BucketProject):
    """A project with a lake in a folder or bucket, and the catalog of a kind.

    Attributes:
        warehouse: the URL of a bucket, or empty if tables are stored where it is the default.
        catalog: the catalog's address; empty for a SQLite file.
        schema: the schema of its tables.
    """

    catalog: str = ""
    schema: str = "shop"
    #: The folder in which the server of S3 stores its buckets.
    buckets: Path = Path()

    @property
    def lake(self) -> dict[str, Any]:
        return {
            **(super().lake if self.warehouse else {}),
            **({"catalog": self.catalog} if self.catalog else {}),
        }

    def table(self, *identifier: str) -> Table:
        with self._open_catalog() as catalog:
            return catalog.load_table(identifier)

    @contextmanager
    def _open_catalog(self) -> Iterator[Catalog]:
        given = {}
        if self.warehouse:
            given = {"s3.endpoint": f"http://127.0.0.1:{self.port}", "s3.region": "us-east-1"}
        if self.catalog.startswith("http"):
            with RestCatalog("reader", uri=self.catalog, **given) as rest:
                yield rest
            return
        database = self.catalog.replace("postgresql:", "postgresql+psycopg:")
        lake = self.project.lake
        catalog = SqlCatalog(
            "chronolake",
            uri=database or f"sqlite:///{lake.catalog_file}",
            warehouse=lake.warehouse_location,
            **given,
        )
        try:
            yield catalog
        finally:
            catalog.engine.dispose()

    def read(self, source: RecordSource) -> None:
        """Configure the pipeline of a source, and create what it needs there."""
        self.source = source
        self.pipelines = {_PIPELINE: {"schema": self.schema, **source.pipeline}}
        self.configure()
        if source.needs_objects:
            self.run("check", "--create")

    @property
    def table_name(self) -> str:
        """Return the name of the pipeline's table in commands."""
        return f"{self.schema}.{self.source.stream}"

    def set_mode(self, mode: str) -> None:
        """Change the configured mode."""
        self.pipelines[_PIPELINE]["mode"] = mode
        self.configure()

    def table_mode(self) -> str:
        """Return the mode that the columns of the pipeline's table show."""
        columns = self.table(self.schema, self.source.stream).schema().column_names
        if START in columns:
            return "history"
        return "soft-delete" if DELETED in columns else "live"

    def sync(self) -> None:
        self.run("sync", _PIPELINE)

    def table_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the pipeline's table."""
        return self.rows(self.schema, self.source.stream)

    def expect(self) -> None:
        """Compare the pipeline's table with the records of its source."""
        found = self.source.records.differences(
            self.table_rows(), self.source.key, self.source.name
        )
        assert not found, found

    def is_killed(self, *words: str, at: str) -> bool:
        """Run a command that is killed at a failpoint; return whether it reached the point."""
        command = self.start(*words, failpoint=f"{at}=kill")
        output, errors = command.communicate(timeout=TIMEOUT)
        assert command.returncode in {0, KILLED}, f"{at}: {output}{errors}"
        return command.returncode == KILLED

    def snapshot(self) -> int | None:
        """Return the current snapshot of the pipeline's table."""
        return self.table(self.schema, self.source.stream).metadata.current_snapshot_id

    def data_files(self) -> int:
        """Return the number of data files of the pipeline's table."""
        files = self.table(self.schema, self.source.stream).scan().plan_files()
        return sum(1 for _ in files)

    def local_folder(self) -> Path:
        """Return where the pipeline's table is stored, also if that is behind a server of S3."""
        location = self.table(self.schema, self.source.stream).location()
        scheme, _, path = location.rpartition("://")
        return self.buckets / path if scheme == "s3" else Path(location.removeprefix("file:"))

    def drop_table(self) -> None:
        """Drop the pipeline's table as another program does."""
        with self._open_catalog() as catalog:
            catalog.drop_table((self.schema, self.source.stream))
