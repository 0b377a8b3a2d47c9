"""A manifest as it is written, parsed separately, so that the API does not depend on our reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

#: Values below these keys are data, and get no parameters.
_DATA = frozenset(
    {
        "schema",
        "request_parameters",
        "request_headers",
        "request_body_data",
        "request_body_json",
        "refresh_request_body",
        "refresh_request_headers",
        "$parameters",
        "status_mapping",
        "spec",
        "definitions",
        "metadata",
    }
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def manifest(file: Path) -> dict[str, Any]:
    """Return a manifest with its references and its parameters resolved."""
    raw = yaml.load(file.read_bytes(), Loader=_LOADER)  # noqa: S506 - it is a SafeLoader
    whole = {key: value for key, value in raw.items() if key != "definitions"}
    found: dict[str, Any] = _with_parameters(_resolved(whole, raw), {})
    return found


def _resolved(node: Any, whole: Any) -> Any:
    if isinstance(node, list):
        return [_resolved(item, whole) for item in node]
    if isinstance(node, str) and node.startswith("#/"):
        return _resolved(_target(node[2:], whole), whole)
    if not isinstance(node, dict):
        return node
    own = {key: _resolved(value, whole) for key, value in node.items() if key != "$ref"}
    if "$ref" not in node:
        return own
    base = _resolved(_target(node["$ref"][2:], whole), whole)
    return {**base, **own} if isinstance(base, dict) else base


def _target(path: str, node: Any) -> Any:
    while path:
        if isinstance(node, dict) and path in node:
            return node[path]
        head, _, path = path.partition("/")
        node = node[int(head)] if isinstance(node, list) else node[head]
    return node


def _with_parameters(node: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_with_parameters(item, given) for item in node]
    if not isinstance(node, dict):
        return node
    known = {**given, **(node.get("$parameters") or {})}
    whole = {
        **{key: value for key, value in known.items() if not node.get(key)},
        **_kept(node, known),
    }
    filled = {
        key: value
        if key in _DATA
        else _with_parameters(value, {k: v for k, v in known.items() if k != key})
        for key, value in whole.items()
    }
    return {**filled, "$parameters": known}


def _kept(node: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if value or key not in known}


def streams(whole: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the streams that a manifest lists, with their names."""
    for stream in whole.get("streams") or ():
        yield str(stream["name"]), stream


def specification(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of the configuration; empty if the manifest has none."""
    return (whole.get("spec") or {}).get("connection_specification") or {}


def listed(value: Any) -> list[Any]:
    """Return a value, a list of values or nothing, as a list."""
    if not value:
        return []
    return value if isinstance(value, list) else [value]


def routers(stream: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the partition routers of a stream."""
    waiting = [*listed(stream["retriever"].get("partition_router"))]
    while waiting:
        router = waiting.pop(0)
        waiting += listed(router.get("underlying_partition_router"))
        waiting += listed(router.get("partition_routers"))
        yield router


def parents(stream: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the configurations of the parents that a stream's partitions come from."""
    for router in routers(stream):
        yield from router.get("parent_stream_configs") or ()
