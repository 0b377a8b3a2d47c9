"""Which columns of a source of records count as added or removed, against their history."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.lake import Lake
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.schema_changes import ColumnChange, ColumnWatch
from chronolake.pipeline.store import Store
from chronolake.pipeline.streams import streams_of
from chronolake.source.protocol import ChangeBatch, DeclaredColumns
from chronolake.types import Column, ColumnType, Kind
from support.python_functions import Functions

_NAMES = "abc"


@dataclass(frozen=True)
class _Batch:
    """The declared columns, and those with values."""

    declared: frozenset[str]
    filled: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.declared or name in self.filled

    def lacks(self, name: str) -> bool:
        """Return whether a column that was declared before is gone."""
        return bool(self.declared) and name not in self


_BATCHES = st.builds(
    _Batch, st.frozensets(st.sampled_from(_NAMES)), st.frozensets(st.sampled_from(_NAMES))
)


def _expected(batches: list[_Batch], first: int, number: int) -> set[str]:
    """Return the changes of a batch, from the batches before it.

    Args:
        first: the number of batches of the first load.
        number: the batch.
    """
    if number < first:
        return set()
    batch, before, changes = batches[number], batches[:number], set()
    for name in _NAMES:
        # Since when a column was gone the last time; the first load does not forget any.
        seen = -1
        is_known = is_declared = False
        for place, other in enumerate(before):
            if name in other:
                is_known, seen = True, place
                is_declared = is_declared or name in other.declared
            elif other.lacks(name) and is_declared:
                is_declared = False
                is_known = is_known and place < first
        assert is_known <= (seen >= 0)
        if name in batch and not is_known:
            changes.add(f"added {name}")
        if batch.lacks(name) and is_declared:
            changes.add(f"removed {name}")
    return changes


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Functions:
    folder: Path = tmp_path_factory.mktemp("watch")
    found = Functions(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        found.write("""
            @chronolake.stream(key="id", capture="polling")
            def orders():
                yield {"id": 1}
            """)
        yield found


@given(runs=st.lists(st.lists(_BATCHES, min_size=1, max_size=3), max_size=4))
def test_columns_are_removed_when_they_are_neither_declared_nor_filled(
    functions: Functions, runs: list[list[_Batch]]
) -> None:
    (stream,) = streams_of(functions.project, "shop")
    batches = [batch for run in runs for batch in run]
    with TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder))
        store = Store.open(lake.config)
        number = 0
        #: The columns of a batch are those of all batches so far.
        columns = {"id": Column("id", ColumnType(Kind.LONG), primary_key=True)}
        with hold_lease(store, "shop") as lease:
            for run in runs:
                reported: list[ColumnChange] = []
                watch = ColumnWatch(lake, store, stream, reported.extend)
                for batch in run:
                    reported.clear()
                    for name in sorted(batch.declared | batch.filled):
                        columns[name] = Column(name, ColumnType(Kind.LONG))
                    declared = DeclaredColumns(batch.declared, batch.filled | {"id"})
                    given_batch = ChangeBatch(
                        "orders", None, list(columns.values()), {}, declared=declared
                    )
                    watch.accept(given_batch)
                    assert not reported, "it has not landed"
                    watch.store(lease.token)
                    found = {f"{change.kind} {change.column}" for change in reported}
                    assert found == _expected(batches, len(runs[0]), number)
                    number += 1
                watch.end(lease.token)
