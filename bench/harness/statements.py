"""The alternatives in Spark SQL: the same changes by a careful author, on the same Iceberg tables.

All statements read a view over the decoded change set. They use what a careful author can know:
the least time of a history batch is a literal in them, so that the closed versions before it are
pruned by their files' statistics.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from chronolake.change_set import OP, UNMODIFIED, Op
from harness.customers import HISTORY, HISTORY_NAMES, LIVE_NAMES

_TYPES: Final = {column.name: column.type.sql for column in HISTORY}
_SYSTEM: Final = ("_fivetran_synced", "_fivetran_start", "_fivetran_end", "_fivetran_active")


def upsert(target: str, changes: str) -> str:
    """Return one `MERGE` of replace rows into a live table."""
    return f"""
        MERGE INTO {target} t
        USING (SELECT {_list(LIVE_NAMES)} FROM {changes} WHERE {OP} = {Op.REPLACE:d}) s
        ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *"""


def update(target: str, changes: str) -> str:
    """Return one `MERGE` of update rows into a live table."""
    assignments = ", ".join(
        f"{name} = {_cell(name, LIVE_NAMES, new='s', old='t')}" for name in LIVE_NAMES[1:]
    )
    return f"""
        MERGE INTO {target} t
        USING (SELECT * FROM {changes} WHERE {OP} = {Op.UPDATE:d}) s
        ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET {assignments}"""


def documented(spark: SparkSession, target: str, changes: str, since: str) -> None:
    """Run the statements of `seeds/history-batch-files.txt` one by one.

    Cells that update rows leave unchanged are taken from the version that was active before the
    batch: the insert reads it from the snapshot before the first statement.
    """
    before = (
        spark.sql(f"SELECT snapshot_id FROM {target}.refs WHERE name = 'main'").first().snapshot_id
    )
    earliest = f"SELECT id, _fivetran_start FROM {changes} WHERE {OP} = {Op.EARLIEST:d}"
    spark.sql(f"""
        DELETE FROM {target} t WHERE EXISTS (
            SELECT 1 FROM ({earliest}) s
            WHERE s.id = t.id AND t._fivetran_start >= s._fivetran_start)
        AND t._fivetran_start >= {since}""")
    spark.sql(f"""
        MERGE INTO {target} t USING ({earliest}) s ON t.id = s.id AND t._fivetran_active
        WHEN MATCHED THEN UPDATE SET
            _fivetran_active = false,
            _fivetran_end = timestampadd(MILLISECOND, -1, s._fivetran_start)""")
    spark.sql(f"INSERT INTO {target} {_completed(f'{target} VERSION AS OF {before}', changes)}")
    spark.sql(f"INSERT INTO {target} {_replaced(changes)}")
    spark.sql(f"""
        MERGE INTO {target} t
        USING (SELECT id, _fivetran_end FROM {changes} WHERE {OP} = {Op.DELETE:d}) s
        ON t.id = s.id AND t._fivetran_active
        WHEN MATCHED THEN UPDATE SET
            _fivetran_active = false, _fivetran_end = s._fivetran_end""")


def merged(target: str, changes: str, since: str) -> str:
    """Return a history batch as one `MERGE`.

    The source has a row that finds the stored versions of each key, and a row without a key to
    match for each new version.
    """
    nothing = ", ".join(f"CAST(NULL AS {kind}) {name}" for name, kind in _TYPES.items())
    names = _list(HISTORY_NAMES)
    return f"""
        MERGE INTO {target} t
        USING (
            SELECT id AS found, _fivetran_start AS earliest,
                   CAST(NULL AS timestamp) AS deleted, false AS is_new, {nothing}
            FROM {changes} WHERE {OP} = {Op.EARLIEST:d}
            UNION ALL
            SELECT id, NULL, _fivetran_end, false, {nothing}
            FROM {changes} WHERE {OP} = {Op.DELETE:d}
            UNION ALL
            SELECT NULL, NULL, NULL, true, {names}
            FROM ({_replaced(changes)} UNION ALL {_completed(target, changes)})
        ) s
        ON t.id = s.found AND t._fivetran_end >= {since} - INTERVAL '0.001' SECOND
            AND (t._fivetran_active OR t._fivetran_start >= s.earliest)
        WHEN MATCHED AND t._fivetran_start >= s.earliest THEN DELETE
        WHEN MATCHED THEN UPDATE SET
            _fivetran_active = false,
            _fivetran_end = coalesce(timestampadd(MILLISECOND, -1, s.earliest), s.deleted)
        WHEN NOT MATCHED AND s.is_new THEN
            INSERT ({names}) VALUES ({_list(HISTORY_NAMES, "s.")})"""


def _replaced(changes: str) -> str:
    return f"SELECT {_list(HISTORY_NAMES)} FROM {changes} WHERE {OP} = {Op.REPLACE:d}"


def _completed(stored: str, changes: str) -> str:
    cells = ", ".join(
        f"{_cell(name, HISTORY_NAMES, new='u', old='b')} AS {name}" for name in HISTORY_NAMES
    )
    return f"""
        SELECT {cells}
        FROM (SELECT * FROM {changes} WHERE {OP} = {Op.UPDATE:d}) u
        JOIN {stored} b ON b.id = u.id AND b._fivetran_active"""


def _cell(name: str, names: tuple[str, ...], *, new: str, old: str) -> str:
    if name == "id" or name in _SYSTEM:
        return f"{new}.{name}"
    bit = f"getbit(get({new}.{UNMODIFIED}, 0), {names.index(name)})"
    return f"CASE WHEN {bit} = 1 THEN {old}.{name} ELSE {new}.{name} END"


def _list(names: tuple[str, ...], prefix: str = "") -> str:
    return ", ".join(prefix + name for name in names)
