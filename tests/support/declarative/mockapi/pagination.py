"""Pagination of the mock API: bodies that make a manifest's paginator continue or end.

The values that a response needs for that are found by trying: the manifest's own templates are
evaluated on responses with different values in the places that they read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import jinja2

from support.declarative.mockapi import templates
from support.declarative.mockapi.record_generator import at, put

_KEPT, _ABSENT = object(), object()
#: Values with which responses report that there are more pages; preceded by a token or a link.
_ON = (_KEPT, None, True, 1_000_000, "more", False, 0)
#: Values with which responses report the last page.
_END = (_KEPT, None, _ABSENT, False, "", 0, True, 1_000_000)
_MOST_TRIED = 3_000
_ROOTS = ("response", "last_record", "headers")
_BROKEN = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)


@dataclass(frozen=True)
class Sheet:
    """A page as it is sent.

    Attributes:
        body: the body before it is encoded.
        headers: the headers.
        records: the records in the body.
        token: the token that the paginator should request next, as text; None after the last page.
    """

    body: Any
    records: list[Any]
    headers: dict[str, str] = field(default_factory=dict)
    token: str | None = None


class Turning:
    """The pages of one stream."""

    def __init__(self, retriever: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        paginator = retriever.get("paginator") or retriever.get("download_paginator") or {}
        strategy = paginator.get("pagination_strategy") or {}
        self._config = config
        self._strategy = strategy
        self.kind = str(strategy.get("type", ""))
        self.token_option: Mapping[str, Any] = paginator.get("page_token_option") or {}
        self.size_option: Mapping[str, Any] = paginator.get("page_size_option") or {}
        self.is_path = self.token_option.get("type") == "RequestPath"
        words = repr([retriever.get("requester"), retriever.get("download_requester")])
        is_asked = bool(self.token_option) or "next_page_token" in words
        # A number is not a path: such a manifest is tested with its first pages only.
        self._is_turned = is_asked and (self.kind == "CursorPagination" or not self.is_path)
        variables = templates.known(config, strategy)
        size = templates.value_of(strategy.get("page_size"), variables)
        self.size: int | None = size if isinstance(size, int) else None
        self.first = int(strategy.get("start_from_page") or 0)
        selector = retriever["record_selector"]["extractor"]
        holes = templates.known(config, selector)
        self.path = [str(templates.value_of(part, holes)) for part in selector["field_path"]]
        texts = [strategy.get("cursor_value"), strategy.get("stop_condition")]
        #: Fields that the paginator may look for in records.
        self.fields = [(name,) for text in texts for name in templates.names_in(text)]
        self.places = [
            (root, path)
            for root in _ROOTS
            for path in sorted({path for text in texts for path in templates.paths_in(text, root)})
        ]
        self.is_object = not self.path and any(root == "response" for root, _ in self.places)

    # ------------------------------------------------------------------ how many

    def sizes(self, number: int, sample: Any, *, is_brief: bool) -> list[int]:
        """Return the number of records of each page.

        Args:
            number: the number of the sequence of pages; the first ones have several full pages.
            sample: a record.
            is_brief: whether one short page is wanted.
        """
        size = self.size or 3
        is_brief = is_brief or not self._is_turned
        if self.kind in {"PageIncrement", "OffsetIncrement"}:
            if self.size is None:
                return [2, 0] if is_brief or number > 1 else [3, 2, 0]
            if size == 1:
                return [1, 0] if is_brief or number > 1 else [1, 1, 0]
            few = min(2, size - 1)
            return [few] if is_brief or number > 1 else [size, few]
        if self.kind != "CursorPagination":
            return [2]
        few = 1 if self.is_object else 2
        tail = [] if self._is_tried([deepcopy(sample)] * few, is_last=True) else [0]
        if is_brief or number > 1 or not self._is_tried([deepcopy(sample)] * few, is_last=False):
            return [few, *tail]
        return [1 if self.is_object else min(3, size), few, *tail]

    def _is_tried(self, records: list[Any], *, is_last: bool) -> bool:
        return self._signed(records, 0, "https://api.test/x", is_last=is_last) is not None

    # ------------------------------------------------------------------ a page

    def page(self, records: list[Any], number: int, url: str, *, is_last: bool) -> Sheet:
        """Return a page: its number is `page`; `url` is that of the next one."""
        if self.kind != "CursorPagination":
            return Sheet(self.body(records), records)
        found = self._signed(records, number, url, is_last=is_last)
        return found or Sheet(self.body(records), records)

    def body(self, records: list[Any]) -> Any:
        """Return a body with the records where the extractor looks for them."""
        if self.is_object:
            return records[0] if records else {}
        if self.path[:1] == ["*"]:
            # The items of an array at the root are read one by one, and contain no other records.
            return {
                f"item-{at}": _placed(self.path[1:], [record], within=True)
                for at, record in enumerate(records)
            }
        return _placed(self.path, records, within=False)

    def _signed(self, records: list[Any], number: int, url: str, *, is_last: bool) -> Sheet | None:
        token = url if self.is_path else f"token-of-page-{number + 1}"
        signs = _END if is_last else (_ON[0], token, number + 1, *_ON[1:])
        choices = [self._choices(place, signs) for place in self.places]
        for chosen in islice(product(*choices), _MOST_TRIED):
            sheet = self._with(records, dict(zip(self.places, chosen, strict=True)))
            if sheet is not None and (sheet.token is None) == is_last:
                if sheet.token is not None and self.is_path and "/" not in sheet.token:
                    continue
                return sheet
        return None

    def _choices(self, place: tuple[str, tuple[str, ...]], signs: Sequence[Any]) -> Sequence[Any]:
        root, path = place
        fixed = tuple(self.path[: len(path)])
        return signs[:1] if root == "response" and path == fixed and path else signs

    def _with(
        self, records: list[Any], chosen: Mapping[tuple[str, tuple[str, ...]], Any]
    ) -> Sheet | None:
        """Return a page with these values in these places; None if a template fails."""
        own = [*records[:-1], *map(deepcopy, records[-1:])]
        body = self.body(own)
        headers: dict[str, Any] = {}
        try:
            for (root, path), value in chosen.items():
                target = {"response": body, "headers": headers}.get(root, own[-1] if own else {})
                if value is not _KEPT:
                    _set(target, path, value)
            seen = next(iter(body), {}) if isinstance(body, list) else body
            variables = {
                **templates.known(self._config, self._strategy),
                "response": seen,
                "headers": headers,
                "last_record": own[-1] if own else None,
                "last_page_size": len(own),
            }
            stop = self._strategy.get("stop_condition")
            if stop and templates.holds(stop, variables):
                return Sheet(body, own, _sent(headers))
            token = templates.value_of(self._strategy["cursor_value"], variables)
        except _BROKEN:
            return None
        if isinstance(token, dict | list):
            return None if token else Sheet(body, own, _sent(headers))
        return Sheet(body, own, _sent(headers), str(token) if token else None)


def _placed(path: Sequence[str], records: list[Any], *, within: bool) -> Any:
    """Return a body with records at a path; below a wildcard (`within`), each has its own place."""
    if not path:
        return records[0] if within else records
    key, *rest = path
    if key != "*":
        return {key: _placed(rest, records, within=within)}
    if not rest:
        return records
    return [_placed(rest, [record], within=True) for record in records]


def _set(target: Any, path: tuple[str, ...], value: Any) -> None:
    if value is not _ABSENT:
        put(target, path, value)
        return
    if len(path) > 1 and at(target, path[:-1]) is None:
        put(target, path[:-1], {})
    holder = at(target, path[:-1]) if len(path) > 1 else target
    if isinstance(holder, dict):
        holder.pop(path[-1], None)


def _sent(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers as they are sent: values that templates see parsed are texts again."""
    sent = {}
    for name, value in headers.items():
        if isinstance(value, dict):
            links = [(rel, link["url"]) for rel, link in value.items() if link and link.get("url")]
            sent["Link"] = ", ".join(f'<{url}>; rel="{rel}"' for rel, url in links)
        elif value is not None:
            sent[name] = str(value)
    return {name: text for name, text in sent.items() if text}
