"""Big loads and big incremental updates over gRPC end in exactly the expected tables.

Source: `seeds/destination-connector.txt`, "Testing". The times are in docs/performance.md.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pytest

from support.server.caller import DELETED, HISTORY, SYNCED, Caller
from support.server.sent_files import UNMODIFIED, SentFile, write_batch_file

_ROWS: Final = 5_000_000
_HISTORY_ROWS: Final = 2_000_000
#: Rows of a file: below the 100 MB that the guide allows, also without compression.
_PER_FILE: Final = 500_000
_LOADED: Final = 1_704_067_200_000  # 2024-01-01T00:00:00Z, in milliseconds
_CHANGED: Final = _LOADED + 86_400_000
_TMAX: Final = "9999-12-31T23:59:59.999Z"
_COLUMNS: Final = (
    "id*:LONG",
    "customer:INT",
    "amount:DECIMAL(12,2)",
    "note:STRING",
    "seen:UTC_DATETIME",
)

#: The texts of columns.
Cells = dict[str, pa.Array]


def _instant(millis: Any) -> pa.Array:
    return pc.strftime(pa.array(millis, pa.timestamp("ms", "UTC")), "%Y-%m-%dT%H:%M:%SZ")


def _texts(numbers: Any) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _data(ids: np.ndarray, version: int) -> Cells:
    """Return all data columns of a version of some records."""
    cents = (ids * 31 + version * 7) % 100_000_000
    fraction = pc.utf8_lpad(_texts(cents % 100), 2, "0")
    return {
        "id": _texts(ids),
        "customer": _texts((ids + version) % 100_003),
        "amount": pc.binary_join_element_wise(_texts(cents // 100), fraction, "."),
        "note": pc.binary_join_element_wise(f"version {version} of order ", _texts(ids), ""),
        "seen": _instant(_LOADED + ids * 37 % 86_400_000 + version),
    }


def _system(size: int, **texts: str) -> Cells:
    return {name: pa.repeat(text, size) for name, text in texts.items()}


def _files(caller: Caller, kind: str, cells: Cells) -> list[SentFile]:
    """Write rows as encrypted files; no cell needs quotes."""
    table = pa.table(cells)
    options = pa_csv.WriteOptions(include_header=False, quoting_style="none")
    files = []
    for begin in range(0, table.num_rows, _PER_FILE):
        out = io.BytesIO((",".join(cells) + "\n").encode())
        out.seek(0, io.SEEK_END)
        pa_csv.write_csv(table.slice(begin, _PER_FILE), out, options)
        files.append(write_batch_file(caller.folder, kind, out.getvalue()))
    return files


def _joined(parts: Sequence[Cells]) -> Cells:
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]}


def _stored(caller: Caller, name: str) -> pa.Table:
    return caller.iceberg(name).scan().to_arrow()


def _assert_equal(found: pa.Table, expected: Cells, order: Sequence[str]) -> None:
    """Assert that the table has exactly the expected rows, whose texts have the columns' types."""
    wanted = pa.table(
        {name: _parsed(texts, found.schema.field(name).type) for name, texts in expected.items()}
    )
    assert found.num_rows == wanted.num_rows
    keys = [(name, "ascending") for name in order]
    found, wanted = found.select(wanted.column_names).sort_by(keys), wanted.sort_by(keys)
    for name in wanted.column_names:
        # Large and small string types of Arrow differ, their values do not.
        mine, theirs = found[name].cast(wanted[name].type), wanted[name]
        assert pc.all(pc.equal(mine, theirs)).as_py(), name
        assert mine.null_count == theirs.null_count == 0, name


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.timestamp("us", tz="UTC"))
    return pc.equal(texts, "true") if pa.types.is_boolean(kind) else texts.cast(kind)


def _send(caller: Caller, name: str, columns: Sequence[str], files: Mapping[str, Any]) -> None:
    is_history = "_fivetran_active:BOOLEAN" in columns
    call = caller.stub.WriteHistoryBatch if is_history else caller.stub.WriteBatch
    response = call(caller.request(name, columns, history=is_history, **files))
    assert response.WhichOneof("response") == "success", response


@pytest.mark.long
def test_a_big_load_and_a_big_update_of_a_table_with_soft_deletes(caller: Caller) -> None:
    rows = _ROWS
    columns = [*_COLUMNS, SYNCED, DELETED]
    assert caller.create("orders", columns).success
    synced = {"_fivetran_synced": _instant([_LOADED])[0].as_py()}
    later = {"_fivetran_synced": _instant([_CHANGED])[0].as_py()}
    ids = np.arange(rows, dtype=np.int64)

    load = _data(ids, 0) | _system(rows, **synced, _fivetran_deleted="false")
    _send(caller, "orders", columns, {"replace": _files(caller, "upsert", load)})

    # One of ten records changes: by turns it is replaced, updated, soft-deleted or deleted, or a
    # new one is inserted.
    changed, turn = ids[ids % 10 == 3], ids[ids % 10 == 3] // 10 % 5
    replaced, updated, ended, deleted = (changed[turn == number] for number in range(4))
    new = changed[turn == 4] + rows
    written = np.concatenate([replaced, new])
    replace = _data(written, 1) | _system(len(written), **later, _fivetran_deleted="false")
    unmodified = {"customer": UNMODIFIED, "note": UNMODIFIED, "seen": UNMODIFIED}
    update = _data(updated, 1) | _system(
        len(updated), **unmodified, **later, _fivetran_deleted="false"
    )
    end = {"id": _texts(ended)} | _system(
        len(ended), **unmodified, amount=UNMODIFIED, **later, _fivetran_deleted="true"
    )
    _send(
        caller,
        "orders",
        columns,
        {
            "replace": _files(caller, "upsert", replace),
            "update": [*_files(caller, "update", update), *_files(caller, "update", end)],
            "delete": _files(caller, "delete", {"id": _texts(deleted)}),
        },
    )

    kept = np.setdiff1d(
        ids, np.concatenate([replaced, updated, ended, deleted]), assume_unique=True
    )
    partly = _data(updated, 0) | {"amount": _data(updated, 1)["amount"]}
    expected = _joined(
        [
            _data(kept, 0) | _system(len(kept), **synced, _fivetran_deleted="false"),
            replace,
            partly | _system(len(updated), **later, _fivetran_deleted="false"),
            _data(ended, 0) | _system(len(ended), **later, _fivetran_deleted="true"),
        ]
    )
    _assert_equal(_stored(caller, "orders"), expected, ["id"])


@pytest.mark.long
def test_a_big_load_and_a_big_update_of_a_history_table(caller: Caller) -> None:
    rows = _HISTORY_ROWS
    columns = [*_COLUMNS, *HISTORY]
    assert caller.create("orders", columns).success
    ids = np.arange(rows, dtype=np.int64)
    first, before_second, second = _instant([_LOADED, _CHANGED - 1, _CHANGED]).to_pylist()
    open_ = {"_fivetran_end": _TMAX, "_fivetran_active": "true"}
    closed = {"_fivetran_end": before_second, "_fivetran_active": "false"}
    at_first = {"_fivetran_start": first, "_fivetran_synced": first}
    at_second = {"_fivetran_start": second, "_fivetran_synced": second}

    load = _data(ids, 0) | _system(rows, **at_first, **open_)
    start = {name: load[name] for name in ("id", "_fivetran_start")}
    _send(
        caller,
        "orders",
        columns,
        {"earliest": _files(caller, "earliest", start), "replace": _files(caller, "upsert", load)},
    )

    changed, turn = ids[ids % 10 == 3], ids[ids % 10 == 3] // 10 % 4
    replaced, updated, deleted = (changed[turn == number] for number in range(3))
    new = changed[turn == 3] + rows
    written = np.concatenate([replaced, new])
    replace = _data(written, 1) | _system(len(written), **at_second, **open_)
    unmodified = {"customer": UNMODIFIED, "note": UNMODIFIED, "seen": UNMODIFIED}
    update = _data(updated, 1) | _system(len(updated), **unmodified, **at_second, **open_)
    earliest = _joined(
        [{name: part[name] for name in ("id", "_fivetran_start")} for part in (replace, update)]
    )
    end = {"id": _texts(deleted)} | _system(len(deleted), _fivetran_end=second)
    _send(
        caller,
        "orders",
        columns,
        {
            "earliest": _files(caller, "earliest", earliest),
            "replace": _files(caller, "upsert", replace),
            "update": _files(caller, "update", update),
            "delete": _files(caller, "delete", end),
        },
    )

    kept = np.setdiff1d(ids, np.concatenate([replaced, updated, deleted]), assume_unique=True)
    partly = _data(updated, 0) | {"amount": _data(updated, 1)["amount"]}
    over = np.concatenate([replaced, updated])
    ended = {"_fivetran_end": second, "_fivetran_active": "false"}
    expected = _joined(
        [
            _data(kept, 0) | _system(len(kept), **at_first, **open_),
            _data(over, 0) | _system(len(over), **at_first, **closed),
            replace,
            partly | _system(len(updated), **at_second, **open_),
            _data(deleted, 0) | _system(len(deleted), **at_first, **ended),
        ]
    )
    _assert_equal(_stored(caller, "orders"), expected, ["id", "_fivetran_start"])
