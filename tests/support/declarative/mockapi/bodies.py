"""Bodies in the formats that decoders read."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import orjson
import xmltodict


def encoded(body: Any, decoder: Mapping[str, Any] | None) -> bytes:
    """Encode a body as a decoder expects it."""
    decoder = decoder or {}
    match decoder.get("type"):
        case "GzipDecoder":
            return gzip.compress(encoded(body, decoder.get("decoder")))
        case "ZipfileDecoder":
            kept = io.BytesIO()
            with zipfile.ZipFile(kept, "w") as archive:
                archive.writestr("one", encoded(body, decoder.get("decoder")))
            return kept.getvalue()
        case "JsonlDecoder":
            return b"\n".join(map(orjson.dumps, body)) + b"\n"
        case "CsvDecoder":
            return _csv(body, decoder.get("delimiter") or ",")
        case "XmlDecoder":
            return xmltodict.unparse(body).encode()
    return orjson.dumps(body)


def _csv(records: list[dict[str, Any]], delimiter: str) -> bytes:
    written = io.StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    table = csv.DictWriter(written, names, delimiter=delimiter)
    table.writeheader()
    table.writerows(records)
    return written.getvalue().encode()
