"""Our batch files, compared with those of the vendor's tester for the same scenarios."""

from __future__ import annotations

import io
import json
import re

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.tester import RunOptions, run
from chronolake.tester.definition import VendorVersion
from chronolake.tester.files import NULL_STRING, UNMODIFIED_STRING, Compression, quote
from support.tester.reference_destination import Files, ReferenceDestination, serve

SYNCED = "_fivetran_synced"
_CELL = re.compile(r'("(?:[^"]|"")*"|[^,\n]*)([,\n])')


def cells(text):
    """Return the rows of a CSV as dicts of unparsed cells, quotes included."""
    lines, line = [], []
    for match in _CELL.finditer(text):
        line.append(match[1])
        if match[2] == "\n":
            lines.append(line)
            line = []
    assert not line
    header, *rows = lines
    return [dict(zip(header, row, strict=True)) for row in rows]


def without_synced(rows):
    for row in rows:
        assert ("null" in row.get(SYNCED, "Z")) or row.get(SYNCED, "Z").endswith("Z")
    return [{name: cell for name, cell in row.items() if name != SYNCED} for row in rows]


@pytest.fixture(scope="module")
def made(vendor, tmp_path_factory):
    """Make the folder of plain CSV files from the vendor's scenarios."""
    scenarios, work = tmp_path_factory.mktemp("scenarios"), tmp_path_factory.mktemp("work")
    for number in (1, 2, 3, 4):
        text = (vendor / "inputs" / f"tester_input_{number}.json").read_text()
        (scenarios / f"input_{number}.json").write_text(text)
    for path in sorted((vendor / "inputs").glob("history_mode_*.json")):
        content = json.loads(path.read_text())
        # The vendor's files were made before a column was added to the table.
        content.pop("schema_migration", None)
        (scenarios / path.name).write_text(json.dumps(content))
    for group in ("input_1", "input_2", "input_3", "input_4", "history_mode"):
        with serve(ReferenceDestination()) as target:
            options = RunOptions(
                target=target,
                tester_version=VendorVersion.V2_25,
                compression=Compression.OFF,
                encrypted=False,
                work_dir=work,
                keep_files=True,
            )
            report = io.StringIO()
            files = sorted(scenarios.glob(f"{group}*.json"))
            assert run(files, options, stream=report) == 0, report.getvalue()
    return work


def test_the_same_files_are_made(made, vendor):
    names = {path.name for path in (vendor / "files").glob("*.csv")}
    assert {path.name for path in made.iterdir()} == names


def test_every_cell_is_written_as_the_vendor_writes_it(made, vendor):
    compared = 0
    for theirs in sorted((vendor / "files").glob("*.csv")):
        ours = made / theirs.name
        want = without_synced(cells(theirs.read_bytes().decode()))
        got = without_synced(cells(ours.read_bytes().decode()))
        if "_history_history_mode_" in theirs.name:  # theirs are grouped by key in hash order
            want, got = (sorted(rows, key=lambda row: sorted(row.items())) for rows in (want, got))
        assert got == want, theirs.name
        compared += len(want)
    assert compared > 100


def test_history_columns_are_computed_as_the_vendor_computes_them(made):
    rows = cells((made / "transaction_history_history_mode_1_INIT_upsert.csv").read_text())
    tens = [row for row in rows if row["id"] == "10"]
    assert [(r["_fivetran_start"], r["_fivetran_end"], r["_fivetran_active"]) for r in tens] == [
        ("2005-05-26T20:57:00Z", "2005-05-26T20:57:59.999Z", "false"),
        ("2005-05-26T20:58:00Z", "9999-12-31T23:59:59.999Z", "true"),
    ]


def test_the_order_of_columns_differs_from_file_to_file(vendor, tmp_path):
    headers = []
    for seed in (1, 2, 3):
        with serve(ReferenceDestination()) as target:
            options = RunOptions(
                target=target,
                shuffle_seed=seed,
                compression=Compression.OFF,
                encrypted=False,
                work_dir=tmp_path / str(seed),
                keep_files=True,
            )
            run([vendor / "inputs" / "tester_input_1.json"], options, stream=io.StringIO())
        made = sorted((tmp_path / str(seed)).iterdir())
        headers.append([path.read_text().splitlines()[0] for path in made])
    assert len({tuple(found) for found in headers}) == 3


def test_the_vendors_encrypted_files_hold_their_plain_ones(vendor):
    compared = 0
    for path in sorted((vendor / "files").glob("*.aes")):
        key = path.with_name(path.name + ".key").read_bytes()
        content = path.read_bytes()
        cipher = Cipher(AES256(key), CBC(content[:16])).decryptor()
        unpadder = PKCS7(128).unpadder()
        padded = cipher.update(content[16:]) + cipher.finalize()
        frame = unpadder.update(padded) + unpadder.finalize()
        assert frame == path.with_suffix("").read_bytes()
        plain = path.with_suffix("").with_suffix("").read_bytes()
        assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == plain
        compared += 1
    assert compared == 15


def test_a_reader_of_ours_reads_theirs(vendor):
    path = str(vendor / "files" / "campaign_input_1_update.csv.zstd.aes")
    request = sdk.WriteBatchRequest(
        keys={path: (vendor / "files" / "campaign_input_1_update.csv.zstd.aes.key").read_bytes()},
        file_params=sdk.FileParams(
            compression=sdk.ZSTD,
            encryption=sdk.AES,
            null_string=NULL_STRING,
            unmodified_string=UNMODIFIED_STRING,
        ),
    )
    (row,) = Files(request).rows([path])
    assert row["name"] == row["num"] == UNMODIFIED_STRING
    assert row["_fivetran_deleted"] == "true"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", ""),
        ("2025-11-21T14:59:47.315Z", "2025-11-21T14:59:47.315Z"),
        ("2025-11-21T14:59:47.315ZZ", '"2025-11-21T14:59:47.315ZZ"'),
        ("New Year", '"New Year"'),
        ("a+b", '"a+b"'),
        ("-1", "-1"),
        ("\\", "\\"),
        ('say "so"', '"say ""so"""'),
        ("a\nb", '"a\nb"'),
        ("é🙂", "é🙂"),
    ],
)
def test_values_are_quoted_only_where_the_vendor_quotes_them(text, written):
    assert quote(text) == written
