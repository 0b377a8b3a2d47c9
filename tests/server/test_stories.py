"""Random sequences of batches make the tables that the rules demand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from chronolake import core
from chronolake.lake import Lake
from chronolake.types import TableName
from support import batches
from support.batches import COLUMNS, DELETED, SYNCED, Sent
from support.oracle import is_close, violated_invariants
from support.server.caller import DELETED as DELETED_COLUMN
from support.server.caller import HISTORY, Caller
from support.server.caller import SYNCED as SYNCED_COLUMN
from support.server.sent_rows import Batch, SentTable, spoken

# Keys are independent, so the failing key's own rows show more than a smaller example would; and to
# shrink one would take an hour of Spark.
_sample = settings(
    max_examples=2,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
_many = settings(_sample, max_examples=20, derandomize=False, print_blob=True)


@dataclass
class Play:
    """A story that is sent to its own table and applied to the oracle."""

    sent: SentTable
    model: Any
    requests: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def run(self, story: list[Sent]) -> None:
        for number, step in enumerate(story):
            without = frozenset({step.without} if step.without else ())
            batch = Batch(
                **step.rows,
                files=step.files,
                shuffle=number,
                without=without,
                short_deletes=number % 2 == 1,
            )
            self.requests.append((self.sent.request(batch), batch.rows))
            again = [] if step.repeat is None else [step.repeat % len(self.requests)]
            for place in [number] * step.times + again:
                self._send(*self.requests[place])
            if step.truncate is not None:
                self._truncate(step.truncate, soft=not self.sent.is_history and number % 2 == 0)
            wrong = self.sent.differences(self.model)
            assert not wrong, f"after request {number}: {wrong}\n{self._told()}"

    def _send(self, request: Any, rows: dict[str, Any]) -> None:
        self.sent.send(request)
        self.model.write(**rows)

    def _truncate(self, before: int, *, soft: bool) -> None:
        before -= before % 1000  # the wire has milliseconds
        mark = DELETED if soft else None
        assert self.sent.caller.truncate(self.sent.name, before / 1000, soft=mark).success
        self.model.truncate(SYNCED, before, **({"soft": mark} if soft else {}))

    def _told(self) -> str:
        """Return the rows of the first key that differs, request by request."""
        found = {spoken(row) for row in self.sent.rows()}
        must = {spoken(row): row for row in self.model.rows()}
        have = {spoken(row): row for row in self.sent.rows()}
        key = self.sent.key
        wrong = next(
            {name: row[name] for name in key}
            for text, row in (must | have).items()
            if text not in found or text not in must
        )
        return "\n".join(
            f"request {number}, {kind}: {spoken(row)}"
            for number, (_, rows) in enumerate(self.requests)
            for kind in rows
            for row in rows[kind]
            if all(row[name] == value for name, value in wrong.items())
        )


_histories = batches.histories(least=40, most=80, requests=4)
_keyed_stories = batches.keyed_stories(least=30, most=60, requests=3)
_tables = itertools.count()


def _play_history(caller: Caller, lake: Lake, story: list[Sent]) -> None:
    sent = SentTable(caller, f"t{next(_tables)}", [*COLUMNS, *HISTORY]).create()
    Play(sent, sent.oracle()).run(story)
    found = sent.rows()
    assert not violated_invariants(found, sent.key)
    report = core.verify(lake, TableName(caller.schema, sent.name))
    assert report.holds or is_close(found, sent.key), report


def _play_keyed(caller: Caller, story: list[Sent]) -> None:
    columns = [*COLUMNS, SYNCED_COLUMN, DELETED_COLUMN]
    sent = SentTable(caller, f"t{next(_tables)}", columns).create()
    Play(sent, sent.oracle()).run(story)


def _tell(how: settings, stories: Any, play: Callable[[list[Sent]], None]) -> None:
    """Test generated stories; each one runs to its end."""

    @how
    @given(stories)
    def tell_story(story: list[Sent]) -> None:
        play(story)

    tell_story()


def test_a_history_table_contains_the_result_of_its_batches(caller: Caller, lake: Lake) -> None:
    _tell(_sample, _histories, partial(_play_history, caller, lake))


@pytest.mark.long
def test_a_soft_delete_table_contains_the_result_of_its_batches(caller: Caller) -> None:
    _tell(_sample, _keyed_stories, partial(_play_keyed, caller))


@pytest.fixture(params=["light", "heavy"])
def _session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write batches as small ones, in their own session, and in the way of large ones."""
    if request.param == "heavy":
        monkeypatch.setattr("chronolake.lake._LIGHT_ROWS", -1)


@pytest.mark.long
@pytest.mark.usefixtures("_session")
def test_any_history_table_contains_the_result_of_its_batches(caller: Caller, lake: Lake) -> None:
    _tell(_many, _histories, partial(_play_history, caller, lake))


@pytest.mark.long
@pytest.mark.usefixtures("_session")
def test_any_soft_delete_table_contains_the_result_of_its_batches(caller: Caller) -> None:
    _tell(_many, _keyed_stories, partial(_play_keyed, caller))
