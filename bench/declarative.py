"""An HTTP API that a manifest describes, read by us and by the reference, airbyte-cdk.

Claim: ours reads at least five times the small records in a second. Planning and keeping state
grow with the number of partitions, and no faster; ten slices of an API that takes 100 ms for each
request are read in about a tenth of the time that they take one after the other.

Ours ends with Arrow files, ready to be landed; the reference's with its messages, unwritten. Both
read the same manifest from the same server, which sends pages of 1,000 records of seven fields
that were made before. `make test-compat` makes the reference's environment.

    python bench/declarative.py [--quick] [--repeat N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from chronolake.lake import Lake
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.cursors.datetime_cursor import time_cursor
from chronolake.source.declarative.cursors.state import StreamState
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.capabilities import primary_key_of
from chronolake.source.declarative.manifests.manifest import parse, to_mapped
from chronolake.source.declarative.models.streams import (
    DatetimeBasedCursor,
    DeclarativeStream,
    InlineSchemaLoader,
)
from chronolake.source.declarative.slice_files import SliceFiles
from chronolake.source.declarative.spark.slice_waves import cluster_for
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.declarative.stream_run import Run
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.records.pending_files import PendingFiles
from chronolake.source.records.schema import Shape, declared_columns
from harness.clock import Times, machine, say, show

OURS: Final = "ours"
REFERENCE: Final = "airbyte-cdk 7.39.1"
THREADS: Final = "the driver's threads"
TASKS: Final = "two of Spark's tasks"
PER_PAGE: Final = 1_000
PYTHON: Final = Path(os.environ.get("CHRONOLAKE_COMPAT_PYTHON", ".venv-compat/bin/python"))
HERE: Final = Path(__file__).parent

FIELDS: Final = {
    "id": "integer",
    "name": "string",
    "email": "string",
    "state": "string",
    "balance": "number",
    "vip": "boolean",
    "updated_at": "string",
}


def manifest(**cursor: Any) -> dict[str, Any]:
    """Return a manifest with one stream of records, in pages."""
    return {
        "version": "7.39.1",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["records"]},
        "streams": [
            {
                "type": "DeclarativeStream",
                "name": "records",
                "primary_key": "id",
                "retriever": {
                    "type": "SimpleRetriever",
                    "requester": {
                        "type": "HttpRequester",
                        "url_base": "{{ config['url'] }}",
                        "path": "/records",
                        "http_method": "GET",
                    },
                    "record_selector": {
                        "type": "RecordSelector",
                        "extractor": {"type": "DpathExtractor", "field_path": ["data"]},
                    },
                    "paginator": {
                        "type": "DefaultPaginator",
                        "page_token_option": {
                            "type": "RequestOption",
                            "inject_into": "request_parameter",
                            "field_name": "page",
                        },
                        "pagination_strategy": {"type": "PageIncrement", "page_size": PER_PAGE},
                    },
                },
                "incremental_sync": {
                    "type": "DatetimeBasedCursor",
                    "cursor_field": "updated_at",
                    "datetime_format": "%Y-%m-%dT%H:%M:%SZ",
                    "start_datetime": "2026-01-01T00:00:00Z",
                    "end_datetime": "2026-01-31T00:00:00Z",
                    **cursor,
                },
                "schema_loader": {
                    "type": "InlineSchemaLoader",
                    "schema": {
                        "type": "object",
                        "properties": {name: {"type": kind} for name, kind in FIELDS.items()},
                    },
                },
            }
        ],
    }


@contextmanager
def serving(
    folder: Path, pages: int, *, per_page: int = PER_PAGE, delay: float = 0.0
) -> Iterator[str]:
    """Run an API in a process of its own; yield its address."""
    port = folder / f"port{pages}"
    port.unlink(missing_ok=True)
    words = [sys.executable, HERE / "harness" / "pages.py", port, per_page, pages, delay]
    with subprocess.Popen([*map(str, words)]) as server:
        try:
            while not port.exists():
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port.read_text()}"
        finally:
            server.terminate()


def read_ours(
    described: dict[str, Any],
    url: str,
    folder: Path,
    workers: int,
    lake: Lake | None = None,
) -> tuple[int, float]:
    """Read the stream into files; return the number of records, and the seconds of reading.

    With a lake, tasks of its Spark read all slices; without one, this process does.
    """
    found = parse(to_mapped(described), folder / "manifest.yaml")
    (stream,) = found.streams.values()
    assert isinstance(stream, DeclarativeStream)
    (loader,) = stream.schema_loader
    assert isinstance(loader, InlineSchemaLoader)
    types = declared_columns(loader.schema_)
    with http_client() as client:
        api = create_api(found, {"url": url}, Network(client))
        waiting, _ = PendingFiles.recover(folder / "spool")
        identity = primary_key_of(stream)
        shape = Shape(identity.add_key_column(types), frozenset(types))
        files = SliceFiles(waiting.folder, identity, shape)
        reader = StreamReader(stream, api)
        cluster = None if lake is None else cluster_for(lake, api, reader, files, workers)
        run = Run(reader, files, waiting, api.session, cluster=cluster)
        rows = 0
        begin = time.perf_counter()
        for _ in run.read(workers):
            rows += sum(part.rows for part in waiting.parts)
            waiting.acknowledge()
        seconds = time.perf_counter() - begin
        if run.failure is not None:
            raise run.failure
    return rows, seconds


def read_reference(described: dict[str, Any], url: str) -> tuple[int, float]:
    """Read the same with the reference; return the number of its records and its seconds."""
    asked = {"manifest": described, "config": {"url": url}, "stream": "records"}
    done = subprocess.run(
        [PYTHON, "-I", HERE / "harness" / "reference_api.py"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    reported = json.loads(done.stdout.splitlines()[-1])
    return reported["records"], reported["seconds"]


def speed(folder: Path, pages: int, rounds: int) -> None:
    """Measure records per second, of both readers."""
    times = Times()
    described = manifest()
    expected = pages * PER_PAGE
    with serving(folder, pages) as url:
        read_ours(described, url, folder, 1)
        for _ in range(rounds):
            found, seconds = read_ours(described, url, folder, 1)
            times.add(OURS, seconds)
            records, seconds = read_reference(described, url)
            times.add(REFERENCE, seconds)
            if (found, records) != (expected, expected):
                raise RuntimeError(f"of {expected} records {found} and {records} were read")
    slow = times.median(REFERENCE)
    rows = [
        (
            name,
            times.median(name),
            f"{expected / times.median(name):,.0f}",
            slow / times.median(name),
        )
        for name in (OURS, REFERENCE)
    ]
    show(f"{expected:,} records", ("", "seconds", "records a second", "times as many"), rows)


def side_by_side(folder: Path) -> None:
    """Read ten slices of fifty records, from an API that takes 100 ms for each request."""
    described = manifest(step="P3D", cursor_granularity="PT1S", end_datetime="2026-01-30T23:59:59Z")
    times = Times()
    # A page that is not full is the last one.
    with serving(folder, 1, per_page=50, delay=0.1) as url:
        read_ours(described, url, folder, 10)
        for workers in (1, 10):
            times.add(str(workers), read_ours(described, url, folder, workers)[1])
    alone = times.median("1")
    rows = [(count, times.median(count), alone / times.median(count)) for count in ("1", "10")]
    show("ten slices, 100 ms a request", ("requests in flight", "seconds", "as fast"), rows)


def across(folder: Path, pages: int, rounds: int) -> None:
    """Read thirty slices of many records, with the driver's threads and with two tasks."""
    described = manifest(step="P1D", cursor_granularity="PT1S", end_datetime="2026-01-30T23:59:59Z")
    expected = 30 * pages * PER_PAGE
    times = Times()
    with serving(folder, pages) as url:
        lake = Lake.open(folder / "lake")
        for number in range(rounds + 1):
            for name, used in ((THREADS, None), (TASKS, lake)):
                found, seconds = read_ours(described, url, folder, 4, used)
                if found != expected:
                    raise RuntimeError(f"of {expected} records {found} were read")
                if number:
                    times.add(name, seconds)
    alone = times.median(THREADS)
    rows = [
        (
            name,
            times.median(name),
            f"{expected / times.median(name):,.0f}",
            alone / times.median(name),
        )
        for name in (THREADS, TASKS)
    ]
    header = ("four requests in flight", "seconds", "records a second", "as fast")
    show(f"{expected:,} records in thirty slices", header, rows)


def partitions(counts: dict[str, tuple[int, int]]) -> None:
    """Measure time and memory of planning, reading nothing, and keeping state."""
    rows = []
    for kind, sizes in counts.items():
        first: float | None = None
        for count in sizes:
            seconds, memory = _planned(count, is_global=kind == "global cursor")
            micros = seconds / count * 1e6
            first = first or micros
            rows.append((f"{kind}, {count:,}", seconds, f"{micros:.1f}", micros / first, memory))
    header = ("partitions", "seconds", "µs each", "grows by", "MiB")
    show("planning and state, without requests", header, rows)


def _planned(count: int, *, is_global: bool) -> tuple[float, float]:
    """Return the seconds and the peak MiB of planning `count` partitions, from two runs."""
    begin = time.perf_counter()
    _plan(count, is_global=is_global)
    seconds = time.perf_counter() - begin
    # Measuring memory makes it several times slower.
    tracemalloc.start()
    _plan(count, is_global=is_global)
    memory = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return seconds, memory


def _plan(count: int, *, is_global: bool) -> None:
    cursor = time_cursor(
        DatetimeBasedCursor(
            type="DatetimeBasedCursor",
            cursor_field="updated_at",
            datetime_format="%Y-%m-%dT%H:%M:%SZ",
            start_datetime="2026-01-01T00:00:00Z",
            end_datetime="2026-01-31T00:00:00Z",
            step="P30D",
            cursor_granularity="PT1S",
        ),
        {},
    )
    latest = cursor.parse("2026-01-15T00:00:00Z")
    stored: Any = None
    for _ in range(2):
        state = StreamState(cursor, stored, is_partitioned=True, is_global=is_global)
        for number in range(count):
            partition = StreamSlice({"parent": number, "parent_slice": {}})
            for slice_ in list(state.slices(partition)):
                state.note(slice_, latest)
        state.complete()
        stored = state.as_json()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    say(machine())
    scale = 20 if options.quick else 1
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        speed(folder, 500 // scale, 1 if options.quick else options.repeat)
        side_by_side(folder)
        across(folder, 40 // scale, 1 if options.quick else options.repeat)
    partitions(
        {
            "state of their own": (1_000 // scale, 10_000 // scale),
            "global cursor": (5_000 // scale, 50_000 // scale),
        }
    )


if __name__ == "__main__":
    main()
