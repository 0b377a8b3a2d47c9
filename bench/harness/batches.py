"""Batches as a sender makes them: CSV, zstd, AES, written without any of the code under test.

A batch's customers are spread evenly over the table; those of two batches differ as long as the
batches' ordinals are below `keys // size`.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from chronolake.batch_files import BatchFile, FileForm
from chronolake.change_set import Op
from harness.customers import DAY_MILLIS, HISTORY_NAMES, JITTER, LIVE_NAMES, NEWEST_MILLIS

NULL: Final = "null-m8yilkvPsNulehxl2G6pmSQ3G3WWdLP"
UNMODIFIED: Final = "unmod-NcK9NIjPUutCsz4mjOQQztbnwnE1sY3"
FORM: Final = FileForm("csv", "zstd", True, NULL, UNMODIFIED)

_TMAX: Final = "9999-12-31T23:59:59.999Z"
#: A sender's usual interval: a batch has the changes of this time.
_EVERY_MILLIS: Final = 5 * 60_000
#: Milliseconds between the first and the second change of a customer.
_LATER_MILLIS: Final = 30_000
_CENTS: Final = np.array([f".{cents:02d}" for cents in range(100)])
#: The columns that updates provide, in turns, in addition to the key and the system columns.
_GIVEN: Final = (("amount", "visits"), ("city", "score", "member"))

Cells = dict[str, np.ndarray]


@dataclass(frozen=True)
class Batch:
    """A batch on disk.

    Attributes:
        name: its identity.
        files: its files.
        since: the earliest time that it changes, as a SQL literal.
    """

    name: str
    files: tuple[BatchFile, ...]
    since: str

    def paths(self, op: Op) -> list[str]:
        """Return the paths of the files of one kind."""
        return [file.path for file in self.files if file.op is op]


def history(folder: Path, *, keys: int, size: int, ordinal: int, late: float = 0.0) -> Batch:
    """Write a history batch of `size` customers with all four kinds of file.

    Of ten customers three are replaced and one is new; two are updated once and two twice, partly;
    two are deleted. Each batch is five minutes after the one before, and the first one two days
    after the table's own versions.

    Args:
        folder: where the files are written.
        keys: how many customers the table began with.
        size: how many customers the batch has.
        ordinal: the batch's number, from 0.
        late: this part of `size` are replaced customers whose last two stored versions are sent
            again, so that the batch reaches back into the closed versions.
    """
    ids = _spread(keys, size, ordinal)
    turn = np.arange(size) % 10
    start = NEWEST_MILLIS + 2 * DAY_MILLIS + ordinal * _EVERY_MILLIS + ids * JITTER % _EVERY_MILLIS

    replaced = np.flatnonzero(turn < 4)
    known = replaced[turn[replaced] < 3]
    again = known[np.linspace(0, len(known) - 1, int(size * late)).astype(int)]
    ids = np.where(turn == 3, ids + keys, ids)
    start[again] = NEWEST_MILLIS - DAY_MILLIS + ids[again] * JITTER % DAY_MILLIS
    has_two = np.isin(np.arange(size), again)
    first = _versions(ids[replaced], start[replaced], ordinal, has_two[replaced], DAY_MILLIS)
    second = _versions(ids[again], start[again] + DAY_MILLIS, ordinal + 1)

    updated = np.flatnonzero((turn >= 4) & (turn < 8))
    twice = turn[updated] >= 6
    update = _versions(ids[updated], start[updated], ordinal, twice, _LATER_MILLIS)
    later = updated[twice]
    chained = _versions(ids[later], start[later] + _LATER_MILLIS, ordinal + 1)
    deleted = turn >= 8
    named = ~deleted

    least = int(start.min())
    return _written(
        folder,
        f"history-{keys}-{size}-{ordinal}",
        {
            Op.EARLIEST: {"id": _text(ids[named]), "_fivetran_start": _instant(start[named])},
            Op.REPLACE: _joined(first, second),
            Op.UPDATE: _partly(_joined(update, chained)),
            Op.DELETE: {"id": _text(ids[deleted]), "_fivetran_end": _instant(start[deleted])},
        },
        least,
    )


def loads(folder: Path, *, keys: int, per_file: int, is_history: bool) -> Batch:
    """Write a batch that brings all customers, with `per_file` of them in each file."""
    files: list[BatchFile] = []
    for number, first in enumerate(range(0, keys, per_file)):
        ids = np.arange(first, min(first + per_file, keys), dtype=np.int64)
        cells = _versions(ids, NEWEST_MILLIS + ids * JITTER % DAY_MILLIS, 0)
        name = f"load-{'history' if is_history else 'live'}-{keys}-{number}"
        rows = {Op.REPLACE: cells if is_history else _live_cells(cells)}
        if is_history:
            rows[Op.EARLIEST] = {column: cells[column] for column in ("id", "_fivetran_start")}
        files += _written(folder, name, rows, NEWEST_MILLIS).files
    return Batch(f"load-{keys}", tuple(files), "TIMESTAMP '1970-01-01 00:00:00+00:00'")


def upserts(folder: Path, *, keys: int, size: int, ordinal: int) -> Batch:
    """Write a batch that replaces customers: half of them are in the table, half are new."""
    ids = _spread(keys, size, ordinal)
    ids = np.where(np.arange(size) % 2, ids + keys * (1 + ordinal), ids)
    return _live(folder, f"upserts-{keys}-{size}-{ordinal}", Op.REPLACE, ids, ordinal)


def updates(folder: Path, *, keys: int, size: int, ordinal: int) -> Batch:
    """Write a batch that changes some cells of customers that are in the table."""
    ids = _spread(keys, size, ordinal)
    return _live(folder, f"updates-{keys}-{size}-{ordinal}", Op.UPDATE, ids, ordinal)


def _live(folder: Path, name: str, op: Op, ids: np.ndarray, ordinal: int) -> Batch:
    start = NEWEST_MILLIS + 2 * DAY_MILLIS + ordinal * _EVERY_MILLIS + ids * JITTER % _EVERY_MILLIS
    cells = _live_cells(_versions(ids, start, ordinal))
    return _written(
        folder, name, {op: _partly(cells) if op is Op.UPDATE else cells}, int(start.min())
    )


def _live_cells(cells: Cells) -> Cells:
    return {name: array for name, array in cells.items() if name in LIVE_NAMES}


def _spread(keys: int, size: int, ordinal: int) -> np.ndarray:
    return np.arange(size, dtype=np.int64) * (keys // size) + ordinal % (keys // size)


def _versions(
    ids: np.ndarray,
    start: np.ndarray,
    salt: int,
    is_closed: np.ndarray | None = None,
    length: int = 0,
) -> Cells:
    """Return all columns of versions; those that `is_closed` end 1 ms before `length` is over."""
    closed = np.zeros(len(ids), dtype=bool) if is_closed is None else is_closed
    amount = (ids * 13 + salt * 71) % 1_000_000
    score = _text((ids * 17 + salt) % 1_000_000 / 997.0)
    cells = {
        "id": _text(ids),
        "name": np.char.add("Customer-", _text(ids)),
        "city": np.char.add("City-", _text((ids + salt) % 40)),
        "amount": np.char.add(_text(amount // 100), _CENTS[amount % 100]),
        "score": np.where(ids % 50 == 0, NULL, score),
        "visits": _text(ids % 1000 + salt),
        "born": np.datetime_as_string(np.datetime64("1950-01-01", "D") + ids % 20_000),
        "seen": _instant(start - 5_000),
        "member": np.where(ids % 2 == 0, "true", "false"),
        "_fivetran_synced": _instant(start + 60_000),
        "_fivetran_start": _instant(start),
        "_fivetran_end": np.where(closed, _instant(start + length - 1), _TMAX),
        "_fivetran_active": np.where(closed, "false", "true"),
    }
    return {name: cells[name] for name in HISTORY_NAMES}


def _partly(cells: Cells) -> Cells:
    """Turn the rows into partial updates: the customer's id decides which cells each provides."""
    turn = cells["id"].astype(np.int64) // 7 % len(_GIVEN)
    kept = {"id", *(name for name in HISTORY_NAMES if name.startswith("_fivetran"))}
    partly = {}
    for name, array in cells.items():
        gives = np.isin(turn, [place for place, given in enumerate(_GIVEN) if name in given])
        partly[name] = array if name in kept else np.where(gives, array, UNMODIFIED)
    return partly


def _joined(first: Cells, other: Cells) -> Cells:
    return {name: np.concatenate([first[name], other[name]]) for name in first}


def _text(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(str)


def _instant(millis: np.ndarray) -> np.ndarray:
    return np.datetime_as_string(millis.astype("datetime64[ms]"), timezone="UTC")


def _written(folder: Path, name: str, rows: Mapping[Op, Cells], since: int) -> Batch:
    files = []
    for op, cells in rows.items():
        path, key = folder / f"{name}-{op.name.lower()}.csv.zstd.aes", secrets.token_bytes(32)
        path.write_bytes(sealed(zstandard.compress(csv(cells), level=3), key))
        files.append(BatchFile(str(path), op, key))
    stamp = str(np.datetime64(since, "ms")).replace("T", " ")
    return Batch(name, tuple(files), f"TIMESTAMP '{stamp}+00:00'")


def csv(cells: Mapping[str, np.ndarray]) -> bytes:
    """Format rows as CSV; no cell needs quotes."""
    table = pa.table({name: pa.array(array.tolist()) for name, array in cells.items()})
    out = io.BytesIO()
    out.write((",".join(cells) + "\n").encode())
    pc.write_csv(table, out, pc.WriteOptions(include_header=False, quoting_style="none"))
    return out.getvalue()


def sealed(content: bytes, key: bytes) -> bytes:
    """Encrypt with AES-256-CBC behind a random vector, with PKCS#7 padding."""
    vector = secrets.token_bytes(16)
    padder, sealer = PKCS7(128).padder(), Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    padded = padder.update(content) + padder.finalize()
    return vector + sealer.update(padded) + sealer.finalize()


def unsealed(content: bytes, key: bytes) -> bytes:
    """Decrypt what `sealed` returned."""
    opener = Cipher(algorithms.AES(key), modes.CBC(content[:16])).decryptor()
    padded = opener.update(content[16:]) + opener.finalize()
    return padded[: -padded[-1]]
