"""Replays of scenarios against a reference destination, with their outcomes."""

from __future__ import annotations

import io
import json

from chronolake.tester import RunOptions, run
from chronolake.tester.values import to_json
from chronolake.types import Kind
from support.tester.reference_destination import ReferenceDestination, serve


class Outcome:
    """The outcome of one run."""

    def __init__(self, destination, code, lines, model):
        self.destination, self.code, self.lines, self.model = destination, code, lines, model

    @property
    def calls(self):
        return [line for line in self.lines if line["event"] == "call"]

    @property
    def failures(self):
        return [failure for call in self.calls for failure in call["failures"]]

    @property
    def notices(self):
        inside = [notice for call in self.calls for notice in call["notices"]]
        return inside + [line["text"] for line in self.lines if line["event"] == "notice"]

    def rows(self, table, schema="tester"):
        return self.model[schema][table]["rows"]


def play(scenarios, tmp_path, destination=None, **options):
    destination = destination or ReferenceDestination()
    report, dump = io.StringIO(), tmp_path / "model.json"
    with serve(destination) as target:
        code = run(
            scenarios,
            RunOptions(target=target, json_lines=True, dump_model=dump, **options),
            stream=report,
        )
    lines = [json.loads(line) for line in report.getvalue().splitlines()]
    model = json.loads(dump.read_text()) if dump.exists() else None
    return Outcome(destination, code, lines, model)


def assert_contents_agree(outcome):
    """Assert that the DuckDB tables hold the model's rows, except what the guides leave open."""
    for schema, tables in outcome.model.items():
        for name, table in tables.items():
            kinds = {c: Kind(text.partition("(")[0]) for c, text in table["columns"].items()}
            compared = [column for column in kinds if column not in table["inexact"]]
            found = [
                {c: to_json(row[c], kinds[c]) for c in compared}
                for row in outcome.destination.rows(schema, name)
            ]
            wanted = [{c: row[c] for c in compared} for row in table["rows"]]
            assert sorted(map(str, found)) == sorted(map(str, wanted)), (schema, name)
