"""An API whose streams have a time cursor, and the pipeline that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chronolake.lake import Lake
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.rebuild import differences
from chronolake.pipeline.store import Status, Store, StreamRun
from chronolake.pipeline.streams import streams_of
from chronolake.pipeline.sync import sync
from chronolake.types import START
from support.datalakes import iceberg, project
from support.declarative.apis import Api, ReceivedRequest, Reply

_START = "2026-01-01T00:00:00Z"
_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "state": {"type": "string"},
        "updated_at": {"type": "string", "format": "date-time"},
        "owner": {
            "type": ["object", "null"],
            "properties": {
                "name": {"type": "string"},
                "place": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        },
    },
}


def parameter(name: str) -> dict[str, Any]:
    return {"type": "RequestOption", "inject_into": "request_parameter", "field_name": name}


def _retriever(path: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "SimpleRetriever",
        "requester": {
            "type": "HttpRequester",
            "url_base": "{{ config['url'] }}",
            "path": path,
            "error_handler": {"type": "DefaultErrorHandler", "max_retries": 0},
        },
        "record_selector": {
            "type": "RecordSelector",
            "extractor": {"type": "DpathExtractor", "field_path": ["data"]},
        },
        **more,
    }


def _stream(name: str, path: str, **more: Any) -> dict[str, Any]:
    cursor = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "updated_at",
        "datetime_format": "%Y-%m-%dT%H:%M:%SZ",
        "start_datetime": _START,
        "end_datetime": "{{ config.get('end') or now_utc().strftime('%Y-%m-%dT%H:%M:%SZ') }}",
        "step": "P6M",
        "cursor_granularity": "PT1S",
        "start_time_option": parameter("since"),
        "end_time_option": parameter("until"),
    }
    return {
        "type": "DeclarativeStream",
        "name": name,
        "primary_key": "id",
        "retriever": _retriever(path, **more.pop("retrieved", {})),
        "incremental_sync": cursor,
        "schema_loader": {"type": "InlineSchemaLoader", "schema": _SCHEMA},
        **more,
    }


def _notes(teams: dict[str, Any]) -> dict[str, Any]:
    parent = {
        "type": "ParentStreamConfig",
        "stream": teams,
        "parent_key": "id",
        "partition_field": "team",
    }
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [parent]}
    path = "/teams/{{ stream_partition['team'] }}/notes"
    return _stream("notes", path, retrieved={"partition_router": router})


def _manifest() -> dict[str, Any]:
    teams = {
        "type": "DeclarativeStream",
        "name": "teams",
        "primary_key": "id",
        "retriever": _retriever("/teams"),
        "schema_loader": {"type": "InlineSchemaLoader", "schema": {}},
    }
    count = {"type": "IncrementingCountCursor", "cursor_field": "id", "start_value": 0}
    return {
        "version": "6.48.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["orders"]},
        "streams": [
            *(_stream(name, "/orders") for name in ("orders", "soft", "live")),
            _stream("counted", "/orders", incremental_sync=count),
            teams,
            _notes(teams),
            {
                "type": "StateDelegatingStream",
                "name": "turns",
                "full_refresh_stream": {
                    "type": "DeclarativeStream",
                    "name": "turns",
                    "primary_key": "id",
                    "retriever": _retriever("/all"),
                    "schema_loader": {"type": "InlineSchemaLoader", "schema": _SCHEMA},
                },
                "incremental_stream": _stream("turns", "/orders"),
            },
        ],
    }


class ApiShop:
    """An API, and the pipeline `shop` that reads it."""

    def __init__(self, folder: Path, api: Api) -> None:
        self.api = api
        self.folder = folder
        self.orders: dict[int, dict[str, Any]] = {}
        self.notes: dict[int, list[dict[str, Any]]] = {}
        self.is_closed: Callable[[ReceivedRequest], bool] = lambda _: False
        api.on("/orders", lambda asked: self.records_between(asked, list(self.orders.values())))
        api.on("/all", lambda _: Reply({"data": list(self.orders.values())}))
        api.on("/teams", lambda _: Reply({"data": [{"id": team} for team in self.notes]}))
        self.configure("orders: {detect_deletes: PT0.001S}")
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)

    def configure(self, *streams: str, end: str = "", more: str = "") -> None:
        """Write the configuration of the streams to read, each with its settings.

        Streams that are compared in every sync have an interval of a millisecond, because less than
        a second may pass between two syncs.
        """
        (self.folder / "shop.yaml").write_text(json.dumps(_manifest()))
        names = ", ".join(stream.partition(":")[0] for stream in streams)
        self.project = project(
            self.folder,
            f"""  shop:
    source:
      type: declarative
      manifest: shop.yaml
      only: [{names}]
      config: {{url: "{self.api.url}", end: "{end}"}}
    {more}
    streams:
"""
            + "".join(f"      {stream}\n" for stream in streams),
        )

    def put(self, number: int, at: str = "02-01", **values: Any) -> None:
        """Store an order that was last updated on a day."""
        self.orders[number] = {"id": number, "updated_at": f"2026-{at}T12:00:00Z", **values}

    def records_between(self, asked: ReceivedRequest, records: list[dict[str, Any]]) -> Reply:
        """Return the records within the requested time range."""
        if self.is_closed(asked):
            return Reply({"error": "closed"}, status=403)
        since, until = asked.params.get("since", ""), asked.params.get("until", "9")
        found = [
            record
            for record in records
            # A record without a time is returned with the oldest ones.
            if since <= record.get("updated_at", _START if since else "") <= until
        ]
        return Reply({"data": found})

    def note(self, team: int, *notes: dict[str, Any]) -> None:
        """Store the notes of a team."""
        self.notes[team] = list(notes)
        self.api.on(
            f"/teams/{team}/notes", lambda asked: self.records_between(asked, self.notes[team])
        )

    def sync(self, *, full_refresh: bool = False) -> dict[str, StreamRun]:
        result = sync(self.lake, self.project, "shop", full_refresh=full_refresh)
        return {stream.stream: stream for stream in result.streams}

    def sync_or_fail(self, *, full_refresh: bool = False) -> None:
        runs = self.sync(full_refresh=full_refresh).values()
        assert {run.status for run in runs} == {Status.SUCCEEDED}, [run.error for run in runs]

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = iceberg(self.project, "shop", name).scan().to_arrow().to_pylist()
        rows.sort(key=lambda row: (row["id"], row.get(START)))
        return [tuple(row[name] for name in columns) for row in rows]

    def agrees(self) -> bool:
        """Return whether every table matches its raw lake."""
        with hold_lease(Store.open(self.project.lake), "shop", above=10**6) as lease:
            found = [
                differences(self.lake, stream, lease) for stream in streams_of(self.project, "shop")
            ]
        return all(report.count == 0 for report in found)

    def reconciliation(self, stream: str = "orders") -> dict[str, int]:
        """Return the result of the last comparison."""
        reported = Store.open(self.project.lake).checkpoints("shop")[stream]["compared"]
        return {name: reported[name] for name in ("missed", "deleted", "returned")}
