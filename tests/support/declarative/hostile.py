"""A worker that reads hostile input, and measures its peak memory: `python hostile.py CASE…`.

Prints a line of JSON for each case: its name, the MiB it took beyond what the input takes itself,
and how it ended. `CASES` has the cases by name; each makes its input, and returns what reads it.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter

from chronolake.errors import ChronolakeError
from chronolake.source.declarative.http.response import Response, loads
from chronolake.source.declarative.models.records import Decoder, DpathExtractor
from chronolake.source.declarative.records.extractors import (
    create_batch_extraction,
    create_extraction,
)
from chronolake.source.declarative.templating.templates import evaluate

Run = Callable[[], object]
Case = Callable[[], Run]
_STATUS = Path("/proc/self/status")
_DECODER: Any = TypeAdapter(Decoder)
_ALL = DpathExtractor(type="DpathExtractor", field_path=[])


def _peak() -> int:
    """Return the peak memory of this process so far, in MiB."""
    (line,) = (
        splitline for splitline in _STATUS.read_text().splitlines() if splitline.startswith("VmHWM")
    )
    return int(line.split()[1]) >> 10


def measured(case: Case) -> dict[str, Any]:
    run = case()
    gc.collect()
    # This resets the kernel's peak to the memory that is in use.
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    try:
        run()
        outcome = "done"
    except ChronolakeError as error:
        outcome = error.message
    return {"mib": _peak() - before, "outcome": outcome}


def _reads(kind: str, body: bytes, **fields: Any) -> Run:
    """Read a body as a stream does that is read at once."""
    decoder = _DECODER.validate_python({"type": kind, **fields})
    answer = Response(200, httpx.Headers(), body, "http://a.example/", "GET", memory_limit=MEMORY)
    return lambda: create_extraction(_ALL, decoder, {})(answer).count


def _downloads(kind: str, body: bytes, **fields: Any) -> Run:
    """Read a body from a file, some records at a time."""
    decoder = _DECODER.validate_python({"type": kind, **fields})

    file = tempfile.TemporaryFile()  # noqa: SIM115 - its lazy reader needs it
    file.write(body)
    file.flush()
    whole = Response(
        200, httpx.Headers(), b"", "http://a.example/", "GET", file, memory_limit=MEMORY
    )
    return lambda: sum(batch.count for batch in create_batch_extraction(_ALL, decoder, {})(whole))


def _template(text: str, **variables: Any) -> Run:
    return lambda: evaluate(text, {"config": {}, **variables})


_MIB = 1 << 20
#: An eighth of the limit for responses, so that the cases are small and quick.
MEMORY = 64 * _MIB
_JSON = {"decoder": {"type": "JsonDecoder"}}
_LINES = {"decoder": {"type": "JsonlDecoder"}}


def _members(count: int) -> bytes:
    """Make an archive whose directory names many members, which are all the same one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a", b"{}")
    body = packed.getvalue()
    start = body.index(b"PK\x01\x02")
    end = body.index(b"PK\x05\x06")
    entries = body[start:end] * count
    # The 64-bit end of the archive, whose count of members may exceed 65,535.
    reported = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(entries), start
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + len(entries), 1)
    last = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return body[:start] + entries + reported + locator + last


def _wide(columns: int) -> bytes:
    return b",".join(b"%x" % number for number in range(columns)) + b"\n"


BODIES: dict[str, Case] = {
    "objects": lambda: _reads("JsonDecoder", b"[" + b"{}," * (2 * _MIB) + b"0]"),
    "arrays": lambda: _reads("JsonDecoder", b"[" + b"[]," * (2 * _MIB) + b"0]"),
    "keys": lambda: _reads("JsonDecoder", b"[" + b'{"a":"bc"},' * (_MIB) + b"0]"),
    "texts": lambda: _reads("JsonDecoder", b"[" + b'"ab",' * (2 * _MIB) + b"0]"),
    "numbers": lambda: _reads("JsonDecoder", b"[" + b"1.5," * (2 * _MIB) + b"0]"),
    "NaN": lambda: _reads("JsonDecoder", b"[NaN," + b"{}," * (2 * _MIB) + b"0]"),
    "wide text": lambda: _reads(
        "JsonDecoder", ('["\U0001f600' + "a" * (20 * _MIB) + '"]').encode()
    ),
    "many wide texts": lambda: _reads(
        "JsonDecoder", b"[" + (b'"' + "\u4e2d".encode() + b'a",') * (2 * _MIB) + b"0]"
    ),
    "deep JSON": lambda: _reads("JsonDecoder", b"[" * (4 * _MIB)),
    "deep objects": lambda: _reads("JsonDecoder", b'{"a":' * (_MIB)),
    "gzip of objects": lambda: _reads(
        "GzipDecoder", gzip.compress(b"[" + b"{}," * (2 * _MIB) + b"0]", 1), **_JSON
    ),
    "gzip in gzip": lambda: _reads(
        "GzipDecoder",
        gzip.compress(gzip.compress(b" " * (600 * _MIB), 1), 1),
        decoder={"type": "GzipDecoder", **_JSON},
    ),
    "items": lambda: _reads(
        "JsonItemsDecoder", b'{"a":[' + b"{}," * (2 * _MIB) + b"0]}", items_path="a.item"
    ),
    "lines of objects": lambda: _reads("JsonlDecoder", b"{}\n" * (2 * _MIB)),
    "lines of text": lambda: _reads("IterableDecoder", b"a\n" * (2 * _MIB)),
    "a line of objects": lambda: _reads("JsonlDecoder", b"[" + b"{}," * (2 * _MIB) + b"0]"),
    "CSV rows": lambda: _reads("CsvDecoder", b"a\n" + b"1\n" * (2 * _MIB)),
    "CSV columns": lambda: _reads("CsvDecoder", b"a," * (2 * _MIB) + b"\n1\n"),
    "CSV cells": lambda: _reads("CsvDecoder", _wide(100_000) + b"1\n" * 300),
    "CSV values beyond": lambda: _reads("CsvDecoder", b"a\n" + b",\n" * (2 * _MIB)),
    "zip members": lambda: _reads("ZipfileDecoder", _members(600_000), **_JSON),
    "XML elements": lambda: _reads("XmlDecoder", b"<a>" + b"<b/>" * (2 * _MIB) + b"</a>"),
    "XML attributes": lambda: _reads("XmlDecoder", b"<a>" + b'<b c=""/>' * (_MIB) + b"</a>"),
    "an element's attributes": lambda: _reads(
        "XmlDecoder", b"<a " + b" ".join(b'a%d=""' % n for n in range(2 * _MIB)) + b"/>"
    ),
    "deep XML": lambda: _reads("XmlDecoder", b"<a>" * (2 * _MIB)),
    "XML entities": lambda: _reads(
        "XmlDecoder",
        b'<!DOCTYPE a [<!-- ] --><!ENTITY b "' + b"b" * _MIB + b'">]><a>' + b"&b;" * 1000 + b"</a>",
    ),
    "XML entities in UTF-16": lambda: _reads(
        "XmlDecoder",
        ('<!DOCTYPE a [<!ENTITY b "' + "b" * _MIB + '">]><a>' + "&b;" * 1000 + "</a>").encode(
            "utf-16"
        ),
    ),
    "a download's CSV cells": lambda: _downloads("CsvDecoder", _wide(100_000) + b"1\n" * 300),
    "a download's lines": lambda: _downloads(
        "JsonlDecoder", (b"[" + b"{}," * 100_000 + b"0]\n") * 200
    ),
    "a download's long line": lambda: _downloads(
        "GzipDecoder", gzip.compress(b" " * (600 * _MIB), 1), **_LINES
    ),
    "a download's gzip": lambda: _downloads(
        "GzipDecoder", gzip.compress(b"[" + b"{}," * (2 * _MIB) + b"0]", 1), **_JSON
    ),
}

_A = "a" * (8 * _MIB)
_CJK = "\u4e2d" * (8 * _MIB)
_EMOJI = "\U0001f600" * (4 * _MIB)
_TEXTS = {
    "a tuple": "1," * _MIB,
    "floats": "1.5," * _MIB,
    "objects": "{}," * _MIB,
    "lists": "[" + "[]," * _MIB + "]",
    "texts": "'ab'," * _MIB,
    "comparisons": "1<" * _MIB + "1",
    "words": "1 or " * _MIB + "1",
    "sums": "1+" * _MIB + "1",
    "signs": "-" * _MIB + "1",
    "brackets": "(" * _MIB + "1" + ")" * _MIB,
    "short": "'a'" * _MIB,
    "hex": "0x" + "f" * _MIB,
}
TEMPLATES: dict[str, Case] = {
    **{
        f"literal: {name}": lambda text=text: _template("{{ record['x'] }}", record={"x": text})
        for name, text in _TEXTS.items()
    },
    "plain literal": lambda: _template("1," * _MIB),
    "strftime": lambda: _template("{{ now_utc().strftime('%999Y' * 1000000) }}"),
    "strftime of a day": lambda: _template("{{ today_utc().strftime('%999Y' * 1000000) }}"),
    "strptime": lambda: _template("{{ now_utc().strptime('1', '%Y' * 1000000) }}"),
    "format of a time": lambda: _template(
        "{{ ('{:' ~ '%999Y' * 1000000 ~ '}').format(now_utc()) }}"
    ),
    "format_datetime": lambda: _template("{{ format_datetime(now_utc(), '%999Y' * 1000000) }}"),
    "format_datetime of a text": lambda: _template(
        "{{ format_datetime('2024-01-01', '%999Y' * 100000) }}"
    ),
    "format_datetime's input": lambda: _template(
        "{{ format_datetime('1', '%Y', '%Y' * 1000000) }}"
    ),
    "day_delta": lambda: _template("{{ day_delta(1, '%999Y' * 1000000) }}"),
    "list": lambda: _template("{{ (x | list) | length }}", x=_CJK),
    "list of a text": lambda: _template("{{ ('\u4e2d' * 8000000) | list | length }}"),
    "split": lambda: _template("{{ x.split(' ') | length }}", x="ab " * (3 * _MIB)),
    "rsplit": lambda: _template("{{ x.rsplit() | length }}", x="ab " * (3 * _MIB)),
    "splitlines": lambda: _template("{{ x.splitlines() | length }}", x="ab\n" * (3 * _MIB)),
    "wordcount": lambda: _template("{{ x | wordcount }}", x="ab " * (3 * _MIB)),
    "sort": lambda: _template("{{ x | sort | length }}", x=_CJK),
    "unique": lambda: _template("{{ x | unique | list | length }}", x=_CJK),
    "reverse": lambda: _template("{{ x | map('upper') | list | length }}", x=_CJK),
    "title": lambda: _template("{{ x | title }}", x="ab " * (3 * _MIB)),
    "escape": lambda: _template("{{ x | e }}", x="'" * (8 * _MIB)),
    "forceescape": lambda: _template("{{ x | forceescape }}", x="'" * (8 * _MIB)),
    "urlencode": lambda: _template("{{ x | urlencode }}", x=_CJK),
    "sanitize_url": lambda: _template("{{ sanitize_url(x) }}", x=_EMOJI),
    "tojson": lambda: _template("{{ x | tojson }}", x=_EMOJI),
    "string": lambda: _template("{{ [x] | string }}", x=_EMOJI),
    "upper": lambda: _template("{{ x.upper() }}", x="\u0390" * (8 * _MIB)),
    "base64": lambda: _template("{{ x | base64encode }}", x=_EMOJI),
    "encode": lambda: _template("{{ x.encode('utf-32') }}", x=_A),
    "encode by names": lambda: _template("{{ x.encode('ascii', 'namereplace') }}", x=_EMOJI),
    "encode by escapes": lambda: _template("{{ x.encode('unicode_escape') }}", x=_EMOJI),
    "encode punycode": lambda: _template("{{ x.encode('ascii', 'xmlcharrefreplace') }}", x=_EMOJI),
    "ascii": lambda: _template("{{ '%a' % x }}", x=_EMOJI),
    "ascii of a format": lambda: _template("{{ '{!a}'.format(x) }}", x=_EMOJI),
    "repr of numbers": lambda: _template("{{ x }}", x=[1.0 / 3] * (2 * _MIB)),
    "pattern": lambda: _template("{{ 'a' | regex_search('a' * 8000000) }}"),
    "pattern of replacing": lambda: _template("{{ 'a' | regex_replace('a' * 8000000, 'b') }}"),
    "slices": lambda: _template(
        "{% set a = x[1:] %}{% set b = x[2:] %}{% set c = x[3:] %}"
        "{% set d = x[4:] %}{% set e = x[5:] %}{{ (a, b, c, d, e) | length }}",
        x="a" * (200 * _MIB),
    ),
    "slices of lists": lambda: _template(
        "".join(f"{{% set a{n} = x[{n}:] %}}" for n in range(40)), x=[0] * (4 * _MIB)
    ),
    "copies": lambda: _template(
        "{% set l = [] %}{% for i in 'x' * 200 %}{% set _ = l.append(x.copy()) %}{% endfor %}",
        x=dict.fromkeys(map(str, range(100_000))),
    ),
    "copies of lists": lambda: _template(
        "{% set l = [] %}{% for i in 'x' * 200 %}{% set _ = l.append(x | list) %}{% endfor %}",
        x=[None] * 1_000_000,
    ),
    "items": lambda: _template(
        "{% set l = [] %}"
        "{% for i in 'x' * 200 %}{% set _ = l.append(x.items() | list) %}{% endfor %}",
        x=dict.fromkeys(map(str, range(100_000))),
    ),
    "fromkeys": lambda: _template("{{ {}.fromkeys(x) | length }}", x=list(range(2 * _MIB))),
    "sum of lists": lambda: _template(
        "{% set l = [0] * 100000 %}{{ [l, l, l, l, l, l, l, l] | sum(start=[]) | length }}"
    ),
    "numbers": lambda: _template(
        "{% set l = [] %}"
        "{% for i in 'x' * 200000 %}{% set _ = l.append(loop.index * 1000.5) %}{% endfor %}"
    ),
    "empty lists": lambda: _template(
        "{% set l = [] %}{% for i in 'x' * 200000 %}{% set _ = l.append({}) %}{% endfor %}"
    ),
    "namespaces": lambda: _template(
        "{% set l = [] %}"
        "{% for i in 'x' * 100000 %}{% set _ = l.append(namespace(a=1)) %}{% endfor %}"
    ),
    "loads": lambda: _template("{{ json_loads('[' ~ '{},' * 8000000 ~ '0]') }}", json_loads=loads),
    "range of a text": lambda: _template("{{ x * 64 }}", x=_A),
    "joined": lambda: _template("{{ x ~ x ~ x ~ x ~ x }}", x=_A),
    "to_bytes": lambda: _template("{{ (1).to_bytes(99999, 'big') * 1000 }}"),
    "maketrans": lambda: _template("{{ x.maketrans(x, x) | length }}", x=_CJK),
    "hex": lambda: _template("{{ x.encode().hex('--') }}", x=_A),
}
CASES = {
    **{f"body: {name}": case for name, case in BODIES.items()},
    **{f"template: {name}": case for name, case in TEMPLATES.items()},
}


def main() -> None:
    for name in sys.argv[1:] or CASES:
        sys.stdout.write(f"{json.dumps({'case': name, **measured(CASES[name])})}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
