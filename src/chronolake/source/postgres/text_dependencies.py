"""Dependencies of values' texts on the catalog and on settings.

A row stores the number of an enum's label, and a composite value with its attributes at the time of
writing. `ALTER TYPE … RENAME VALUE` and `ADD ATTRIBUTE` change the text of every row without
changing a row, and the log does not contain that. The state of these types is therefore stored with
a stream's offset, and the table is read again when the state has changed.

An added label changes no text, and does not cause a read. But it may have been renamed after rows
were written with it: then the log contains a text that is no longer a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow.compute as pc

from chronolake.source.postgres.connection import translate_errors
from chronolake.source.postgres.encoding import name_cursor
from chronolake.source.postgres.value_forms import PLAIN, ColumnOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg
    import pyarrow as pa

#: Types that columns of some tables use, directly or within other types: elements of arrays, base
#: types of domains, attributes of composites, bounds of ranges.
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
#: Types whose texts are names of objects, and the catalogs of these objects.
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
#: Types whose texts contain names of roles, and the type that converts a role's oid to its name.
_ROLES: Final = {"aclitem": "regrole"}
#: Types whose texts depend on a setting of the database.
_SETTINGS: Final = {"money": "lc_monetary"}
#: Replaces a type's oid: the configured representation of values.
_SETTINGS_OID: Final = 0
_SETTINGS_NAME: Final = "the configured representation of values"


@dataclass(frozen=True)
class EnumLabel:
    """A label of an enum.

    Attributes:
        oid: the number that rows store instead of the label.
        version: changes with each statement that alters the label.
        text: the label.
    """

    oid: int
    version: int
    text: str


@dataclass(frozen=True)
class TypeState:
    """The state of a type that the texts of its values depend on.

    Attributes:
        oid: the type.
        name: its name as SQL.
        labels: the labels of an enum.
        other: the comparable state of other types.
    """

    oid: int
    name: str
    labels: tuple[EnumLabel, ...] = ()
    other: str = ""


@dataclass(frozen=True)
class Dependencies:
    """The types that the texts of a table's values depend on.

    Attributes:
        types: the types, without those whose texts never change.
        columns: for each type, the numbers of the columns that have it, directly or within another
            type.
    """

    types: tuple[TypeState, ...] = ()
    columns: tuple[tuple[int, frozenset[int]], ...] = ()

    def with_rules(self, digest: str) -> Dependencies:
        """Return the same for a table whose columns have rules: texts also depend on them.

        Args:
            digest: changes with the rules; empty without rules.
        """
        if not digest:
            return self
        settings = [type_.other for type_ in self.types if type_.oid == _SETTINGS_OID]
        state = TypeState(_SETTINGS_OID, _SETTINGS_NAME, (), " ".join([*settings, digest]))
        both = [
            pair
            for pair in zip(self.types, self.columns, strict=True)
            if pair[0].oid != _SETTINGS_OID
        ]
        both.append((state, (_SETTINGS_OID, frozenset())))
        return Dependencies(*map(tuple, zip(*both, strict=True)))

    @property
    def known_types(self) -> KnownTypes:
        """Return the state that is stored with an offset."""
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
    """The state of a type that is stored with an offset.

    Attributes:
        other: see `TypeState`.
        labels: the versions of labels, by oid.
    """

    other: str
    labels: Mapping[int, int]

    def keeps_texts(self, now: TypeState) -> bool:
        """Return whether the texts of values that existed then are unchanged."""
        versions = {label.oid: label.version for label in now.labels}
        return self.other == now.other and self.labels.items() <= versions.items()


@dataclass(frozen=True)
class KnownTypes:
    """The stored state of the types that the texts of a table's values depended on."""

    by_oid: Mapping[int, KnownType]

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> Self:
        """Return the state that `as_json` stored."""
        return cls({oid: KnownType(other, dict(labels)) for oid, other, labels in stored})

    def as_json(self) -> list[Any]:
        """Return the state in a form that JSON can represent."""
        return [
            [oid, known.other, [list(label) for label in known.labels.items()]]
            for oid, known in self.by_oid.items()
        ]

    def altered_types(self, now: Dependencies) -> list[str]:
        """Return the names of the types whose texts have changed.

        A new type only matters together with the column that has it.
        """
        names = [
            type_.name
            for type_ in now.types
            if type_.oid in self.by_oid and not self.by_oid[type_.oid].keeps_texts(type_)
        ]
        settings = [type_ for type_ in now.types if type_.oid == _SETTINGS_OID]
        if bool(settings) is not (_SETTINGS_OID in self.by_oid):
            names.append(_SETTINGS_NAME)
        return names

    def lacks_labels(self, now: TypeState) -> bool:
        """Return whether a type, or one of its labels, is not in the stored state."""
        known = self.by_oid.get(now.oid)
        return known is None or any(label.oid not in known.labels for label in now.labels)


@dataclass(frozen=True)
class LabelCheck:
    """A check for texts in the log that may no longer be those of the table.

    Attributes:
        labels: the present labels of enum columns, by column number.
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
            known: the stored state of the types.
            now: their present state.
            types: the columns' types by column number.
        """
        labels: dict[int, frozenset[str]] = {}
        unknown: set[int] = set()
        for type_, (_, columns) in zip(now.types, now.columns, strict=True):
            if not known.lacks_labels(type_):
                continue
            for number in columns:
                if type_.labels and types.get(number) == type_.oid:
                    labels[number] = frozenset(label.text for label in type_.labels)
                else:
                    unknown.add(number)
        return cls(labels, frozenset(unknown))

    def has_doubtful_texts(self, number: int | None, texts: pa.Array | pa.ChunkedArray) -> bool:
        """Return whether a column in the log may have texts that the table no longer has."""
        if number in self.unknown:
            return bool(texts.null_count < len(texts))
        if number is None or number not in self.labels:
            return False
        texts_seen = pc.unique(texts.drop_null()).to_pylist()
        return not self.labels[number].issuperset(texts_seen)


def dependencies_of(
    connection: psycopg.Connection, tables: Sequence[int], options: ColumnOptions = PLAIN
) -> dict[int, Dependencies]:
    """Return the dependencies of tables' texts, by table oid.

    Args:
        connection: a connection to their database.
        tables: the tables' oids.
        options: the configured column options.

    Raises:
        SourceError: the catalog cannot be read.
    """
    builtin = [*_NAMES, *_ROLES, *_SETTINGS]
    states_of_tables: dict[int, dict[TypeState, set[int]]] = {oid: {} for oid in tables}
    has_names = options.json_arrays or options.json_composites
    values = (builtin, list(tables), list(options.generated), has_names)
    with translate_errors(), name_cursor(connection) as cursor:
        rows = cursor.execute(_USED.encode(), values).fetchall()
        for oid, type_name, name, places, attributes, labels in rows:
            state = attributes if attributes is not None else _state_of(cursor, type_name)
            type_state = TypeState(oid, name, tuple(EnumLabel(*label) for label in labels), state)
            for relation, number in places:
                states_of_tables[relation].setdefault(type_state, set()).add(number)
    if options.description:
        for states in states_of_tables.values():
            states[
                TypeState(
                    _SETTINGS_OID,
                    _SETTINGS_NAME,
                    (),
                    options.description,
                )
            ] = set()
    return {
        oid: Dependencies(
            tuple(states),
            tuple((type_state.oid, frozenset(columns)) for type_state, columns in states.items()),
        )
        for oid, states in states_of_tables.items()
    }


def _state_of(cursor: psycopg.Cursor, name: str) -> str:
    """Return the state that the texts of a built-in type depend on."""
    if name in _SETTINGS:
        row = cursor.execute("SELECT current_setting(%s)", (_SETTINGS[name],)).fetchone()
    elif name in _NAMES or name in _ROLES:
        reg_type = _ROLES.get(name, name)
        # Sessions create and drop temporary objects, which no row of a table refers to.
        query = (
            "SELECT md5(string_agg(concat_ws(' ', oid::bigint, spelled), ',' ORDER BY oid)) FROM "
            f"(SELECT o.oid, o.oid::pg_catalog.{reg_type}::text AS spelled "
            f"FROM pg_catalog.{_NAMES[reg_type]} o) every "
            r"WHERE spelled !~ '^pg_(temp|toast)'"
        )
        row = cursor.execute(query.encode()).fetchone()
    else:
        return ""
    return str(row[0]) if row else ""
