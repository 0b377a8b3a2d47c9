"""Records of a data lake that were restored from others, and records that were archived."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from chronolake.config import LakeConfig, load
from chronolake.inspect import Ending, Lineage, Timeline, history, lineage, render
from chronolake.types import TableName
from support.inspect.layout import HISTORY, TMAX, Make, maker

ACCOUNTS = TableName("crm", "accounts")
FIRST, SECOND, THIRD = (f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3))
COLUMNS = ["Id*:STRING", "Name:STRING", "grax__deletesource:STRING", "grax__restoredfrom:STRING"]


def _make_document_example(make: Make) -> None:
    """Make a history table of the records 3 and 4 of the document's full example, and more."""
    make(
        ACCOUNTS,
        [*COLUMNS, *HISTORY],
        [
            ("3", "Bob", "grax", None, FIRST, SECOND, False),
            ("4", "Bob", None, "3", SECOND, "2026-01-02T23:59:59.999Z", False),
            ("4", "Bill", "source", "3", THIRD, "2026-01-04T00:00:00Z", False),
            ("5", "Bill", None, "4", THIRD, TMAX, True),
            ("6", "Eve", None, None, FIRST, TMAX, True),
        ],
    )


def test_archived_and_deleted_records_are_distinguished(config: LakeConfig, make: Make) -> None:
    _make_document_example(make)

    ended = {
        key: [(version.ending, version.outcome) for version in _timeline(config, key).versions]
        for key in ("3", "4", "5")
    }

    assert ended == {
        "3": [(Ending.DELETED, "archived")],
        "4": [(Ending.REPLACED, "replaced"), (Ending.DELETED, "deleted")],
        "5": [(Ending.ACTIVE, "active")],
    }
    assert [version["archived"] for version in _timeline(config, "3").as_json()["versions"]] == [
        True
    ]
    assert [version.outcome for version in _timeline(config, "3").outline().versions] == [
        "archived"
    ]
    assert "archived" in printed(render.timeline(_timeline(config, "3")))


def test_restored_records_are_followed_in_both_directions(config: LakeConfig, make: Make) -> None:
    _make_document_example(make)

    found = {key: _timeline(config, key).lineage for key in ("3", "4", "5", "6")}

    assert found == {
        "3": Lineage("Id", restored_as=("4", "5")),
        "4": Lineage("Id", restored_from=("3",), restored_as=("5",)),
        "5": Lineage("Id", restored_from=("4", "3")),
        "6": Lineage("Id"),
    }
    reported = _timeline(config, "4").as_json()
    assert (reported["restored_from"], reported["restored_as"]) == (["3"], ["5"])
    lines = printed(render.timeline(_timeline(config, "5"))).splitlines()
    assert "restored from Id=4, Id=3" in [line.strip() for line in lines]


def test_tables_without_links_have_no_lineage(config: LakeConfig, make: Make) -> None:
    make(TableName("crm", "plain"), ["Id*:STRING", "Name:STRING"], [("1", "x")])
    two = ["a*:STRING", "b*:STRING", "grax__restoredfrom:STRING"]
    make(TableName("crm", "two"), two, [("1", "2", "3")])

    plain = history(config, TableName("crm", "plain"), {"Id": "1"})
    two_columns = history(config, TableName("crm", "two"), {"a": "1", "b": "2"})

    assert plain.lineage is two_columns.lineage is None
    assert "restored_from" not in plain.as_json()


def test_a_key_that_is_a_number_is_compared_with_the_text_of_a_link(
    config: LakeConfig, make: Make
) -> None:
    make(
        ACCOUNTS,
        ["Id*:LONG", "grax__restoredfrom:STRING"],
        [(1, None), (2, "1"), (3, "x")],
    )

    assert history(config, ACCOUNTS, {"Id": "1"}).lineage == Lineage("Id", (), ("2",))
    assert history(config, ACCOUNTS, {"Id": "2"}).lineage == Lineage("Id", ("1",), ())


def test_a_restored_record_without_a_row_has_a_lineage(config: LakeConfig, make: Make) -> None:
    """A live table has no row of a record that was archived."""
    make(ACCOUNTS, ["Id*:STRING", "grax__restoredfrom:STRING"], [("3", "2")])

    gone = history(config, ACCOUNTS, {"Id": "2"})

    assert gone.lineage == Lineage("Id", (), ("3",))
    lines = [line.strip() for line in printed(render.timeline(gone)).splitlines()]
    assert lines[-2:] == ["restored as Id=3", "No such record."]


def test_the_number_of_linked_records_is_limited(config: LakeConfig, make: Make) -> None:
    count = lineage.MAX_RECORDS + 50
    rows = [("0", "a", None, None), *((f"{n:04}", "a", None, "0") for n in range(1, count))]
    make(ACCOUNTS, COLUMNS, rows)

    timeline = _timeline(config, "0")
    found = timeline.lineage

    assert found is not None
    assert not found.is_complete
    assert timeline.as_json()["lineage_complete"] is False
    lines = [line.strip() for line in printed(render.timeline(timeline)).splitlines()]
    assert "More records are linked: only the nearest 100 of a direction are listed." in lines
    nearest = _timeline(config, f"{count - 1:04}").lineage
    assert nearest == Lineage("Id", restored_from=("0",))
    assert found.restored_as == tuple(f"{n:04}" for n in range(1, lineage.MAX_RECORDS + 1))


KEYS = st.sampled_from("abcdef")


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(KEYS, KEYS), KEYS)
def test_lineage_equals_a_walk_over_all_links(links: dict[str, str], start: str) -> None:
    """Links may form cycles: each record is listed once, and never the record itself."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lake").mkdir()
        config = load(Path(folder) / "lake")
        rows = [(key, "x", None, links.get(key)) for key in "abcdef"]
        maker(config)(ACCOUNTS, COLUMNS, rows)

        found = _timeline(config, start).lineage

    assert found is not None
    assert set(found.restored_from) == _walk(
        start, lambda key: [links[key]] if key in links else []
    )
    assert set(found.restored_as) == _walk(
        start, lambda key: [record for record, origin in links.items() if origin == key]
    )


def _walk(start: str, neighbors: Callable[[str], list[str]]) -> set[str]:
    known, waiting = {start}, [start]
    while waiting:
        for other in neighbors(waiting.pop()):
            if other not in known:
                known.add(other)
                waiting.append(other)
    return known - {start}


def printed(what: RenderableType) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(what)
    return stream.getvalue()


def _timeline(config: LakeConfig, key: str) -> Timeline:
    return history(config, ACCOUNTS, {"Id": key})
