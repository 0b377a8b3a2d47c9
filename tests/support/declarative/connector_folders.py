"""Connectors as folders: a manifest with Python code beside it, read from a test API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml

from chronolake.source.declarative.check import read
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.config_validation import create_mask
from chronolake.source.declarative.manifests.manifest import Manifest, load
from support.declarative.apis import Api
from support.declarative.stream_reads import StreamRead

HIDDEN = "a-secret-nobody-may-see"
_SPEC = {
    "type": "Spec",
    "connection_specification": {
        "type": "object",
        "properties": {
            "api": {"type": "string"},
            "token": {"type": "string", "airbyte_secret": True},
        },
    },
}


@dataclass(frozen=True)
class Connector:
    """A manifest in a folder."""

    file: Path

    @property
    def manifest(self) -> Manifest:
        return load(self.file, allow_components=True)

    def reading(
        self,
        api: Api,
        name: str = "items",
        *,
        state: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> StreamRead:
        manifest = self.manifest
        whole = {"api": api.url, "token": HIDDEN, **(config or {})}
        waits: list[float] = []
        with http_client() as client:
            mask = create_mask(whole, manifest)
            network = Network(client, sleep=waits.append, now=time.time, mask=mask)
            shared = create_api(manifest, whole, network, stream_names=[name])
            return StreamRead(read(shared.manifest.stream(name), shared, state), waits)


def connector(
    folder: Path, code: str | None, *streams: Mapping[str, Any], name: str = "manifest.yaml"
) -> Connector:
    """Write a folder with a manifest of these streams, and its components.py."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    content = {"type": "DeclarativeSource", "streams": list(streams), "spec": _SPEC}
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    if code is not None:
        (folder / "components.py").write_text(dedent(code))
    return Connector(file)


def own(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """Return a component that is a class of the connector's own."""
    class_name = f"source_declarative_manifest.components.{name}"
    return {"type": f"Custom{kind}", "class_name": class_name, **fields}
