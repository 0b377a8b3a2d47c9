"""Read a table with a reader in the readers' own environment; print its rows as JSON.

    python read_table.py READER METADATA_FILE

It prints `{"rows": [[id, name], ...]}`, sorted, or `{"error": "..."}`, and the reader's version. It
imports nothing of Chronolake, which that environment does not have.
"""

# ruff: noqa: PLC0415, T201 - each reader is imported alone, and the result is printed

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any


def _stored(metadata: str) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(metadata)


def _path(metadata: str) -> str:
    return "/" + metadata.removeprefix("file:").lstrip("/")


def pyiceberg(metadata: str) -> list[dict[str, Any]]:
    return _stored(metadata).scan(selected_fields=("id", "name")).to_arrow().to_pylist()


def polars(metadata: str) -> list[dict[str, Any]]:
    import polars as pl

    return pl.scan_iceberg(_stored(metadata)).select("id", "name").collect().to_dicts()


def polars_native(metadata: str) -> list[dict[str, Any]]:
    import polars as pl

    scanned = pl.scan_iceberg(_stored(metadata), reader_override="native")
    return scanned.select("id", "name").collect().to_dicts()


def daft(metadata: str) -> list[dict[str, Any]]:
    import daft as library

    return library.read_iceberg(_stored(metadata)).select("id", "name").to_arrow().to_pylist()


def chdb(metadata: str) -> list[dict[str, Any]]:
    import chdb as library

    file = Path(_path(metadata))
    found = library.query(
        f"SELECT id, name FROM icebergLocal('{file.parents[1]}', "
        f"SETTINGS iceberg_metadata_file_path = 'metadata/{file.name}')",
        "JSONCompact",
    )
    return [{"id": int(key), "name": name} for key, name in json.loads(str(found))["data"]]


def duckdb(metadata: str) -> list[dict[str, Any]]:
    import duckdb as library
    from duckdb_extensions import import_extension

    for name in ("avro", "iceberg"):
        import_extension(name)
    connection = library.connect()
    for name in ("avro", "iceberg"):
        connection.load_extension(name)
    found = connection.execute(f"SELECT id, name FROM iceberg_scan('{_path(metadata)}')")
    return [{"id": key, "name": name} for key, name in found.fetchall()]


READERS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "pyiceberg": pyiceberg,
    "polars": polars,
    "polars-native": polars_native,
    "daft": daft,
    "chdb": chdb,
    "duckdb": duckdb,
}


def main() -> None:
    reader, metadata = sys.argv[1:]
    try:
        rows = READERS[reader](metadata)
    except BaseException as failure:  # noqa: BLE001
        # Some libraries raise errors that are not an Exception.
        answer: dict[str, Any] = {"error": f"{type(failure).__name__}: {failure}"[:500]}
    else:
        answer = {"rows": sorted([row["id"], row["name"]] for row in rows)}
    print(json.dumps({**answer, "version": version(reader.partition("-")[0])}))


if __name__ == "__main__":
    main()
