"""Validation of names that templates look up: settings, parameters and names of slices.

Templates that read a missing value render an empty string. The stream would then request something
else, without an error. Names that only a custom class of the connector knows are not checked.

The module also defines which fields of components are templates, and which variables they have. The
variables are those of the reference (`interpolation_context` in its schema).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import nodes

from chronolake.source.declarative.manifests.stream_validation import (
    CURSORS,
    NEAR,
    REQUESTER,
    check_stream,
)
from chronolake.source.declarative.templating.templates import is_lookup, is_template, parse_syntax

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from chronolake.source.declarative.manifests.problems import Problem, Spot
    from chronolake.source.declarative.manifests.stream_validation import Found, Keys


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
#: Fields with numbers, optionally as templates.
NUMBERS: Final = frozenset(
    {
        ("ConstantBackoffStrategy", "backoff_time_in_seconds"),
        ("ExponentialBackoffStrategy", "factor"),
        ("WaitTimeFromHeader", "max_waiting_time_in_seconds"),
        ("WaitTimeFromResponse", "max_waiting_time_in_seconds"),
        ("WaitUntilTimeFromHeader", "max_waiting_time_in_seconds"),
        ("WaitUntilTimeFromHeader", "min_wait"),
    }
)
#: Fields with a condition, which is the same for all responses and records without a template.
CONDITIONS: Final = frozenset(
    {
        ("AddFields", "condition"),
        ("ComponentMappingDefinition", "condition"),
        ("ConditionalStreams", "condition"),
        ("ConfigAddFields", "condition"),
        ("ConfigRemoveFields", "condition"),
        ("CursorPagination", "stop_condition"),
        ("HttpResponseFilter", "predicate"),
        ("RecordFilter", "condition"),
        ("RemoveFields", "condition"),
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


_SLICES: Final = frozenset({"stream_slice", "stream_interval", "stream_partition"})
#: Attributes of a slice in addition to its names, and the methods of dictionaries.
_OF_SLICES: Final = frozenset({"parent_slice", "extra_fields", "partition", "cursor_slice"})
_METHODS: Final = frozenset(dir(dict))
#: Keys of the longest lookup that is checked: a name, and a name in its value.
_DEEPEST: Final = 2
#: Keys of a stream whose retrievers have other slices.
_OTHER_SLICES: Final = frozenset(
    {"schema_loader", "truncated_list_retriever", "property_list", "components_resolver"}
)
#: The name of the token in the variable `next_page_token`.
_NEXT: Final = "next_page_token"
#: Components where a missing value leaves a field of a record empty, and records are still read.
_OF_RECORDS: Final = frozenset({"AddedFieldDefinition", "AddFields", "RemoveFields", "KeysReplace"})
#: Parts of a request that are omitted if a setting is missing.
_OPTIONAL: Final = frozenset({"request_headers", "request_parameters", "request_body_json"})


#: The names in a variable, each with the names in its value; None where they are unknown.
Names = Mapping[str, "frozenset[str] | None"]


def known_settings(content: Mapping[str, Any]) -> Names | None:
    """Return the names that a configuration can have, or None if they are unknown.

    They are the names in the manifest's `spec`, names that its rules add, and the paths where
    refreshed tokens are stored.
    """
    spec = content.get("spec")
    asked = spec.get("connection_specification") if isinstance(spec, dict) else None
    if not isinstance(asked, dict) or not isinstance(asked.get("properties"), dict):
        return None
    found: dict[str, frozenset[str] | None] = {}
    for name, schema in _properties(asked):
        nested = frozenset(key for key, _ in _properties(schema))
        # A name of several alternatives has the names of all of them.
        known = found.get(name, frozenset())
        found[name] = nested | known if nested and known is not None else None
    left: list[Any] = [content]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            kind = node.get("type")
            if kind == "CustomConfigTransformation":
                return None
            for name, *inner in _created_settings(node):
                names = found.get(name)
                is_known = names is not None and inner and not is_template(inner[0])
                found[name] = names | {inner[0]} if names is not None and is_known else None
            left += [child for name, child in node.items() if name != "connection_specification"]
        elif isinstance(node, list):
            left += node
    return found


def _created_settings(node: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the paths of the settings that a component of a manifest creates itself."""
    for component in (
        [node, *(node.get("fields") or [])] if _creates_settings(node.get("type")) else ()
    ):
        path = (
            component.get("path") or component.get("field_path")
            if isinstance(component, dict)
            else None
        )
        if isinstance(path, list) and path:
            yield list(map(str, path))
    for name, value in node.items():
        if name.endswith("_config_path") and isinstance(value, list) and value:
            yield list(map(str, value))


def _creates_settings(kind: object) -> bool:
    return isinstance(kind, str) and kind in {"ConfigAddFields", "ConfigRemapField"}


def _properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's properties with their schemas, including all alternatives."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    yield from properties.items() if isinstance(properties, dict) else ()
    for several in ("oneOf", "anyOf", "allOf"):
        forms = schema.get(several)
        for form in forms if isinstance(forms, list) else ():
            yield from _properties(form)


class _Scope(NamedTuple):
    """The names that templates of a component can look up; None where they are unknown."""

    settings: Names | None
    slices: Names | None = None
    parameters: Names = MappingProxyType({})

    def names_in(self, variable: str) -> tuple[Names | None, str]:
        """Return the names in a variable, and where they are defined."""
        if variable == "config":
            return self.settings, "the `spec` has no such setting"
        if variable == "parameters":
            return self.parameters, "the component has no such `$parameters`"
        if variable == _NEXT:
            return {_NEXT: None}, f"it contains only `{_NEXT}`"
        slices = self.slices or {}
        return self.slices, f"the stream's slices contain {_join_names(slices.keys() - _OF_SLICES)}"


def problems_of_lookups(
    component: Any, spot: Spot, stream: str, settings: Names | None
) -> Iterator[Problem]:
    """Yield a problem for each name that a stream looks up and that the manifest does not define.

    `component` is the stream with inherited values filled in. `settings` are the names that a
    configuration can have, or None if they are unknown.
    """
    for keys, message, hint, is_warning in _check_node(component, (), None, _Scope(settings)):
        yield spot.within(component, keys).problem(message, stream, hint, is_warning=is_warning)


def _check_node(node: Any, keys: Keys, kind: str | None, scope: _Scope) -> Iterator[Found]:
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from _check_node(item, (*keys, number), kind, scope)
        return
    if not isinstance(node, dict):
        return
    reported = node.get("type")
    if isinstance(reported, str):
        kind = reported
        own = node.get("$parameters")
        scope = scope._replace(parameters=dict.fromkeys(own) if isinstance(own, dict) else {})
    if kind is not None and kind.startswith("Custom"):
        return
    if "retriever" in node:
        scope = scope._replace(slices=_slice_names(node))
        yield from check_stream(node, keys)
    for name, value in node.items():
        here = (*keys, name)
        if kind is not None and (kind, name) in VARIABLES:
            yield from _check_field(value, here, (kind, name), scope)
        if name == "$parameters":
            continue
        inner = scope._replace(slices=None) if name in _OTHER_SLICES else scope
        yield from _check_node(value, here, None, inner)


def _check_field(value: Any, keys: Keys, field: tuple[str, str], scope: _Scope) -> Iterator[Found]:
    kind, name = field
    for text, within in _templates_in(value, ()):
        for found in _find_lookups(text):
            is_setting = found.variable in {"config", "parameters"}
            may_lack = is_setting and name in _OPTIONAL and is_lookup(text)
            is_warning = kind in _OF_RECORDS or may_lack
            yield from _unknown_names((*keys, *within), found, scope, is_warning=is_warning)


class _Lookup(NamedTuple):
    """A name that a template looks up.

    Attributes:
        variable: `config`, `parameters`, `next_page_token`, or one of the names of a slice.
        path: the name in it, or the name and a name in its value.
        is_needed: whether the template requires the value.
    """

    variable: str
    path: tuple[str, ...]
    is_needed: bool


def _unknown_names(
    keys: Keys, lookup: _Lookup, scope: _Scope, *, is_warning: bool
) -> Iterator[Found]:
    names, there = scope.names_in(lookup.variable)
    *outer, key = lookup.path
    known: Collection[str] | None = names
    if outer and names is not None:
        # An unknown outer name is reported as such.
        known = names.get(outer[0])
        there = f"`{outer[0]}` contains {_join_names(known or ())}"
    if known is None or key in known or key in _METHODS:
        return
    near = difflib.get_close_matches(key, known, n=1, cutoff=NEAR)
    # A setting with a fallback in the template may be undocumented.
    if lookup.variable in {"config", "parameters"} and not lookup.is_needed and not near:
        return
    hint = f"Did you mean {near[0]!r}?" if near else "Use a name that exists."
    shown = "".join(f"[{name!r}]" for name in lookup.path)
    yield keys, f"`{lookup.variable}{shown}` does not exist: {there}", hint, is_warning


def _join_names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no names"


def _templates_in(value: Any, keys: Keys) -> Iterator[tuple[str, Keys]]:
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
    """Yield the names that a template looks up in its variables."""
    tree = parse_syntax(text)
    if tree is None:
        return
    own = {child.name for child in tree.find_all(nodes.Name) if child.ctx != "load"}
    variables = (_SLICES | {"config", "parameters", _NEXT}) - own
    tolerant = {
        id(inner)
        for child in tree.find_all((nodes.Test, nodes.Filter, nodes.Or, nodes.CondExpr, nodes.If))
        for inner in child.find_all((nodes.Getattr, nodes.Getitem))
    }
    for child in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Call)):
        name, *path = _lookup_path(child)
        if name in variables and 1 <= len(path) <= _DEEPEST:
            is_needed = not isinstance(child, nodes.Call) and id(child) not in tolerant
            yield _Lookup(name, tuple(path), is_needed)


def _lookup_path(node: nodes.Node) -> tuple[str, ...]:
    """Return the variable and the keys of a lookup; ("",) unless all of them are constant."""
    match node:
        case nodes.Name(name=str(name)):
            return (name,)
        case nodes.Getattr(node=inner, attr=key):
            pass
        case nodes.Getitem(node=inner, arg=nodes.Const(value=str(key))):
            pass
        case nodes.Call(
            node=nodes.Getattr(node=inner, attr="get"), args=[nodes.Const(value=key), *_]
        ):
            key = str(key)
        case _:
            return ("",)
    path = _lookup_path(inner)
    return (*path, key) if path[0] else ("",)


def _slice_names(stream: Mapping[str, Any]) -> Names | None:
    """Return the names in a stream's slices, or None if a class or a template determines them."""
    retriever = stream.get("retriever")
    if not isinstance(retriever, dict):
        return None
    cursor = stream.get("incremental_sync")
    found: set[str] = set()
    if isinstance(cursor, dict):
        if cursor.get("type") not in CURSORS:
            return None
        for key, default in (
            ("partition_field_start", "start_time"),
            ("partition_field_end", "end_time"),
        ):
            found.add(str(cursor.get(key) or default))
        # The slices of a counting cursor have `start` and no end.
        found.add("start")
    routers = retriever.get("partition_router") or []
    partition: set[str] = set()
    extra: set[str] | None = {"query_properties"}
    for router in routers if isinstance(routers, list) else [routers]:
        names = _router_names(router)
        if names is None:
            return None
        partition |= names
        more = _extra_fields(router)
        extra = None if extra is None or more is None else extra | more
    if any(map(is_template, found | partition)):
        return None
    return {
        **dict.fromkeys(_OF_SLICES),
        "partition": frozenset(partition | {"parent_slice"}),
        "extra_fields": None if extra is None else frozenset(extra),
        **dict.fromkeys(found | partition),
    }


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


def _extra_fields(router: Any) -> set[str] | None:
    """Return the extra fields of a router's partitions, or None if they are unknown."""
    match router:
        case {"type": "ListPartitionRouter"}:
            return set()
        case {"type": "SubstreamPartitionRouter", "parent_stream_configs": list(parents)}:
            fields = [
                ".".join(map(str, path)) if isinstance(path, list) else str(path)
                for parent in parents
                if isinstance(parent, dict)
                for path in parent.get("extra_fields") or ()
            ]
            return None if any(map(is_template, fields)) else set(fields)
        case {"type": "GroupingPartitionRouter", "underlying_partition_router": inner}:
            return _extra_fields(inner)
    return None
