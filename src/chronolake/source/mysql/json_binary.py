"""Decoder of MySQL's binary JSON: values as the server prints them.

Source: MySQL's source documentation, "JSON binary format" (`json_binary.h`). MariaDB stores JSON as
text.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from chronolake.source.mysql import texts
from chronolake.source.mysql.fields import FieldReader, log_error
from chronolake.source.mysql.table_map import LogType

if TYPE_CHECKING:
    from collections.abc import Iterator

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = 0, 1, 2, 3
_LITERAL, _INT16, _UINT16, _INT32, _UINT32 = 4, 5, 6, 7, 8
_INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 9, 10, 11, 12, 15
_LITERALS: Final = {0: "null", 1: "true", 2: "false"}
_NUMBERS: Final = {
    _INT16: struct.Struct("<h"),
    _UINT16: struct.Struct("<H"),
    _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"),
    _UINT64: struct.Struct("<Q"),
}
_FLOAT: Final = struct.Struct("<d")
#: Types whose values are stored beside their kind instead of an offset.
_INLINE_SMALL: Final = frozenset({_LITERAL, _INT16, _UINT16})
_INLINE_LARGE: Final = _INLINE_SMALL | {_INT32, _UINT32}
_OBJECTS: Final = frozenset({_SMALL_OBJECT, _LARGE_OBJECT})
_LARGE: Final = frozenset({_LARGE_OBJECT, _LARGE_ARRAY})
#: Powers of ten that are printed without an exponent; so is any number with a fraction.
_PLAIN: Final = range(-15, 15)
_TIMES: Final = {LogType.DATE, LogType.DATETIME, LogType.TIMESTAMP, LogType.TIME}


#: A value: an object, an array, or the text of anything else.
Node: TypeAlias = "dict[bytes, Node] | list[Node] | str"


def json_text(value: bytes, diffs: bytes | None = None) -> str:
    """Return a JSON value as the server prints it.

    Args:
        value: its bytes; empty for the value of a row that lacked it before it was declared NOT
            NULL.
        diffs: changes of the value in an update with `binlog_row_value_options=PARTIAL_JSON`; the
            text is that of the changed value.

    Raises:
        SourceError: the bytes are not valid.
    """
    try:
        node = _node(value)
        if diffs is not None:
            for step in _steps(diffs):
                node = step.apply_to(node)
        return _text(node)
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as failure:
        raise log_error("a JSON value is damaged") from failure


def _node(value: bytes) -> Node:
    return _Value(value, 1).node(value[0]) if value else "null"


def _text(node: Node) -> str:
    if isinstance(node, dict):
        # Shorter keys precede longer ones.
        keys = sorted(node, key=lambda key: (len(key), key))
        return f"{{{', '.join(f'{_quoted(key)}: {_text(node[key])}' for key in keys)}}}"
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    return node


class _Operation(IntEnum):
    """What a change does with the value at its path."""

    REPLACE = 0
    INSERT = 1
    REMOVE = 2


@dataclass(frozen=True)
class _Step:
    """A change of a value.

    Attributes:
        path: the keys and indexes that lead to the place.
        value: the new value; None for a removal.
    """

    operation: _Operation
    path: tuple[bytes | int, ...]
    value: Node | None

    def apply_to(self, root: Node) -> Node:
        """Return a value with this change.

        Raises:
            ValueError: the value lacks the path.
        """
        if not self.path:
            return root if self.value is None else self.value
        *legs, last = self.path
        parent: Any = root
        for leg in legs:
            parent = parent[leg]
        if isinstance(parent, list) != isinstance(last, int):
            raise ValueError(self.path)
        if self.operation is not _Operation.INSERT:
            del parent[last]
        if self.value is not None:
            if isinstance(parent, list):
                parent.insert(int(last), self.value)
            else:
                parent[last] = self.value
        return root


def _steps(diffs: bytes) -> Iterator[_Step]:
    reader = FieldReader(diffs)
    while not reader.is_at_end:
        operation = _Operation(reader.byte())
        path = tuple(_legs(reader.text().decode()))
        value = None if operation is _Operation.REMOVE else _node(reader.text())
        yield _Step(operation, path, value)


_LEG: Final = re.compile(
    r'\.(?P<name>"(?:[^"\\]|\\.)*"|[^."\[\]]+)|\[(?P<index>[0-9]+)\]|(?P<root>^\$)', re.DOTALL
)


def _legs(path: str) -> Iterator[bytes | int]:
    place = 0
    while place < len(path):
        found = _LEG.match(path, place)
        if found is None:
            raise ValueError(path)
        place = found.end()
        if found["index"] is not None:
            yield int(found["index"])
        elif (name := found["name"]) is not None:
            yield (json.loads(name) if name.startswith('"') else name).encode()


@dataclass(frozen=True)
class _Value:
    """A value in the bytes of a document.

    Attributes:
        data: the document.
        place: where the value begins.
    """

    data: bytes
    place: int

    def node(self, kind: int) -> Node:
        if kind <= _LARGE_ARRAY:
            return self._container(kind)
        if kind == _LITERAL:
            found = _LITERALS[self.data[self.place]]
        elif kind in _NUMBERS:
            found = str(_NUMBERS[kind].unpack_from(self.data, self.place)[0])
        elif kind == _DOUBLE:
            found = _double(_FLOAT.unpack_from(self.data, self.place)[0])
        elif kind == _STRING:
            found = _quoted(self._counted(self.place))
        elif kind == _OPAQUE:
            found = _opaque(self.data[self.place], self._counted(self.place + 1))
        else:
            raise ValueError(kind)
        return found

    def _counted(self, place: int) -> bytes:
        """Return bytes after their length, of which each byte has seven bits."""
        size = shift = 0
        while True:
            byte = self.data[place]
            place += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return self.data[place : place + size]

    def _number(self, place: int, width: int) -> int:
        return int.from_bytes(self.data[place : place + width], "little")

    def _container(self, kind: int) -> Node:
        width = 4 if kind in _LARGE else 2
        inline = _INLINE_LARGE if kind in _LARGE else _INLINE_SMALL
        count = self._number(self.place, width)
        entries = self.place + 2 * width
        keys = []
        if kind in _OBJECTS:
            for number in range(count):
                entry = entries + number * (width + 2)
                begin = self.place + self._number(entry, width)
                size = self._number(entry + width, 2)
                keys.append(self.data[begin : begin + size])
            entries += count * (width + 2)
        values = []
        for number in range(count):
            entry = entries + number * (width + 1)
            item = self.data[entry]
            place = entry + 1
            if item not in inline:
                place = self.place + self._number(place, width)
            values.append(_Value(self.data, place).node(item))
        return dict(zip(keys, values, strict=True)) if kind in _OBJECTS else values


def _quoted(text: bytes) -> str:
    return json.dumps(text.decode(), ensure_ascii=False)


def _double(number: float) -> str:
    """Return a double with the fewest digits that identify it, as the server prints it."""
    mantissa, _, exponent = np.format_float_scientific(number, trim="-").partition("e")
    power = int(exponent)
    digits = len(mantissa.replace("-", "").replace(".", ""))
    if power in _PLAIN or (power > 0 and digits > power + 1):
        return np.format_float_positional(number, trim="0")
    return f"{mantissa}e{power}"


def _opaque(kind: int, data: bytes) -> str:
    """Return a value of another type: a decimal as a number, a time as a text, others in Base64."""
    if kind == LogType.NEWDECIMAL:
        buffer = np.frombuffer(data, np.uint8)
        found: str = texts.decimals(buffer, np.array([2]), data[0], data[1])[0].as_py()
        return found
    if kind in _TIMES:
        (packed,) = struct.unpack("<q", data)
        return f'"{_time(kind, packed)}"'
    encoded = base64.b64encode(data).decode()
    return f'"base64:type{kind}:{encoded}"'


def _time(kind: int, packed: int) -> str:
    sign, packed = ("-" if packed < 0 else ""), abs(packed)
    fraction, whole = packed & 0xFFFFFF, packed >> 24
    if kind == LogType.TIME:
        clock = f"{whole >> 12 & 0x3FF:02}:{whole >> 6 & 63:02}:{whole & 63:02}"
        return f"{sign}{clock}.{fraction:06}"
    year_month, day, seconds = whole >> 22, whole >> 17 & 31, whole & 0x1FFFF
    date = f"{year_month // 13:04}-{year_month % 13:02}-{day:02}"
    if kind == LogType.DATE:
        return date
    return f"{date} {seconds >> 12:02}:{seconds >> 6 & 63:02}:{seconds & 63:02}.{fraction:06}"
