"""Which files a table is made of: files that are applied, applied again, or skipped."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from chronolake.landing import DataFile
from chronolake.pipeline.applied_files import AppliedFiles

FILES = [
    DataFile(f"{number // 3:x}", f"{number:04x}", Path(f"{number}.parquet"), 1)
    for number in range(12)
]
#: How many files after the watermark a run applies, and where somebody moves the watermark.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.integers(1, 5)),
        st.tuples(st.just("move"), st.none() | st.integers(0, len(FILES) - 1)),
    ),
    max_size=12,
)


@given(STEPS)
def test_what_a_table_is_made_of_only_grows(steps: list[tuple[str, int | None]]) -> None:
    made = AppliedFiles()
    watermark, furthest = -1, -1
    for step, number in steps:
        if step == "move":
            watermark = -1 if number is None else number
            made = made.move_watermark(None if number is None else FILES[number].mark, FILES)
        elif chosen := FILES[watermark + 1 : watermark + 1 + (number or 0)]:
            watermark += len(chosen)
            made = made.with_files(chosen)
        furthest = max(furthest, watermark)

        assert made.watermark == (FILES[watermark].mark if watermark >= 0 else None)
        assert made.furthest == (FILES[furthest].mark if furthest >= 0 else None)
        assert made.files == furthest + 1
