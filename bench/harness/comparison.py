"""The same batches by several ways into copies of one table, in turns; and ours on other tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from chronolake.frames import temp_view
from chronolake.lake import Lake
from harness import duckdb_baseline, lakes
from harness.batches import Batch
from harness.clock import Times, interleaved, show
from harness.customers import Made

OURS: Final = "chronolake"
DUCK: Final = "DuckDB"
_FORMS: Final = (", from files", ", decoded")
_FILES, _DECODED = _FORMS

Pair = tuple[Batch, Batch]


@dataclass(frozen=True)
class Rival:
    """An alternative in Spark SQL.

    Attributes:
        name: its name.
        run: applies a batch, given the name of a view over its decoded rows.
        claim: the highest ratio of our time to its time, or None.
    """

    name: str
    run: Callable[[str, Batch], None]
    claim: float | None


class Contest:
    """Ours, rivals in Spark SQL, and DuckDB; each writes to its own copy of a table.

    Two times are measured: `from files` begins with encrypted batch files; `decoded` with a cached
    DataFrame, in DuckDB's case with Arrow tables of texts.

    Args:
        lake: the lake.
        made: our table.
        rivals: the alternatives.
        in_duck: applies decoded rows in DuckDB.
        history: whether the batches are history batches.
    """

    def __init__(
        self,
        lake: Lake,
        made: Made,
        rivals: Sequence[Rival],
        in_duck: Callable[[duckdb_baseline.DecodedBatch, Batch], None],
        *,
        history: bool,
    ) -> None:
        self._lake = lake
        self._made = made
        self._rivals = rivals
        self._in_duck = in_duck
        self._history = history
        self._times = Times()

    def run(self, sent: Sequence[Pair], *, warm_up: bool = False) -> None:
        """Run a round for each pair of batches; every way gets both of them.

        Ours reads the files of one and is given the other one decoded, each first by turns: in the
        product both happen in one pass, which cannot be separated from outside.
        """
        ways: dict[str, Callable[[int], None]] = {OURS: lambda number: self._ours(sent, number)}
        for rival in self._rivals:
            ways[rival.name] = partial(self._rival, rival, sent)
        ways[DUCK] = lambda number: self._duck(sent[number])
        interleaved(ways, range(len(sent)))
        if warm_up:
            self._times.forget()

    def _ours(self, sent: Sequence[Pair], number: int) -> None:
        ways = [self._from_files, self._from_decoded]
        # The first of the two finds the caches filled by the other ways.
        for way, batch in zip(ways if number % 2 else ways[::-1], sent[number], strict=True):
            way(batch)

    def _from_files(self, batch: Batch) -> None:
        with self._times.of(OURS + _FILES):
            lakes.apply(self._lake, self._made, batch, history=self._history)

    def _from_decoded(self, batch: Batch) -> None:
        changes = lakes.changes(self._lake, self._made, batch, history=self._history)
        with lakes.kept(changes) as decoded, self._times.of(OURS + _DECODED):
            lakes.apply(self._lake, self._made, batch, history=self._history, decoded=decoded)

    def _rival(self, rival: Rival, sent: Sequence[Pair], number: int) -> None:
        for batch in sent[number]:
            changes = lakes.changes(
                self._lake, self._made, batch, history=self._history, spark=self._lake.spark
            )
            with (
                self._times.of(rival.name + _FILES),
                lakes.kept(changes) as decoded,
                temp_view(decoded) as view,
                self._times.of(rival.name + _DECODED),
            ):
                rival.run(view, batch)

    def _duck(self, sent: Pair) -> None:
        for batch in sent:
            with self._times.of(DUCK + _FILES):
                rows = duckdb_baseline.decoded(batch)
                with self._times.of(DUCK + _DECODED):
                    self._in_duck(rows, batch)

    def show(self, title: str) -> None:
        """Print the medians since the last call, and start again."""
        claims = {rival.name: rival.claim for rival in self._rivals}
        rows: list[tuple[object, ...]] = []
        for form in _FORMS:
            ours = self._times.median(OURS + form)
            for way in (OURS, *claims, DUCK):
                median = self._times.median(way + form)
                claim = claims.get(way)
                rows.append(
                    (
                        way + form,
                        median,
                        self._times.spread(way + form),
                        "" if way == OURS else ours / median,
                        "" if claim is None else f"<= {claim:.2f}",
                    )
                )
        show(title, ("way", "median s", "min-max s", "ours / way", "claim"), rows)
        self._times.forget()


def grown(
    title: str,
    shapes: Mapping[str, Callable[[int], object]],
    *,
    warm_up: int,
    repeat: int,
    claims: Mapping[str, float],
) -> None:
    """Measure ours on several shapes of work in turns, and print each against the first.

    Args:
        title: the table's title.
        shapes: by name, what writes the batch of a number; the first one is the yardstick.
        warm_up: rounds that do not count.
        repeat: rounds that count.
        claims: by name of a shape, the highest ratio of its time to the first one's.
    """
    times = Times()

    def timed(shape: str) -> Callable[[int], None]:
        def once(number: int) -> None:
            with times.of(shape):
                shapes[shape](number)

        return once

    ways = {shape: timed(shape) for shape in shapes}
    interleaved(ways, range(warm_up))
    times.forget()
    interleaved(ways, range(warm_up, warm_up + repeat))
    base = times.median(next(iter(shapes)))
    rows = []
    for shape in shapes:
        median = times.median(shape)
        claim = f"<= {claims[shape]:.2f}" if shape in claims else ""
        rows.append((shape, median, times.spread(shape), median / base, claim))
    show(title, ("chronolake on", "median s", "min-max s", "times as long", "claim"), rows)
