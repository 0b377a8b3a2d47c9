"""Files of a Data Lake v2: the meaning of their names, their columns, the types of their fields."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.config import load_project
from chronolake.errors import SourceError
from chronolake.landing import (
    ObjectFolder,
    ObservedType,
    columns_of,
    merge_types,
    objects_of,
    type_of,
)
from chronolake.landing.field_types import (
    Fields,
    by_field,
    fields_of,
    group_files,
    observed_integer_type,
    physical,
)
from chronolake.source.protocol import raw_folder
from chronolake.types import Kind


def _fields(**columns: pa.DataType) -> Fields:
    return fields_of({name: physical(kind) for name, kind in columns.items()})


def test_both_spellings_of_the_delete_source_are_one_field() -> None:
    """`seeds/data-lake-v2.txt` has both: one in its table of columns, one in its full example."""
    text = pa.string()
    fields = _fields(grax_deletesource=text, Name=text, grax__deletesource=text)
    assert {field.name for field in fields.values()} == {"grax__deletesource", "Name"}

    (field,) = by_field(fields)["grax__deletesource"].values()

    assert field.column == "grax__deletesource"
    assert field.fallback is not None
    assert field.fallback.column == "grax_deletesource"
    (alone,) = by_field(_fields(grax_deletesource=text))["grax__deletesource"].values()
    assert (alone.column, alone.fallback) == ("grax_deletesource", None)


def _meaning(fields: Fields) -> dict[str, tuple[str, str]]:
    return {name: (field.name, field.form.value) for name, field in fields.items()}


# ------------------------------------------------------------------ names


def _write(root: Path, batch: str, name: str) -> None:
    file = root / "parquet/v2/org=X/object=Account" / f"batch={batch}" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")


def test_files_are_read_in_the_order_of_their_writing(tmp_path: Path) -> None:
    # From the document; a longer name is later than any shorter one.
    _write(tmp_path, "05e0c89c0", "data-16f61d5d004.parquet")
    _write(tmp_path, "05e0be100", "data-16f5f42a201.parquet")
    _write(tmp_path, "05e0be100", "data-16f5e66e800.parquet")
    _write(tmp_path, "105e0c89c0", "data-106f61d5d004.parquet")

    names = [file.name for file in ObjectFolder(tmp_path, "X", "Account").files()]

    assert names == ["16f5e66e800", "16f5f42a201", "16f61d5d004", "106f61d5d004"]


def test_what_was_written_after_a_watermark_is_found(tmp_path: Path) -> None:
    folder = ObjectFolder(tmp_path, "X", "Account")
    for batch, name in [("01", "10"), ("01", "20"), ("02", "30")]:
        _write(tmp_path, batch, f"data-{name}.parquet")

    marks = [file.mark for file in folder.files()]

    for number, mark in enumerate(marks):
        assert [file.mark for file in folder.files(after=mark)] == marks[number + 1 :]


def test_older_batches_are_not_listed(tmp_path: Path) -> None:
    for batch, name in [("01", "10"), ("02", "20")]:
        _write(tmp_path, batch, f"data-{name}.parquet")
    old = tmp_path / "parquet/v2/org=X/object=Account/batch=01"
    old.rename(tmp_path / "moved")
    # A path that is not a folder cannot be listed.
    old.write_bytes(b"no folder")
    folder = ObjectFolder(tmp_path, "X", "Account")

    assert [file.name for file in folder.files(after="batch=02/data-15.parquet")] == ["20"]
    with pytest.raises(SourceError, match="cannot be listed"):
        folder.files()


def test_files_on_their_way_are_not_files(tmp_path: Path) -> None:
    for name in ("data-10.parquet.tmp", ".data-11.parquet", "data-12.crc", "_SUCCESS"):
        _write(tmp_path, "01", name)

    assert ObjectFolder(tmp_path, "X", "Account").files() == []


def test_an_object_without_files_has_none(tmp_path: Path) -> None:
    assert ObjectFolder(tmp_path, "X", "Account").files() == []


def test_a_folder_without_the_organisation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="parquet/v2/org=X"):
        objects_of(tmp_path, "X")


@pytest.mark.parametrize("mark", ["", "data-1.parquet", "batch=1/other", "batch=1/data-.parquet"])
def test_an_invalid_watermark_is_refused(tmp_path: Path, mark: str) -> None:
    with pytest.raises(SourceError, match="not a valid watermark"):
        ObjectFolder(tmp_path, "X", "Account").files(after=mark)


# ------------------------------------------------------------------ columns


def test_a_typed_column_belongs_to_the_field_beside_it() -> None:
    found = _fields(
        A=pa.string(),
        A_b=pa.bool_(),
        N=pa.string(),
        N_i=pa.int32(),
        N_f=pa.float64(),
        T=pa.string(),
        T_ts=pa.timestamp("us", tz="UTC"),
        T_t=pa.time64("us"),
        T_d=pa.date32(),
    )

    assert _meaning(found) == {
        "A": ("A", "text"),
        "A_b": ("A", "boolean"),
        "N": ("N", "text"),
        "N_i": ("N", "integer"),
        "N_f": ("N", "float"),
        "T": ("T", "text"),
        "T_ts": ("T", "timestamp"),
        "T_t": ("T", "time"),
        "T_d": ("T", "date"),
    }


@pytest.mark.parametrize(
    ("warehouse", "org", "name"),
    [("lake", "x#", "a#b?c%25%2F"), ("s3://bucket/lake", "x%23", "a%23b%3Fc%25%2F")],
)
def test_names_of_pipelines_and_streams_are_safe_names_of_folders(
    tmp_path: Path, warehouse: str, org: str, name: str
) -> None:
    """Iceberg's FileIO for S3 ends a URL at # and ?."""
    file = tmp_path / "chronolake.yml"
    file.write_text(f"lake: {{warehouse: '{warehouse}'}}")

    folder = raw_folder(load_project(file), "x#", "a#b?c%/")

    assert (folder.org, folder.name) == (org, name)


def test_without_its_field_a_column_is_a_field_of_its_own() -> None:
    assert _meaning(_fields(A_b=pa.bool_())) == {"A_b": ("A_b", "boolean")}


def test_a_column_of_another_type_than_its_ending_is_a_field_of_its_own() -> None:
    found = _fields(A=pa.string(), A_b=pa.string(), A_i=pa.float64())

    assert _meaning(found) == {
        "A": ("A", "text"),
        "A_b": ("A_b", "text"),
        "A_i": ("A_i", "float"),
    }


def test_only_texts_have_typed_values_beside_them() -> None:
    found = _fields(A=pa.int64(), A_i=pa.int64())

    assert _meaning(found) == {"A": ("A", "integer"), "A_i": ("A_i", "integer")}


def test_a_field_may_have_a_name_that_looks_typed() -> None:
    # `A_b` is a field of its own, with an integer column beside it.
    found = _fields(A_b=pa.string(), A_b_i=pa.int64())

    assert _meaning(found) == {"A_b": ("A_b", "text"), "A_b_i": ("A_b", "integer")}


def test_files_that_agree_are_read_together() -> None:
    fields = _fields(Id=pa.string(), A=pa.string())
    more = _fields(Id=pa.string(), A=pa.string(), A_b=pa.bool_(), C=pa.string())
    other = _fields(Id=pa.string(), A_b=pa.string())

    groups = group_files([(fields, set(), [0, 3]), (more, set(), [1]), (other, set(), [2])])

    assert [group.files for group in groups] == [(0, 1, 3), (2,)]
    assert groups[0].fields["A_b"].name == "A"
    assert groups[1].fields["A_b"].name == "A_b"


@given(
    st.lists(
        st.lists(st.sampled_from(["A", "A_b", "A_i", "A_b_i", "B", "B_b"]), unique=True),
        min_size=1,
        max_size=8,
    )
)
def test_in_a_group_every_column_means_what_it_means_in_each_file(files: list[list[str]]) -> None:
    kinds = {"b": pa.bool_(), "i": pa.int64()}
    schemas = [
        _fields(**{name: kinds.get(name[-1], pa.string()) for name in names}) for names in files
    ]

    groups = group_files([(schema, set(), [number]) for number, schema in enumerate(schemas)])

    assert sorted(itertools.chain(*(group.files for group in groups))) == list(range(len(files)))
    for group in groups:
        for number in group.files:
            for name, field in schemas[number].items():
                assert group.fields[name] == field


# ------------------------------------------------------------------ types


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ([], None),
        ([ObservedType.TEXT], Kind.STRING),
        ([ObservedType.INT], Kind.INT),
        ([ObservedType.INT, ObservedType.LONG], Kind.LONG),
        ([ObservedType.WIDE], Kind.LONG),
        ([ObservedType.INT, ObservedType.FLOAT], Kind.DOUBLE),
        ([ObservedType.LONG, ObservedType.FLOAT], Kind.DOUBLE),
        # Not every such integer has an exact double.
        ([ObservedType.WIDE, ObservedType.FLOAT], Kind.STRING),
        ([ObservedType.FLOAT], Kind.DOUBLE),
        ([ObservedType.BOOLEAN], Kind.BOOLEAN),
        ([ObservedType.BOOLEAN, ObservedType.TEXT], Kind.STRING),
        ([ObservedType.BOOLEAN, ObservedType.INT], Kind.STRING),
        ([ObservedType.DATE], Kind.NAIVE_DATE),
        ([ObservedType.DATE, ObservedType.TIMESTAMP], Kind.STRING),
        ([ObservedType.TIMESTAMP], Kind.UTC_DATETIME),
        ([ObservedType.TIME], Kind.NAIVE_TIME),
    ],
)
def test_a_field_gets_the_narrowest_type_that_holds_its_values(
    seen: list[ObservedType], kind: Kind | None
) -> None:
    found = type_of(seen)

    assert (found.kind if found else None) is kind


@pytest.mark.parametrize(
    ("least", "greatest", "seen"),
    [
        (0, 5, ObservedType.INT),
        (-(2**31), 2**31 - 1, ObservedType.INT),
        (0, 2**31, ObservedType.LONG),
        (-(2**31) - 1, 0, ObservedType.LONG),
        (-(2**53), 2**53, ObservedType.LONG),
        (0, 2**53 + 1, ObservedType.WIDE),
        (-(2**53) - 1, 0, ObservedType.WIDE),
    ],
)
def test_integers_count_by_their_size(least: int, greatest: int, seen: ObservedType) -> None:
    assert observed_integer_type(least, greatest) is seen


_everything = st.frozensets(st.sampled_from(ObservedType), max_size=4)


@given(st.lists(_everything, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_type_does_not_depend_on_the_order_in_which_values_are_seen(
    steps: list[frozenset[ObservedType]], chance: object
) -> None:
    shuffled = list(steps)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]

    def after(order: list[frozenset[ObservedType]]) -> object:
        seen: dict[str, frozenset[ObservedType]] = {}
        for step in order:
            seen = merge_types(seen, {"A": step})
        return columns_of(seen, ("Id",))

    assert after(steps) == after(shuffled)
