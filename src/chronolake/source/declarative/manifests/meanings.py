"""What the texts of components mean: which are templates, and which variables those have.

The variables are those that the reference gives each place (`interpolation_context` of its schema).
"""

from __future__ import annotations

from typing import Final

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

#: Templates of requests: they also see what partitions carry with them.
REQUESTER: Final = "HttpRequester"

#: The variables of templates, by the component and the fields that they stand in.
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
        # Its wait_time_in_seconds may fail, as in the reference: others may know.
        ("WaitTimeFromResponse", "max_waiting_time_in_seconds", _CONFIG),
        (
            "WaitUntilTimeFromHeader",
            "header regex min_wait max_waiting_time_in_seconds",
            _CONFIG,
        ),
    )
    for field in fields.split()
}

#: Durations, maybe told by templates.
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
#: Formats by which times are read.
FORMATS: Final = frozenset(
    {
        ("DatetimeBasedCursor", "cursor_datetime_formats"),
        ("MinMaxDatetime", "datetime_format"),
        ("OAuthAuthenticator", "token_expiry_date_format"),
    }
)
#: Whole numbers, maybe told by templates.
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
#: Regular expressions, maybe told by templates.
PATTERNS: Final = frozenset(
    {
        ("HttpRequestRegexMatcher", "url_path_pattern"),
        ("WaitTimeFromHeader", "regex"),
        ("WaitUntilTimeFromHeader", "regex"),
    }
)
#: Paths of keys, each a segment of its own.
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
#: Statuses of answers.
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

#: What a component is that stands at a place and needs no `type` there.
UNTYPED: Final = {
    "FixedWindowCallRatePolicy.matchers": "HttpRequestRegexMatcher",
    "MovingWindowCallRatePolicy.matchers": "HttpRequestRegexMatcher",
    "MovingWindowCallRatePolicy.rates": "Rate",
    "TokenQuota.matchers": "HttpRequestRegexMatcher",
    "UnlimitedCallRatePolicy.matchers": "HttpRequestRegexMatcher",
    "ConfigAddFields.fields": "AddedFieldDefinition",
    "DynamicSchemaLoader.schema_type_identifier": "SchemaTypeIdentifier",
}
#: What is data, or a class's own business, and no component.
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
