"""Late versions: new files, 1 % of whose rows belong to a time whose version is long closed.

Claim: such a run costs at most 1.5 times one whose rows are all new.

    python bench/late_versions.py [--quick] [--records N] [--repeat N]
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from chronolake.lake import Lake
from harness import lakes
from harness.clock import Times, say, show
from harness.versions import VersionLake
from lake_ingest import NEW_FILES, project_in, synced

NEW: Final = "all rows new"
LATE: Final = "1 % late by two versions"
PART: Final = 0.01
FILES: Final = 500


def measured(lake: Lake, source: VersionLake, times: Times, rounds: int) -> None:
    project = project_in(lake.config.path, source)
    say(f"Loading {FILES} files of {source.rows_per_file:,} versions")
    source.write(0, FILES)
    synced(lake, project, Times(), "load")
    number = FILES
    for turn in range(rounds + 1):
        for name, part in ((NEW, 0.0), (LATE, PART)):
            source.write(number, NEW_FILES, late=part)
            number += NEW_FILES
            # The first turn compiles: it is not counted.
            synced(lake, project, times if turn else Times(), name)


def main() -> int:
    parser = lakes.options(__doc__, repeat=5)
    parser.add_argument("--records", type=int, help="records in the lake")
    flags: argparse.Namespace = parser.parse_args()
    records = flags.records or (2_000 if flags.quick else 500_000)
    times = Times()
    with lakes.opened(flags) as (lake, sent):
        source = VersionLake(sent / "source", records, records * 10 // FILES)
        measured(lake, source, times, flags.repeat)
    ratio = times.median(LATE) / times.median(NEW)
    show(
        f"Runs over {NEW_FILES} new files into {records * 10:,} versions of {records:,} records",
        ("way", "s", "range", "against new"),
        [
            (name, times.median(name), times.spread(name), times.median(name) / times.median(NEW))
            for name in (NEW, LATE)
        ],
    )
    verdict = "hold" if ratio <= 1.5 else "MISSED"
    say(f"\nLate runs at most 1.50 of new ones: {verdict} ({ratio:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
