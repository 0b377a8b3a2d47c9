"""What the texts of a table's values depend on, besides the values themselves.

A row has the number of an enum's label, and a composite value as its attributes were when the row
was written. `ALTER TYPE … RENAME VALUE` and `ADD ATTRIBUTE` change the text of every row without
changing a row, and the log does not mention it. So the state of these types is stored with a
stream's position, and the table is read once more when it has changed.

An added label changes no text, and is no reason to read a table. But it may have been renamed after
rows were written with it: then the log has a text that is not a label any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow.compute as pc

from chronolake.source.postgres.connection import understood
from chronolake.source.postgres.encoding import reading_names
from chronolake.source.postgres.value_forms import PLAIN, ColumnOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg
    import pyarrow as pa

#: Types that are used by columns of some tables, themselves or within others: the elements of
#: arrays, what domains stand for, attributes of composites, bounds of ranges.
_USED: Final = """
WITH RECURSIVE builtin(type, elements) AS MATERIALIZED (
    SELECT oid, typarray FROM pg_catalog.pg_type
    WHERE typnamespace = 'pg_catalog'::regnamespace AND typname = ANY (%s)
), used(relation, attribute, type) AS (
    SELECT a.attrelid::bigint, a.attnum, a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
      AND (a.attgenerated = '' OR a.attgenerated::text = ANY (%s))
      AND (a.atttypid >= 16384 OR a.atttypid IN
        (SELECT type FROM builtin UNION ALL SELECT elements FROM builtin))
    UNION
    SELECT used.relation, used.attribute, part.type
    FROM used JOIN pg_catalog.pg_type t ON t.oid = used.type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
                  WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) part(type)
    WHERE part.type <> 0
), of_types AS (
    SELECT type, jsonb_agg(DISTINCT jsonb_build_array(relation, attribute)) AS places
    FROM used GROUP BY type
)
SELECT t.oid::bigint, t.typname::text, pg_catalog.format_type(t.oid, NULL), of_types.places,
       CASE t.typtype WHEN 'c' THEN
           (SELECT c.relnatts || ':' || coalesce(string_agg(concat_ws(
                       ' ', a.attnum, a.atttypid::bigint, a.atttypmod,
                       CASE WHEN %s THEN quote_ident(a.attname) END), ',' ORDER BY a.attnum), '')
            FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_attribute a
                ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            WHERE c.oid = t.typrelid GROUP BY c.relnatts) END,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(
                   e.oid::bigint, e.xmin::text::bigint, e.enumlabel) ORDER BY e.oid), '[]')
        FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid)
FROM of_types JOIN pg_catalog.pg_type t ON t.oid = of_types.type
WHERE t.typtype IN ('c', 'e') OR t.oid IN (SELECT type FROM builtin)
ORDER BY t.oid
"""
#: Types whose texts are names of objects: where these are.
_NAMES: Final = {
    "regclass": "pg_class",
    "regcollation": "pg_collation",
    "regconfig": "pg_ts_config",
    "regdatabase": "pg_database",
    "regdictionary": "pg_ts_dict",
    "regnamespace": "pg_namespace",
    "regoper": "pg_operator",
    "regoperator": "pg_operator",
    "regproc": "pg_proc",
    "regprocedure": "pg_proc",
    "regrole": "pg_roles",
    "regtype": "pg_type",
}
#: Types whose texts name roles, and how a role's name is asked for.
_ROLES: Final = {"aclitem": "regrole"}
#: Types whose texts depend on a setting of the database.
_SETTINGS: Final = {"money": "lc_monetary"}
#: In place of a type: what the configuration says of the form of values.
_SETTINGS_OID: Final = 0


@dataclass(frozen=True)
class EnumLabel:
    """A label of an enum.

    Attributes:
        oid: what rows have in its place.
        version: another number after each statement that has changed it.
        text: the label.
    """

    oid: int
    version: int
    text: str


@dataclass(frozen=True)
class TypeState:
    """What the texts of a type's values depend on.

    Attributes:
        oid: the type.
        name: its name as SQL.
        labels: of an enum its labels.
        other: of other types all that there is, so that it can be compared.
    """

    oid: int
    name: str
    labels: tuple[EnumLabel, ...] = ()
    other: str = ""


@dataclass(frozen=True)
class Dependencies:
    """What the texts of a table's values depend on.

    Attributes:
        types: the types; none of those whose texts depend on nothing.
        columns: for each of them the numbers of the columns that have it, or have it within.
    """

    types: tuple[TypeState, ...] = ()
    columns: tuple[tuple[int, frozenset[int]], ...] = ()

    @property
    def known(self) -> KnownTypes:
        """What a position keeps of it."""
        return KnownTypes(
            {
                type_.oid: KnownType(
                    type_.other, {label.oid: label.version for label in type_.labels}
                )
                for type_ in self.types
            }
        )


@dataclass(frozen=True)
class KnownType:
    """What a position keeps of a type.

    Attributes:
        other: as of `TypeState`.
        labels: the versions of labels, by their oids.
    """

    other: str
    labels: Mapping[int, int]

    def holds(self, now: TypeState) -> bool:
        """Whether the texts of values that were there then are what they were."""
        versions = {label.oid: label.version for label in now.labels}
        return self.other == now.other and self.labels.items() <= versions.items()


@dataclass(frozen=True)
class KnownTypes:
    """What the texts of a table's values depended on when it was last looked at."""

    by_oid: Mapping[int, KnownType]

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> Self:
        """The inverse of `as_json`."""
        return cls({oid: KnownType(other, dict(labels)) for oid, other, labels in stored})

    def as_json(self) -> list[Any]:
        """What JSON can hold."""
        return [
            [oid, one.other, [list(label) for label in one.labels.items()]]
            for oid, one in self.by_oid.items()
        ]

    def altered(self, now: Dependencies) -> list[str]:
        """Return the names of the types whose texts are not what they were.

        A type that was not known counts only with the column that has it.
        """
        found = [
            type_.name
            for type_ in now.types
            if type_.oid in self.by_oid and not self.by_oid[type_.oid].holds(type_)
        ]
        settings = [type_ for type_ in now.types if type_.oid == _SETTINGS_OID]
        if bool(settings) is not (_SETTINGS_OID in self.by_oid):
            found.append("the settings of values")
        return found

    def lacks(self, now: TypeState) -> bool:
        """Return whether a type, or a label of it, was not known."""
        known = self.by_oid.get(now.oid)
        return known is None or any(label.oid not in known.labels for label in now.labels)


@dataclass(frozen=True)
class LabelCheck:
    """Finds texts in the log that may not be those of the table any more.

    Attributes:
        labels: the labels that an enum has now, by the number of the column that is one.
        unknown: the numbers of columns whose texts may have changed since, whatever they are.
    """

    labels: Mapping[int, frozenset[str]]
    unknown: frozenset[int]

    @classmethod
    def of(
        cls, known: KnownTypes, now: Dependencies, types: Mapping[int | None, int]
    ) -> LabelCheck:
        """Return the check of a table.

        Args:
            known: what was known of the types.
            now: what they are now.
            types: the columns' types by their numbers.
        """
        labels: dict[int, frozenset[str]] = {}
        unknown: set[int] = set()
        for type_, (_, columns) in zip(now.types, now.columns, strict=True):
            if not known.lacks(type_):
                continue
            for number in columns:
                if type_.labels and types.get(number) == type_.oid:
                    labels[number] = frozenset(label.text for label in type_.labels)
                else:
                    unknown.add(number)
        return cls(labels, frozenset(unknown))

    def doubts(self, number: int | None, texts: pa.Array | pa.ChunkedArray) -> bool:
        """Return whether a column of the log may have texts that the table has not any more."""
        if number in self.unknown:
            return bool(texts.null_count < len(texts))
        if number is None or number not in self.labels:
            return False
        found = pc.unique(texts.drop_null()).to_pylist()
        return not self.labels[number].issuperset(found)


def dependencies_of(
    connection: psycopg.Connection, tables: Sequence[int], options: ColumnOptions = PLAIN
) -> dict[int, Dependencies]:
    """Return what the texts of tables' values depend on, by the tables' oids.

    Args:
        connection: to their database.
        tables: the tables' oids.
        options: what the configuration says about columns.

    Raises:
        SourceError: the catalog cannot be read.
    """
    builtin = [*_NAMES, *_ROLES, *_SETTINGS]
    found: dict[int, dict[TypeState, set[int]]] = {oid: {} for oid in tables}
    has_names = options.json_arrays or options.json_composites
    values = (builtin, list(tables), list(options.generated), has_names)
    with understood(), reading_names(connection) as cursor:
        rows = cursor.execute(_USED.encode(), values).fetchall()
        for oid, type_name, name, places, attributes, labels in rows:
            other = attributes if attributes is not None else _other(connection, type_name)
            state = TypeState(oid, name, tuple(EnumLabel(*label) for label in labels), other)
            for relation, number in places:
                found[relation].setdefault(state, set()).add(number)
    if options.words:
        for states in found.values():
            states[TypeState(_SETTINGS_OID, "the settings of values", (), options.words)] = set()
    return {
        oid: Dependencies(
            tuple(states), tuple((one.oid, frozenset(columns)) for one, columns in states.items())
        )
        for oid, states in found.items()
    }


def _other(connection: psycopg.Connection, name: str) -> str:
    """What the texts of a type of the system depend on."""
    if name in _SETTINGS:
        row = connection.execute("SELECT current_setting(%s)", (_SETTINGS[name],)).fetchone()
    elif name in _NAMES or name in _ROLES:
        spelled = _ROLES.get(name, name)
        # Sessions come and go with objects of their own, which are in no row of a table.
        query = (
            "SELECT md5(string_agg(concat_ws(' ', oid::bigint, spelled), ',' ORDER BY oid)) FROM "
            f"(SELECT o.oid, o.oid::pg_catalog.{spelled}::text AS spelled "
            f"FROM pg_catalog.{_NAMES[spelled]} o) every "
            r"WHERE spelled !~ '^pg_(temp|toast)'"
        )
        row = connection.execute(query.encode()).fetchone()
    else:
        return ""
    return str(row[0]) if row else ""
