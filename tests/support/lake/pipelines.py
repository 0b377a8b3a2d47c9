"""Pipelines of data lakes, and the tables that they fill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from chronolake.config import Project
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.sync import RunResult, sync
from chronolake.types import ACTIVE, END, START
from support.crash.server_process import uses_up
from support.datalakes import DataLake, iceberg, project
from support.processes import run_command


class Pipeline:
    """A project with one pipeline, the lake that it fills and the data lake that it reads."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder = folder
        self.source = DataLake(folder / "source")
        self.configure(more)
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def configure(self, more: str = "", *, source: str = "") -> None:
        self.project: Project = project(
            self.folder,
            f"  crm:\n    source: {{type: data_lake_v2, path: source, org: X{source}}}\n{more}",
        )

    def sync(self, *only: str, **given: Any) -> RunResult:
        return sync(self.lake, self.project, "crm", only=only, **given)

    def done(self, *only: str) -> None:
        if uses_up():
            streams = [word for name in only for word in ("--stream", name)]
            code, output = run_command("sync", "crm", *streams, "--project", str(self.folder))
            assert code == 0, output
            return
        result = self.sync(*only)
        assert result.status is Status.SUCCEEDED, [stream.error for stream in result.streams]

    def rows(self, name: str = "Account") -> list[dict[str, Any]]:
        found = iceberg(self.project, "crm", name).scan().to_arrow()
        for column in (START, END, "source__modified"):
            if column in found.column_names:
                place = found.column_names.index(column)
                found = found.set_column(place, column, found[column].cast(pa.int64()))
        return found.to_pylist()

    def versions(self, *fields: str, name: str = "Account") -> list[tuple[Any, ...]]:
        return sorted(
            (row["Id"], row[START], row[END], row[ACTIVE], *(row[field] for field in fields))
            for row in self.rows(name)
        )

    def types(self, name: str = "Account") -> dict[str, str]:
        schema = iceberg(self.project, "crm", name).schema()
        return {field.name: str(field.field_type) for field in schema.fields}
