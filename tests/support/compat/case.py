"""A case: a manifest, an API to read with it, and what that shows about the reference.

Cases are stored in `cases/*.yaml`, a list under `cases:` in each file. A case has

- `name`, `shows` (the behaviour, in a sentence) and `uses` (the components and features it covers),
- `manifest`, `stream` (the one that is read; else the first) and `config` (which gets `api`, the
  server's address),
- `components`, the Python code beside the manifest, if there is any,
- `api`, the routes the server is programmed with (see `api.py`),
- `syncs`, one after the other; each with a `state` to begin from (`handed`: the last one's), an
  `api` of its own where it changes, and what to `expect` of the reference: `records` (a number, or
  all of them), `ids`, `requests` (a number, or lines), `sent` (lines with headers and body),
  `state`, `failure`, `waits`,
- `compare`, for what is not compared in full: `requests: set` where a request may be repeated, or
  `waits: false`, `because` of what is left to chance, or for a `difference`,
- `differs` in a sync: the `difference` between the two readers that it shows, by the name that
  `docs/sources/declarative.md` lists it under, the `reason` for it, and what to `expect` of ours.

Keys that each manifest needs and no case is about (version, check, empty schemas) are added here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "compat" / "cases"
#: A sync that begins with the state of the one before it.
HANDED = "handed"
PARTS = ("records", "requests", "state", "failure", "waits")
_DIFFERING = dict.fromkeys(("difference", "reason", "expect"))


class _Loader(yaml.SafeLoader):
    """A YAML loader that leaves dates as text, as the manifests' own loader does."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Sync:
    """One read of the stream: its start, the API's content then, and the expected outcome."""

    state: Any
    api: list[dict[str, Any]]
    expect: Mapping[str, Any]
    differs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    """One manifest with its API, and the syncs of it."""

    name: str
    shows: str
    manifest: Mapping[str, Any]
    stream: str
    config: Mapping[str, Any]
    syncs: tuple[Sync, ...]
    uses: tuple[str, ...] = ()
    compare: Mapping[str, Any] = field(default_factory=dict)
    partition_limit: int | None = None
    components: str | None = None

    @property
    def is_of_cdk(self) -> bool:
        """Whether its code needs the reference's base classes."""
        return "airbyte_cdk" in (self.components or "")

    @property
    def differences(self) -> set[str]:
        """The names of the differences that it shows."""
        reported = [sync.differs["difference"] for sync in self.syncs if sync.differs]
        return {*reported, *([self.compare["difference"]] if "difference" in self.compare else [])}

    def configured(self, address: str) -> dict[str, Any]:
        """Return the config with the server's address."""
        return {"api": address, **deepcopy(dict(self.config))}


def whole(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with the required keys that it leaves out."""
    filled: dict[str, Any] = _whole_streams(deepcopy(dict(manifest)))
    names = [stream["name"] for stream in filled.get("streams", []) if "name" in stream]
    filled.setdefault("version", "7.39.1")
    filled.setdefault("type", "DeclarativeSource")
    filled.setdefault("check", {"type": "CheckStream", "stream_names": names[:1]})
    return filled


def _whole_streams(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole_streams(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    value = {key: _whole_streams(inner) for key, inner in value.items()}
    if "retriever" in value:
        value.setdefault("type", "DeclarativeStream")
        if value.setdefault("schema_loader", {"type": "InlineSchemaLoader", "schema": {}}) is None:
            del value["schema_loader"]
    return value


def _case(definition: Mapping[str, Any]) -> Case:
    unknown = set(definition) - {
        *("name", "shows", "uses", "manifest", "stream", "config", "api", "syncs", "compare"),
        *("partition_limit", "components"),
    }
    if unknown:
        raise ValueError(f"{definition['name']}: what is {sorted(unknown)}?")
    compare = definition.get("compare", {})
    if compare and not {"because", "difference"} & compare.keys():
        raise ValueError(f"{definition['name']}: why is not everything compared?")
    for sync in definition["syncs"]:
        if sync.get("differs", _DIFFERING).keys() != _DIFFERING.keys():
            raise ValueError(f"{definition['name']}: what differs, and why?")
    manifest = whole(definition["manifest"])
    streams = manifest.get("streams", [])
    syncs = tuple(
        Sync(
            state=sync.get("state"),
            api=sync.get("api", definition.get("api", [])),
            expect=sync["expect"],
            differs=sync.get("differs"),
        )
        for sync in definition["syncs"]
    )
    return Case(
        name=definition["name"],
        shows=definition["shows"],
        manifest=manifest,
        stream=definition.get("stream") or streams[0]["name"],
        config=definition.get("config", {}),
        syncs=syncs,
        uses=tuple(definition.get("uses", ())),
        compare=compare,
        partition_limit=definition.get("partition_limit"),
        components=definition.get("components"),
    )


def cases() -> Iterator[Case]:
    """Yield all cases, by file, in the order in which they are written."""
    for path in sorted(FOLDER.glob("*.yaml")):
        yield from cases_in(path)


def cases_in(path: Path) -> Iterator[Case]:
    """Yield the cases of a file."""
    reported = yaml.load(path.read_text(), Loader=_Loader)  # noqa: S506 - a SafeLoader
    for case in reported["cases"]:
        try:
            yield _case(case)
        except KeyError as missing:
            raise ValueError(f"{path.name}: {case.get('name')} lacks {missing}") from missing
