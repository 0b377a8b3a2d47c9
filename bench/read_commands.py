"""Read-only commands, from the shell: they read with PyIceberg and do not start a JVM.

Claim: on a table of 1,000,000 versions, before maintenance has sorted it and after, `chronolake
tables` and `chronolake history` of a key answer in less than 2 seconds, start of the interpreter
included.

For comparison, `chronolake query` runs the same query with Spark. The last column shows how each of
them grows from a tenth of the versions to all.

    python bench/read_commands.py [--quick] [--rows N] [--repeat N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from chronolake import core
from chronolake.lake import Lake
from chronolake.types import TableName
from harness import customers, lakes
from harness.clock import Times, interleaved, say, show
from harness.customers import Made

VERSIONS: Final = 10
LIMIT: Final = 2.0
#: The layout after many batches have written to a table: each file has keys of every range.
SCATTERED_FILES: Final = 16
_PROGRAM: Final = Path(sys.executable).with_name("chronolake")


def scattered(lake: Lake, keys: int) -> Made:
    """Make a history table whose files are not sorted."""
    sorted_ = customers.history(lake, f"sorted_{keys}", keys, VERSIONS)
    made = Made(TableName(customers.SCHEMA, f"looked_at_{keys}"), keys)
    core.create(lake, made.name, customers.HISTORY)
    lake.spark.table(sorted_.sql).repartition(SCATTERED_FILES).writeTo(made.sql).append()
    lake.catalog.drop(sorted_.name, purge=True)
    return made


def asked(lake: Lake, *words: str) -> str:
    """Run the program in a process of its own; return its output."""
    command = [str(_PROGRAM), *words, "--lake", str(lake.config.path), "--json"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measured(lake: Lake, made: Made, rounds: int) -> Times:
    """Time every command; each must find all of the record's versions, or of the table's."""
    key = made.keys * 2 // 3
    times = Times()

    def tables(_: int) -> None:
        with times.of("tables"):
            (found,) = json.loads(asked(lake, "tables"))
        assert found["rows"] == made.keys * VERSIONS

    def history(_: int) -> None:
        with times.of("history of a key"):
            found = json.loads(asked(lake, "history", str(made.name), "--key", f"id={key}"))
        assert len(found["versions"]) == VERSIONS

    def query(_: int) -> None:
        question = f"SELECT * FROM {made.sql} WHERE id = {key} ORDER BY _fivetran_start"
        with times.of("the same by query (Spark)"):
            found = asked(lake, "query", question).splitlines()
        assert len(found) == VERSIONS

    interleaved({"tables": tables, "history": history, "query": query}, range(rounds))
    return times


def main() -> int:
    parser = lakes.options(__doc__, repeat=5)
    parser.add_argument("--rows", type=int, help="versions in the table")
    flags: argparse.Namespace = parser.parse_args()
    versions = flags.rows or (20_000 if flags.quick else 1_000_000)
    found: dict[tuple[int, str], Times] = {}
    with lakes.opened(flags) as (lake, _):
        for size in (versions // 10, versions):
            say(f"Making {size:,} versions")
            made = scattered(lake, size // VERSIONS)
            look = partial(measured, lake, made, flags.repeat)
            found[size, "in no order"] = look()
            core.maintain(lake, made.name)
            found[size, "after maintenance"] = look()
            lake.catalog.drop(made.name, purge=True)
    for (size, state), times in found.items():
        show(
            f"{size:,} versions, {state}",
            ("command", "median s", "min-max s", "against query", "growth"),
            [
                (
                    name,
                    times.median(name),
                    times.spread(name),
                    times.median(name) / times.median("the same by query (Spark)"),
                    times.median(name) / found[versions // 10, state].median(name),
                )
                for name in times.seconds
            ],
        )
    slowest = max(
        times.median(name)
        for (size, _), times in found.items()
        for name in ("tables", "history of a key")
        if size == versions
    )
    verdict = "holds" if slowest < LIMIT else "MISSED"
    say(f"\nLooking in less than {LIMIT:.0f} s: {verdict} ({slowest:.2f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
