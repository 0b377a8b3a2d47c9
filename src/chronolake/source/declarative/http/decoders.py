"""Decoders: the values in the body of a response."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zipfile
import zlib
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any, assert_never
from xml.parsers.expat import ExpatError, ParserCreate

import xmltodict

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import is_empty
from chronolake.source.declarative.http.requests_conversion import to_requests_response
from chronolake.source.declarative.http.response import parse_json, size_of, too_large_error
from chronolake.source.declarative.models.base import CustomDecoder
from chronolake.source.declarative.models.records import (
    ContentDecoder,
    CsvDecoder,
    Decoder,
    GzipDecoder,
    IterableDecoder,
    JsonDecoder,
    JsonItemsDecoder,
    JsonlDecoder,
    XmlDecoder,
    ZipfileDecoder,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import SupportsRead, WriteableBuffer

    from chronolake.source.declarative.http.response import Response

#: The most bytes that a compressed body may have after decompression.
MOST_DECOMPRESSED = 1 << 29
#: The same for a body in a file whose rows or lines are read one at a time.
MOST_OF_LINES = 1 << 38
_LONGEST_LINE = 1 << 26

#: Estimated bytes: a line with its object, a row and its columns, an element and its attributes.
_LINE, _ROW, _COLUMN, _CELL, _ELEMENT, _ATTRIBUTE = 320, 200, 100, 66, 190, 130
_DEEPEST_XML = 200
_XML_PIECE = 1 << 18
_LONGEST_TAG = 1 << 20
_MOST_MEMBERS = 10_000
_MEMBER = b"PK\x01\x02"
_GZIP = b"\x1f\x8b"
#: The beginning of an HTML page or a JSON document, which no table's header has.
_NO_HEADER = (b"<", b"{", b"[")
_PEEKED = 256
_ENTITIES = re.compile(rb"<!DOCTYPE[^>\[]*\[[^\]]*<!ENTITY")
_UNREADABLE = (
    ValueError,
    RecursionError,
    EOFError,
    OSError,
    csv.Error,
    zlib.error,
    zipfile.BadZipFile,
    RuntimeError,
)


def decode(  # noqa: PLR0911 - one per decoder
    decoder: Decoder, answer: Response, memory: Memory | None = None
) -> Iterable[Any]:
    """Return the values in a response: one, or the items of a root array, lines or rows.

    An empty JSON or XML document is an empty object, which has no records.

    Args:
        decoder: the manifest's component.
        answer: the response.
        memory: the memory limit; by default, the response's limit for all values together.

    Raises:
        SourceError: the response does not have the decoder's format (raised during iteration), a
            document declares entities, or a body is too large after decompression.
        ConfigurationError: the encoding or the delimiter is invalid.
    """
    memory = memory or Memory(answer.memory_limit)
    match decoder:
        case JsonDecoder():
            return _parse_document(answer.read_body(), memory)
        case XmlDecoder():
            return [_parse_xml(answer, memory)]
        case IterableDecoder():
            return _convert_errors(_split_lines(answer.read_body(), memory), decoder.type)
        case ZipfileDecoder():
            return _convert_errors(_decode_archive(decoder.decoder, answer, memory), decoder.type)
        case JsonItemsDecoder():
            return _convert_errors(
                _find_nested_items(decoder, answer.read_body(), memory), decoder.type
            )
        case CustomDecoder():
            return _decode_by_class(decoder, answer)
        case _:
            return _convert_errors(_decode_stream(decoder, answer, memory), decoder.type)


class Memory:
    """The memory that a response's values occupy, counted before they are created.

    Args:
        limit: memory limit in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Count additional bytes.

        Raises:
            SourceError: the limit is exceeded.
        """
        self.used += size
        if self.used > self.limit:
            raise too_large_error(self.limit)

    def parse(self, text: bytes) -> Any:
        """Return the value of a JSON text; raise the same errors as `response.parse_json`."""
        left = self.limit - self.used
        self.take(size_of(text, left))
        return parse_json(text)


def _decode_by_class(decoder: CustomDecoder, answer: Response) -> Iterable[Any]:
    """Return the values that a custom decoder class returns."""
    bodies: list[Any] = decoder.calls.call_for_list("decode", to_requests_response(answer))
    return bodies


@dataclass
class _Budget:
    """The number of bytes that may be read from a body.

    Attributes:
        most: limit for the whole body.
        line: limit for one line, or None.
        used: bytes read so far.
    """

    most: int
    line: int | None = None
    used: int = 0


class _Bounded(io.RawIOBase):
    """A stream that raises once its budget is exceeded."""

    def __init__(self, source: SupportsRead[bytes], budget: _Budget) -> None:
        super().__init__()
        self._source = source
        self._budget = budget
        self._line = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self._source.read(len(view))
        view[: len(data)] = data
        budget = self._budget
        budget.used += len(data)
        ends = data.rfind(b"\n") + 1
        self._line = len(data) - ends if ends else self._line + len(data)
        if budget.used > budget.most:
            raise SourceError(
                f"A response has more than {budget.most} bytes after decompression.",
                hint="Change the manifest to request smaller parts.",
            )
        if budget.line is not None and self._line > budget.line:
            raise SourceError(
                f"A line of a response has more than {budget.line} bytes.",
                hint="Choose the decoder that matches the API's response.",
            )
        return len(data)


def _convert_errors(bodies: Iterator[Any], kind: str) -> Iterator[Any]:
    try:
        yield from bodies
    except _UNREADABLE as error:
        raise SourceError(
            f"A response does not have the format that its {kind} reads: {type(error).__name__}.",
            hint="Look at the API's response, and choose the decoder that matches it.",
        ) from error


def _parse_document(body: bytes, memory: Memory) -> list[Any]:
    if not body.strip():
        return [{}]
    try:
        document = memory.parse(body)
    except (ValueError, RecursionError) as error:
        raise _wrong_format_error("JSON", error) from error
    return [{}] if document is None else _items_of(document) or [{}]


def _wrong_format_error(expected: str, error: BaseException | None = None) -> SourceError:
    """Return the error for a body in another format, such as a maintenance page."""
    why = "" if error is None else f": {type(error).__name__}"
    return SourceError(
        f"A response is not valid {expected}{why}.",
        hint="Read again later. If the error persists, choose the decoder that "
        "matches the API's response.",
    )


def _items_of(document: Any) -> list[Any]:
    return document if isinstance(document, list) else [document]


def _parse_xml(answer: Response, memory: Memory) -> Any:
    header = Message()
    header["Content-Type"] = answer.headers.get("content-type", "")
    charset = header.get_content_charset()
    body = answer.read_body()
    if _ENTITIES.search(body):
        # Some versions of xmltodict do not reject entities; some ignore them in text.
        raise _entities_error()
    if not body.strip():
        return {}
    text = body if charset is None else body.decode(_codec_name(charset), "replace")
    try:
        _measure_xml(text, memory)
        return xmltodict.parse(text)
    except ExpatError as error:
        raise _wrong_format_error("XML", error) from error
    except ValueError as error:
        raise _entities_error() from error


def _measure_xml(text: bytes | str, memory: Memory) -> None:
    """Count the memory that a document will need, before it is parsed.

    Raises:
        SourceError: the document is too large, too deeply nested, or declares entities.
        ExpatError: the document is not well-formed.
    """
    depth = 0

    def begin(_: str, attributes: list[str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST_XML:
            raise SourceError(
                f"An XML response has elements nested more than {_DEEPEST_XML} levels deep.",
                hint="Look at the API's response, and choose the decoder that matches it.",
            )
        memory.take(_ELEMENT + _ATTRIBUTE * (len(attributes) // 2))

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    def refuse(*_: object) -> None:
        raise _entities_error()

    parser = ParserCreate("utf-8" if isinstance(text, str) else None)
    parser.ordered_attributes = True
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.EntityDeclHandler = refuse
    data = text.encode() if isinstance(text, str) else text
    for start in range(0, len(data), _XML_PIECE):
        end_of_piece = start + _XML_PIECE
        parser.Parse(data[start:end_of_piece], end_of_piece >= len(data))
        # The parser keeps an unfinished tag in memory, and then all of its attributes.
        if end_of_piece < len(data) and end_of_piece - parser.CurrentByteIndex > _LONGEST_TAG:
            raise SourceError(
                f"An XML response has a tag of more than {_LONGEST_TAG} bytes.",
                hint="Look at the API's response, and choose the decoder that matches it.",
            )


def _entities_error() -> SourceError:
    return SourceError(
        "An XML response declares entities, which could expand without bounds.",
        hint="Request another format from the API.",
    )


def _codec_name(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError as error:
        raise ConfigurationError(
            f"The encoding {name!r} does not exist.",
            hint="Use an encoding that Python supports, for example utf-8.",
        ) from error


def _split_lines(body: bytes, memory: Memory) -> Iterator[Any]:
    memory.take((body.count(b"\n") + body.count(b"\r")) * _LINE)
    for line in body.splitlines():
        yield {"record": line.decode()}


def _decode_archive(decoder: ContentDecoder, answer: Response, memory: Memory) -> Iterator[Any]:
    budget = _budget_of(decoder, answer)
    if _count_members(answer) > _MOST_MEMBERS:
        raise SourceError(
            f"An archive has more than {_MOST_MEMBERS} files.",
            hint="Change the manifest to request smaller parts.",
        )
    with zipfile.ZipFile(answer.open()) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with archive.open(member) as content:
                    stream: io.BufferedReader[Any] = io.BufferedReader(_Bounded(content, budget))
                    yield from _decode_content(decoder, stream, budget, memory)


def _count_members(answer: Response) -> int:
    """Return the largest number of files that an archive's directory may contain."""
    count, last = 0, b""
    with answer.open() as stream:
        while piece := stream.read(1 << 20):
            # An entry may begin in one chunk and end in the next.
            count += (last + piece).count(_MEMBER)
            last = piece[1 - len(_MEMBER) :]
    return count


def _decode_content(
    decoder: ContentDecoder, stream: io.BufferedReader[Any], budget: _Budget, memory: Memory
) -> Iterator[Any]:
    match decoder:
        case JsonDecoder():
            document = memory.parse(stream.read())
            if document is None:
                raise ValueError("null is not a document")
            yield from _items_of(document)
        case JsonItemsDecoder():
            yield from _find_nested_items(decoder, stream.read(), memory)
        case JsonlDecoder():
            yield from _parse_json_lines(stream, memory)
        case CsvDecoder():
            yield from _parse_csv_rows(decoder, stream, memory)
        case GzipDecoder():
            is_packed = stream.peek(len(_GZIP)).startswith(_GZIP)
            content = _Bounded(gzip.GzipFile(fileobj=stream) if is_packed else stream, budget)
            yield from _decode_content(decoder.decoder, io.BufferedReader(content), budget, memory)
        case _:
            assert_never(decoder)


def _decode_stream(decoder: ContentDecoder, answer: Response, memory: Memory) -> Iterator[Any]:
    budget = _budget_of(decoder, answer)
    stream = answer.open()
    if not isinstance(decoder, GzipDecoder):
        stream = io.BufferedReader(_Bounded(stream, budget))
    return _decode_content(decoder, stream, budget, memory)


def _budget_of(decoder: ContentDecoder, answer: Response) -> _Budget:
    within = decoder
    while isinstance(within, GzipDecoder):
        within = within.decoder
    if not isinstance(within, CsvDecoder | JsonlDecoder):
        # The whole body is in memory.
        return _Budget(min(MOST_DECOMPRESSED, answer.memory_limit))
    return _Budget(MOST_DECOMPRESSED if answer.file is None else MOST_OF_LINES, _LONGEST_LINE)


def _find_nested_items(decoder: JsonItemsDecoder, body: bytes, memory: Memory) -> Iterator[Any]:
    found = [memory.parse(body.decode(_codec_name(decoder.encoding or "utf-8")).encode())]
    for name in decoder.items_path.split("."):
        inner: list[Any] = []
        for value in found:
            if isinstance(value, list) and name == "item":
                inner.extend(value)
            elif isinstance(value, dict) and name in value:
                inner.append(value[name])
            elif not is_empty(value):
                raise _missing_items_error(decoder.items_path)
        found = inner
    for value in found:
        if isinstance(value, list):
            yield from value
        elif not is_empty(value):
            raise _missing_items_error(decoder.items_path)


def _missing_items_error(path: str) -> SourceError:
    return SourceError(
        f"A response has no list at {path}, which its JsonItemsDecoder reads.",
        hint="Read again later. If the error persists, correct the manifest's items_path.",
    )


def _parse_json_lines(stream: io.BufferedReader[Any], memory: Memory) -> Iterator[Any]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            try:
                yield memory.parse(line)
            except (ValueError, RecursionError) as error:
                # A truncated line is an error, because its record would be lost.
                raise _wrong_format_error(f"JSON in line {number}", error) from error


def _parse_csv_rows(
    decoder: CsvDecoder, stream: io.BufferedReader[Any], memory: Memory
) -> Iterator[Any]:
    delimiter = decoder.delimiter or ","
    if delimiter.startswith("\\"):
        delimiter = delimiter.encode().decode("unicode_escape")
    if len(delimiter) != 1:
        raise ConfigurationError(
            f"The delimiter {decoder.delimiter!r} of a CsvDecoder is not a single character.",
            hint="Use one character, or an escape sequence such as \\t.",
        )
    begin = stream.peek(_PEEKED)[:_PEEKED].removeprefix(codecs.BOM_UTF8).lstrip()
    if begin.startswith(_NO_HEADER):
        raise _wrong_format_error("CSV")
    text = io.TextIOWrapper(stream, encoding=_codec_name(decoder.encoding or "utf-8"))
    # Values beyond the header have no name; in the reference's JSON their name is null.
    rows = csv.DictReader(
        _measure_lines(text, delimiter, memory), delimiter=delimiter, restkey="null"
    )
    columns = len(rows.fieldnames or ())
    empty = decoder.set_values_to_none or ()
    while True:
        # A short line becomes a row with all columns.
        memory.take(_ROW + _COLUMN * columns)
        row = next(rows, None)
        if row is None:
            return
        yield (
            row
            if not empty
            else {name: None if value in empty else value for name, value in row.items()}
        )


def _measure_lines(lines: Iterable[str], delimiter: str, memory: Memory) -> Iterator[str]:
    """Yield the lines, and count the memory of each one's cells."""
    for line in lines:
        memory.take(_CELL * (line.count(delimiter) + 1) + 2 * len(line))
        yield line
