"""Configurations that are generated from a manifest's own specification."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from support.declarative.mockapi import clock, templates
from support.declarative.mockapi.raw_manifest import specification

#: Formats of times in configurations; the first one that a pattern accepts is used.
_FORMS = (
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.000Z",
    "%d-%m-%Y",
)
_OF_FORMATS = {"date-time": _FORMS[0], "date": _FORMS[1]}
_IS_TIME = re.compile(r"(^|_)(date|start|from|since|end)(_|$)|_at$")
_TEXTS = ("org-1:key1", "Key1", "12345678", "Sev1", "DE00", "https://example.test/page")


def configuration(manifest: Mapping[str, Any], branch: int = 0) -> dict[str, Any]:
    """Make a configuration as a user may set it.

    Args:
        manifest: as it is written.
        branch: which of several forms, where the specification has some.
    """
    reported = specification(manifest) or _read_by(manifest)
    found: dict[str, Any] = _filled("", reported, branch)
    for name, form in _forms_by(manifest.get("streams")):
        reported = specification(manifest).get("properties", {}).get(name, {})
        if isinstance(found.get(name), str) and not {"pattern", "format"} & reported.keys():
            found[name] = clock.written(clock.BEGIN, form)
    return {**found, **HINTS.get(str(manifest.get("$file")), {})}


def _read_by(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Make a specification of the keys that templates read, for a manifest that has none."""
    words = re.findall(r"config\[['\"](\w+)['\"]\]", repr(manifest).replace("\\'", "'"))
    return {"properties": {name: {"type": "string"} for name in words}}


def _forms_by(manifest: Any) -> Iterator[tuple[str, str]]:
    """Yield the formats of times that the manifest reads from the configuration."""
    if isinstance(manifest, list):
        for node in manifest:
            yield from _forms_by(node)
    elif isinstance(manifest, dict):
        path = templates.paths_in(manifest.get("datetime"), "config")
        if path and manifest.get("datetime_format"):
            yield path[0][-1], manifest["datetime_format"]
        for node in manifest.values():
            yield from _forms_by(node)


def branches(manifest: Mapping[str, Any]) -> int:
    """Return the greatest number of alternative forms at any place of the specification."""
    return max(_branches(specification(manifest)), default=1)


def _branches(schema: Any) -> Iterator[int]:
    yield len(schema.get("oneOf") or schema.get("anyOf") or [0])
    for property_schema in (schema.get("properties") or {}).values():
        yield from _branches(property_schema)


def _filled(name: str, schema: Mapping[str, Any], branch: int) -> Any:
    forms = schema.get("oneOf") or schema.get("anyOf")
    kinds = schema.get("type")
    kind = (
        next((kind for kind in kinds if kind != "null"), None) if isinstance(kinds, list) else kinds
    )
    if "properties" in schema or forms:
        chosen = forms[min(branch, len(forms) - 1)] if forms else {}
        if forms and "properties" not in chosen:
            return _filled(name, chosen, branch)
        properties = {**schema.get("properties", {}), **chosen.get("properties", {})}
        return {key: _filled(key, property_, branch) for key, property_ in properties.items()}
    if "const" in schema:
        return schema["const"]
    if kind == "boolean":
        return schema.get("default", False)
    if kind in {"integer", "number"}:
        return _number(name, schema)
    if kind == "array":
        items = schema.get("items") or {"type": "string"}
        return schema.get("default") or [_filled("", items, branch)]
    if kind == "object":
        return {}
    return _text(name, schema)


def _number(name: str, schema: Mapping[str, Any]) -> Any:
    if _IS_TIME.search(name):
        return int(clock.BEGIN.timestamp())
    reported = [schema.get("default"), *schema.get("examples", ()), schema.get("minimum")]
    return next((value for value in reported if value is not None), 7)


def _text(name: str, schema: Mapping[str, Any]) -> str:
    reported = [*schema.get("examples", ()), schema.get("default")]
    if "enum" in schema:
        return str(schema.get("default", schema["enum"][0]))
    pattern = str(schema.get("pattern", ""))
    if schema.get("format") in _OF_FORMATS or _IS_TIME.search(name.lower()) or "{4}-" in pattern:
        return _time(name, schema, reported)
    plain = f"{name}-of-the-test"
    if "url" in name.lower() or "endpoint" in name.lower():
        plain = f"https://{plain.replace('_', '-')}.example.test"
    texts = [str(value) for value in reported if value] + [plain, plain.replace("-", ""), *_TEXTS]
    return next(text for text in texts if re.search(pattern, text))


def _time(name: str, schema: Mapping[str, Any], examples: list[Any]) -> str:
    is_end = "end" in name.lower() or "expir" in name.lower()
    at = clock.NOW + timedelta(hours=1) if "expir" in name.lower() else clock.NOW
    at = at if is_end else clock.BEGIN
    pattern = str(schema.get("pattern", ""))
    of_examples = [form for form in _FORMS for example in examples if _has(example, form)]
    forms = [_OF_FORMATS.get(str(schema.get("format")), _FORMS[0]), *_FORMS]
    texts = [at.strftime(form) for form in (of_examples + forms)]
    return next(text for text in texts if re.search(pattern, text))


def _has(example: Any, form: str) -> bool:
    try:
        datetime.strptime(str(example), form)  # noqa: DTZ007 - only its form matters
    except ValueError:
        return False
    return True


#: Values that are missing in the specifications, by manifest.
HINTS: dict[str, dict[str, Any]] = {
    # The user sets the number of pages to read, and one is too few for a test.
    "serpstat": {"pages_to_fetch": 3},
}
