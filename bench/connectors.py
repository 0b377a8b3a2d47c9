"""Records of connectors: `type: airbyte` and `type: singer`, beside PyAirbyte and a Singer target.

Claim: records of ten fields are read at 30,000 a second and more on one core, from a process that
emits them faster. Growth: more records take as many more seconds.

One program emits the same records to all of them, as messages of either protocol, from a file: it
does not limit the reader. Each reader runs in a process of its own, which is bound to one core,
with everything it starts; the program that emits has the other one. Every reader but the target has
read some records before, so that no start is measured.

* Chronolake, read: the messages become typed Arrow files, as they are before they land.
* Chronolake, sync: read, landed durably, and applied to an Iceberg table by the key.
* PyAirbyte: `Source.read` into its default cache, a DuckDB file.
* target-jsonl: the messages of the same records into JSON lines, without types, keys or a durable
  state; what every Singer target does at least, since it validates each record.

Seconds depend on what else the machine does. Records per second of processor time do not, and count
all processes of a reader. The ratio is that of a whole sync to the other reader.

    python bench/connectors.py [--rows 50000 200000 800000] [--only NAME]
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from chronolake.config import load_project
from chronolake.lake import Lake
from chronolake.pipeline.streams import source_of
from chronolake.pipeline.sync import sync
from chronolake.source.connectors.environments import environment
from chronolake.source.protocol import ChangeBatch, ChangeSource, StreamFailure

PYAIRBYTE: Final = "airbyte==0.71.3"
TARGET: Final = "target-jsonl==0.1.4"
_WARM: Final = 2_000
_CORE: Final = 0

_FIELDS: Final = {
    "id": "integer",
    "name": "string",
    "email": "string",
    "city": "string",
    "amount": "number",
    "quantity": "integer",
    "is_active": "boolean",
    "note": "string",
    "created_at": "time",
    "updated_at": "time",
}

#: The program: it has the commands of an Airbyte connector and of a Singer tap.
_EMITTER: Final = """
import json, os, sys
cores = os.sched_getaffinity(os.getppid())
os.sched_setaffinity(0, set(range(os.cpu_count())) - cores or cores)
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
command = "singer" if not words or words[0].startswith("-") else words[0]
if "--discover" in words:
    name = "singer_catalog.json"
elif command in ("spec", "check", "discover"):
    name = command + ".json"
else:
    name = "singer.jsonl" if command == "singer" else "airbyte.jsonl"
with open(os.path.join(here, name), "rb") as file:
    while block := file.read(1 << 20):
        sys.stdout.buffer.write(block)
"""


def _record(number: int) -> dict[str, Any]:
    day, hour = 1 + number % 28, number % 24
    return {
        "id": number,
        "name": f"Customer {number}",
        "email": f"customer.{number}@example.com",
        "city": ("London", "Paris", "Rome", "Berlin")[number % 4],
        "amount": (number % 10_000) + 0.25,
        "quantity": number % 100,
        "is_active": number % 3 == 0,
        "note": f"The note of customer {number}, of some length",
        "created_at": f"2026-{1 + number % 9:02}-{day:02}T{hour:02}:00:00Z",
        "updated_at": f"2026-10-{day:02}T{hour:02}:{number % 60:02}:00Z",
    }


def _schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: {"type": ["null", "string"], "format": "date-time"}
            if kind == "time"
            else {"type": ["null", kind]}
            for name, kind in _FIELDS.items()
        },
    }


def _write_emitter(folder: Path, rows: int) -> Path:
    """Write the program and its messages; return the program."""
    folder.mkdir(parents=True)
    stream = {
        "name": "customers",
        "json_schema": _schema(),
        "supported_sync_modes": ["full_refresh", "incremental"],
        "source_defined_cursor": True,
        "default_cursor_field": ["updated_at"],
        "source_defined_primary_key": [["id"]],
    }
    spec = {"connectionSpecification": {"type": "object", "properties": {}}}
    messages: dict[str, Any] = {
        "spec": {"type": "SPEC", "spec": spec},
        "check": {"type": "CONNECTION_STATUS", "connectionStatus": {"status": "SUCCEEDED"}},
        "discover": {"type": "CATALOG", "catalog": {"streams": [stream]}},
    }
    for name, message in messages.items():
        (folder / f"{name}.json").write_text(json.dumps(message) + "\n")
    keys = {"table-key-properties": ["id"], "valid-replication-keys": ["updated_at"]}
    keyed = {"breadcrumb": [], "metadata": {**keys, "selected": True}}
    tap = {"tap_stream_id": "customers", "stream": "customers", "schema": _schema()}
    catalog = {"streams": [{**tap, "metadata": [keyed]}]}
    (folder / "singer_catalog.json").write_text(json.dumps(catalog))
    state = {"stream_descriptor": {"name": "customers"}, "stream_state": {"n": rows}}
    with (
        (folder / "airbyte.jsonl").open("w") as airbyte_lines,
        (folder / "singer.jsonl").open("w") as singer_lines,
    ):
        head = {"type": "SCHEMA", "stream": "customers", "schema": _schema()}
        singer_lines.write(json.dumps({**head, "key_properties": ["id"]}) + "\n")
        for number in range(rows):
            data = _record(number)
            reported = {"stream": "customers", "data": data, "emitted_at": 1_790_000_000_000}
            airbyte_lines.write(json.dumps({"type": "RECORD", "record": reported}) + "\n")
            singer_lines.write(
                json.dumps({"type": "RECORD", "stream": "customers", "record": data}) + "\n"
            )
        last = {"type": "STATE", "state": {"type": "STREAM", "stream": state}}
        airbyte_lines.write(json.dumps(last) + "\n")
        singer_lines.write(json.dumps({"type": "STATE", "value": {"n": rows}}) + "\n")
    program = folder / "emit"
    program.write_text(f"#!{sys.executable}\n{_EMITTER}")
    program.chmod(0o755)
    return program


def _processor_seconds() -> float:
    """Return the processor time of this process and of all that it has started."""
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(place.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / ticks)
    wanted, total = {os.getpid()}, 0.0
    while wanted:
        total += sum(found[process][1] for process in wanted if process in found)
        wanted = {process for process, (parent, _) in found.items() if parent in wanted}
    return total


def _measure(rows: int, read: Callable[[], None]) -> None:
    """Run a reader and print its seconds, for the process that compares."""
    before, began = _processor_seconds(), time.monotonic()
    read()
    seconds, used = time.monotonic() - began, _processor_seconds() - before
    print(json.dumps({"rows": rows, "seconds": seconds, "processor": used}), flush=True)


def _chronolake(kind: str, what: str, folder: Path, sizes: list[int]) -> None:
    place = folder / f"chronolake-{kind}-{what}"
    place.mkdir()
    pipelines = {
        f"p{rows}": {
            "source": {"type": kind, "command": [str(folder / str(rows) / "emit")]},
            "schema": f"p{rows}",
        }
        for rows in [_WARM, *sizes]
    }
    conf = {"spark.driver.memory": "2g"}
    file = place / "chronolake.yml"
    content = {"lake": {"spark": {"master": "local[1]", "conf": conf}}, "pipelines": pipelines}
    file.write_text(yaml.safe_dump(content))
    project = load_project(file)
    lake = Lake.open(project.lake.path, config=project.lake)
    lake.spark.range(10).count()

    def read(rows: int) -> None:
        """Read all records, and take their batches without landing them."""
        source = source_of(project, f"p{rows}")
        assert isinstance(source, ChangeSource)
        (name,) = (stream.capabilities.name for stream in source.discover())
        for batch in source.read(lake, {name: None}, full_refresh=False):
            assert not isinstance(batch, StreamFailure), batch.error
            if isinstance(batch, ChangeBatch):
                source.acknowledge({name: batch.position})

    def replicate(rows: int) -> None:
        (stream,) = sync(lake, project, f"p{rows}").streams
        assert stream.error is None, stream.error

    do = read if what == "read" else replicate
    do(_WARM)
    for rows in sizes:
        _measure(rows, partial(do, rows))


_PYAIRBYTE: Final = """
import sys
import airbyte as ab
from airbyte.caches import DuckDBCache
{measure}

def read(rows):
    program = {folder!r} + "/" + str(rows) + "/emit"
    source = ab.get_source("source-bench", config={{}}, local_executable=program,
                           install_if_missing=False)
    source.select_all_streams()
    cache = DuckDBCache(db_path={folder!r} + "/pyairbyte-" + str(rows) + ".duckdb")
    found = source.read(cache=cache)
    assert found.processed_records == rows, found.processed_records

read({warm})
for rows in {sizes}:
    measure(rows, lambda: read(rows))
"""


def _bound(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command on one core, and return its output."""
    return subprocess.run(
        command,
        check=False,
        text=True,
        capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {_CORE}),
        **more,
    )


def _results(done: subprocess.CompletedProcess[str]) -> dict[int, tuple[float, float]]:
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rows"')]
    if done.returncode or not found:
        raise SystemExit(f"A reader failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return {one["rows"]: (one["seconds"], one["processor"]) for one in found}


def _measured_chronolake(kind: str, what: str, folder: Path, sizes: list[int]) -> dict[int, Any]:
    words = [sys.executable, __file__, "--child", kind, what, str(folder), *map(str, sizes)]
    return _results(_bound(words))


def _measured_pyairbyte(folder: Path, sizes: list[int]) -> dict[int, Any]:
    measure = "import json, os, time\nfrom pathlib import Path\n" + "\n".join(
        inspect.getsource(found)
        .replace("_measure(", "measure(")
        .replace("Callable[[], None]", "object")
        for found in (_processor_seconds, _measure)
    )
    code = _PYAIRBYTE.format(
        measure=measure,
        folder=str(folder),
        warm=_WARM,
        sizes=sizes,
    )
    variables = {**os.environ, "DO_NOT_TRACK": "1", "AIRBYTE_OFFLINE_MODE": "1"}
    variables.pop("PYTHONPATH", None)
    python = environment([PYAIRBYTE]) / "bin" / "python"
    return _results(_bound([str(python), "-c", code], env=variables, cwd=folder))


def _measured_target(folder: Path, sizes: list[int]) -> dict[int, Any]:
    target = environment([TARGET]) / "bin" / "target-jsonl"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    config = folder / "target.json"
    out = folder / "target"
    out.mkdir()
    config.write_text(json.dumps({"destination_path": str(out)}))
    found = {}
    for rows in sizes:
        before, began = os.times(), time.monotonic()
        emitter = f"{folder / str(rows) / 'emit'} | {target} -c {config} > /dev/null"
        done = _bound(["bash", "-o", "pipefail", "-c", emitter], env=variables)
        assert done.returncode == 0, done.stderr[-4000:]
        after = os.times()
        used = sum(after[2:4]) - sum(before[2:4])
        found[rows] = (time.monotonic() - began, used)
    return found


def main() -> None:
    """Compare the readers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 800_000])
    parser.add_argument("--only", action="append")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, what, place, *sizes = given.child
        _chronolake(kind, what, Path(place), [int(rows) for rows in sizes])
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rows in [_WARM, *given.rows]:
            _write_emitter(folder / str(rows), rows)
        most = max(given.rows)
        began = time.monotonic()
        subprocess.run(
            [str(folder / str(most) / "emit"), "read"], check=True, stdout=subprocess.DEVNULL
        )
        print(f"the program alone: {most / (time.monotonic() - began):,.0f} records/s")
        readers: dict[str, Callable[[], dict[int, Any]]] = {
            f"Chronolake, {kind}: {what}": partial(
                _measured_chronolake, kind, what, folder, given.rows
            )
            for kind in ("airbyte", "singer")
            for what in ("read", "sync")
        }
        readers[PYAIRBYTE.replace("airbyte==", "PyAirbyte ")] = partial(
            _measured_pyairbyte, folder, given.rows
        )
        readers[TARGET.replace("==", " ")] = partial(_measured_target, folder, given.rows)
        print(f"{'':<28}{'records':>10}{'s':>9}{'records/s':>11}{'per core':>11}{'ratio':>8}")
        ours: dict[tuple[str, int], float] = {}
        for reader, measure in readers.items():
            if given.only and not any(word in reader for word in given.only):
                continue
            for rows, (seconds, used) in measure().items():
                by_core = rows / used
                ratio = ""
                ours[reader, rows] = by_core
                kind = "airbyte" if reader.startswith("PyAirbyte") else "singer"
                whole = ours.get((f"Chronolake, {kind}: sync", rows))
                if whole is not None and "Chronolake" not in reader:
                    ratio = f"{whole / by_core:.2f}"
                print(
                    f"{reader:<28}{rows:>10,}{seconds:>9.1f}{rows / seconds:>11,.0f}"
                    f"{by_core:>11,.0f}{ratio:>8}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
