"""A Data Lake v2 of records with many versions, written without any of the code under test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ORG: Final = "X"
NAME: Final = "Account"
#: Fields by type; the lake has each as text, and fields of other types also as a typed value.
TEXTS: Final = tuple(f"Text{number}" for number in range(8))
INTEGERS: Final = tuple(f"Number{number}" for number in range(5))
FLOATS: Final = tuple(f"Amount{number}" for number in range(4))
BOOLEANS: Final = tuple(f"Flag{number}" for number in range(3))

BEGIN_MICROS: Final = 1_767_225_600_000_000
_DAY_MICROS: Final = 86_400_000_000
_CITIES: Final = np.array(["Oslo", "Lima", "Kyoto", "Accra", "Quito", "Hanoi", "Tunis", "Riga"])


@dataclass(frozen=True)
class VersionLake:
    """A data lake whose files are written one after the other.

    Attributes:
        root: its folder.
        records: number of records.
        rows_per_file: versions in a file.
    """

    root: Path
    records: int
    rows_per_file: int

    @property
    def folder(self) -> Path:
        return self.root / "parquet" / "v2" / f"org={ORG}" / f"object={NAME}"

    def path(self, number: int) -> Path:
        return self.folder / f"batch={number // 100:09x}" / f"data-{number:011x}.parquet"

    def write(self, first: int, count: int, *, late: float = 0.0) -> list[Path]:
        """Write files; each round through all records is a new version of all of them.

        Args:
            first: the first file's number, from 0.
            count: how many files.
            late: the part of their rows that belong to a time two versions ago.
        """
        paths = [self.path(number) for number in range(first, first + count)]
        for number, path in enumerate(paths, start=first):
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(self._rows(number, late), path, compression="snappy")
        return paths

    def _rows(self, number: int, late: float) -> pa.Table:
        chance = np.random.default_rng(number)
        place = np.arange(self.rows_per_file) + number * self.rows_per_file
        record, version = place % self.records, place // self.records
        chance.shuffle(record)
        back = np.where(chance.random(len(place)) < late, 2, 0)
        jitter = chance.integers(0, _DAY_MICROS // 2_000, len(place)) * 1_000
        modified = BEGIN_MICROS + (version - back) * _DAY_MICROS + jitter
        columns: dict[str, pa.Array] = {
            "Id": pa.array(np.char.mod("%018d", record)),
            "source__modified": pa.array(modified).cast(pa.timestamp("us", tz="UTC")),
            "grax__idseq": pa.array(np.char.mod("%08x", place)),
        }
        for name in TEXTS:
            words = _CITIES[chance.integers(0, len(_CITIES), len(place))]
            numbers = np.char.mod(" %d", chance.integers(0, 50_000, len(place)))
            columns[name] = pa.array(np.char.add(words, numbers))
        for name in INTEGERS:
            _typed(columns, name, "_i", pa.array(chance.integers(0, 1_000_000, len(place))))
        for name in FLOATS:
            cents = chance.integers(0, 10_000_000, len(place)) / 100
            _typed(columns, name, "_f", pa.array(cents))
        for name in BOOLEANS:
            _typed(columns, name, "_b", pa.array(chance.random(len(place)) < 0.5))
        return pa.table(columns)


def _typed(columns: dict[str, pa.Array], name: str, ending: str, values: pa.Array) -> None:
    columns[name] = values.cast(pa.string())
    columns[name + ending] = values
