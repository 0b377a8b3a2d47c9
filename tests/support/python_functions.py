"""A project whose source is a module of Python functions."""

from __future__ import annotations

import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from chronolake.config import load_project
from chronolake.lake import Lake
from chronolake.pipeline.sync import RunResult, sync
from chronolake.types import ACTIVE, END, START
from support.datalakes import iceberg, project

#: The module's name.
MODULE: Final = "shop_functions"


class Functions:
    """A project with a module of functions, whose data is in the module `given`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = project(folder, "")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)
        self.settings = ""

    def write(self, code: str, run: str = f"{MODULE}:orders", more: str = "") -> None:
        """Write the module, and the pipeline that runs its functions."""
        sys.modules.pop(MODULE, None)
        header = "import chronolake\n\n"
        (self.folder / f"{MODULE}.py").write_text(header + textwrap.dedent(code))
        file = self.folder / "chronolake.yml"
        kept = file.read_text().split("pipelines:")[0]
        file.write_text(
            f"{kept}pipelines:\n  shop:\n    source: {{type: python, run: {run}{more}}}\n"
            + textwrap.indent(self.settings, "    ")
        )
        self.project = load_project(file)

    def run(self, *, full_refresh: bool = False, only: tuple[str, ...] = ()) -> RunResult:
        return sync(self.lake, self.project, "shop", only=only, full_refresh=full_refresh)

    def sync(self, *, full_refresh: bool = False, only: tuple[str, ...] = ()) -> None:
        result = self.run(full_refresh=full_refresh, only=only)
        assert [stream.error for stream in result.streams] == [None] * len(result.streams)

    def rows(self, stream: str = "orders") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            iceberg(self.project, "shop", stream).scan().to_arrow().to_pylist()
        )
        return rows

    def versions(self, *fields: str, stream: str = "orders", key: str = "id") -> list[Any]:
        """Return the fields and the activity of all versions, by key and start."""
        rows = sorted(self.rows(stream), key=lambda row: (row[key], row[START]))
        for before, after in pairwise(rows):
            if before[key] == after[key]:
                assert before[END] < after[START], "versions of a record do not overlap"
        return [(*(row[name] for name in fields), row[ACTIVE]) for row in rows]
