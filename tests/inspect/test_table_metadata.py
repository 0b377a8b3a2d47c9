"""Health and structure of tables, from their metadata."""

from __future__ import annotations

import pytest
from pyiceberg.transforms import IdentityTransform

from chronolake.config import LakeConfig
from chronolake.core import maintain
from chronolake.core.create import create
from chronolake.core.publish import publish
from chronolake.core.staging import StagedWrite, Stopwatch, write_staged
from chronolake.inspect.catalog import look_up
from chronolake.inspect.table_metadata import HIDDEN, PartitionField, read_table_metadata
from chronolake.inspect.tables import Health, health
from chronolake.lake import Lake
from chronolake.masking import MASKED
from chronolake.types import ACTIVE, Mode, TableName
from support.inspect.layout import HISTORY, TMAX, Make, arrow, column
from support.lakes import lake_config

ORDERS = TableName("shop", "orders")


@pytest.fixture(scope="session")
def written(lake: Lake) -> TableName:
    """Write a history table: two batches, a compaction, a batch without changes, a third batch."""
    name = TableName("in side", "orders")
    create(lake, name, [column(text) for text in ("id*:LONG", *HISTORY)])
    row = "TIMESTAMP '2024-01-01T00:00:00Z' AS _fivetran_start, {} AS _fivetran_end, {} AS {}"
    active = row.format(f"TIMESTAMP '{TMAX}'", "true", ACTIVE)
    closed = row.format("TIMESTAMP '2024-01-02T00:00:00Z'", "false", ACTIVE)

    def first(write: StagedWrite) -> dict[str, str]:
        write.append(f"SELECT id, {active} FROM range(10)")
        return {"chronolake.last-batch": "b1", "chronolake.watermark": "w1"}

    def second(write: StagedWrite) -> dict[str, str]:
        write.delete_where("id < 4")
        write.append(f"SELECT id, {closed} FROM range(4)")
        return {"chronolake.last-batch": "b2", "chronolake.watermark": "w2"}

    def third(write: StagedWrite) -> dict[str, str]:
        write.delete_where("id = 9")
        return {"chronolake.last-batch": "b4"}

    write_staged(lake, name, first, Stopwatch())
    write_staged(lake, name, second, Stopwatch())
    maintain(lake, name)
    nothing = {"chronolake.last-batch": "b3"}
    publish(lake.catalog.load(name), lambda current: current.builder(), nothing)
    write_staged(lake, name, third, Stopwatch())
    return name


def test_each_snapshot_shows_what_it_published(lake: Lake, written: TableName) -> None:
    found = read_table_metadata(lake.config, written)

    reported = [
        (
            snapshot.operation,
            snapshot.is_published,
            snapshot.batch,
            snapshot.watermark,
            snapshot.rows_added,
            snapshot.rows_removed,
        )
        for snapshot in found.snapshots
    ]
    assert reported[0] == ("delete", True, "b4", None, 0, 1)
    # A compaction does not belong to a batch, and changes no rows.
    assert ("replace", True, None, None, 0, 0) in reported
    assert reported[2:5] == [
        ("append", True, "b2", "w2", 4, 0),
        ("delete", False, None, None, 0, 4),
        ("append", True, "b1", "w1", 10, 0),
    ]
    assert [snapshot.at for snapshot in found.snapshots] == sorted(
        (snapshot.at for snapshot in found.snapshots), reverse=True
    )
    assert found.snapshots_kept == len(found.snapshots)
    assert read_table_metadata(lake.config, written, snapshots=2).snapshots == found.snapshots[:2]
    assert found.snapshots[4].files_added >= 1


def test_partitions_show_their_files_and_rows(lake: Lake, written: TableName) -> None:
    found = read_table_metadata(lake.config, written)

    assert found.partitioning == (PartitionField(ACTIVE, "identity"),)
    assert [partition.values for partition in found.partitions] == [{ACTIVE: False}, {ACTIVE: True}]
    assert [partition.rows for partition in found.partitions] == [4, 5]
    assert [partition.delete_files for partition in found.partitions] == [0, 1]
    assert all(partition.files >= 1 and partition.bytes > 0 for partition in found.partitions)


def test_columns_key_and_properties_are_returned(lake: Lake, written: TableName) -> None:
    found = read_table_metadata(lake.config, written)

    assert (found.mode, found.key) == (Mode.HISTORY, ("id",))
    assert found.columns[0].name == "id"
    ours = {property_.name: property_.value for property_ in found.properties if property_.is_ours}
    assert ours["chronolake.last-batch"] == "b4"
    others = {
        property_.name: property_.value for property_ in found.properties if not property_.is_ours
    }
    assert others["write.delete.mode"] == "merge-on-read"


def test_health_knows_the_last_compaction_and_what_is_deleted(
    lake: Lake, written: TableName
) -> None:
    found = health(look_up(lake.config, written), lake.config)

    (compacted,) = (
        snapshot
        for snapshot in read_table_metadata(lake.config, written).snapshots
        if snapshot.operation == "replace"
    )
    assert found.maintained_at == compacted.at
    assert found.delete_ratio == pytest.approx(1 / 10)
    assert found.small_files == 1
    assert found.data_files == 2
    assert found.snapshots == read_table_metadata(lake.config, written).snapshots_kept


# ------------------------------------------------------------------------- without Spark


def test_an_empty_table_has_empty_metadata(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT"])

    assert health(look_up(config, ORDERS), config) == Health(0, 0, 0.0, None, 0)
    found = read_table_metadata(config, ORDERS)
    assert (found.snapshots, found.partitions, found.partitioning) == ((), (), ())


def test_small_files_are_those_that_maintenance_counts(config: LakeConfig, make: Make) -> None:
    make(ORDERS, ["id*:INT"], *([(number,)] for number in range(5)))

    assert health(look_up(config, ORDERS), config).small_files == 4
    tiny = lake_config(config.path, **{"maintenance.small_file_bytes": 1})
    assert health(look_up(tiny, ORDERS), tiny).small_files == 0


def test_no_secret_is_shown(config: LakeConfig, make: Make) -> None:
    secrets = {
        "s3.secret-access-key": "hunter2",
        "s3.session-token": "hunter2",
        "s3.access-key-id": "hunter2",
        "adls.account-key": "hunter2",
        "adls.sas-token.account": "hunter2",
        "jdbc.password": "hunter2",
        "oauth2.credential": "hunter2",
        "header.Authorization": "Bearer hunter2",
        "gcs.service.key": "hunter2",
        "write.metadata.metrics.column.api_key": "counts",
        "endpoint": "https://me:hunter2@example.org/x?sig=1",
        "jdbc.uri": "jdbc:sqlserver://h;user=me;password=hunter2;x=1",
        "link": "https://example.org/x?token=hunter2&a=1",
        "kafka.bootstrap.x": "hunter2",
        "write.data.path": "https://me:hunter2/hunter2@example.org/x",
        "write.object-storage.path": "wasbs://c@example.org;AccountKey=hunter2==",
        "write.w": "https://example.org/x?api_key=hunter2&a=1",
        "write.x": '{"password": "hunter2"}',
        "write.y": "password = hunter2",
        "write.z": "Authorization: Bearer hunter2",
        "read.sas": "hunter2",
        "read.account-key": "hunter2",
        "read.pwd": "hunter2",
        "chronolake.note": "apikey=hunter2",
        "chronolake.api-key": "hunter2",
        "owner": "somebody",
        "commit.retry.num-retries": "7",
        "schema.name-mapping.default": '[{"field-id": 1, "names": ["password"]}]',
    }
    table = make(ORDERS, ["id*:INT", "password:STRING"])
    with table.transaction() as changed:
        changed.set_properties(secrets)

    found = read_table_metadata(config, ORDERS)

    reported = {property_.name: property_.value for property_ in found.properties}
    assert set(secrets) <= set(reported)
    assert "hunter2" not in repr(found)
    assert reported["s3.session-token"] == MASKED
    assert "example.org" in reported["write.data.path"]
    assert reported["endpoint"] == reported["kafka.bootstrap.x"] == HIDDEN
    assert (reported["owner"], reported["commit.retry.num-retries"]) == ("somebody", "7")
    assert reported["schema.name-mapping.default"] == secrets["schema.name-mapping.default"]
    assert '"primary_key": true' in reported["chronolake.columns"]
    assert reported["write.metadata.metrics.column.api_key"] == "counts"


def test_partitions_of_other_engines_are_spelled_as_cells(config: LakeConfig, make: Make) -> None:
    texts = ["id:INT", "day:NAIVE_DATE", "b:BINARY", "t:UTC_DATETIME"]
    table = make(ORDERS, texts, declared=False)
    with table.update_spec() as spec:
        spec.add_identity("day")
        spec.add_field("b", IdentityTransform(), "of b")
        spec.add_identity("t")
    rows = [(1, "2024-02-29", b"x", TMAX), (1, None, b"\xff", None), (2, None, b"\xff", None)]
    table.append(arrow([column(text) for text in texts], rows))

    found = read_table_metadata(config, ORDERS)

    assert [(partition.values, partition.rows) for partition in found.partitions] == [
        ({"day": "2024-02-29", "of b": "eA==", "t": TMAX}, 1),
        ({"day": None, "of b": "/w==", "t": None}, 2),
    ]
    assert found.partitioning[1] == PartitionField("b", "identity")
