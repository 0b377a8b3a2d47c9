"""Which copies are read next, and what the paths of files contain; without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chronolake.config import CopiesSource, load_project
from chronolake.errors import ConfigurationError
from chronolake.source.files import copies as source
from chronolake.source.files.copies import Copy, LandedCopies, circumstances, plan_copies
from chronolake.source.files.file_list import SourceFile
from chronolake.source.files.path_template import PathTemplate
from chronolake.source.protocol import ChangeBatch, StreamFailure

_LIMITS = "limits"


def _copy(at: int, content: str = "a", size: int = 1) -> Copy:
    return Copy(at, (SourceFile(Path(f"/{at}"), f"{at}", size, content, 0),))


def _state(*copies: Copy, **more: Any) -> LandedCopies:
    landed = {copy.at_micros: (copy.fingerprint, 1) for copy in copies}
    return LandedCopies(landed, more.get("rejected", {}), 0)


def _planned(
    listed: list[Copy], state: LandedCopies, **more: Any
) -> tuple[list[int], int | None, int | None] | None:
    plan = plan_copies(listed, state, _LIMITS, **more)
    if plan is None:
        return None
    return [copy.at_micros for copy in plan.copies], plan.before_micros, plan.after_micros


def test_new_copies_are_read_together() -> None:
    assert _planned([_copy(10), _copy(20)], _state()) == ([10, 20], None, None)
    assert _planned([_copy(10), _copy(20), _copy(30)], _state(_copy(10))) == ([20, 30], 10, None)
    assert _planned([_copy(10)], _state(_copy(10))) is None


def test_late_copies_are_read_between_their_neighbors() -> None:
    state = _state(_copy(10), _copy(40))
    assert _planned([_copy(at) for at in (10, 20, 30, 40)], state) == ([20, 30], 10, 40)
    # The neighbors need not exist any more.
    assert _planned([_copy(20)], state) == ([20], 10, 40)


def test_corrected_copies_are_read_again() -> None:
    state = _state(_copy(10), _copy(20), _copy(30))
    assert _planned([_copy(10), _copy(20, "b"), _copy(30)], state) == ([20], 10, 30)
    again = frozenset({10, 20, 30})
    listed = [_copy(at) for at in (10, 20, 30)]
    assert _planned(listed, state, again=again) == ([10, 20, 30], None, None)


def test_a_rejected_copy_waits_until_its_circumstances_change() -> None:
    state = _state(_copy(10))
    found = circumstances(state, _LIMITS, 10, None)
    rejected = _state(_copy(10), rejected={20: (_copy(20).fingerprint, found, "why")})
    listed = [_copy(10), _copy(20), _copy(30)]
    assert _planned(listed, rejected) == ([30], 10, None)
    # The copy itself changes, or the one before it.
    assert _planned([_copy(10), _copy(20, "b")], rejected) == ([20], 10, None)
    assert _planned([_copy(10), _copy(15), _copy(20)], rejected) == ([15, 20], 10, None)


def test_a_copy_that_could_not_be_read_is_read_again_in_the_next_run() -> None:
    rejected = _state(_copy(10), rejected={20: (_copy(20).fingerprint, "", "why")})
    listed = [_copy(10), _copy(20), _copy(30)]
    assert _planned(listed, rejected) == ([20, 30], 10, None)
    assert _planned(listed, rejected, refused=frozenset({20})) == ([30], 10, None)


def test_a_copy_that_was_removed_while_it_landed_is_undone() -> None:
    state = LandedCopies({10: ("a", 1), 20: (None, None), 30: ("a", 1)}, {}, 0)
    plan = plan_copies([], state, _LIMITS)
    assert plan is not None
    assert [(copy.at_micros, copy.files) for copy in plan.copies] == [(20, ())]
    assert (plan.before_micros, plan.after_micros) == (10, 30)


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_MOST_COPIES", 2)
    listed = [_copy(at) for at in (10, 20, 30, 40)]
    assert _planned(listed, _state()) == ([10, 20], None, None)
    assert _planned(listed, _state(_copy(40))) == ([10, 20], None, 40)
    monkeypatch.setattr(source, "_MOST_BYTES", 5)
    assert _planned([_copy(10, size=4), _copy(20, size=4)], _state()) == ([10], None, None)


@pytest.mark.parametrize(
    ("template", "path", "stream", "at"),
    [
        ("dumps/o_{date:%Y-%m-%d}.csv", "o_2026-01-31.csv", None, "2026-01-31"),
        ("dumps/{stream}_{date}.csv", "a_b_2026-01-31.csv", "a_b", "2026-01-31"),
        ("d/{date:%Y}/{date:%m}/{date:%d}/*.csv", "2026/01/31/x.csv", None, "2026-01-31"),
        ("d/{date:%Y}/{stream}/{date:%j}", "2026/o/031/p/part.csv", "o", "2026-01-31"),
        ("d/{date:%Y%m%dT%H%M%S%z}.csv", "20260131T020000+0200.csv", None, "2026-01-31"),
        ("d/{date:%s}.csv", "1769817600.csv", None, "2026-01-31"),
        ("d/{date:%Y}/o_{date:%Y-%m-%d}.csv", "2026/o_2026-01-31.csv", None, "2026-01-31"),
        ("d/{date:%y}/{date:%b}/{date}.csv", "26/jan/2026-01-31.csv", None, "2026-01-31"),
        ("d/{date:%Y-%j}/{date:%m}.csv", "2026-031/01.csv", None, "2026-01-31"),
        ("d/{date:%Y-%m-%d_%I%p}.csv", "2026-01-31_12AM.csv", None, "2026-01-31"),
        ("d/{date:%Y}/{date:%m-%d}.csv", "2024/02-29.csv", None, "2024-02-29"),
        ("d/{date:%Y}.csv", "2026.csv", None, "2026-01-01"),
        ("d/{date:%s}/{date:%s}.csv", "1769817600/1769817600.csv", None, "2026-01-31"),
        ("d/{date:%%%Y}.csv", "%2026.csv", None, "2026-01-01"),
    ],
)
def test_paths_contain_dates_and_names(
    template: str, path: str, stream: str | None, at: str
) -> None:
    found = PathTemplate(template, "UTC", "path").match(path)
    assert found is not None
    assert found.stream == stream
    time = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert found.at_micros == time.timestamp() * 1_000_000


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("d/{date}.csv", "2026-02-30.csv"),
        ("d/{date}.csv", "2026-01-31.csv.tmp"),
        ("d/{date}.csv", "x/2026-01-31.csv"),
        ("d/{date}", "2026-01-31/_SUCCESS"),
        ("d/{date}", "2026-01-31/.part.crc"),
        ("d/*.csv", "a/b.csv"),
        ("d/{date:%Y}/o_{date:%Y-%m-%d}.csv", "2025/o_2026-01-31.csv"),
        ("d/{date:%y}/{date}.csv", "25/2026-01-31.csv"),
        ("d/{date:%Y-%j}/{date:%m}.csv", "2026-031/02.csv"),
        ("d/{date:%b}/{date}.csv", "Feb/2026-01-31.csv"),
        ("d/{date:%s}/{date:%s}.csv", "1769817600/1769817601.csv"),
    ],
)
def test_other_paths_do_not_match(template: str, path: str) -> None:
    assert PathTemplate(template, "UTC", "path").match(path) is None


@pytest.mark.parametrize(
    ("date", "words"),
    [
        ("{date:%m-%d}", "%m needs %Y or %y"),
        ("{date:%H}", "%H needs %Y or %y"),
        ("{date:daily}", "a date needs %Y or %y"),
        ("{date:%Y-%d}", "%d needs %m"),
        ("{date:%Y-%m}/{date:%H}", "%H needs %d or %j"),
        ("{date}/{date:%M}", "%M needs %H or %I"),
        ("{date:%Y-%m-%d_%I}", "%I needs %p"),
        ("{date:%Y-%m-%d_%H%p}", "%p needs %I"),
        ("{date:%s}_{date:%Y}", "%s and other parts"),
        ("{date:%A}", "cannot contain %A"),
    ],
)
def test_dates_that_are_not_complete_are_refused(date: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        _ = PathTemplate(f"d/{date}.csv", "UTC", "path").pattern


@pytest.mark.parametrize(
    ("template", "root", "name"),
    [
        ("dumps/orders_{date}.csv", "dumps", "orders"),
        ("s3://b/orders/{date}/*.csv", "s3://b/orders", "orders"),
        ("s3://b/{date}.csv", "s3://b", "b"),
        ("warehouse/gold/orders", "warehouse/gold", "orders"),
        ("{date}.csv", "", None),
    ],
)
def test_folders_and_names_of_streams(template: str, root: str, name: str | None) -> None:
    found = PathTemplate(template, "UTC", "path")
    assert (found.root, found.default_stream) == (root, name)


def test_copies_that_cannot_be_read_are_reported_in_every_run(tmp_path: Path) -> None:
    (tmp_path / "chronolake.yml").write_text(
        "lake: {path: lake}\npipelines:\n  shop:\n    source: {type: copies, "
        "path: 'orders_{date}.parquet', key: [id]}\n"
    )
    for day in (1, 2):
        (tmp_path / f"orders_2026-01-0{day}.parquet").write_bytes(b"PAR1 incomplete PAR1")
    project = load_project(tmp_path / "chronolake.yml")
    config = project.pipelines["shop"].source
    assert isinstance(config, CopiesSource)
    positions: dict[str, Any] = {}
    for _ in range(2):
        copies = source.DatedCopies(project, "shop", config)
        copies.acknowledge(positions)
        found = []
        # Footers are read without Spark.
        lake: Any = SimpleNamespace(spark=None)
        for batch in copies.read(lake, {"orders": positions.get("orders")}, full_refresh=False):
            found.append(batch)
            if isinstance(batch, ChangeBatch):
                positions["orders"] = batch.position
                copies.acknowledge(positions)
        assert [type(batch) for batch in found] == [ChangeBatch, ChangeBatch, StreamFailure]
