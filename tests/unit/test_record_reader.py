"""A state never lands before the records that it covers, whatever is cut off where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from chronolake.arrow_tasks import ArrowRows
from chronolake.change_set import PROVIDES_DATA
from chronolake.config import load_project
from chronolake.errors import SourceError
from chronolake.lake import Lake
from chronolake.landing import ObjectFolder, location_of
from chronolake.source.protocol import (
    ALL_STREAMS,
    CaptureMethod,
    ChangeBatch,
    Offset,
    SharedOffset,
    Snapshot,
    StreamFailure,
)
from chronolake.source.records.identity import Identity
from chronolake.source.records.messages import (
    Complete,
    Deletions,
    Message,
    Progress,
    Records,
)
from chronolake.source.records.reader import RecordReader, RecordStream, state_of

_STREAMS: Final = ("a", "b")
#: One change of the source: the stream, the record, and its value; None: it was deleted.
Change = tuple[str, int, int | None]


@dataclass
class Landed:
    """What is durable: records by stream and key, and offsets."""

    rows: dict[str, dict[int, int | None]] = field(default_factory=lambda: {"a": {}, "b": {}})
    offsets: dict[str, Offset] = field(default_factory=dict)

    def take(self, rows: ArrowRows, stream: str) -> None:
        for row in sorted(rows.collect(), key=lambda row: str(row["__chronolake_sequence"])):
            self.rows[stream][row["id"]] = row["value"] if row[PROVIDES_DATA] else None


def _messages(
    changes: list[Change], after: int, every: int, cut: int | None, *, is_shared: bool
) -> Iterator[Message]:
    """Yield changes after a position, with a state after some of them, until they are cut off."""
    for number, (stream, key, value) in enumerate(changes[after:], after + 1):
        if number == cut:
            raise SourceError("cut")
        if value is None:
            yield Deletions(stream, [{"id": key}])
        else:
            yield Records(stream, [{"id": key, "value": value}])
        if number % every == 0:
            for name in [None] if is_shared else _STREAMS:
                yield Progress({"after": number}, name)
    for name in _STREAMS:
        yield Complete(name)


def _run(
    lake: Lake, folder: Path, landed: Landed, messages: Iterator[Message], crash: int | None
) -> None:
    """Run the reader as a pipeline does; a crash loses everything after a number of batches."""
    streams = [
        RecordStream(
            name,
            CaptureMethod.EVERY_CHANGE,
            Identity((("id",),)),
            ObjectFolder(location_of(str(folder / "raw"), None), "p", name),
        )
        for name in _STREAMS
    ]
    positions: Mapping[str, Any] = {name: landed.offsets.get(name) for name in _STREAMS}
    reader = RecordReader(lake, streams, positions, folder / "spool")
    reader.note_landed(landed.offsets)
    for number, batch in enumerate(reader.read(messages)):
        if crash is not None and number >= crash:
            return
        match batch:
            case ChangeBatch(stream=name, versions=rows, position=position):
                if isinstance(rows, ArrowRows):
                    landed.take(rows, name)
                landed.offsets[name] = position
                reader.note_landed(landed.offsets)
            case SharedOffset(position=position):
                landed.offsets[ALL_STREAMS] = position
            case Snapshot() | StreamFailure():
                assert isinstance(batch, StreamFailure)


def _after(landed: Landed, *, is_shared: bool) -> int:
    """Return how many changes the stored states cover."""
    names = [ALL_STREAMS] if is_shared else _STREAMS
    states = [state_of(landed.offsets.get(name)) for name in names]
    return min(0 if state is None else int(state["after"]) for state in states)


_CHANGES: Final = st.lists(
    st.tuples(st.sampled_from(_STREAMS), st.integers(0, 3), st.none() | st.integers(0, 2)),
    max_size=12,
)


@given(
    changes=_CHANGES,
    every=st.integers(1, 5),
    is_shared=st.booleans(),
    accidents=st.lists(
        st.tuples(st.none() | st.integers(1, 12), st.none() | st.integers(0, 12)), max_size=4
    ),
)
def test_every_change_lands_and_no_state_is_ahead(
    changes: list[Change],
    every: int,
    is_shared: bool,
    accidents: list[tuple[int | None, int | None]],
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "chronolake.yml").write_text("pipelines: {}\n")
        lake = Lake.prepare(load_project(folder / "chronolake.yml").lake)
        landed = Landed()
        for cut, crash in [*accidents, (None, None)]:
            after = _after(landed, is_shared=is_shared)
            messages = _messages(changes, after, every, cut, is_shared=is_shared)
            _run(lake, folder, landed, messages, crash)
            covered = _after(landed, is_shared=is_shared)
            for stream in _STREAMS:
                keys = {key for name, key, _ in changes[:covered] if name == stream}
                assert keys <= landed.rows[stream].keys(), "a state is ahead of its records"
        for stream in _STREAMS:
            latest = {key: value for name, key, value in changes if name == stream}
            assert landed.rows[stream] == latest
        assert not list((folder / "spool").rglob("*.arrow")), "records wait no longer"
