"""Objects within records as columns: those fields of them that the schema declares.

A field `city` of the object `address` is the column `address_city`, at any depth. What the schema
does not declare of an object stays together, as a JSON text in the object's own column; so does
what is no object where one is declared. Arrays are JSON texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.landing.shape import declared_columns, types_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from chronolake.types import ColumnType

#: Where a value stands in a record.
_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class _Object:
    """An object whose declared fields are columns.

    Attributes:
        column: its own column.
        fields: the columns of its fields, by their names; of an object in it, that object.
    """

    column: str
    fields: Mapping[str, str | _Object]


class Nesting:
    """The columns that a schema declares, where fields of objects are columns.

    Attributes:
        declared: their types, by name.
        places: the own columns of objects whose fields are columns.
    """

    def __init__(self, stream: str, schema: Mapping[str, Any], key: Collection[str]) -> None:
        """Give every declared field a column.

        Args:
            stream: the stream's name.
            schema: the schema of its records.
            key: the columns that tell them apart, which stay what they are.

        Raises:
            ConfigurationError: two fields would have one column.
        """
        self.declared: dict[str, ColumnType] = {}
        self.places: set[str] = set()
        self._stream = stream
        self._key = frozenset(key)
        self._paths: dict[str, _Path] = {name: (name,) for name in key}
        self._objects = {
            name: one
            for name, one in self._fields_of((), schema).items()
            if isinstance(one, _Object)
        }
        self._inner = {name: path for name, path in self._paths.items() if len(path) > 1}

    def _fields_of(self, path: _Path, told: Mapping[str, Any]) -> dict[str, str | _Object]:
        properties = told.get("properties")
        found: dict[str, str | _Object] = {}
        for name, one in properties.items() if isinstance(properties, dict) else ():
            place = (*path, str(name))
            column = "_".join(place)
            if self._paths.setdefault(column, place) != place:
                raise self._both(place, column)
            if _is_spread(one) and column not in self._key:
                self.places.add(column)
                found[str(name)] = _Object(column, self._fields_of(place, one))
            else:
                self.declared |= declared_columns({"properties": {column: one}})
                found[str(name)] = column
        return found

    def spread(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The records by their columns.

        Raises:
            ConfigurationError: a field that no schema declares has the name of such a column.
        """
        return [self._spread(record) for record in records] if self._objects else records

    def _spread(self, record: Mapping[str, Any]) -> dict[str, Any]:
        if clash := record.keys() & self._inner.keys():
            raise self._both((min(clash),), min(clash))
        found: dict[str, Any] = {}
        for name, value in record.items():
            if name in self._objects:
                _put(found, self._objects[name], value)
            else:
                found[name] = value
        return found

    def _both(self, path: _Path, column: str) -> ConfigurationError:
        one, other = ".".join(self._paths[column]), ".".join(path)
        return ConfigurationError(
            f"The fields {one} and {other} of the stream {self._stream} would both be the column "
            f"{column}.",
            column=column,
            hint=f"Set streams.{self._stream}.nested to json, or rename one of them in the "
            "manifest (`transformations`).",
        )


def _is_spread(told: Any) -> bool:
    """Whether a schema declares an object, perhaps a null or an array instead, and its fields."""
    if not isinstance(told, dict) or not isinstance(told.get("properties"), dict):
        return False
    types = set(types_in(told))
    return bool(told["properties"]) and "object" in types <= {"object", "array", "null"}


def _put(found: dict[str, Any], one: _Object, value: Any) -> None:
    """The columns of an object."""
    if not isinstance(value, dict):
        found[one.column] = value
        return
    rest = {}
    for name, inside in value.items():
        place = one.fields.get(name)
        if place is None:
            rest[name] = inside
        elif isinstance(place, _Object):
            _put(found, place, inside)
        else:
            found[place] = inside
    found[one.column] = rest or None
