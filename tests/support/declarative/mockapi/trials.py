"""Reads and checks of a real manifest's stream, from the API that is made of the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from chronolake.errors import ChronolakeError
from chronolake.source.declarative.api import Api
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.transport import Network
from chronolake.source.declarative.manifests.manifest import Manifest, load
from chronolake.source.declarative.manifests.problems import Problem
from chronolake.source.declarative.parent_streams import select_stream
from chronolake.source.declarative.stream_reader import StreamReader, Work
from support.declarative.mockapi import configurations, raw_manifest
from support.declarative.mockapi.comparison import StreamRead, differences, not_from_there, unlike
from support.declarative.mockapi.server import MockApi, Served
from support.declarative.mockapi.stream_data import Offer

MANIFESTS = Path(__file__).parents[5] / "shared" / "data" / "manifests"
#: How many slices of a stream are read at most.
MOST_SLICES = 24
#: Messages of problems that name what is not supported, with the name of each of them.
UNSUPPORTED = {
    r"an? (Custom\w+) is Python code, which only runs with `allow_components: true`": (
        "Python component"
    ),
    r"(Custom\w+) is Python code that replaces .+, which is not run": "Python component",
    r"the (page token) and the page size have the same target \(.+\)": "contradiction",
}


class ToTheTest(httpx.BaseTransport):
    """Sends requests for any host to one port of this machine; the `Host` header is unchanged."""

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        port = self._url.port
        request.url = request.url.copy_with(scheme="http", host=self._url.host, port=port)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


@dataclass
class Outcome:
    """The result of reading a stream.

    Attributes:
        faults: what is wrong; empty if the stream runs or reports what is not supported.
        unsupported: why it is not read; empty if it is.
        is_incremental: whether it has a cursor.
        pages: how many pages the first read got.
        records: how many records it got.
        is_several: whether some request had more than one page.
        is_rising: whether the state advanced, and a second read began there.
    """

    manifest: str
    stream: str
    is_incremental: bool
    faults: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    pages: int = 0
    records: int = 0
    is_several: bool = False
    is_rising: bool = False

    @property
    def runs(self) -> bool:
        return not self.faults and not self.unsupported


@dataclass(frozen=True)
class Real:
    """A real manifest: as it is written, and as the product understands it."""

    name: str
    written: Mapping[str, Any]
    understood: Manifest


def names() -> list[str]:
    """Return the names of the available real manifests."""
    return sorted(file.stem for file in MANIFESTS.glob("*.yaml"))


@cache
def real(name: str) -> Real:
    """Load a real manifest."""
    file = MANIFESTS / f"{name}.yaml"
    return Real(name, {**raw_manifest.manifest(file), "$file": name}, load(file))


@contextmanager
def mock_api(real: Real, branch: int = 0) -> Iterator[Trial]:
    """Run a manifest's API; yield access to it."""
    config = configurations.configuration(real.written, branch)
    with MockApi(config) as api, httpx.Client(transport=ToTheTest(api.url)) as client:
        waits: list[float] = []
        network = Network(client, sleep=waits.append)
        yield Trial(real, config, api, network, waits)


@dataclass
class Trial:
    """A trial of a manifest's streams, one after the other."""

    real: Real
    config: dict[str, Any]
    api: MockApi
    network: Network
    waits: list[float]

    def tried(self, name: str, stream: Mapping[str, Any]) -> Outcome:
        """Read a stream twice, and check the records."""
        outcome = Outcome(self.real.name, name, bool(_cursor(stream)))
        problems = [
            problem
            for problem in self.real.understood.problems
            if problem.stream in {name, None} and not problem.is_warning
        ]
        if name not in self.real.understood.streams:
            outcome.unsupported = [_reason(problem.message) for problem in problems]
            outcome.faults = [wrong for problem in problems for wrong in self._misplaced(problem)]
            if not problems:
                outcome.faults = ["it is neither read, nor is a reason reported"]
            return outcome
        try:
            self._try(outcome, stream)
        except ChronolakeError as failure:
            outcome.faults += [*self.api.complaints, f"it fails: {failure}"]
        return outcome

    def _try(self, outcome: Outcome, stream: Mapping[str, Any]) -> None:
        name = outcome.stream
        offer = self.api.offer(stream)
        self.waits.clear()
        first = self._read(self._access(name), name, None)
        outcome.faults += self.faults_of(first, offer)
        outcome.pages = sum(len(served) for _, _, served in first.slices)
        outcome.records = sum(len(records) for _, records, _ in first.slices)
        outcome.is_several = any(len(served) > 1 for *_, served in first.slices)
        if outcome.is_incremental and not outcome.faults:
            outcome.faults += self._faults_of_state(name, offer, first)
            outcome.is_rising = not outcome.faults

    def _access(self, name: str) -> Api:
        """Return access as each run has it: without cached responses or tokens."""
        return create_api(self.real.understood, self.config, self.network, stream_names=[name])

    def _misplaced(self, problem: Problem) -> list[str]:
        """Return what is wrong with the problem that is reported for an unsupported stream."""
        if not _reason(problem.message) or problem.line is None:
            return [f"the problem at {problem.path}, line {problem.line}: {problem.message}"]
        # The reported line should contain the key that the path ends with, or the item itself.
        lines = self.real.understood.file.read_text(encoding="utf-8").splitlines()
        key = re.split(r"[.\[]", problem.path)[-1]
        line = lines[problem.line - 1]
        named = key in line if not key.endswith("]") else "- " in line
        return [] if named else [f"line {problem.line} has no {key} of {problem.path}: {line!r}"]

    def _read(self, api: Api, name: str, state: Mapping[str, Any] | None) -> StreamRead:
        reader = StreamReader(select_stream(api.manifest.stream(name), state), api, state)
        slices: list[tuple[Work, list[Any], list[Served]]] = []
        offer = self.api.target
        is_whole = True
        for work in reader.work():
            if len(slices) == MOST_SLICES:
                is_whole = False
                reader.mark_failed()
                break
            before = len(self.api.served)
            read = reader.slices.read(work)
            records = [record for page in read.pages() for record in page]
            reader.mark_read(work, read.latest)
            served = [page for page in self.api.served[before:] if page.offer is offer]
            slices.append((work, records, served))
        reader.complete()
        return StreamRead(reader, slices, is_whole)

    # ------------------------------------------------------------------ what came

    def faults_of(self, reading: StreamRead, offer: Offer) -> list[str]:
        """Return the faults of a read: records that differ from the sent ones, and missed pages."""
        faults = list(dict.fromkeys(self.api.complaints))
        faults += [f"something went wrong: there was a wait of {wait}" for wait in self.waits]
        if not any(records for _, records, _ in reading.slices):
            faults.append("no record came")
        for work, records, served in reading.slices:
            pages = [page.page for page in served]
            if served and pages != list(range(len(served[0].paged.sizes))):
                faults.append(f"of {served[0].paged.sizes} pages {pages} were asked for")
            sent = [record for page in served for record in page.records]
            faults += differences(offer, work, records, sent)[:3]
            if len(faults) > 5:
                break
        return faults

    def _faults_of_state(self, name: str, offer: Offer, first: StreamRead) -> list[str]:
        state = first.reader.state.export()
        faults = unlike(state, first, offer)
        self.api.again()
        second = self._read(self._access(name), name, state)
        faults += self.faults_of(second, offer) if second.slices and _sees_all(offer) else []
        return faults + not_from_there(state, second, offer)


def _reason(message: str) -> str:
    """Return the name of a problem: its kind, and the component that it names."""
    for pattern, kind in UNSUPPORTED.items():
        if found := re.fullmatch(pattern, message):
            return f"{kind}: {found.group(1)}"
    return ""


def _cursor(stream: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = stream.get("incremental_sync")
    if stream.get("type") == "StateDelegatingStream":
        found = stream["incremental_stream"].get("incremental_sync")
    return found


def _sees_all(offer: Offer) -> bool:
    cursor = offer.cursor or {}
    return not (cursor.get("is_data_feed") or cursor.get("is_client_side_incremental"))
