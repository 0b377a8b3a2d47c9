"""Our reader, behind the one function that the comparison calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chronolake.errors import ChronolakeError
from chronolake.source.declarative.check import Result, read
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.manifest import parse, to_mapped
from support.compat.outcome import Outcome
from support.compat.server import Server

#: The path of the manifest, whose schemas are beside it.
MANIFEST = Path(__file__).parents[2] / "compat" / "files" / "manifest.yaml"


class Clock:
    """A clock that skips waits, and records them."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.waits.append(round(seconds, 3))

    def now(self) -> float:
        return time.time() + sum(self.waits)


def outcome(
    server: Server,
    routes: list[dict[str, Any]],
    *,
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    stream: str,
    state: Any,
    components: str | None = None,
) -> Outcome:
    """Read a stream with our reader, from an API programmed for it."""
    programmed = server.program(routes)
    reported = read_all(manifest, config, stream, state, components)
    return Outcome(**reported, requests=list(programmed.asked))


def read_all(
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    stream: str,
    state: Any,
    components: str | None,
) -> dict[str, Any]:
    """Read a stream; return its records, state, failure and waits."""
    clock = Clock()
    with TemporaryDirectory() as folder:
        file = MANIFEST
        if components is not None:
            file = Path(folder) / MANIFEST.name
            file.with_name("components.py").write_text(components)
        try:
            result = _read(file, manifest, config, stream, deepcopy(state), clock)
        except ChronolakeError as failure:
            result = Result(failure=failure)
    return {
        "records": [dict(record) for record in result.records],
        "state": result.state,
        "failure": None if result.failure is None else str(result.failure),
        "waits": clock.waits,
    }


def _read(
    file: Path,
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    stream: str,
    state: Any,
    clock: Clock,
) -> Result:
    described = parse(to_mapped(deepcopy(dict(manifest))), file, allow_components=True)
    with http_client() as client:
        network = Network(client, sleep=clock.sleep, now=clock.now)
        api = create_api(described, config, network, stream_names=[stream])
        return read(api.manifest.stream(stream), api, state)
