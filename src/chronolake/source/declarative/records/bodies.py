"""What is in the body of an answer, as its decoder has it."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any, assert_never
from xml.parsers.expat import ExpatError

import orjson
import xmltodict

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.components.responses import response_of
from chronolake.source.declarative.language.custom import CustomDecoder
from chronolake.source.declarative.language.records import (
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
from chronolake.source.declarative.records.fieldpaths import is_empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import SupportsRead, WriteableBuffer

    from chronolake.source.declarative.exchange.answers import Answer

#: So many bytes may come out of one compressed body.
MOST_DECOMPRESSED = 1 << 31
#: So many if it is in a file, and of rows or lines, each of which is in memory by itself.
MOST_OF_LINES = 1 << 38
_LONGEST_LINE = 1 << 29

_GZIP = b"\x1f\x8b"
#: How a page or a JSON document begins, and the header of a table does not.
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


def decoded(decoder: Decoder, answer: Answer) -> Iterable[Any]:  # noqa: PLR0911 - one for each
    """The bodies in an answer: one, or the items of a root array, or the lines or rows.

    An empty JSON or XML document is an empty object, which has no records.

    Raises:
        SourceError: the answer is not in the decoder's format (found while its bodies are read), a
            document declares entities, or too much comes out of a compressed body.
        ConfigurationError: there is no such encoding, or no such delimiter.
    """
    match decoder:
        case JsonDecoder():
            return _document(answer.whole())
        case XmlDecoder():
            return [_xml(answer)]
        case IterableDecoder():
            return _guarded(_texts(answer.whole()), decoder.type)
        case ZipfileDecoder():
            return _guarded(_archived(decoder.decoder, answer), decoder.type)
        case JsonItemsDecoder():
            return _guarded(_nested_items(decoder, answer.whole()), decoder.type)
        case CustomDecoder():
            return _own(decoder, answer)
        case _:
            return _guarded(_streamed(decoder, answer), decoder.type)


def _own(decoder: CustomDecoder, answer: Answer) -> Iterable[Any]:
    """What a class of the connector's own makes of an answer."""
    bodies: list[Any] = decoder.calls.listed("decode", response_of(answer))
    return bodies


@dataclass
class _Budget:
    """How many bytes may come out of a body.

    Attributes:
        most: how many in all.
        line: how many before a line ends, or None.
        taken: how many have come.
    """

    most: int
    line: int | None = None
    taken: int = 0


class _Bounded(io.RawIOBase):
    """What comes out of a stream, as long as its budget allows."""

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
        budget.taken += len(data)
        ends = data.rfind(b"\n") + 1
        self._line = len(data) - ends if ends else self._line + len(data)
        if budget.taken > budget.most:
            raise SourceError(
                f"More than {budget.most} bytes come out of an answer.",
                hint="Let the manifest ask for smaller parts.",
            )
        if budget.line is not None and self._line > budget.line:
            raise SourceError(
                f"A line of an answer has more than {budget.line} bytes.",
                hint="Choose the decoder for what the API answers.",
            )
        return len(data)


def _guarded(bodies: Iterator[Any], kind: str) -> Iterator[Any]:
    try:
        yield from bodies
    except _UNREADABLE as error:
        raise SourceError(
            f"An answer is not what its {kind} reads: {type(error).__name__}.",
            hint="Look at what the API answers, and choose the decoder for it.",
        ) from error


def _document(body: bytes) -> list[Any]:
    if not body.strip():
        return [{}]
    try:
        document = _parsed(body)
    except (ValueError, RecursionError) as error:
        raise _in_another_format("JSON", error) from error
    return [{}] if document is None else _items_of(document) or [{}]


def _in_another_format(wanted: str, error: BaseException | None = None) -> SourceError:
    """Return the error for a body that is, for example, a page about maintenance of the API."""
    why = "" if error is None else f": {type(error).__name__}"
    return SourceError(
        f"An answer is no {wanted}{why}.",
        hint="Read again later. If it stays so, choose the decoder for what the API answers.",
    )


def _items_of(document: Any) -> list[Any]:
    return document if isinstance(document, list) else [document]


def _parsed(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # It reads NaN, Infinity and half surrogate pairs, too.
        return json.loads(text)


def _xml(answer: Answer) -> Any:
    header = Message()
    header["Content-Type"] = answer.headers.get("content-type", "")
    charset = header.get_content_charset()
    body = answer.whole()
    if _ENTITIES.search(body):
        # Not every version of xmltodict refuses them; some read texts without them.
        raise _entities()
    if not body.strip():
        return {}
    text = body if charset is None else body.decode(_codec(charset), "replace")
    try:
        return xmltodict.parse(text)
    except ExpatError as error:
        raise _in_another_format("XML", error) from error
    except ValueError as error:
        raise _entities() from error


def _entities() -> SourceError:
    return SourceError(
        "An XML answer declares entities, which could grow without bounds.",
        hint="Ask the API for another format.",
    )


def _codec(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError as error:
        raise ConfigurationError(
            f"There is no encoding {name!r}.", hint="Name one that Python knows, such as utf-8."
        ) from error


def _texts(body: bytes) -> Iterator[Any]:
    for line in body.splitlines():
        yield {"record": line.decode()}


def _archived(decoder: ContentDecoder, answer: Answer) -> Iterator[Any]:
    budget = _budget_of(decoder, answer)
    with zipfile.ZipFile(answer.opened()) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with archive.open(member) as content:
                    stream: io.BufferedReader[Any] = io.BufferedReader(_Bounded(content, budget))
                    yield from _content(decoder, stream, budget)


def _content(
    decoder: ContentDecoder, stream: io.BufferedReader[Any], budget: _Budget
) -> Iterator[Any]:
    match decoder:
        case JsonDecoder():
            document = _parsed(stream.read())
            if document is None:
                raise ValueError("null is no document")
            yield from _items_of(document)
        case JsonItemsDecoder():
            yield from _nested_items(decoder, stream.read())
        case JsonlDecoder():
            yield from _lines(stream)
        case CsvDecoder():
            yield from _rows(decoder, stream)
        case GzipDecoder():
            is_packed = stream.peek(len(_GZIP)).startswith(_GZIP)
            content = _Bounded(gzip.GzipFile(fileobj=stream) if is_packed else stream, budget)
            yield from _content(decoder.decoder, io.BufferedReader(content), budget)
        case _:
            assert_never(decoder)


def _streamed(decoder: ContentDecoder, answer: Answer) -> Iterator[Any]:
    budget = _budget_of(decoder, answer)
    stream = answer.opened()
    if answer.file is not None and not isinstance(decoder, GzipDecoder):
        stream = io.BufferedReader(_Bounded(stream, budget))
    return _content(decoder, stream, budget)


def _budget_of(decoder: ContentDecoder, answer: Answer) -> _Budget:
    within = decoder
    while isinstance(within, GzipDecoder):
        within = within.decoder
    if answer.file is None or not isinstance(within, CsvDecoder | JsonlDecoder):
        return _Budget(MOST_DECOMPRESSED)
    return _Budget(MOST_OF_LINES, _LONGEST_LINE)


def _nested_items(decoder: JsonItemsDecoder, body: bytes) -> Iterator[Any]:
    found = [_parsed(body.decode(_codec(decoder.encoding or "utf-8")).encode())]
    for name in decoder.items_path.split("."):
        inner: list[Any] = []
        for value in found:
            if isinstance(value, list) and name == "item":
                inner.extend(value)
            elif isinstance(value, dict) and name in value:
                inner.append(value[name])
            elif not is_empty(value):
                raise _without_items(decoder.items_path)
        found = inner
    for value in found:
        if isinstance(value, list):
            yield from value
        elif not is_empty(value):
            raise _without_items(decoder.items_path)


def _without_items(path: str) -> SourceError:
    return SourceError(
        f"An answer has no list at {path}, which its JsonItemsDecoder reads.",
        hint="Read again later. If it stays so, correct the manifest's items_path.",
    )


def _lines(stream: io.BufferedReader[Any]) -> Iterator[Any]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            try:
                yield _parsed(line)
            except (ValueError, RecursionError) as error:
                # A line that breaks off is a record that would be lost.
                raise _in_another_format(f"JSON in line {number}", error) from error


def _rows(decoder: CsvDecoder, stream: io.BufferedReader[Any]) -> Iterator[Any]:
    delimiter = decoder.delimiter or ","
    if delimiter.startswith("\\"):
        delimiter = delimiter.encode().decode("unicode_escape")
    if len(delimiter) != 1:
        raise ConfigurationError(
            f"The delimiter {decoder.delimiter!r} of a CsvDecoder is not one character.",
            hint="Name one character, or an escape of it such as \\t.",
        )
    begin = stream.peek(_PEEKED)[:_PEEKED].removeprefix(codecs.BOM_UTF8).lstrip()
    if begin.startswith(_NO_HEADER):
        raise _in_another_format("CSV")
    text = io.TextIOWrapper(stream, encoding=_codec(decoder.encoding or "utf-8"))
    # Values beyond the header have no name; written as JSON, the reference's name for them is null.
    rows = csv.DictReader(text, delimiter=delimiter, restkey="null")
    if not (empty := decoder.set_values_to_none):
        yield from rows
        return
    for row in rows:
        yield {name: None if value in empty else value for name, value in row.items()}
