"""Pipelines whose runs the web UI shows: some have ended, as programs of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from chronolake.config import Project
from chronolake.core import verify
from chronolake.lake import Lake
from chronolake.pipeline.run_history import note_verified
from chronolake.pipeline.store import Store
from chronolake.pipeline.sync import sync
from chronolake.types import TableName
from support.datalakes import DataLake, project

STREAMS = ("customers", "invoices", "orders")
REGIONS = 12
#: A value that a browser must never interpret as markup.
HOSTILE = "<img src=x onerror=alert(1)>"
_T = 1_767_225_600_000_000


def manifest(url: str) -> dict[str, Any]:
    """Describe an API whose streams are read region by region, one request each."""
    return {
        "version": "6.48.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": list(STREAMS)},
        "streams": [_stream(name, url) for name in STREAMS],
    }


def _stream(name: str, url: str) -> dict[str, Any]:
    def given(field: str) -> dict[str, Any]:
        return {
            "type": "RequestOption",
            "inject_into": "request_parameter",
            "field_name": field,
        }

    return {
        "type": "DeclarativeStream",
        "name": name,
        "primary_key": "id",
        "retriever": {
            "type": "SimpleRetriever",
            "requester": {"type": "HttpRequester", "url_base": url, "path": f"/{name}"},
            "record_selector": {
                "type": "RecordSelector",
                "extractor": {"type": "DpathExtractor", "field_path": ["data"]},
            },
            "partition_router": {
                "type": "ListPartitionRouter",
                "values": [f"r{number}" for number in range(REGIONS)],
                "cursor_field": "region",
                "request_option": given("region"),
            },
        },
        "incremental_sync": {
            "type": "DatetimeBasedCursor",
            "cursor_field": "updated_at",
            "datetime_format": "%Y-%m-%dT%H:%M:%SZ",
            "start_datetime": "2026-01-01T00:00:00Z",
            "start_time_option": given("since"),
        },
        "schema_loader": {
            "type": "InlineSchemaLoader",
            "schema": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "updated_at": {"type": "string"}},
            },
        },
    }


def configured(folder: Path, url: str, modes: str = "{}") -> Project:
    """Write the project: a data lake, and the API, some of whose streams may have a mode."""
    (folder / "shop.yaml").write_text(json.dumps(manifest(url)), encoding="utf-8")
    return project(
        folder,
        "  crm:\n    source: {type: data_lake_v2, path: source, org: X}\n"
        "  shop:\n    source: {type: declarative, manifest: shop.yaml, concurrency: 2}\n"
        f"    streams: {modes}\n"
        "  never:\n    source: {type: data_lake_v2, path: nowhere, org: X}\n",
    )


def _rows(first: int, count: int, at: int) -> list[dict[str, Any]]:
    return [
        {"Id": f"{key}", "source__modified": _T + at, "grax__idseq": "1", "Name": f"n{at}"}
        for key in range(first, first + count)
    ]


def build(folder: Path, url: str) -> None:
    """Run the pipelines a few times; the API has to be running."""
    made = configured(folder, url)
    source = DataLake(folder / "source")
    with Lake.open(made.lake.path, config=made.lake) as lake:
        for at in range(3):
            source.write("Account", _rows(0, 400, at))
        source.write("Contact", _rows(0, 120, 0))
        sync(lake, made, "crm")
        source.write("Account", [{**row, "City": "Bonn"} for row in _rows(300, 200, 7)])
        source.write(HOSTILE.replace("/", ""), _rows(0, 5, 1))
        broken = source.write("Contact", _rows(0, 1, 9))
        broken.write_bytes(b"PAR1 is not enough")
        sync(lake, made, "crm")
        sync(lake, made, "shop")
        made = configured(folder, url, "{orders: {mode: live}}")
        sync(lake, made, "shop")
        sync(lake, made, "shop")
        away = folder / "source/parquet"
        away.rename(away.with_name("away"))
        try:
            sync(lake, made, "crm")
        except Exception as failure:  # noqa: BLE001 - it is meant to fail
            print("as it should be:", failure)  # noqa: T201
        away.with_name("away").rename(away)
        note_verified(lake.config, [verify(lake, TableName("crm", "Account"))])
        with Store.open(lake.config).transaction() as store:
            # A run of a process that ended without reporting.
            store.exec_driver_sql(
                "INSERT INTO chronolake_runs (id, pipeline, began, status, holder) VALUES "
                "('gone', 'crm', '2026-01-05T00:00:00.000Z', 'running', 'elsewhere:1:')"
            )


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2])
