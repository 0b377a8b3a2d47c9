"""Validation of names that templates look up: settings, names of slices, fields of records.

Templates that read a missing value render an empty string. The stream would then request something
else, without an error. Names that only a custom class of the connector knows are not checked.

The module also defines which fields of components are templates, and which variables they have. The
variables are those of the reference (`interpolation_context` in its schema).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import nodes

from chronolake.source.declarative.templating.templates import is_lookup, is_template, parse_syntax

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from chronolake.source.declarative.manifests.problems import Problem, Spot


_CONFIG: Final = frozenset({"config", "parameters"})
_SLICE: Final = frozenset({"stream_slice", "stream_interval", "stream_partition"})
_RECORD: Final = _CONFIG | _SLICE | {"record"}
_REQUEST: Final = (
    _CONFIG
    | _SLICE
    | {"next_page_token", "creation_response", "polling_response", "download_target"}
    | {"query_properties"}
)
_ANSWER: Final = _CONFIG | {"response", "headers", "request_url"}
_PAGE: Final = (
    _CONFIG | _SLICE | {"headers", "last_page_size", "last_record", "page_size", "response"}
)
_JWT: Final = _CONFIG | {"json_loads"}
_CHANGE: Final = _CONFIG | {"path", "value", "property"}
_MADE: Final = _CONFIG | {"components_values", "stream_slice", "stream_template_config"}

#: Templates of requests can also use the extra fields of partitions.
REQUESTER: Final = "HttpRequester"

#: The variables of templates, by component type and field.
VARIABLES: Final = {
    (kind, field): variables
    for kind, fields, variables in (
        ("AddedFieldDefinition", "value", _RECORD),
        ("AddFields", "condition", _RECORD | _CHANGE),
        ("ApiKey", "api_token", _CONFIG | {"session_token"}),
        ("ApiKeyAuthenticator", "api_token header", _CONFIG),
        ("AsyncRetriever", "polling_job_timeout failed_retry_wait_time_in_seconds", _CONFIG),
        ("BasicHttpAuthenticator", "username password", _CONFIG),
        ("BearerAuthenticator", "api_token", _CONFIG),
        ("ComponentMappingDefinition", "value field_path condition", _MADE),
        ("ConcurrencyLevel", "default_concurrency max_concurrency", _CONFIG),
        ("ConditionalStreams", "condition", _CONFIG),
        ("ConfigAddFields", "condition", _CHANGE),
        ("ConfigRemapField", "map field_path", _CONFIG),
        ("ConfigRemoveFields", "condition", _CHANGE),
        ("ConstantBackoffStrategy", "backoff_time_in_seconds", _CONFIG),
        ("CursorPagination", "cursor_value stop_condition", _PAGE),
        ("CursorPagination", "page_size", _CONFIG),
        (
            "DatetimeBasedCursor",
            (
                "cursor_field start_datetime end_datetime step lookback_window "
                "partition_field_start partition_field_end is_client_side_incremental clamping"
            ),
            _CONFIG,
        ),
        ("DefaultErrorHandler", "max_retries", _CONFIG),
        ("DpathExtractor", "field_path", _CONFIG),
        ("DpathFlattenFields", "field_path key_transformation", _CONFIG),
        ("DpathValidator", "field_path", _CONFIG),
        ("ExponentialBackoffStrategy", "factor", _CONFIG),
        ("HttpRequestRegexMatcher", "weight", _CONFIG),
        (
            REQUESTER,
            (
                "url_base url path request_parameters request_headers request_body_data "
                "request_body_json request_body"
            ),
            _REQUEST,
        ),
        ("HttpResponseFilter", "predicate error_message", _ANSWER),
        ("IncrementingCountCursor", "cursor_field start_value", _CONFIG),
        ("JsonFileSchemaLoader", "file_path", _CONFIG),
        (
            "JwtAuthenticator",
            (
                "secret_key header_prefix passphrase base64_encode_secret_key jwt_headers "
                "jwt_payload additional_jwt_headers additional_jwt_payload"
            ),
            _JWT,
        ),
        ("KeysReplace", "old new", _RECORD),
        (
            "LegacySessionTokenAuthenticator",
            (
                "header login_url session_token session_token_response_key username password "
                "validate_session_url"
            ),
            _CONFIG,
        ),
        ("ListPartitionRouter", "cursor_field values", _CONFIG),
        ("MinMaxDatetime", "datetime min_datetime max_datetime", _CONFIG),
        (
            "OAuthAuthenticator",
            (
                "client_id client_id_name client_secret client_secret_name refresh_token "
                "refresh_token_name access_token_name access_token_value expires_in_name "
                "grant_type grant_type_name refresh_request_body refresh_request_headers "
                "token_expiry_date "
                "token_refresh_endpoint use_profile_assertion"
            ),
            _CONFIG,
        ),
        ("OffsetIncrement", "page_size", _CONFIG | {"response"}),
        ("PageIncrement", "page_size", _CONFIG),
        (
            "ParentStreamConfig",
            "parent_key partition_field extra_fields lazy_read_pointer",
            _CONFIG,
        ),
        ("ParentFieldPath", "parent_path record_path", _CONFIG),
        ("PredicateValidator", "value", _CONFIG),
        ("PropertiesFromEndpoint", "property_field_path", _CONFIG),
        ("QuotaStatusSource", "url request_headers", _CONFIG),
        ("Rate", "limit", _CONFIG),
        ("RateLimitedMultipleTokenAuthenticator", "tokens max_wait_time", _CONFIG),
        ("RecordExpander", "expand_records_from_field truncation_indicator_path", _CONFIG),
        ("RecordFilter", "condition", _RECORD | {"next_page_token"}),
        ("RemoveFields", "condition", _CONFIG | {"property"}),
        ("RequestOption", "field_name field_path", _CONFIG),
        ("SchemaTypeIdentifier", "schema_pointer key_pointer type_pointer", _CONFIG),
        ("SchemaTypeIdentifier", "types_mapping", _CONFIG | {"raw_schema"}),
        ("StateDelegatingStream", "api_retention_period", _CONFIG),
        ("StreamConfig", "configs_pointer", _CONFIG),
        ("UnionPartitionRouter", "partition_field", _CONFIG),
        ("WaitTimeFromHeader", "header regex max_waiting_time_in_seconds", _CONFIG),
        # Its wait_time_in_seconds may fail, as in the reference: other strategies may return a
        # wait.
        ("WaitTimeFromResponse", "max_waiting_time_in_seconds", _CONFIG),
        (
            "WaitUntilTimeFromHeader",
            "header regex min_wait max_waiting_time_in_seconds",
            _CONFIG,
        ),
    )
    for field in fields.split()
}

#: Fields with durations, optionally as templates.
DURATIONS: Final = frozenset(
    {
        ("DatetimeBasedCursor", "cursor_granularity"),
        ("DatetimeBasedCursor", "lookback_window"),
        ("DatetimeBasedCursor", "step"),
        ("FixedWindowCallRatePolicy", "period"),
        ("Rate", "interval"),
        ("RateLimitedMultipleTokenAuthenticator", "max_wait_time"),
        ("RequestWindowSplitting", "min_split_window"),
        ("SessionTokenAuthenticator", "expiration_duration"),
        ("StateDelegatingStream", "api_retention_period"),
    }
)
#: Fields with formats for parsing times.
FORMATS: Final = frozenset(
    {
        ("DatetimeBasedCursor", "cursor_datetime_formats"),
        ("MinMaxDatetime", "datetime_format"),
        ("OAuthAuthenticator", "token_expiry_date_format"),
    }
)
#: Fields with integers, optionally as templates.
WHOLE: Final = frozenset(
    {
        ("AsyncRetriever", "failed_retry_wait_time_in_seconds"),
        ("AsyncRetriever", "polling_job_timeout"),
        ("ConcurrencyLevel", "default_concurrency"),
        ("CursorPagination", "page_size"),
        ("DefaultErrorHandler", "max_retries"),
        ("HttpRequestRegexMatcher", "weight"),
        ("IncrementingCountCursor", "start_value"),
        ("OffsetIncrement", "page_size"),
        ("PageIncrement", "page_size"),
        ("Rate", "limit"),
    }
)
#: Fields with regular expressions, optionally as templates.
PATTERNS: Final = frozenset(
    {
        ("HttpRequestRegexMatcher", "url_path_pattern"),
        ("WaitTimeFromHeader", "regex"),
        ("WaitUntilTimeFromHeader", "regex"),
    }
)
#: Fields with paths, as lists of keys.
PATHS: Final = frozenset(
    {
        ("DpathExtractor", "field_path"),
        ("DpathFlattenFields", "field_path"),
        ("JsonItemsDecoder", "items_path"),
        ("PropertiesFromEndpoint", "property_field_path"),
        ("RecordExpander", "expand_records_from_field"),
        ("SessionTokenAuthenticator", "session_token_path"),
    }
)
#: Fields with HTTP status codes.
STATUSES: Final = frozenset(
    {
        ("HTTPAPIBudget", "status_codes_for_ratelimit_hit"),
        ("HttpResponseFilter", "http_codes"),
        ("OAuthAuthenticator", "refresh_token_error_status_codes"),
        ("QuotaStatusSource", "unavailable_status_codes"),
        ("TokenQuota", "exhaustion_status_codes"),
    }
)
ENCODINGS: Final = frozenset({("CsvDecoder", "encoding"), ("JsonItemsDecoder", "encoding")})
METHODS: Final = frozenset({("HttpRequestRegexMatcher", "method")})
URLS: Final = frozenset({(REQUESTER, "url"), (REQUESTER, "url_base"), ("QuotaStatusSource", "url")})

#: The type of a component that needs no `type`, by the place where it is used.
UNTYPED: Final = {
    "FixedWindowCallRatePolicy.matchers": "HttpRequestRegexMatcher",
    "MovingWindowCallRatePolicy.matchers": "HttpRequestRegexMatcher",
    "MovingWindowCallRatePolicy.rates": "Rate",
    "TokenQuota.matchers": "HttpRequestRegexMatcher",
    "UnlimitedCallRatePolicy.matchers": "HttpRequestRegexMatcher",
    "ConfigAddFields.fields": "AddedFieldDefinition",
    "DynamicSchemaLoader.schema_type_identifier": "SchemaTypeIdentifier",
}
#: Keys with data, or with options of a custom class, instead of components.
OPAQUE: Final = frozenset(
    {
        "$parameters",
        "base_schema",
        "config_overrides",
        "list_of_parameters_for_stream",
        "schema",
        "default_values",
        "jwt_headers",
        "jwt_payload",
        "additional_jwt_headers",
        "additional_jwt_payload",
        "refresh_request_body",
        "refresh_request_headers",
        "request_body_data",
        "request_body_json",
        "request_headers",
    }
)


_Keys = tuple[str | int, ...]
_SLICES: Final = frozenset({"stream_slice", "stream_interval", "stream_partition"})
#: Attributes of a slice in addition to its names, and the methods of dictionaries.
_OF_SLICES: Final = frozenset({"parent_slice", "extra_fields", "partition", "cursor_slice"})
_METHODS: Final = frozenset(dir(dict))
#: Keys of a stream whose retrievers have other slices.
_OTHER_SLICES: Final = frozenset(
    {"schema_loader", "truncated_list_retriever", "property_list", "components_resolver"}
)
_CURSORS: Final = ("DatetimeBasedCursor", "IncrementingCountCursor")
#: Transformations after which the names of a record's fields are unknown.
_RENAMING: Final = frozenset(
    {
        *("KeysToLower", "KeysToSnakeCase", "KeysReplace", "FlattenFields", "DpathFlattenFields"),
        "CustomTransformation",
    }
)
_NEAR: Final = 0.8
#: Components where a missing value leaves a field of a record empty, and records are still read.
_OF_RECORDS: Final = frozenset({"AddedFieldDefinition", "AddFields", "RemoveFields", "KeysReplace"})
#: Parts of a request that are omitted if a setting is missing.
_OPTIONAL: Final = frozenset({"request_headers", "request_parameters", "request_body_json"})


def known_settings(content: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names that a configuration can have, or None if they are unknown.

    They are the names in the manifest's `spec`, names that its rules add, and the paths where
    refreshed tokens are stored.
    """
    spec = content.get("spec")
    asked = spec.get("connection_specification") if isinstance(spec, dict) else None
    if not isinstance(asked, dict) or not isinstance(asked.get("properties"), dict):
        return None
    found = set(_property_names(asked))
    left: list[Any] = [content]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            kind = node.get("type")
            if kind == "CustomConfigTransformation":
                return None
            found.update(_created_settings(node))
            left += [child for name, child in node.items() if name != "connection_specification"]
        elif isinstance(node, list):
            left += node
    return frozenset(found)


def _created_settings(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that a component of a manifest creates itself."""
    for component in (
        [node, *(node.get("fields") or [])] if _creates_settings(node.get("type")) else ()
    ):
        path = (
            component.get("path") or component.get("field_path")
            if isinstance(component, dict)
            else None
        )
        yield from map(str, path[:1] if isinstance(path, list) else ())
    for name, value in node.items():
        if name.endswith("_config_path") and isinstance(value, list):
            yield from map(str, value[:1])


def _creates_settings(kind: object) -> bool:
    return isinstance(kind, str) and kind in {"ConfigAddFields", "ConfigRemapField"}


def _property_names(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of an object's properties, including all alternatives."""
    properties = schema.get("properties")
    yield from properties if isinstance(properties, dict) else ()
    for several in ("oneOf", "anyOf", "allOf"):
        forms = schema.get(several)
        for form in forms if isinstance(forms, list) else ():
            if isinstance(form, dict):
                yield from _property_names(form)


def problems_of_lookups(
    component: Any, spot: Spot, stream: str, settings: Collection[str] | None
) -> Iterator[Problem]:
    """Yield a problem for each name that a stream looks up and that the manifest does not define.

    `component` is the stream with inherited values filled in. `settings` are the names that a
    configuration can have, or None if they are unknown.
    """
    for keys, message, hint, is_warning in _check_node(component, (), None, None, settings):
        yield spot.within(component, keys).problem(message, stream, hint, is_warning=is_warning)


_Found = tuple[_Keys, str, str, bool]


def _check_node(
    node: Any, keys: _Keys, kind: str | None, slices: frozenset[str] | None, settings: Any
) -> Iterator[_Found]:
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from _check_node(item, (*keys, number), kind, slices, settings)
        return
    if not isinstance(node, dict):
        return
    reported = node.get("type")
    kind = reported if isinstance(reported, str) else kind
    if kind is not None and kind.startswith("Custom"):
        return
    if "retriever" in node:
        slices = _slice_names(node)
        yield from _check_stream(node, keys)
    for name, value in node.items():
        here = (*keys, name)
        if kind is not None and (kind, name) in VARIABLES:
            yield from _check_field(value, here, (kind, name), slices, settings)
        if name == "$parameters":
            continue
        inner = None if name in _OTHER_SLICES else slices
        yield from _check_node(value, here, None, inner, settings)


def _check_field(
    value: Any,
    keys: _Keys,
    field: tuple[str, str],
    slices: frozenset[str] | None,
    settings: Collection[str] | None,
) -> Iterator[_Found]:
    kind, name = field
    for text, within in _templates_in(value, ()):
        for found in _find_lookups(text):
            may_lack = found.variable == "config" and name in _OPTIONAL and is_lookup(text)
            is_warning = kind in _OF_RECORDS or may_lack
            yield from _unknown_names(
                (*keys, *within), found, slices, settings, is_warning=is_warning
            )


class _Lookup(NamedTuple):
    """A name that a template looks up.

    Attributes:
        variable: `config`, or one of the names of a slice.
        key: the name in it.
        is_needed: whether the template requires the value.
    """

    variable: str
    key: str
    is_needed: bool


def _unknown_names(
    keys: _Keys,
    lookup: _Lookup,
    slices: frozenset[str] | None,
    settings: Collection[str] | None,
    *,
    is_warning: bool,
) -> Iterator[_Found]:
    variable, key, is_needed = lookup
    if variable == "config":
        known: Collection[str] | None = settings
        there = "the `spec` has no such setting"
    else:
        known = None if slices is None else slices | _OF_SLICES
        there = f"the stream's slices contain {_join_names(slices or ())}"
    if known is None or key in known or key in _METHODS:
        return
    near = difflib.get_close_matches(key, known, n=1, cutoff=_NEAR)
    # A setting with a fallback in the template may be undocumented.
    if variable == "config" and not is_needed and not near:
        return
    hint = f"Did you mean {near[0]!r}?" if near else "Use a name that exists."
    yield keys, f"`{variable}['{key}']` does not exist: {there}", hint, is_warning


def _join_names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no names"


def _templates_in(value: Any, keys: _Keys) -> Iterator[tuple[str, _Keys]]:
    """Yield the templates of a field; components in it report their own."""
    if isinstance(value, str):
        if is_template(value):
            yield value, keys
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _templates_in(item, (*keys, number))
    elif isinstance(value, dict) and "type" not in value:
        for name, item in value.items():
            yield from _templates_in(item, (*keys, name))


def _find_lookups(text: str) -> Iterator[_Lookup]:
    """Yield the names that a template looks up in the configuration and in slices."""
    tree = parse_syntax(text)
    if tree is None:
        return
    own = {child.name for child in tree.find_all(nodes.Name) if child.ctx != "load"}
    variables = (_SLICES | {"config"}) - own
    tolerant = {
        id(inner)
        for child in tree.find_all((nodes.Test, nodes.Filter, nodes.Or, nodes.CondExpr, nodes.If))
        for inner in child.find_all((nodes.Getattr, nodes.Getitem))
    }
    for child in tree.find_all((nodes.Getattr, nodes.Getitem)):
        name, key = _lookup_parts(child)
        if name in variables and key is not None:
            yield _Lookup(name, key, id(child) not in tolerant)
    for call in tree.find_all(nodes.Call):
        name, method = _lookup_parts(call.node)
        first = call.args[0] if call.args else None
        if name in variables and method == "get" and isinstance(first, nodes.Const):
            yield _Lookup(name, str(first.value), is_needed=False)


def _lookup_parts(node: nodes.Node) -> tuple[str, str | None]:
    """Return the variable and the key of a lookup; the key is None unless constant."""
    if isinstance(node, nodes.Getattr | nodes.Getitem) and isinstance(node.node, nodes.Name):
        if isinstance(node, nodes.Getattr):
            return node.node.name, node.attr
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            return node.node.name, node.arg.value
    return "", None


def _slice_names(stream: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names in a stream's slices, or None if a class or a template determines them."""
    retriever = stream.get("retriever")
    if not isinstance(retriever, dict):
        return None
    cursor = stream.get("incremental_sync")
    found: set[str] = set()
    if isinstance(cursor, dict):
        if cursor.get("type") not in _CURSORS:
            return None
        for key, default in (
            ("partition_field_start", "start_time"),
            ("partition_field_end", "end_time"),
        ):
            found.add(str(cursor.get(key) or default))
        # The slices of a counting cursor have `start` and no end.
        found.add("start")
    routers = retriever.get("partition_router") or []
    for router in routers if isinstance(routers, list) else [routers]:
        names = _router_names(router)
        if names is None:
            return None
        found |= names
    return None if any(map(is_template, found)) else frozenset(found)


def _router_names(router: Any) -> set[str] | None:
    match router:
        case {"type": "ListPartitionRouter", "cursor_field": str(name)}:
            return {name}
        case {"type": "SubstreamPartitionRouter", "parent_stream_configs": list(parents)}:
            names = {
                parent.get("partition_field") for parent in parents if isinstance(parent, dict)
            }
            return {name for name in names if isinstance(name, str)}
        case {"type": "UnionPartitionRouter", "partition_field": str(name)}:
            return {name}
        case {"type": "GroupingPartitionRouter", "underlying_partition_router": inner}:
            return _router_names(inner)
    return None


# ------------------------------------------------------------------ fields of records


def _check_stream(stream: Mapping[str, Any], keys: _Keys) -> Iterator[_Found]:
    """Yield the problems that concern several parts of a stream."""
    cursor = stream.get("incremental_sync")
    fields = _schema_fields(stream)
    if isinstance(cursor, dict) and cursor.get("type") in _CURSORS:
        name = cursor.get("cursor_field")
        place = (*keys, "incremental_sync", "cursor_field")
        if isinstance(name, str) and not is_template(name):
            yield from _check_cursor_field(name, place, fields)
    yield from _check_dependencies(stream, keys)


def _check_cursor_field(name: str, place: _Keys, fields: set[str] | None) -> Iterator[_Found]:
    if fields is not None and name in fields:
        return
    if "." in name or "/" in name:
        yield (
            place,
            f"the cursor_field {name!r} is read as a single key, not as a path into an object",
            "Add the value to the records with an AddFields transformation, and use that field.",
            False,
        )
        return
    near = difflib.get_close_matches(name, fields or (), n=1, cutoff=_NEAR)
    if near:
        yield (
            place,
            f"the cursor_field {name!r} is not a field of the stream's schema",
            f"Did you mean {near[0]!r}?",
            True,
        )


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


def _check_dependencies(stream: Mapping[str, Any], keys: _Keys) -> Iterator[_Found]:
    """Yield incremental dependencies on parents that cannot be read incrementally."""
    retriever = stream.get("retriever")
    routers = retriever.get("partition_router") if isinstance(retriever, dict) else None
    for number, router in enumerate(routers if isinstance(routers, list) else [routers]):
        parents = router.get("parent_stream_configs") if isinstance(router, dict) else None
        within: _Keys = (*keys, "retriever", "partition_router")
        if isinstance(routers, list):
            within = (*within, number)
        for at, parent in enumerate(parents if isinstance(parents, list) else ()):
            if not isinstance(parent, dict) or not parent.get("incremental_dependency"):
                continue
            other = parent.get("stream")
            reason = None
            if not stream.get("incremental_sync"):
                reason = "the stream has no cursor"
            elif isinstance(other, dict) and "retriever" in other:
                reason = None if other.get("incremental_sync") else "the parent has no cursor"
            if reason is not None:
                yield (
                    (*within, "parent_stream_configs", at, "incremental_dependency"),
                    f"incremental_dependency has no effect: {reason}",
                    "Add an incremental_sync, or remove incremental_dependency.",
                    True,
                )
