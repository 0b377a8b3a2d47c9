"""A web API for tests, on loopback: its routes configure its data, refusals and faults.

An API is a list of routes. A route has a path (`/parents/{parent}/children`), `rows` or a fixed
`answer`, and may filter, page, ask for a login and fail. Requests are recorded, so that two readers
can be compared by them. Nothing depends on the time of day, or on the order in which two different
requests arrive: a fault counts each distinct request by itself.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote, urlencode


@dataclass(frozen=True)
class Request:
    """One request in comparable form: queries and forms sorted, JSON parsed, tokens decoded."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    body: Any

    @property
    def text(self) -> str:
        """The request as one line, equal for equal requests."""
        headers = " ".join(f"{name}={value}" for name, value in self.headers)
        body = "" if self.body is None else json.dumps(self.body, sort_keys=True)
        return " ".join(part for part in (self.line, headers, body) if part)

    @property
    def line(self) -> str:
        """The method, path and query."""
        query = "&".join(f"{name}={value}" for name, value in self.query)
        return f"{self.method} {self.path}{'?' + query if query else ''}"

    def value(self, name: str) -> Any:
        """Return a parameter from the query, header, form or (nested, by dots) JSON body."""
        for key, value in (*self.query, *self.headers):
            if key == name:
                return value
        if isinstance(self.body, list):
            return dict(self.body).get(name)
        found: Any = self.body
        for part in name.split("."):
            if not isinstance(found, dict):
                return None
            found = found.get(part)
        return found

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name.lower())


@dataclass
class Answer:
    """A response. `cut` ends the connection: before the response, or in the middle of it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: str | None = None
    slow: float = 0.0


def number_or_text(value: Any) -> tuple[int, Any]:
    try:
        return 0, float(value)
    except (TypeError, ValueError):
        return 1, str(value)


def at(row: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        if not isinstance(row, dict):
            return None
        row = row.get(part)
    return row


def placed(body: dict[str, Any], dotted: str, value: Any) -> None:
    *folders, last = dotted.split(".")
    for folder in folders:
        body = body.setdefault(folder, {})
    body[last] = value


def filled(value: Any, names: Mapping[str, Any]) -> Any:
    """Replace the names in a value, wherever text contains them.

    They are the path's, `{server}`, `{elsewhere}` (the server as another host) and `{n}`.
    """
    if isinstance(value, str):
        whole = re.fullmatch(r"\{(\w+)\}", value)
        if whole and whole[1] in names:
            return names[whole[1]]
        return re.sub(r"\{(\w+)\}", lambda found: str(names.get(found[1], found[0])), value)
    if isinstance(value, dict):
        return {filled(key, names): filled(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, names) for inner in value]
    return value


class Api:
    """The state of one programmed API: its routes, its requests, how often each fault occurred."""

    def __init__(self, routes: list[dict[str, Any]], address: str) -> None:
        self.address = address
        self.routes = routes
        self.asked: list[Request] = []
        self._struck: Counter[tuple[int, str, str]] = Counter()
        self._answered: Counter[tuple[int, str]] = Counter()
        self._tokens: list[str] = []
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.asked.append(request)
            for place, route in enumerate(self.routes):
                names = self._matched(route, request)
                if names is not None:
                    return self._answer(place, route, request, names)
        return Answer(404, {}, b'{"error": "no such route"}')

    def _matched(self, route: dict[str, Any], request: Request) -> dict[str, Any] | None:
        methods = route.get("method", "GET")
        if request.method not in ([methods] if isinstance(methods, str) else methods):
            return None
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]*)", re.escape(route["path"]))
        found = re.fullmatch(pattern, request.path)
        if found is None or not applies(route.get("when"), request):
            return None
        return {name: unquote(value) for name, value in found.groupdict().items()}

    def _answer(
        self, place: int, route: dict[str, Any], request: Request, names: dict[str, Any]
    ) -> Answer:
        fault = self._fault(place, route, request)
        slow = float((fault or {}).get("slow", 0))
        if fault is not None and "cut" in fault:
            return Answer(cut=fault["cut"], slow=slow, body=b'{"data": [{"id": 1}, {"id')
        names = {
            **names,
            "server": self.address,
            "elsewhere": self.address.replace("127.0.0.1", "localhost"),
            "n": self._counted(place, route, request),
        }
        if fault is not None and "status" in fault:
            return self._fixed({"body": {"error": "refused"}, **fault}, names, slow)
        if not self._let_in(route.get("auth"), request):
            return Answer(401, {}, b'{"error": "who is there?"}', slow=slow)
        if "token" in route:
            return self._handed_token(route["token"], names)
        if "answer" in route:
            answers = route["answer"]
            if isinstance(answers, list):
                answers = answers[min(names["n"], len(answers)) - 1]
            return self._fixed(answers, names, slow)
        return self._rows(route, request, names, slow)

    def _counted(self, place: int, route: dict[str, Any], request: Request) -> int:
        key = (place, "" if "token" in route else request.text)
        self._answered[key] += 1
        return self._answered[key]

    def _fault(self, place: int, route: dict[str, Any], request: Request) -> dict[str, Any] | None:
        for number, fault in enumerate(route.get("faults", [])):
            if not applies(fault.get("when"), request):
                continue
            key = (place, str(number), request.line if fault.get("each", True) else "")
            self._struck[key] += 1
            first = int(fault.get("after", 0))
            times = fault.get("times", 1)
            struck = self._struck[key] - first
            if struck > 0 and (times == "always" or struck <= times):
                return dict(fault)
        return None

    def _let_in(self, auth: dict[str, Any] | None, request: Request) -> bool:
        if auth is None:
            return True
        given = request.header("authorization") or ""
        if "bearer" in auth:
            return given == f"Bearer {auth['bearer']}"
        if "basic" in auth:
            return given == "Basic " + base64.b64encode(auth["basic"].encode()).decode()
        if "header" in auth:
            return request.header(auth["header"]) == auth["value"]
        if "query" in auth:
            return request.value(auth["query"]) == auth["value"]
        if "jwt" in auth:
            return '"claims"' in given
        if "token_in" in auth:
            shown = request.header(auth["token_in"]) or request.value(auth["token_in"]) or ""
            return any(str(shown).endswith(token) for token in self._tokens[-1:])
        raise ValueError(f"no such login: {auth}")

    def _handed_token(self, token: dict[str, Any], names: dict[str, Any]) -> Answer:
        made = f"{token.get('named', 'token')}-{names['n']}"
        self._tokens.append(made)
        return self._fixed(token, {**names, "token": made}, 0)

    def _fixed(self, definition: dict[str, Any], names: Mapping[str, Any], slow: float) -> Answer:
        headers = {
            key: str(filled(value, names)) for key, value in definition.get("headers", {}).items()
        }
        for key, value in headers.items():
            if moved := re.fullmatch(r"now([+-]\d+)( date)?", value):
                then = time.time() + int(moved[1])
                headers[key] = formatdate(then, usegmt=True) if moved[2] else str(int(then))
        if "text" in definition:
            body = str(filled(definition["text"], names)).encode()
            headers.setdefault("Content-Type", "text/plain")
        else:
            body = json.dumps(filled(definition.get("body", {}), names)).encode()
            headers.setdefault("Content-Type", "application/json")
        return Answer(
            int(definition.get("status", 200)),
            headers,
            packed(body, definition.get("packed")),
            slow=slow,
        )

    def _rows(
        self, route: dict[str, Any], request: Request, names: dict[str, Any], slow: float
    ) -> Answer:
        rows = chosen(route, request, names)
        page, body, headers = paged(route.get("pages"), rows, request, self.address)
        body.update(filled(route.get("extra", {}), names))
        shown: Any = page
        if envelope := route.get("envelope"):
            placed(body, envelope, page)
            shown = body
        elif route.get("single"):
            shown = page[0] if page else {}
        if "lines" in route:
            text = "\n".join(json.dumps(row) for row in page)
        elif "csv" in route:
            columns = route["csv"]
            lines = [columns, *[[at(row, name) for name in columns] for row in page]]
            mark = route.get("mark", ",")
            text = "\n".join(mark.join(str(cell) for cell in line) for line in lines)
        else:
            text = json.dumps(shown)
        headers = {"Content-Type": "application/json", **headers}
        headers.update({key: str(value) for key, value in route.get("headers", {}).items()})
        return Answer(200, headers, packed(text.encode(), route.get("packed")), slow=slow)


def applies(when: dict[str, Any] | None, request: Request) -> bool:
    """Return whether a request has the path and the values that a fault or a route is meant for."""
    if when is None:
        return True
    if "path" in when and not re.fullmatch(when["path"], request.path):
        return False
    values = when.get("values", {})
    return all(str(request.value(name)) == str(value) for name, value in values.items())


def packed(body: bytes, how: str | None) -> bytes:
    if how == "gzip":
        return gzip.compress(body, mtime=0)
    if how == "utf-16":
        return body.decode().encode("utf-16")
    if how == "zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("data", body)
        return out.getvalue()
    return body


def chosen(
    route: dict[str, Any], request: Request, names: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a route's rows, filtered by the path, a parameter or a range of times."""
    rows: list[dict[str, Any]] = route.get("rows", [])
    for column, name in route.get("match", {}).items():
        wanted = names.get(name, request.value(name))
        if wanted is not None:
            rows = [row for row in rows if str(at(row, column)) == str(wanted)]
    if reported := route.get("filter"):
        low = request.value(reported["from"]) if "from" in reported else None
        high = request.value(reported["to"]) if "to" in reported else None
        column = reported["field"]

        def inside(row: dict[str, Any]) -> bool:
            value = at(row, column)
            if value is None:
                return True
            order = number_or_text(value)
            return (low is None or order >= number_or_text(low)) and (
                high is None or order <= number_or_text(high)
            )

        rows = [row for row in rows if inside(row)]
    return rows


def paged(
    pages: dict[str, Any] | None, rows: list[dict[str, Any]], request: Request, address: str
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, str]]:
    """Return one page of the rows, the body's other keys, and the headers."""
    if pages is None:
        return rows, {}, {}
    by = pages["by"]
    size = int(request.value(pages["size_from"]) or 0) if "size_from" in pages else 0
    size = size or int(pages.get("size", 2))
    asked = request.value(pages.get("from", ""))
    body: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if by == "last":
        places = [place for place, row in enumerate(rows) if str(at(row, "id")) == str(asked)]
        begin = places[0] + 1 if places else 0
    elif by == "page":
        begin = (int(asked or pages.get("first", 1)) - int(pages.get("first", 1))) * size
    elif by in {"offset", "cursor"}:
        begin = int(str(asked or 0).removeprefix("after-"))
    else:
        begin = int(request.value("position") or 0)
    page = rows[begin : begin + size]
    more = begin + size < len(rows)
    body_place = pages.get("to")
    if by == "cursor" and body_place:
        placed(body, body_place, f"after-{begin + size}" if more else pages.get("end"))
    if "more" in pages:
        placed(body, pages["more"], more)
    if by in {"url", "link"} and more:
        kept = [(key, value) for key, value in request.query if key != "position"]
        if pages.get("bare"):
            kept = []
        target = urlencode([*kept, ("position", str(begin + size))])
        base = "" if pages.get("relative") else address
        url = f"{base}{request.path}?{target}"
        if by == "url":
            placed(body, body_place or "next", url)
        else:
            headers["Link"] = f'<{address}/first>; rel="first", <{url}>; rel="next"'
    return page, body, headers
