"""Small connectors in Python: programs that a test writes, with one body for each command."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

from chronolake.config import Project, load_project
from chronolake.lake import Lake
from chronolake.pipeline.sync import RunResult, sync
from chronolake.types import ACTIVE, END, START
from support.datalakes import iceberg
from support.lakes import SPARK

_AIRBYTE: Final = """
import json, os, signal, sys, time

words = sys.argv[2:]
files = {name[2:]: json.load(open(path)) for name, path in zip(words[::2], words[1::2])}
config, catalog, state = files.get("config"), files.get("catalog"), files.get("state")

def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

def emit(**message):
    raw(json.dumps(message).encode() + b"\\n")

def record(stream, **data):
    emit(type="RECORD", record={"stream": stream, "data": data, "emitted_at": 0})

def stream_state(stream, value, **more):
    inner = {"stream_descriptor": {"name": stream}, "stream_state": value}
    emit(type="STATE", state={"type": "STREAM", "stream": inner, **more})

def status(stream, value):
    inner = {"stream_descriptor": {"name": stream}, "status": value}
    emit(type="TRACE", trace={"type": "STREAM_STATUS", "stream_status": inner})

def state_of(stream):
    for found in state or []:
        if found["stream"]["stream_descriptor"]["name"] == stream:
            return found["stream"]["stream_state"]

if sys.argv[1] == "spec" and SPEC is not None:
    emit(type="SPEC", spec={"connectionSpecification": SPEC})
elif sys.argv[1] == "discover":
    emit(type="CATALOG", catalog={"streams": STREAMS})
elif sys.argv[1] == "check":
    emit(type="CONNECTION_STATUS", connectionStatus={"status": "SUCCEEDED"})
elif sys.argv[1] == "read":
"""


_SINGER: Final = """
import json, os, signal, sys, time

words = [word for word in sys.argv[1:] if word != "--discover"]
files = {name[2:]: json.load(open(path)) for name, path in zip(words[::2], words[1::2])}
config, catalog, state = files.get("config"), files.get("catalog"), files.get("state")

def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

def emit(**message):
    raw(json.dumps(message).encode() + b"\\n")

def record(stream, _version=None, **data):
    version = {} if _version is None else {"version": _version}
    emit(type="RECORD", stream=stream, record=data, **version)

if "--discover" in sys.argv:
    raw(json.dumps({"streams": STREAMS}, indent=2).encode())
else:
"""

_FIVETRAN: Final = """
import datetime, decimal
from fivetran_connector_sdk import Connector, Operations as op

def schema(configuration):
    return TABLES

def update(configuration, state):
    print("a line that is not a message")
"""


def airbyte_program(
    streams: list[dict[str, Any]], read: str = "pass", *, spec: Mapping[str, Any] | None = None
) -> str:
    """Return the code of a connector of the Airbyte protocol.

    Args:
        streams: what it offers.
        read: what its command `read` runs.
        spec: the JSON schema of its configuration; None: it does not know the command `spec`.
    """
    body = textwrap.indent(textwrap.dedent(read), "    ")
    return f"STREAMS = {streams!r}\nSPEC = {spec!r}\n{_AIRBYTE}{body}"


def singer_program(streams: list[dict[str, Any]], read: str = "pass") -> str:
    """Return the code of a tap.

    Args:
        streams: what it offers.
        read: what it runs without `--discover`.
    """
    return f"STREAMS = {streams!r}\n{_SINGER}{textwrap.indent(textwrap.dedent(read), '    ')}"


def tap_stream(name: str, *, cursor: str | None = None, method: str = "") -> dict[str, Any]:
    """Return a stream as a Singer tap reports it.

    Args:
        cursor: the field of incremental reads; None: all records are read.
        method: its replication method, if it is another one.
    """
    fields = {"id": "integer", "note": "string"}
    properties: dict[str, Any] = {field: {"type": ["null", kind]} for field, kind in fields.items()}
    metadata: dict[str, Any] = {"inclusion": "available", "table-key-properties": ["id"]}
    if cursor is not None:
        properties[cursor] = {"type": ["null", "string"], "format": "date-time"}
        metadata["valid-replication-keys"] = [cursor]
    if method:
        metadata["replication-method"] = method
    return {
        "tap_stream_id": name,
        "stream": name,
        "schema": {"type": "object", "properties": properties},
        "metadata": [{"breadcrumb": [], "metadata": metadata}],
    }


def stream(name: str, *, cursor: str | None = None, **properties: str) -> dict[str, Any]:
    """Return a stream as an Airbyte connector reports it.

    Args:
        cursor: the field of incremental reads; None: all records are read.
        properties: the types of its fields; `id` is the key.
    """
    fields = {"id": "integer", "note": "string", **properties}
    found = {
        "name": name,
        "json_schema": {
            "type": "object",
            "properties": {
                field: {"type": ["null", "string"], "format": "date-time"}
                if kind == "time"
                else {"type": ["null", kind]}
                for field, kind in fields.items()
            },
        },
        "supported_sync_modes": ["full_refresh"],
        "source_defined_primary_key": [["id"]],
    }
    if cursor is not None:
        found["supported_sync_modes"] = ["full_refresh", "incremental"]
        found["default_cursor_field"] = [cursor]
    return found


@contextmanager
def failing(given: Path) -> Iterator[None]:
    """Let a source fail while the block runs: one that fails if this file contains `fail`."""
    before = given.read_text()
    given.write_text("fail")
    yield
    given.write_text(before)


class Shop:
    """A project whose pipeline `shop` has a source that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.configure({"type": "python", "run": "none:none"})
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def configure(self, source: Mapping[str, Any], **settings: Any) -> None:
        """Write the configuration of the pipeline."""
        content = {
            "lake": {"spark": {"master": "local[2]", "conf": SPARK}},
            "pipelines": {"shop": {"source": dict(source), **settings}},
        }
        file = self.folder / "chronolake.yml"
        file.write_text(yaml.safe_dump(content))
        self.project: Project = load_project(file)

    def airbyte(self, streams: list[dict[str, Any]], read: str, **source: Any) -> None:
        """Write a connector of the Airbyte protocol, and the pipeline that runs it.

        Args:
            streams: what it offers.
            read: what its command `read` runs.
            source: further settings.
        """
        self._write_program("airbyte", airbyte_program(streams, read), **source)

    def singer(self, streams: list[dict[str, Any]], read: str, **source: Any) -> None:
        """Write a tap, and the pipeline that runs it.

        Args:
            streams: what it offers.
            read: what it runs without `--discover`.
            source: further settings.
        """
        self._write_program("singer", singer_program(streams, read), **source)

    def fivetran(self, tables: list[dict[str, Any]], update: str, **source: Any) -> None:
        """Write a project of the Connector SDK, and the pipeline that runs it.

        Args:
            tables: what its `schema` declares.
            update: what its `update` runs.
            source: further settings.
        """
        code = f"TABLES = {tables!r}\n{_FIVETRAN}{textwrap.indent(textwrap.dedent(update), '    ')}"
        folder = self.folder / "connector"
        folder.mkdir(exist_ok=True)
        (folder / "connector.py").write_text(
            f"{code}\nconnector = Connector(update=update, schema=schema)\n"
        )
        self.configure({"type": "fivetran", "path": "connector", **source})

    def fivetran_stand_in(self) -> dict[str, Any]:
        """Write a package in place of the SDK, and return the settings of a source that uses it.

        The runner replaces all operations of the SDK. The real package is used in
        `test_fivetran`.
        """
        package = self.folder / "sdk" / "fivetran_connector_sdk.py"
        package.parent.mkdir(exist_ok=True)
        package.write_text(
            "class Operations:\n    pass\n\n\n"
            "class Logging:\n    class Level:\n        INFO = 1\n\n\n"
            "class Connector:\n"
            "    def __init__(self, update, schema):\n"
            "        self.update_method, self.schema_method = update, schema\n"
        )
        return {"python": sys.executable, "environment": {"PYTHONPATH": str(package.parent)}}

    def _write_program(self, kind: str, code: str, **source: Any) -> None:
        program = self.folder / f"{kind}_connector.py"
        program.write_text(code)
        command = [sys.executable, str(program)]
        self.configure({"type": kind, "command": command, **source})

    def run(self, *, full_refresh: bool = False, only: tuple[str, ...] = ()) -> RunResult:
        return sync(self.lake, self.project, "shop", only=only, full_refresh=full_refresh)

    def sync(self, *, full_refresh: bool = False, only: tuple[str, ...] = ()) -> None:
        """Sync; all streams succeed."""
        result = self.run(full_refresh=full_refresh, only=only)
        assert [found.error for found in result.streams] == [None] * len(result.streams)

    def fail(self, *words: str) -> None:
        """Sync; all streams fail, for a reason with these words."""
        for found in self.run().streams:
            reason = f"{found.error} {found.hint}"
            assert all(word in reason for word in words), reason

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        """Return the rows of a table, as PyIceberg reads them."""
        rows: list[dict[str, Any]] = (
            iceberg(self.project, "shop", table).scan().to_arrow().to_pylist()
        )
        return rows

    def versions(self, *fields: str, table: str = "orders", key: str = "id") -> list[Any]:
        """Return the fields and the activity of all versions, by key and start."""
        rows = sorted(self.rows(table), key=lambda row: (row[key], row[START]))
        for before, after in pairwise(rows):
            if before[key] == after[key]:
                assert before[END] < after[START], "versions of a record do not overlap"
        return [(*(row[name] for name in fields), row[ACTIVE]) for row in rows]
