"""Batch files: compression, encryption, names, parts, Parquet."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from chronolake.tester import client
from chronolake.tester.definition import HISTORY_SPECS, ColumnSpec, TableDefinition
from chronolake.tester.files import (
    NULL_STRING,
    UNMODIFIED_STRING,
    BatchFolder,
    Compression,
    FileForm,
    FileFormat,
    compress,
    encrypt,
    parquet_bytes,
)
from chronolake.tester.rows import Changes, FileKind, Marker
from chronolake.types import Kind
from support.tester.reference_destination import Files

DEFINITION = TableDefinition(
    (ColumnSpec("id", Kind.INT, key=True), ColumnSpec("note", Kind.STRING))
)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


def folder(path, **settings):
    form = settings.pop("form", FileForm())
    return BatchFolder(path, form=form, shuffler=random.Random(7), **settings)


def upserts(notes, table="t"):
    records = tuple({"id": str(n), "note": note} for n, note in enumerate(notes))
    return Changes(table, DEFINITION, {FileKind.UPSERT: records})


def read_back(files, form):
    request = client.write_request(
        schema="s",
        configuration={},
        table=client.table_message("t", DEFINITION),
        files=files,
        form=form,
        history=False,
    )
    return list(Files(request).rows(request.replace_files))


@pytest.mark.parametrize("format_", FileFormat)
@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("encryption", [True, False])
def test_every_form_of_file_reads_back_as_it_was_written(
    tmp_path, format_, compression, encryption
):
    form = FileForm(format_, compression, encryption)
    notes = ["plain", "", 'a "b", c', "line\nline\r\nline", "\\", "null", "é🙂\t", Marker.NULL]
    files = folder(tmp_path, form=form).write(upserts(notes), "case")
    (file,) = files[FileKind.UPSERT]
    assert file.path.endswith(f"/t_case_upsert{form.suffix}")
    assert (file.key is None) is not encryption
    rows = sorted(read_back(files, form), key=lambda row: int(row["id"]))
    assert [row["note"] for row in rows] == [*notes[:-1], None]


@given(st.lists(TEXTS, max_size=8))
def test_any_text_survives_the_csv(tmp_path_factory, notes):
    form = FileForm(compression=Compression.OFF, encrypted=False)
    files = folder(tmp_path_factory.mktemp("w"), form=form).write(upserts([*notes, "x"]), "case")
    assert [row["note"] for row in read_back(files, form)] == [*notes, "x"]


@pytest.mark.parametrize("length", [0, 15, 16, 17, 31, 32, 100_000])
def test_encryption_pads_to_whole_blocks_after_a_random_vector(length):
    key, content = bytes(range(32)), b"z" * length
    one, two = encrypt(content, key), encrypt(content, key)
    assert one != two
    assert len(one) == 16 + (length // 16 + 1) * 16


def test_the_zstd_frame_is_like_the_vendors(vendor):
    theirs = (vendor / "files" / "web_events_input_3_upsert.csv.zstd").read_bytes()
    ours = compress(b"some content", Compression.ZSTD)
    assert ours[:6] == theirs[:6]  # magic number, no content size, no checksum, 512 KiB window
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompress(ours)


def test_gzip_is_plain_gzip():
    assert gzip.decompress(compress(b"content", Compression.GZIP)) == b"content"


def test_rows_are_spread_over_files_in_their_order(tmp_path):
    files = folder(tmp_path, split=3).write(upserts("abcdefg"), "case")
    assert [file.rows for file in files[FileKind.UPSERT]] == [3, 3, 1]
    assert len({file.key for file in files[FileKind.UPSERT]}) == 3
    assert [row["note"] for row in read_back(files, FileForm())] == list("abcdefg")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"t_case_upsert_{n}.csv.zstd.aes" for n in (1, 2, 3)
    ]


def test_files_of_one_scenario_never_overwrite_each_other(tmp_path):
    where = folder(tmp_path)
    first, second = where.write(upserts("a"), "case"), where.write(upserts("b"), "case")
    assert first[FileKind.UPSERT][0].path != second[FileKind.UPSERT][0].path


def test_only_the_files_that_were_written_are_removed(tmp_path):
    (tmp_path / "mine.csv").write_text("")
    where = folder(tmp_path)
    where.write(upserts("a"), "case")
    where.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_tables_with_odd_names_get_files(tmp_path):
    names = ["a/b", "x" * 400, "🙂" * 200, 'with "quotes", and spaces', ".."]
    for name in names:
        files = folder(tmp_path).write(upserts("a", table=name), "case")
        assert read_back(files, FileForm())[0]["note"] == "a"
    assert len(list(tmp_path.iterdir())) == len(names)


def test_minimal_delete_files_hold_the_key_and_the_end(tmp_path):
    history = TableDefinition((*DEFINITION.columns, *HISTORY_SPECS))
    record = dict.fromkeys(history.names, Marker.NULL) | {"id": "1", "_fivetran_end": "x"}
    form = FileForm(compression=Compression.OFF, encrypted=False)
    for definition, header in ((history, {"id", "_fivetran_end"}), (DEFINITION, {"id"})):
        kept = {name: record[name] for name in definition.names}
        changes = Changes("t", definition, {FileKind.DELETE: (kept,)})
        where = folder(tmp_path, form=form, minimal_deletes=True)
        (file,) = where.write(changes, "case")[FileKind.DELETE]
        assert set(Path(file.path).read_text().splitlines()[0].split(",")) == header


def test_a_file_does_not_show_its_key(tmp_path):
    (file,) = folder(tmp_path).write(upserts("a"), "case")[FileKind.UPSERT]
    assert "key" not in repr(file)


def test_parquet_has_the_types_that_the_guide_maps_to():
    kinds = [kind for kind in Kind if kind is not Kind.DECIMAL]
    columns = [ColumnSpec(kind, kind) for kind in kinds]
    columns.append(ColumnSpec("DECIMAL", Kind.DECIMAL, 20, 5))
    texts = {
        "BOOLEAN": "true",
        "FLOAT": "1.5",
        "DOUBLE": "2.5",
        "DECIMAL": "850.5",
        "BINARY": "3q2+7w==",
        "UTC_DATETIME": "2024-01-01T10:00:00Z",
    }
    record = {column.name: texts.get(column.name, "12") for column in columns}
    table = pq.read_table(io.BytesIO(parquet_bytes([record], columns)))
    types = {field.name: field.type for field in table.schema}
    assert types["BOOLEAN"] == pa.bool_()
    assert types["SHORT"] == types["INT"] == pa.int32()
    assert types["LONG"] == pa.int64()
    assert (types["FLOAT"], types["DOUBLE"]) == (pa.float32(), pa.float64())
    assert types["DECIMAL"] == pa.decimal128(20, 5)
    assert types["BINARY"] == pa.binary()
    assert {types[name] for name in ("STRING", "XML", "JSON", "NAIVE_DATE", "UTC_DATETIME")} == {
        pa.string()
    }
    assert table.column("BINARY").to_pylist() == [b"\xde\xad\xbe\xef"]


def test_parquet_nulls_are_nulls_and_unmodified_cells_make_a_column_text():
    columns = list(DEFINITION.columns)
    rows = [{"id": Marker.UNMODIFIED, "note": Marker.NULL}, {"id": "5", "note": "x"}]
    table = pq.read_table(io.BytesIO(parquet_bytes(rows, columns)))
    assert table.schema.field("id").type == pa.string()
    assert table.to_pylist() == [{"id": UNMODIFIED_STRING, "note": None}, {"id": "5", "note": "x"}]
    assert NULL_STRING not in str(table.to_pylist())
