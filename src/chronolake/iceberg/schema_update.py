"""Changes of a table's schema, with a fixed number of calls to the JVM.

Iceberg's own `UpdateSchema` takes a call for each column. Here, the new schema is built from the
JSON of the old one, and is passed as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake.iceberg.catalog import type_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from chronolake.iceberg.catalog import Catalog, IcebergTable
    from chronolake.types import Column

#: Properties of one column: they end when the column does, as with Iceberg's `UpdateSchema`.
_OF_COLUMN: Final = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.stats-enabled.column.",
)


def metadata_with_columns(
    catalog: Catalog, metadata: Any, columns: Sequence[Column], replaced: Collection[str]
) -> Any:
    """Return a Java `TableMetadata` with other columns.

    Args:
        catalog: the table's catalog.
        metadata: the Java `TableMetadata` to begin with.
        columns: the wanted columns, in their order. Columns that the table has keep their field id.
        replaced: the names of columns that get a new field instead, without the old field's values.
    """
    stored = catalog.fields(metadata.schema())
    fields = evolve_fields(stored, columns, replaced, last_id=int(metadata.lastColumnId()))
    changed = metadata.updateSchema(catalog.schema_of(fields))
    dropped = {field["name"] for field in stored} - {column.name for column in columns}
    ended = properties_of_columns(catalog.keys(metadata.properties()), {*dropped, *replaced})
    if not ended:
        return changed
    return catalog.builder_from(changed).removeProperties(catalog.set(ended)).build()


def schema_of_replacement(table: IcebergTable, columns: Sequence[Column]) -> Any:
    """Return the Java `Schema` of a table that will replace another one.

    Columns keep their field id if their type stays the same. The others get ids that the table has
    never used.

    Args:
        table: the table that will be replaced.
        columns: the columns of the replacement, in their order.
    """
    catalog, metadata = table.catalog, table.metadata
    stored = catalog.fields(metadata.schema())
    wanted = {column.name: type_name(column.type) for column in columns}
    replaced = {
        field["name"]
        for field in stored
        if str(field["type"]).replace(" ", "") != wanted.get(field["name"])
    }
    last_id = int(metadata.lastColumnId())
    return catalog.schema_of(evolve_fields(stored, columns, replaced, last_id=last_id))


def evolve_fields(
    stored: Iterable[Mapping[str, Any]],
    columns: Iterable[Column],
    replaced: Collection[str],
    *,
    last_id: int,
) -> list[dict[str, Any]]:
    """Return the fields of a schema with other columns, as in its JSON.

    Args:
        stored: the fields of the current schema.
        columns: the wanted columns, in their order.
        replaced: the names of columns that get a new field.
        last_id: the greatest field id that the table has used.
    """
    kept = {field["name"]: field for field in stored if field["name"] not in replaced}
    fields = []
    for column in columns:
        wanted = type_name(column.type)
        field = kept.get(column.name)
        if field is None:
            last_id += 1
            field = {"id": last_id, "name": column.name, "required": False, "type": wanted}
        elif str(field["type"]).replace(" ", "") != wanted:
            field = {**field, "type": wanted}
        fields.append(dict(field))
    return fields


def properties_of_columns(keys: Iterable[str], names: Collection[str]) -> list[str]:
    """Return the keys of those table properties that are about one of some columns."""
    return [
        key
        for key in keys
        for prefix in _OF_COLUMN
        if key.startswith(prefix) and key.removeprefix(prefix) in names
    ]
