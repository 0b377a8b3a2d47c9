"""Reads of a manifest's stream from a test API."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronolake.source.declarative.check import Result, read
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.manifest import parse, to_mapped
from support.declarative.apis import Api


@dataclass(frozen=True)
class StreamRead:
    """The records of a read, and the waits for the API."""

    result: Result
    waits: list[float]

    @property
    def ids(self) -> list[Any]:
        return [record.get("id") for record in self.result.records]


def requester(path: str = "/items", **more: Any) -> dict[str, Any]:
    return {
        "type": "HttpRequester",
        "url_base": "{{ config['api'] }}",
        "path": path,
        "http_method": "GET",
        **more,
    }


def retriever(path: str = "/items", **more: Any) -> dict[str, Any]:
    """Return a retriever of the records below `data`; `asks` goes to its requester."""
    return {
        "type": "SimpleRetriever",
        "requester": requester(path, **more.pop("asks", {})),
        "record_selector": {
            "type": "RecordSelector",
            "extractor": {"type": "DpathExtractor", "field_path": ["data"]},
        },
        **more,
    }


def stream(name: str = "items", **more: Any) -> dict[str, Any]:
    return {"type": "DeclarativeStream", "name": name, "retriever": retriever(), **more}


def option(name: str) -> dict[str, Any]:
    return {"type": "RequestOption", "inject_into": "request_parameter", "field_name": name}


def response_filter(action: str, *codes: int) -> dict[str, Any]:
    """Return an error handler that does something about some statuses."""
    response_filter = {"type": "HttpResponseFilter", "action": action, "http_codes": list(codes)}
    return {"error_handler": {"type": "DefaultErrorHandler", "response_filters": [response_filter]}}


def read_stream(
    described: Mapping[str, Any],
    api: Api,
    state: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    may_lack_records: Collection[str] = (),
    may_repeat_tokens: Collection[str] = (),
) -> StreamRead:
    manifest = parse(to_mapped({"streams": [deepcopy(dict(described))]}), Path("manifest.yaml"))
    found = manifest.stream(str(described["name"]))
    waits: list[float] = []
    with http_client() as client:
        network = Network(client, sleep=waits.append, now=time.time)
        shared = create_api(
            manifest,
            {"api": api.url, **(config or {})},
            network,
            may_lack_records=may_lack_records,
            may_repeat_tokens=may_repeat_tokens,
        )
        return StreamRead(read(found, shared, state), waits)
