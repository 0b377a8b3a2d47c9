"""Avro files whose records are changed field by field; all other bytes stay the same.

Iceberg's manifests are such files. A library that decodes and encodes whole records would have to
know every field that an engine has written, and every logical type. Here, only lengths are read of
the fields that are not changed.

Source: the specification of Apache Avro 1.11, "Object Container Files" and "Binary Encoding".
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_CODEC: Final = "avro.codec"
_SCHEMA: Final = "avro.schema"
#: The window of raw deflate data, without zlib's own header.
_RAW_DEFLATE: Final = -15
#: The checksum after a block that is compressed with Snappy.
_CHECKSUM_BYTES: Final = 4
_SEVEN_BITS: Final = 0x7F
_MORE: Final = 0x80


@dataclass(frozen=True)
class AvroField:
    """A field of a record.

    Attributes:
        field_id: Iceberg's id of the field; None if it has none.
        null_branch: the index of null in an optional field's union; None if a value is required.
        record: the type of a field that is a record itself, or an optional one; None for others.
    """

    field_id: int | None
    null_branch: int | None
    record: RecordType | None
    skip: Callable[[bytes, int], int]

    def value(self, encoded: bytes) -> bytes | None:
        """Return a field's encoded value without the prefix of an optional field."""
        if self.null_branch is None:
            return encoded
        branch, start = read_long(encoded, 0)
        return None if branch == self.null_branch else encoded[start:]

    def encoded(self, value: bytes | None) -> bytes:
        """Return the opposite of `value`."""
        if self.null_branch is None:
            return value or b""
        if value is None:
            return write_long(self.null_branch)
        return write_long(1 - self.null_branch) + value


@dataclass(frozen=True)
class RecordType:
    """The type of a record: its fields in the order in which they are stored."""

    fields: tuple[AvroField, ...]

    def split(self, data: bytes, position: int) -> tuple[list[bytes], int]:
        """Return a record's encoded fields, and the position after it."""
        found = []
        for field in self.fields:
            end = field.skip(data, position)
            found.append(data[position:end])
            position = end
        return found, position


class Record:
    """A record whose fields are read and replaced by Iceberg's field ids."""

    def __init__(self, kind: RecordType, parts: list[bytes]) -> None:
        self._kind = kind
        self._parts = parts
        self._index = {field.field_id: place for place, field in enumerate(kind.fields)}

    def encoded(self) -> bytes:
        """Return the record's bytes."""
        return b"".join(self._parts)

    def _get(self, field_id: int) -> bytes | None:
        place = self._index.get(field_id)
        return None if place is None else self._kind.fields[place].value(self._parts[place])

    def _set(self, field_id: int, value: bytes | None) -> None:
        place = self._index[field_id]
        self._parts[place] = self._kind.fields[place].encoded(value)

    def text(self, field_id: int) -> str | None:
        """Return the text of a field; None if it is null or missing."""
        value = self._get(field_id)
        return None if value is None else read_bytes(value, 0)[0].decode()

    def set_text(self, field_id: int, text: str) -> None:
        """Replace the text of a field."""
        self._set(field_id, write_bytes(text.encode()))

    def number(self, field_id: int) -> int | None:
        """Return the integer of a field; None if it is null or missing."""
        value = self._get(field_id)
        return None if value is None else read_long(value, 0)[0]

    def set_number(self, field_id: int, number: int) -> None:
        """Replace the integer of a field."""
        self._set(field_id, write_long(number))

    def set_null(self, field_id: int) -> None:
        """Make an optional field null, if the record has it."""
        if field_id in self._index:
            self._set(field_id, None)

    def bytes_by_number(self, field_id: int) -> dict[int, bytes] | None:
        """Return a map of integers to bytes, which Iceberg stores as an array of pairs."""
        value = self._get(field_id)
        if value is None:
            return None
        pairs: dict[int, bytes] = {}
        count, position = read_long(value, 0)
        while count:
            if count < 0:
                count, (_, position) = -count, read_long(value, position)
            for _ in range(count):
                key, position = read_long(value, position)
                pairs[key], position = read_bytes(value, position)
            count, position = read_long(value, position)
        return pairs

    def set_bytes_by_number(self, field_id: int, pairs: Mapping[int, bytes]) -> None:
        """Replace a map of integers to bytes."""
        items = b"".join(write_long(key) + write_bytes(item) for key, item in pairs.items())
        first = write_long(len(pairs)) if pairs else b""
        self._set(field_id, first + items + write_long(0))

    def record(self, field_id: int) -> Record:
        """Return the record in a field; `set_record` stores its changes."""
        kind, value = self._kind.fields[self._index[field_id]].record, self._get(field_id)
        if kind is None or value is None:
            raise ValueError(f"the field {field_id} contains no record")
        return Record(kind, kind.split(value, 0)[0])

    def set_record(self, field_id: int, record: Record) -> None:
        """Replace the record in a field."""
        self._set(field_id, record.encoded())


def change_records(content: bytes, change: Callable[[Record], None]) -> bytes:
    """Return an Avro file with changed records; schema and metadata stay the same.

    Args:
        content: the file.
        change: called with each record, in their order.

    Raises:
        ValueError, LookupError, zlib.error: the file is damaged, or of an unsupported kind.
    """
    metadata, sync, position = _read_header(content)
    kind = _record_type(orjson.loads(metadata[_SCHEMA]))
    codec = metadata.get(_CODEC, b"null").decode()
    metadata[_CODEC] = b"deflate"
    out = [_MAGIC, _written_metadata(metadata), sync]
    for count, block in _blocks(content, position, sync, codec):
        changed = _deflate(_changed_block(block, count, kind, change))
        out += [write_long(count), write_bytes(changed), sync]
    return b"".join(out)


def schema_of(content: bytes) -> Any:
    """Return the schema of an Avro file.

    Raises:
        ValueError, LookupError: the file is damaged, or not an Avro file.
    """
    return orjson.loads(_read_header(content)[0][_SCHEMA])


def encoded_records(content: bytes) -> Iterator[list[bytes]]:
    """Yield the encoded values of the fields of each record in an Avro file.

    Raises:
        ValueError, LookupError, OSError, zlib.error: the file is damaged, or of an unsupported
            kind.
    """
    metadata, sync, position = _read_header(content)
    kind = _record_type(orjson.loads(metadata[_SCHEMA]), has_unions=True)
    codec = metadata.get(_CODEC, b"null").decode()
    for count, block in _blocks(content, position, sync, codec):
        place = 0
        for _ in range(count):
            parts, place = kind.split(block, place)
            yield parts


def _read_header(content: bytes) -> tuple[dict[str, bytes], bytes, int]:
    """Return the metadata and the sync marker of a file, and the position of its first block."""
    if not content.startswith(_MAGIC):
        raise ValueError("not an Avro file")
    metadata, position = _read_metadata(content, len(_MAGIC))
    end = position + _SYNC_BYTES
    return metadata, content[position:end], end


def _blocks(content: bytes, position: int, sync: bytes, codec: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number of records and the decompressed content of each block."""
    while position < len(content):
        count, position = read_long(content, position)
        block, position = read_bytes(content, position)
        if content[position : position + _SYNC_BYTES] != sync:
            raise ValueError("a block of the Avro file is damaged")
        position += _SYNC_BYTES
        yield count, _inflate(block, codec)


def _changed_block(
    block: bytes, count: int, kind: RecordType, change: Callable[[Record], None]
) -> bytes:
    out, position = [], 0
    for _ in range(count):
        parts, position = kind.split(block, position)
        record = Record(kind, parts)
        change(record)
        out.append(record.encoded())
    if position != len(block):
        raise ValueError("a block of the Avro file is damaged")
    return b"".join(out)


def _inflate(block: bytes, codec: str) -> bytes:
    if codec == "null":
        return block
    if codec == "deflate":
        return zlib.decompress(block, _RAW_DEFLATE)
    if codec == "zstandard":
        return bytes(pa.CompressedInputStream(pa.BufferReader(block), "zstd").read())
    if codec == "snappy":
        packed = block[:-_CHECKSUM_BYTES]
        return bytes(pa.decompress(packed, _read_size(packed), codec="snappy", asbytes=True))
    if codec == "bzip2":
        return bz2.decompress(block)
    if codec == "xz":
        return lzma.decompress(block)
    raise ValueError(f"the compression {codec} of Avro is not supported")


def _read_size(packed: bytes) -> int:
    """Return the size of data that is compressed with Snappy, which begins with it."""
    size = 0
    for place, byte in enumerate(packed):
        size |= (byte & _SEVEN_BITS) << (7 * place)
        if byte < _MORE:
            break
    return size


def _deflate(block: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_RAW_DEFLATE)
    return compressor.compress(block) + compressor.flush()


def _read_metadata(content: bytes, position: int) -> tuple[dict[str, bytes], int]:
    found: dict[str, bytes] = {}
    count, position = read_long(content, position)
    while count:
        if count < 0:
            count, (_, position) = -count, read_long(content, position)
        for _ in range(count):
            key, position = read_bytes(content, position)
            found[key.decode()], position = read_bytes(content, position)
        count, position = read_long(content, position)
    return found, position


def _written_metadata(metadata: Mapping[str, bytes]) -> bytes:
    pairs = (write_bytes(key.encode()) + write_bytes(item) for key, item in metadata.items())
    return write_long(len(metadata)) + b"".join(pairs) + write_long(0)


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """Return an integer and the position after it."""
    shift = number = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & _SEVEN_BITS) << shift
        if byte < _MORE:
            return (number >> 1) ^ -(number & 1), position
        shift += 7


def write_long(number: int) -> bytes:
    """Return an encoded integer."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > _SEVEN_BITS:
        out.append((rest & _SEVEN_BITS) | _MORE)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    """Return bytes or a text, and the position after them."""
    size, start = read_long(data, position)
    if size < 0 or start + size > len(data):
        raise ValueError("the Avro file is cut off")
    return data[start : start + size], start + size


def write_bytes(value: bytes) -> bytes:
    """Return encoded bytes or an encoded text."""
    return write_long(len(value)) + value


def _record_type(schema: Any, *, has_unions: bool = False) -> RecordType:
    kind = _Types(has_unions=has_unions).record(schema)
    if kind is None:
        raise ValueError("the Avro file does not contain records")
    return kind


class _Types:
    """The types of a schema; named types may be used again by their name.

    Args:
        has_unions: whether fields may be unions of several types.
    """

    def __init__(self, *, has_unions: bool) -> None:
        self._has_unions = has_unions
        self._named: dict[str, Any] = {}

    def record(self, schema: Any) -> RecordType | None:
        """Return the type of a record or of an optional one; None for other types."""
        found = next((item for item in _branches(schema) if item != "null"), None)
        found = self._named.get(found, found) if isinstance(found, str) else found
        if not isinstance(found, dict) or found.get("type") != "record":
            return None
        self._name(found)
        return RecordType(tuple(map(self._field, found["fields"])))

    def _field(self, field: Mapping[str, Any]) -> AvroField:
        kind = field["type"]
        is_optional = isinstance(kind, list) and "null" in kind
        if is_optional and len(kind) != 2:  # noqa: PLR2004 - null and a type
            if not self._has_unions:
                raise ValueError("a union of several types is not supported")
            is_optional = False
        null_branch = kind.index("null") if is_optional else None
        return AvroField(field.get("field-id"), null_branch, self.record(kind), self._skip(kind))

    def _name(self, schema: Mapping[str, Any]) -> None:
        if "name" in schema:
            self._named[schema["name"]] = schema
            if "namespace" in schema:
                self._named[f"{schema['namespace']}.{schema['name']}"] = schema

    def _skip(self, schema: Any) -> Callable[[bytes, int], int]:
        if isinstance(schema, list):
            return _skip_union([self._skip(item) for item in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self._skip(kind)
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        return self._skip(self._named[kind]) if isinstance(schema, str) else self._nested(schema)

    def _nested(self, schema: Mapping[str, Any]) -> Callable[[bytes, int], int]:
        self._name(schema)
        kind = schema["type"]
        if kind == "fixed":
            return _skip_fixed(schema["size"])
        if kind == "record":
            return _skip_all([self._skip(field["type"]) for field in schema["fields"]])
        if kind == "array":
            return _skip_blocks(self._skip(schema["items"]))
        if kind == "map":
            return _skip_blocks(_skip_all([_skip_bytes, self._skip(schema["values"])]))
        raise ValueError(f"the Avro type {kind} is not supported")


def _branches(schema: Any) -> Sequence[Any]:
    return schema if isinstance(schema, list) else [schema]


def _skip_long(data: bytes, position: int) -> int:
    while data[position] >= _MORE:
        position += 1
    return position + 1


def _skip_bytes(data: bytes, position: int) -> int:
    size, position = read_long(data, position)
    return position + size


def _skip_fixed(size: int) -> Callable[[bytes, int], int]:
    return lambda _data, position: position + size


def _skip_union(branches: Sequence[Callable[[bytes, int], int]]) -> Callable[[bytes, int], int]:
    def skip(data: bytes, position: int) -> int:
        branch, position = read_long(data, position)
        return branches[branch](data, position)

    return skip


def _skip_all(parts: Sequence[Callable[[bytes, int], int]]) -> Callable[[bytes, int], int]:
    def skip(data: bytes, position: int) -> int:
        for part in parts:
            position = part(data, position)
        return position

    return skip


def _skip_blocks(item: Callable[[bytes, int], int]) -> Callable[[bytes, int], int]:
    def skip(data: bytes, position: int) -> int:
        count, position = read_long(data, position)
        while count:
            if count < 0:
                size, position = read_long(data, position)
                position += size
            else:
                for _ in range(count):
                    position = item(data, position)
            count, position = read_long(data, position)
        return position

    return skip


_SIMPLE: Final = {
    "null": _skip_fixed(0),
    "boolean": _skip_fixed(1),
    "float": _skip_fixed(4),
    "double": _skip_fixed(8),
    **dict.fromkeys(("int", "long", "enum"), _skip_long),
    **dict.fromkeys(("bytes", "string"), _skip_bytes),
}
