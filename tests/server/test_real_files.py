"""The vendor's real batch files, encrypted and plain, make the tables that the rules demand."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from support.oracle import KEEP, HistoryTable, KeyedTable, Row
from support.server.caller import DELETED, HISTORY, SYNCED, Caller
from support.server.sent_files import NULL, UNMODIFIED, SentFile
from support.server.sent_rows import SentTable, differences, micros

_VENDOR: Final = Path(__file__).parents[3] / "shared" / "data" / "partner-sdk" / "files"
_KINDS: Final = {
    "earliest": "earliest",
    "upsert": "replace",
    "update": "update",
    "delete": "delete",
}

# The keys are those of the scenarios that made the files; every other column is read as text, so
# that only the files' own cells are compared.
_KEYS: Final = {
    "campaign_input_1": ["_fivetran_id*:STRING"],
    "transaction_input_1": ["id*:INT"],
    "customers_input_2": ["customer_id*:INT"],
    "products_input_2": ["_fivetran_id*:STRING"],
    "orders_input_2": ["order_id*:STRING"],
    "user_profiles_input_3": ["user_id*:STRING"],
    "web_events_input_3": ["event_id*:STRING"],
    "mixed_data_input_4": ["int_val*:INT"],
}


def _files(name: str, suffix: str) -> dict[str, Path]:
    found = {kind: _VENDOR / f"{name}_{kind}{suffix}" for kind in _KINDS}
    return {kind: path for kind, path in found.items() if path.exists()}


def _read(path: Path, kinds: Mapping[str, str]) -> list[Row]:
    """Return the cells of a plain file, which has the vendor's own CSV format."""
    with io.StringIO(path.read_bytes().decode(), newline="") as text:
        return [
            {name: _value(cell, kinds.get(name, "STRING")) for name, cell in row.items()}
            for row in csv.DictReader(text)
        ]


def _value(text: str, kind: str) -> Any:
    if text == NULL:
        return None
    if text == UNMODIFIED:
        return KEEP
    if kind == "INT":
        return int(text)
    if kind == "DOUBLE":
        return float(text)
    if kind == "UTC_DATETIME":
        return micros(text.replace("Z", "+00:00"))
    if kind == "BOOLEAN":
        return text == "true"
    return text


def _send(sent: SentTable, paths: Mapping[str, Path], *, encrypted: bool) -> None:
    files = {
        _KINDS[kind]: [
            SentFile(
                str(path), path.with_name(f"{path.name}.key").read_bytes() if encrypted else b""
            )
        ]
        for kind, path in paths.items()
    }
    request = sent.caller.request(
        sent.name,
        sent.columns,
        history=sent.is_history,
        compression="zstd" if encrypted else "off",
        encrypted=encrypted,
        **files,
    )
    sent.send(request)
    sent.send(request)


def _tell(model: HistoryTable | KeyedTable, paths: Mapping[str, Path], sent: SentTable) -> None:
    model.write(**{_KINDS[kind]: _read(path, sent.kinds) for kind, path in paths.items()})


@pytest.fixture(autouse=True)
def _there() -> None:
    if not _VENDOR.is_dir():
        pytest.skip("the vendor's files are not there (../shared/data/partner-sdk)")


@pytest.mark.long
@pytest.mark.parametrize(
    "encrypted",
    [pytest.param(True, id="encrypted"), pytest.param(False, id="plain", marks=pytest.mark.long)],
)
def test_the_tester_s_files_load(caller: Caller, *, encrypted: bool) -> None:
    assert {path.name.rpartition("_")[0] for path in _VENDOR.glob("*.aes")} == set(_KEYS)
    for name, key in _KEYS.items():
        plain = _files(name, ".csv")
        header = next(iter(plain.values())).read_text().splitlines()[0].split(",")
        systems = {text.rpartition(":")[0]: text for text in (SYNCED, DELETED)}
        rest = [
            systems.get(column, f"{column}:STRING")
            for column in header
            if f"{column}*" not in key[0]
        ]
        sent = SentTable(caller, name, [*key, *rest]).create()
        _send(sent, _files(name, ".csv.zstd.aes") if encrypted else plain, encrypted=encrypted)
        model = sent.oracle()
        _tell(model, plain, sent)
        assert not sent.differences(model), name


def test_the_four_history_runs_make_one_table(caller: Caller) -> None:
    """The four history runs make the table of the specification's case E-04, with its values."""
    columns = ["id*:INT", "amount:DOUBLE", "desc:STRING", *HISTORY]
    sent = SentTable(caller, "transaction_history", columns).create()
    model = sent.oracle()
    for run in ("1_INIT", "2_UPSERT", "3_UPDATE", "4_DELETE"):
        paths = _files(f"transaction_history_history_mode_{run}", ".csv")
        assert paths
        _send(sent, paths, encrypted=False)
        _tell(model, paths, sent)
        assert not differences(sent.rows(), model.rows(), sent.key), run
    ten = sorted(
        (row for row in sent.rows() if row["id"] == 10), key=lambda row: row["_fivetran_start"]
    )
    assert [row["amount"] for row in ten] == [200, 100, 300, 400]
    assert {row["desc"] for row in ten} == {"three"}
    assert not any(row["_fivetran_active"] for row in ten)
    assert [row["_fivetran_end"] for row in ten] == _times(
        "2005-05-26T20:57:59.999",
        "2005-06-26T20:56:59.999",
        "2005-07-26T20:56:59.999",
        "2005-08-26T20:57:00",
    )


def _times(*texts: str) -> Sequence[int]:
    return [micros(f"{text}+00:00") for text in texts]
