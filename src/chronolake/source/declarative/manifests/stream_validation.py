"""Validation of settings that concern several components of a stream.

The fields that a cursor, a primary key or a parent's key name are compared with the schema, and the
parts of a request with each other.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from chronolake.source.declarative.templating.templates import is_template

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The keys from a stream to a value in it.
Keys = tuple[str | int, ...]
#: A problem: its place, message and hint, and whether it is a warning.
Found = tuple[Keys, str, str, bool]

#: The type of requesters, whose templates can also use the extra fields of partitions.
REQUESTER: Final = "HttpRequester"
#: The types of cursors whose slices are known.
CURSORS: Final = ("DatetimeBasedCursor", "IncrementingCountCursor")
#: The minimum similarity (0 to 1) at which a name is taken for a misspelled one.
NEAR: Final = 0.8
#: Transformations after which the names of a record's fields are unknown.
_RENAMING: Final = frozenset(
    {
        *("KeysToLower", "KeysToSnakeCase", "KeysReplace", "FlattenFields", "DpathFlattenFields"),
        "CustomTransformation",
    }
)
#: The hint for everything that is set twice.
_ONCE: Final = "Set each part of a request only once."
#: Options of a cursor, and the fields of a requester with the parts of a request that they fill.
_BOUNDS: Final = ("start_time_option", "end_time_option")
_PARTS: Final = {
    "request_parameters": "request_parameter",
    "request_headers": "header",
    "request_body_data": "body_data",
}
#: The strategies whose tokens are numbers.
_COUNTING: Final = frozenset({"PageIncrement", "OffsetIncrement"})


def check_stream(stream: Mapping[str, Any], keys: Keys) -> Iterator[Found]:
    """Yield the problems that concern several parts of a stream."""
    cursor = stream.get("incremental_sync")
    fields = _schema_fields(stream)
    if isinstance(cursor, dict) and cursor.get("type") in CURSORS:
        name = cursor.get("cursor_field")
        place = (*keys, "incremental_sync", "cursor_field")
        if isinstance(name, str) and not is_template(name):
            hint = (
                "Add the value to the records with an AddFields transformation, and use that field."
            )
            yield from _check_name("cursor_field", name, place, fields, hint=hint, signs="./")
    yield from _check_primary_key(stream.get("primary_key"), (*keys, "primary_key"), fields)
    yield from _check_parents(stream, keys)
    yield from _check_request(stream, keys)


def _check_primary_key(key: Any, place: Keys, fields: set[str] | None) -> Iterator[Found]:
    for number, part in enumerate(key if isinstance(key, list) else [key]):
        within = (*place, number) if isinstance(key, list) else place
        name = part[0] if isinstance(part, list) and part else part
        if isinstance(name, str):
            hint = f"For a path, write a list in the list: [[{', '.join(name.split('.'))}]]."
            signs = "." if name == part else ""
            yield from _check_name("primary_key", name, within, fields, hint=hint, signs=signs)


def _check_name(
    setting: str,
    name: str,
    place: Keys,
    fields: set[str] | None,
    *,
    hint: str,
    signs: str,
    owner: str = "stream",
) -> Iterator[Found]:
    """Yield a problem if a field's name looks like a path, or like that of another field.

    A name without similar names is not a problem, because schemas do not always have all fields.

    Args:
        setting: the setting with the name.
        fields: the fields of the schema; None if they are unknown.
        hint: how to use a path.
        signs: the signs of a path that the name must not contain.
        owner: the stream with the schema.
    """
    if fields is not None and name in fields:
        return
    if any(sign in name for sign in signs):
        message = f"the {setting} {name!r} is read as a single key, not as a path into an object"
        yield place, message, hint, False
    elif near := difflib.get_close_matches(name, fields or (), n=1, cutoff=NEAR):
        message = f"the {setting} {name!r} is not a field of the {owner}'s schema"
        yield place, message, f"Did you mean {near[0]!r}?", True


def _schema_fields(stream: Mapping[str, Any]) -> set[str] | None:
    """Return the fields of a stream's records according to its schema; None if they are unknown."""
    loader = stream.get("schema_loader")
    schema = loader.get("schema") if isinstance(loader, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        return None
    found = set(map(str, properties))
    transformations = stream.get("transformations")
    for transformation in transformations if isinstance(transformations, list) else ():
        if not isinstance(transformation, dict):
            continue
        if transformation.get("type") in _RENAMING:
            return None
        for field in transformation.get("fields") or ():
            path = field.get("path") if isinstance(field, dict) else None
            found.update(map(str, path[:1] if isinstance(path, list) else ()))
    return found


def _check_parents(stream: Mapping[str, Any], keys: Keys) -> Iterator[Found]:
    """Yield keys that parents do not have, and incremental dependencies that have no effect."""
    retriever = stream.get("retriever")
    routers = retriever.get("partition_router") if isinstance(retriever, dict) else None
    for number, router in enumerate(routers if isinstance(routers, list) else [routers]):
        parents = router.get("parent_stream_configs") if isinstance(router, dict) else None
        within: Keys = (*keys, "retriever", "partition_router")
        if isinstance(routers, list):
            within = (*within, number)
        for at, parent in enumerate(parents if isinstance(parents, list) else ()):
            if isinstance(parent, dict):
                place = (*within, "parent_stream_configs", at)
                yield from _check_parent_key(parent, (*place, "parent_key"))
                yield from _check_dependency(stream, parent, (*place, "incremental_dependency"))


def _check_parent_key(parent: Mapping[str, Any], place: Keys) -> Iterator[Found]:
    """Yield a key that the parent's records lack: all of them would be skipped."""
    key, other = parent.get("parent_key"), parent.get("stream")
    if isinstance(key, str) and not is_template(key):
        fields = _schema_fields(other) if isinstance(other, dict) else None
        name, is_path, _ = key.partition("/")
        yield from _check_name(
            "parent_key",
            name,
            place,
            fields,
            hint=f"For a path, write {key.replace('.', '/')!r}.",
            signs="" if is_path else ".",
            owner="parent",
        )


def _check_dependency(
    stream: Mapping[str, Any], parent: Mapping[str, Any], place: Keys
) -> Iterator[Found]:
    if not parent.get("incremental_dependency"):
        return
    other = parent.get("stream")
    reason = None
    if not stream.get("incremental_sync"):
        reason = "the stream has no cursor"
    elif isinstance(other, dict) and "retriever" in other:
        reason = None if other.get("incremental_sync") else "the parent has no cursor"
    if reason is not None:
        yield (
            place,
            f"incremental_dependency has no effect: {reason}",
            "Add an incremental_sync, or remove incremental_dependency.",
            True,
        )


def _check_request(stream: Mapping[str, Any], keys: Keys) -> Iterator[Found]:
    """Yield what a request would lack, or contain twice, in any page."""
    retriever = stream.get("retriever")
    retriever = retriever if isinstance(retriever, dict) else {}
    requester = retriever.get("requester")
    if not isinstance(requester, dict) or requester.get("type") != REQUESTER:
        return
    place: Keys = (*keys, "retriever", "requester")
    if not (requester.get("url") or requester.get("url_base")):
        yield place, "the requester has neither `url` nor `url_base`", "Set url_base.", False
    if requester.get("request_body_json") and requester.get("request_body_data"):
        message = "a request has a JSON body and another body"
        yield (*place, "request_body_data"), message, _ONCE, False
    paginator = retriever.get("paginator")
    paginator = paginator if isinstance(paginator, dict) else {}
    token, strategy = paginator.get("page_token_option"), paginator.get("pagination_strategy")
    kind = strategy.get("type") if isinstance(strategy, dict) else None
    if isinstance(token, dict) and token.get("type") == "RequestPath" and kind in _COUNTING:
        yield (
            (*keys, "retriever", "paginator", "page_token_option"),
            f"the path of the next page cannot be a number of a {kind}",
            "Use a RequestOption, or a CursorPagination that returns a path or a URL.",
            # The first page is read.
            True,
        )
    seen: dict[tuple[str, str], str] = {}
    for part, name, owner, within in _injected(stream, requester, paginator):
        first = seen.setdefault((part, name), owner)
        if first != owner:
            message = f"the {part} {name!r} is set by {first} and by {owner}"
            yield (*keys, *within), message, _ONCE, False


def _injected(
    stream: Mapping[str, Any], requester: Mapping[str, Any], paginator: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, Keys]]:
    """Yield the constant names that requests contain: their part, name, owner and place."""
    for field, part in _PARTS.items():
        values = requester.get(field)
        for name, value in values.items() if isinstance(values, dict) else ():
            # A template may return nothing, and is not sent then.
            if value is not None and not (is_template(str(name)) or is_template(value)):
                yield part, str(name), "the requester", ("retriever", "requester", field, name)
    options: list[tuple[Any, str, Keys]] = [
        (paginator.get(field), "the paginator", ("retriever", "paginator", field))
        for field in ("page_token_option", "page_size_option")
    ]
    cursor = stream.get("incremental_sync")
    if isinstance(cursor, dict):
        options += [
            (cursor.get(field), f"the cursor's {field}", ("incremental_sync", field))
            for field in _BOUNDS
        ]
    for option, owner, within in options:
        name = option.get("field_name") if isinstance(option, dict) else None
        if isinstance(name, str) and not is_template(name):
            yield str(option.get("inject_into")), name, owner, within
