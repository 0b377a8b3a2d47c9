"""What others have added to target tables, such as indexes, policies, triggers and foreign keys.

A load that replaces a table would lose it, so that the table is filled in place instead, or the
load is an error. Objects of Chronolake itself are recognized by their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.errors import TargetChangedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Kinds that may change the rows that are written.
TRIGGER: Final = "trigger"
RULE: Final = "rule"
#: A foreign key of another table that references the target table.
REFERENCE: Final = "foreign key of another table"
_SHOWN: Final = 20

#: Parameters: oid (as text), prefix of Chronolake's names, triggers and key (lists of names).
POSTGRES_ADDITIONS: Final = f"""
SELECT 'row level security', '' FROM pg_class
WHERE oid = %(oid)s::oid AND (relrowsecurity OR relforcerowsecurity)
UNION ALL SELECT 'policy', polname FROM pg_policy WHERE polrelid = %(oid)s::oid
UNION ALL SELECT 'privileges on the column', attname FROM pg_attribute
WHERE attrelid = %(oid)s::oid AND attacl IS NOT NULL AND NOT attisdropped
UNION ALL SELECT 'default of the column', a.attname FROM pg_attrdef d JOIN pg_attribute a
ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE d.adrelid = %(oid)s::oid
UNION ALL SELECT 'NOT NULL of the column', attname FROM pg_attribute
WHERE attrelid = %(oid)s::oid AND attnum > 0 AND attnotnull AND NOT attisdropped
AND attname::text <> ALL(%(key)s)
UNION ALL SELECT 'index', c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %(oid)s::oid AND NOT starts_with(c.relname::text, %(prefix)s)
AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid
AND conrelid = i.indrelid)
UNION ALL SELECT 'constraint', conname FROM pg_constraint
WHERE conrelid = %(oid)s::oid AND contype IN ('c', 'u', 'x', 'p', 'f')
AND NOT starts_with(conname::text, %(prefix)s)
UNION ALL SELECT '{REFERENCE}', conname || ' of ' || conrelid::regclass
FROM pg_constraint WHERE confrelid = %(oid)s::oid AND conrelid <> confrelid AND contype = 'f'
UNION ALL SELECT '{TRIGGER}', tgname FROM pg_trigger
WHERE tgrelid = %(oid)s::oid AND NOT tgisinternal AND tgname::text <> ALL(%(triggers)s)
UNION ALL SELECT '{RULE}', rulename FROM pg_rewrite WHERE ev_class = %(oid)s::oid
UNION ALL SELECT DISTINCT 'view', r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r
ON r.oid = d.objid WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
AND d.refobjid = %(oid)s::oid AND r.ev_class <> %(oid)s::oid
UNION ALL SELECT CASE d.objsubid WHEN 0 THEN 'comment' ELSE 'comment of the column' END,
coalesce(a.attname, '') FROM pg_description d LEFT JOIN pg_attribute a ON a.attrelid = d.objoid
AND a.attnum = d.objsubid AND d.objsubid > 0
WHERE d.objoid = %(oid)s::oid AND d.classoid = 'pg_class'::regclass
UNION ALL SELECT 'security label', provider FROM pg_seclabel
WHERE objoid = %(oid)s::oid AND classoid = 'pg_class'::regclass
UNION ALL SELECT 'statistics', stxname FROM pg_statistic_ext WHERE stxrelid = %(oid)s::oid
UNION ALL SELECT 'publication', p.pubname FROM pg_publication_rel r JOIN pg_publication p
ON p.oid = r.prpubid WHERE r.prrelid = %(oid)s::oid
UNION ALL SELECT 'inheritance of', inhrelid::regclass::text FROM pg_inherits
WHERE %(oid)s::oid IN (inhparent, inhrelid)
UNION ALL SELECT 'storage parameters', '' FROM pg_class
WHERE oid = %(oid)s::oid AND reloptions IS NOT NULL
UNION ALL SELECT 'replica identity', '' FROM pg_class
WHERE oid = %(oid)s::oid AND relreplident <> 'd'
UNION ALL SELECT 'owner', pg_get_userbyid(relowner) FROM pg_class
WHERE oid = %(oid)s::oid AND pg_get_userbyid(relowner) <> current_user
"""

#: Each has the table as its parameter, and returns kinds and names. The default of a key is
#: Chronolake's own.
MYSQL_ADDITIONS: Final = (
    """SELECT DISTINCT 'index', index_name FROM information_schema.statistics
WHERE table_schema = DATABASE() AND table_name = %s""",
    """SELECT CASE constraint_type WHEN 'CHECK' THEN 'constraint' ELSE 'foreign key' END,
constraint_name FROM information_schema.table_constraints WHERE table_schema = DATABASE()
AND table_name = %s AND constraint_type IN ('CHECK', 'FOREIGN KEY')""",
    f"""SELECT DISTINCT '{REFERENCE}', CONCAT(constraint_name, ' of ', table_schema, '.',
table_name) FROM information_schema.key_column_usage WHERE referenced_table_schema = DATABASE()
AND referenced_table_name = %s""",
    f"""SELECT '{TRIGGER}', trigger_name FROM information_schema.triggers
WHERE event_object_schema = DATABASE() AND event_object_table = %s""",
    """SELECT 'comment of the column', column_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = %s AND column_comment <> ''""",
    """SELECT 'default of the column', column_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = %s AND column_key <> 'PRI'
AND coalesce(column_default, 'NULL') <> 'NULL'""",
    """SELECT 'NOT NULL of the column', column_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = %s AND column_key <> 'PRI'
AND is_nullable = 'NO'""",
    """SELECT DISTINCT 'partition', partition_name FROM information_schema.partitions
WHERE table_schema = DATABASE() AND table_name = %s AND partition_name IS NOT NULL""",
)


@dataclass(frozen=True)
class Addition:
    """An object that others have added to a target table.

    Attributes:
        kind: what it is.
        name: its name, or an empty text.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()

    @property
    def may_change_rows(self) -> bool:
        """Return whether it may change rows while they are written."""
        return self.kind in {TRIGGER, RULE}


def list_additions(additions: Iterable[Addition]) -> str:
    """Return the names of additions, as words; only the first ones if there are many."""
    texts = sorted(map(str, additions))
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join([*texts[:_SHOWN], *more])


def raise_if_lost(relation: str, table: str, additions: Sequence[Addition]) -> None:
    """Raise if a load would lose what others have added to a table.

    Raises:
        TargetChangedError: there are additions; the error lists them.
    """
    if additions:
        raise TargetChangedError(
            f"{relation} must be created again, because its columns or its key have changed. It "
            f"would lose what others have added: {list_additions(additions)}.",
            table=table,
            hint="Drop these, publish, and add them again. `chronolake publish --table TABLE "
            "--take-over` replaces the table without them.",
        )
