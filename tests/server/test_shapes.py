"""Tables and batches of unusual shapes are written correctly."""

from __future__ import annotations

from typing import Final

import pyarrow.compute as pc
import pytest

from support.oracle import ACTIVE, END, KEEP, START, TMAX, Row
from support.server.caller import HISTORY, SYNCED, Caller
from support.server.sent_files import write_batch_file
from support.server.sent_rows import Batch, SentTable

_T: Final = 1_704_067_200_000_000
_HOUR: Final = 3_600_000_000
_TMAX: Final = "9999-12-31T23:59:59.999Z"


def _wide(key: int, width: int, label: str) -> Row:
    return {"id": key} | {f"c{number}": f"{label}{key}.{number}" for number in range(width)}


def _times(hour: int) -> Row:
    start = _T + hour * _HOUR
    return {START: start, END: TMAX, ACTIVE: True, "_fivetran_synced": start}


@pytest.mark.long
@pytest.mark.parametrize("width", [100, pytest.param(998, marks=pytest.mark.long)])
def test_a_wide_table_keeps_its_unmodified_cells(caller: Caller, width: int) -> None:
    names = [f"c{number}:STRING" for number in range(width)]
    live = SentTable(caller, "wide", ["id*:LONG", *names, SYNCED]).create()
    model = live.oracle()
    kept = {f"c{number}": KEEP for number in range(1, width)}
    first = [_wide(key, width, "a") | {"_fivetran_synced": _T} for key in range(40)]
    again = [_wide(key, width, "b") | {"_fivetran_synced": _T + 1} for key in range(10)]
    partial = [{"id": key, "c0": "new", **kept, "_fivetran_synced": _T + 2} for key in range(5, 20)]
    for batch in (Batch(replace=first), Batch(replace=again), Batch(update=partial)):
        live.send(live.request(batch))
        model.write(**batch.rows)
        assert not live.differences(model)

    history = SentTable(caller, "wide_history", ["id*:LONG", *names, *HISTORY]).create()
    versions = history.oracle()
    changed = [{"id": key, "c0": "new", **kept, **_times(1)} for key in range(5, 20)]
    for batch in (
        Batch(replace=[_wide(key, width, "a") | _times(0) for key in range(40)]),
        Batch(update=changed, earliest=[{"id": 3, START: _T + _HOUR}]),
    ):
        history.send(history.request(batch))
        versions.write(**batch.rows)
        assert not history.differences(versions)


@pytest.mark.parametrize("files", [30, pytest.param(200, marks=pytest.mark.long)])
def test_many_files_make_one_batch(caller: Caller, files: int) -> None:
    live = SentTable(caller, "files", ["id*:LONG", "a:STRING", SYNCED]).create()
    model = live.oracle()
    half = files // 2
    batch = Batch(
        replace=[
            # The key 0 is in every file: the last file wins.
            {"id": key if place else 0, "a": f"{key}", "_fivetran_synced": _T}
            for key in range(half)
            for place in range(2)
        ],
        update=[
            {"id": 0 if key % 2 else key, "a": f"u{key}", "_fivetran_synced": _T + key}
            for key in range(half)
        ],
        files=half,
    )
    request = live.request(batch)
    assert len(request.replace_files) + len(request.update_files) == 2 * half
    live.send(request)
    model.write(**batch.rows)
    assert not live.differences(model)


@pytest.mark.parametrize(
    ("rows", "files"), [(100_000, 4), pytest.param(5_000_000, 8, marks=pytest.mark.long)]
)
def test_a_long_narrow_batch_is_one_batch(caller: Caller, rows: int, files: int) -> None:
    columns = ["id*:LONG", "n:LONG", SYNCED]
    assert caller.create("long", columns).success
    size = rows // files
    head = "id,n,_fivetran_synced\n"
    sent = [
        write_batch_file(
            caller.folder,
            "upsert",
            head
            + "".join(
                f"{key},{key % 7},2024-01-01T00:00:00Z\n"
                for key in range(part * size, (part + 1) * size)
            ),
        )
        for part in range(files)
    ]
    assert caller.stub.WriteBatch(caller.request("long", columns, replace=sent)).success
    found = caller.iceberg("long").scan(selected_fields=("id", "n")).to_arrow()
    assert found.num_rows == rows
    assert pc.count_distinct(found["id"]).as_py() == rows
    assert pc.min_max(found["id"]).as_py() == {"min": 0, "max": rows - 1}
    assert pc.sum(found["n"]).as_py() == sum(key % 7 for key in range(rows))


#: Every type that may be in a key, with two values of each, as they are written in a file.
_KEYS: Final = {
    "BOOLEAN": ("true", "false"),
    "SHORT": ("-32768", "32767"),
    "INT": ("-2147483648", "2147483647"),
    "LONG": ("-9223372036854775808", "9223372036854775807"),
    "DECIMAL(38,10)": ("-1234567890123456789012345678.0123456789", "0.5"),
    "FLOAT": ("1.5", "-3.4028235E+38"),
    "DOUBLE": ("1e-300", "2.5"),
    "NAIVE_DATE": ("0001-01-01", "9999-12-31"),
    "NAIVE_DATETIME": ("2007-12-03T10:15:30", "2007-12-03T10:15:30.000001"),
    "UTC_DATETIME": ("2007-12-03T10:15:12Z", "2007-12-03T10:15:12.001Z"),
    "BINARY": ("AAEC", "/w=="),
    "XML": ("<a/>", "<b/>"),
    "STRING": ("", 'é"\n'),
    "JSON": ('{"a": 1}', "[]"),
    "NAIVE_TIME": ("10:15:30", "00:00:00"),
}
#: The same values, written differently.
_SPELLED: Final = {
    "0.5": "0.5000000000",
    "2.5": "25e-1",
    "2007-12-03T10:15:30": "2007-12-03T10:15:30.000",
    "2007-12-03T10:15:12Z": "2007-12-03T10:15:12.000000000Z",
}


@pytest.mark.parametrize("is_history", [False, True], ids=["live", "history"])
def test_a_key_may_have_every_type(caller: Caller, *, is_history: bool) -> None:
    names = {f"k{place}": kind for place, kind in enumerate(_KEYS)}
    columns = [f"{name}*:{kind}" for name, kind in names.items()]
    columns += ["a:STRING", *(HISTORY if is_history else [SYNCED])]
    assert caller.create("keys", columns).success
    first = {name: values[0] for name, values in zip(names, _KEYS.values(), strict=True)}
    # Keys that differ in one column only, and one whose columns are all null.
    keys = [first, dict.fromkeys(names)]
    for name, (_, other) in zip(names, _KEYS.values(), strict=True):
        keys += [first | {name: other}, first | {name: None}]

    def rows(label: str, at: str) -> list[dict[str, str | None]]:
        end = {"_fivetran_start": at, "_fivetran_end": _TMAX, "_fivetran_active": "true"}
        return [
            {**key, "a": f"{label}{place}", "_fivetran_synced": at, **(end if is_history else {})}
            for place, key in enumerate(keys)
        ]

    def respelled(row: dict[str, str | None]) -> dict[str, str | None]:
        return {name: _SPELLED.get(cell or "", cell) for name, cell in row.items()}

    call = caller.stub.WriteHistoryBatch if is_history else caller.stub.WriteBatch
    for label, at in (("first", "2024-01-01T00:00:00Z"), ("second", "2024-01-02T00:00:00Z")):
        sent = rows(label, at)
        if label == "second":
            sent = [respelled(row) for row in sent[::2]]
        header = [text.rpartition(":")[0].removesuffix("*") for text in columns]
        file = caller.file("upsert", sent, columns=header)
        response = call(caller.request("keys", columns, history=is_history, replace=[file]))
        assert response.WhichOneof("response") == "success", response
    labels = sorted(row[0] for row in caller.rows("keys", "a"))
    second = [f"second{place}" for place in range(0, len(keys), 2)]
    first_left = [f"first{place}" for place in range(len(keys)) if is_history or place % 2]
    assert labels == sorted(second + first_left)
    if is_history:
        active = [
            row["a"]
            for row in caller.iceberg("keys").scan().to_arrow().to_pylist()
            if row["_fivetran_active"]
        ]
        assert sorted(active) == sorted(second + first_left[1::2])
