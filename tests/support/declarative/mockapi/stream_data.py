"""The content of a stream's API: records page by page, and the requests before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from support.declarative.mockapi import clock, raw_manifest, record_generator, templates
from support.declarative.mockapi.pagination import Turning
from support.declarative.mockapi.request_matching import Request

#: Number of distinct records in a page; others repeat them, with their own keys and times.
_OF_THEIR_OWN = 6

_IGNORED = "ignore_stream_slicer_parameters_on_paginated_requests"


@dataclass
class Paged:
    """A sequence of pages: of a partition, a slice of it, or all records.

    Attributes:
        sizes: the number of records of each page.
        window: the times that its records are between.
        tokens: the numbers of the pages by the tokens that request them.
        asked: how often each page was requested.
    """

    sizes: list[int]
    window: tuple[datetime, datetime]
    tokens: dict[str, int] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)

    def page_from(self, offset: int) -> int | None:
        """Return the number of the page that begins after `offset` records, or None."""
        starts = [sum(self.sizes[:number]) for number in range(len(self.sizes) + 1)]
        return starts.index(offset) if offset in starts else None


class Offer:
    """The records of a stream."""

    def __init__(
        self,
        stream: Mapping[str, Any],
        config: Mapping[str, Any],
        children: list[Mapping[str, Any]],
    ) -> None:
        """Prepare the records of a stream.

        Args:
            stream: as it is written.
            config: the configuration.
            children: configurations of the streams that have its records as partitions.
        """
        retriever = stream["retriever"]
        self.name = str(stream["name"])
        self.stream = stream
        self.is_parent = bool(children)
        self.is_report = retriever.get("type") == "AsyncRetriever"
        part = "download_requester" if self.is_report else "requester"
        self.decoder = retriever.get("download_decoder" if self.is_report else "decoder")
        self.request = Request(retriever[part], config)
        self.turning = Turning(retriever, config)
        self.cursor: Mapping[str, Any] | None = stream.get("incremental_sync")
        self.schema = _schema(stream)
        # The keys that select a slice in requests.
        reported = [(self.cursor or {}).get(f"{side}_time_option") for side in ("start", "end")]
        reported += [router.get("request_option") for router in raw_manifest.routers(stream)]
        reported += [parent.get("request_option") for parent in raw_manifest.parents(stream)]
        self.sliced_by = [name_of(option) for option in reported if option]
        self.slices_links = not retriever.get(_IGNORED)
        self.config = config
        self._made = 0
        self._added = _added(stream)
        self._wanted = templates.wanted_values(
            (retriever["record_selector"].get("record_filter") or {}).get("condition"), config
        )
        self._keys = self._key_places(children)
        self._read = [path for value in self._added.values() for path in _reads(value)]
        self._dated = self._date_places()
        self.full = [*self._keys, *self._read, *self._wanted, *self._dated, *self.turning.fields]

    def again(self) -> None:
        """Start again: the first record is the first one again."""
        self._made = 0

    # ------------------------------------------------------------------ records

    def records(self, count: int, window: tuple[datetime, datetime]) -> list[Any]:
        """Make new records, with times in a window, later ones last."""
        begin, end = window
        samples = [record_generator.record(self.schema, n, self.full) for n in range(_OF_THEIR_OWN)]
        found = []
        for number in range(count):
            self._made += 1
            sample = orjson.loads(orjson.dumps(samples[number % _OF_THEIR_OWN]))
            at = begin + (end - begin) * (number + 1) / (count + 1)
            self._complete(sample, at)
            found.append(_texts(sample) if _is_text(self.decoder) else sample)
        return found

    def _complete(self, record: Any, at: datetime) -> None:
        for path in self._read:
            if record_generator.at(record, path) is None:
                record_generator.put(record, path, f"{path[-1]}-{self._made}")
        for path in self._keys:
            schema = record_generator.schema_at(self.schema, path)
            record_generator.put(
                record, path, record_generator.key_value(path[-1], schema, self._made)
            )
        for path, value in self._wanted.items():
            record_generator.put(record, path, value)
        for path, form in self._dated.items():
            record_generator.put(record, path, self._timed(path, form, at))

    def _timed(self, path: tuple[str, ...], form: str, at: datetime) -> Any:
        text = clock.written(at, form)
        kinds = record_generator.kinds_of(record_generator.schema_at(self.schema, path))
        if "string" not in kinds and ("integer" in kinds or "number" in kinds):
            return int(float(text)) if text.replace(".", "").isdigit() else text
        return text

    def _key_places(self, children: list[Mapping[str, Any]]) -> list[tuple[str, ...]]:
        """Return the places of the values that identify records."""
        keys = [
            [path] if isinstance(path, str) else path
            for path in raw_manifest.listed(self.stream.get("primary_key"))
        ]
        paths = [tuple(str(part) for part in key) for key in keys]
        paths += [tuple(str(child["parent_key"]).split("/")) for child in children]
        found = []
        for path in paths:
            value = self._added.get(path)
            found += [path] if value is None else _reads(value)
        return list(dict.fromkeys(found))

    def _date_places(self) -> dict[tuple[str, ...], str]:
        """Return the place of the cursor's time, with its format."""
        cursor = self.cursor
        if not cursor or cursor.get("type") != "DatetimeBasedCursor":
            return {}
        name = templates.text_of(cursor["cursor_field"], templates.known(self.config, cursor))
        forms = clock.forms_of(dict(cursor))
        value = self._added.get((name,))
        if value is None:
            return {(name,): forms[0]}
        places = _reads(value)
        return {path: self._form_for(value, path, forms) for path in places[:1]}

    def _form_for(self, value: str, path: tuple[str, ...], forms: list[str]) -> str:
        """Return the format that a time needs so that a template turns it into a given one."""
        at = clock.NOW - timedelta(days=2)
        for form in (*forms, "%Y-%m-%dT%H:%M:%SZ", "%ms", "%s", "%Y-%m-%d"):
            record: dict[str, Any] = {}
            record_generator.put(record, path, clock.written(at, form))
            found = templates.text_of(value, {**templates.known({}, {}), "record": record})
            time = clock.read(found, forms)
            if time is not None and abs(time - at) < timedelta(days=2):
                return form
        return forms[0]

    # ------------------------------------------------------------------ windows

    def window(self, filled_values: Mapping[str, tuple[str, str]], sent: Mapping[str, Any]) -> Any:
        """Return the times that a request asks for; None for a bound that it does not contain.

        Args:
            filled_values: the values that the request's templates were filled with, by their paths.
            sent: the request's parameters, headers and body, by their names.
        """
        cursor = self.cursor or {}
        bounds = []
        for side in ("start", "end"):
            option = cursor.get(f"{side}_time_option") or {}
            value, form = sent.get(name_of(option)), str(cursor.get("datetime_format"))
            name = str(cursor.get(f"partition_field_{side}") or f"{side}_time")
            for root in ("stream_slice", "stream_interval", "stream_partition"):
                if value is None and f"{root}.{name}" in filled_values:
                    value, own = filled_values[f"{root}.{name}"]
                    form = own or form
            bounds.append(None if value is None else clock.read(value, [form]))
        return tuple(bounds)

    def between(self, bounds: tuple[datetime | None, datetime | None]) -> tuple[datetime, datetime]:
        """Return the times that records are between, by the bounds that a request has."""
        end = min(bounds[1] or clock.NOW, clock.NOW) - timedelta(seconds=1)
        begin = bounds[0] or end - timedelta(days=2)
        return (begin, max(begin, end))


def name_of(option: Mapping[str, Any]) -> str:
    """Return the name under which an option puts its value; empty if it has none."""
    path = option.get("field_path")
    name = ".".join(path) if path else str(option.get("field_name") or "")
    return name.lower() if option.get("inject_into") == "header" else name


def _schema(stream: Mapping[str, Any]) -> Mapping[str, Any]:
    whole: dict[str, Any] = {}
    for loader in reversed(raw_manifest.listed(stream.get("schema_loader"))):
        properties = (loader.get("schema") or {}).get("properties") or {}
        whole |= {key: property_ for key, property_ in properties.items() if key != "$parameters"}
    return {"type": "object", "properties": whole or {"id": {"type": "string"}}}


def _added(stream: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the values that are added to records, by their places."""
    return {
        tuple(map(str, field["path"])): str(field["value"])
        for step in stream.get("transformations") or ()
        if step["type"] == "AddFields"
        for field in step["fields"]
    }


def _reads(value: str) -> list[tuple[str, ...]]:
    return [path for path in templates.paths_in(value, "record") if path]


def _is_text(decoder: Mapping[str, Any] | None) -> bool:
    while decoder and decoder.get("decoder"):
        decoder = decoder["decoder"]
    return bool(decoder) and decoder["type"] in {"CsvDecoder", "XmlDecoder"}


def _texts(record: Any) -> Any:
    """Return a record with texts only, for formats that have no other values."""
    return {
        key: value if isinstance(value, str) else orjson.dumps(value).decode()
        for key, value in record.items()
    }


def offers(stream: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Offer]:
    """Yield the offers for a stream: its own first, then those that it gets partitions from."""
    waiting: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = [(stream, [])]
    while waiting:
        child, children = waiting.pop(0)
        yield Offer(child, config, children)
        waiting += [(parent["stream"], [parent]) for parent in raw_manifest.parents(child)]
